"""Runs the suites of the arm's build, and both paths of its block selection over a grid, each in its own process."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from engine.build import QSA_LIBRARY, QSA_SUITES
from harness.checks.context import CheckContext
from harness.programs import ProgramEnd, run_program
from protocols.canonical import JsonValue, canonical_bytes
from protocols.checks.mapping_grid import MappingGridCheck, judge_mapping_grid
from protocols.errors import EngineError, EvidenceError
from protocols.measurements import CheckObservation

_FAILED_SUITES: Final = 1
"""Exit code of the suites where a case failed: what the check came to see."""
_MOST_BYTES: Final = 16 << 20


def run_mapping_grid(context: CheckContext, check: MappingGridCheck) -> dict[str, JsonValue]:
    """Return the receipt of the suites, the hashes of every case, and the control.

    Raises EngineError where a program of the build prints what nobody can judge.
    """
    limit_s = context.prepared.protocol.limits.request_s
    suites = context.program(QSA_SUITES)
    receipt, code = _json_of([str(suites), *check.suites], limit_s, accepted=(0, _FAILED_SUITES))
    library: Path = context.program(QSA_LIBRARY)
    found, _ = _json_of([sys.executable, "-P", "-m", "engine.qsa_grid", "--library", str(library)], limit_s)
    facts: dict[str, JsonValue] = {
        **{name: receipt.get(name) for name in ("suites", "path", "faults")},
        **{name: found.get(name) for name in ("cases", "control")},
    }
    observation = CheckObservation(check=check.id, arm=context.arm, state="COMPLETE", facts=facts)
    try:
        canonical_bytes(facts)
        outcome = judge_mapping_grid(check, observation)
    except (EvidenceError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise EngineError(f"the suites printed no receipt that can be judged: {error}", where=str(suites)) from error
    if code == _FAILED_SUITES and outcome.status == "PASS":
        raise EngineError(f"the suites ended with {code} and name no case that failed", where=str(suites))
    return facts


def _json_of(argv: Sequence[str], limit_s: float, *, accepted: Sequence[int] = (0,)) -> tuple[dict[str, Any], int]:
    """Run a program; return the object of JSON that it prints, and its exit code.

    EngineError where it fails, does not end, or prints something else.
    """
    with tempfile.TemporaryDirectory(prefix="assay-suites-") as place:
        ended = run_program(
            argv,
            environment=os.environ,
            cwd=None,
            limit_s=limit_s,
            most_bytes=_MOST_BYTES,
            place=Path(place),
            has_one_output=False,
        )
    if (problem := _problem(ended, limit_s, accepted)) is not None:
        raise EngineError(f"the program {problem}", where=argv[0])
    try:
        value = json.loads(ended.output)
    except (ValueError, RecursionError) as error:
        raise EngineError("the program printed no JSON", where=argv[0]) from error
    if not isinstance(value, dict):
        raise EngineError("the program printed no object of JSON", where=argv[0])
    return value, int(ended.code or 0)


def _problem(ended: ProgramEnd, limit_s: float, accepted: Sequence[int]) -> str | None:
    """Return how a program did not end as it should have."""
    if ended.is_too_long:
        return f"wrote more than {_MOST_BYTES} bytes"
    if ended.is_timed_out:
        return f"did not end within {limit_s:g} s"
    if ended.code is None:
        return f"was ended by signal {ended.signal}"
    if ended.code not in accepted:
        words = ended.error.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"ended with {ended.code}: {' '.join(words)}"
    return None
