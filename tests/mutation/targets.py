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
PROTOCOLS_MORE: Final[Mapping[str, tuple[str, ...]]] = {
    "alarms.py": ("test_alarms.py",),
    "anytime.py": ("test_anytime.py",),
    "checks/requirements.py": ("checks/test_requirements.py", "test_check_rules.py"),
    "breaks.py": ("test_gates_exact.py", "test_gates_replies.py", "test_next_step.py"),
    "companions.py": ("test_companions.py",),
    "endpoint_semantics.py": ("test_endpoint_semantics.py",),
    "gate_validity.py": ("test_validity.py",),
    "look_chances.py": ("test_look_chances.py", "test_looks.py"),
    "looks.py": ("test_looks.py", "test_gates_looks.py"),
    "loose_rates.py": ("test_loose_rates.py",),
    "next_step.py": ("test_next_step.py",),
    "origins.py": ("test_origins.py",),
    "simulate.py": ("test_simulate.py",),
    "smoke.py": ("test_smoke.py",),
    "smoke_reference.py": ("test_smoke.py",),
    "trend.py": ("test_trend.py",),
    "validity.py": ("test_validity.py",),
    "validity_semantics.py": ("test_validity.py",),
}
_AUDIT: Final = (
    "test_audit.py",
    "test_audit_bundle.py",
    "test_audit_chain.py",
    "test_audit_columns.py",
    "test_audit_files.py",
    "test_audit_forged.py",
    "test_audit_judgement.py",
    "test_audit_leftovers.py",
    "test_audit_levels.py",
    "test_audit_order.py",
    "test_audit_tables.py",
    "test_audit_tamper.py",
    "test_audit_telemetry.py",
    "test_bundle.py",
    "test_importing.py",
    "test_key_ring.py",
    "test_reviews.py",
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


def _named(folder: str, files: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {f"{folder}/{name}": tuple(f"tests/{folder}/{test}" for test in tests) for name, tests in files.items()}


PYTHON: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "protocols": _named("protocols", PROTOCOLS),
    "protocols-more": _named("protocols", PROTOCOLS_MORE),
    "audit": _named("recorder", AUDIT),
}
QSA: Final = ("tracker.cpp", "prefix.cpp", "scan.cpp", "masks.cpp", "tables.h")
"""Files of `engine/src/qsa` that are changed; the suites, the native test and the Python tests of the library judge."""
