"""What is changed, and the tests that should notice: those of the module, and of what it is made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_GATES: Final = ("test_gates.py", "test_gates_looks.py")
PROTOCOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "stats.py": ("test_stats.py", "test_decision.py", "test_calibration.py"),
    "decision.py": ("test_decision.py",),
    "screens.py": ("test_screens.py",),
    "comparators.py": ("test_comparators.py",),
    "check_rules.py": ("test_check_rules.py", "test_check_semantics.py", "checks/test_process_kinds.py"),
    "gates.py": _GATES,
    "gates_exact.py": ("test_gates_exact.py", *_GATES),
    "gates_speed.py": ("test_gates_speed.py", *_GATES),
    "gates_screen.py": ("test_gates_speed.py", *_GATES),
    "gates_check.py": ("test_gates_check.py",),
    "gates_replies.py": ("test_gates_replies.py",),
    "verdicts.py": ("test_verdicts.py",),
}
_AUDIT: Final = (
    "test_audit.py",
    "test_audit_files.py",
    "test_audit_forged.py",
    "test_audit_levels.py",
    "test_audit_telemetry.py",
    "test_audit_columns.py",
    "test_audit_tamper.py",
)
AUDIT: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
    (
        "audit.py",
        "audit_bundle.py",
        "audit_chain.py",
        "audit_columns.py",
        "audit_context.py",
        "audit_files.py",
        "audit_judgement.py",
        "audit_tables.py",
        "audit_telemetry.py",
    ),
    _AUDIT,
)
PYTHON: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "protocols": {
        f"protocols/{name}": tuple(f"tests/protocols/{test}" for test in tests) for name, tests in PROTOCOLS.items()
    },
    "audit": {f"recorder/{name}": tuple(f"tests/recorder/{test}" for test in tests) for name, tests in AUDIT.items()},
}
QSA: Final = ("tracker.cpp", "prefix.cpp", "scan.cpp", "masks.cpp", "tables.h")
"""Files of `engine/src/qsa` that are changed; the suites, the native test and the Python tests of the library judge."""
