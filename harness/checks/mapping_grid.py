"""Runs the suites of the arm's build, and both paths of its block selection over a grid, each in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.build import QSA_LIBRARY, QSA_SUITES
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.checks.mapping_grid import MappingGridCheck
from protocols.errors import EngineError

_FAILED_SUITES = 1
"""Exit code of the suites where a case failed: what the check came to see."""


def run_mapping_grid(context: CheckContext, check: MappingGridCheck) -> dict[str, JsonValue]:
    """Return the receipt of the suites, the hashes of every case, and the control."""
    limit_s = context.prepared.protocol.limits.request_s
    receipt = _json_of([str(context.program(QSA_SUITES)), *check.suites], limit_s, accepted=(0, _FAILED_SUITES))
    library: Path = context.program(QSA_LIBRARY)
    found = _json_of([sys.executable, "-P", "-m", "engine.qsa_grid", "--library", str(library)], limit_s)
    return {
        "suites": receipt["suites"],
        "path": receipt["path"],
        "faults": receipt["faults"],
        "cases": found["cases"],
        "control": found["control"],
    }


def _json_of(argv: Sequence[str], limit_s: float, *, accepted: Sequence[int] = (0,)) -> dict[str, Any]:
    """Run a program and read the line of JSON that it prints. EngineError where it fails or prints something else."""
    try:
        ended = subprocess.run(argv, capture_output=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"the program did not end: {error}", where=argv[0]) from error
    if ended.returncode not in accepted:
        words = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise EngineError(f"the program ended with {ended.returncode}: {' '.join(words)}", where=argv[0])
    try:
        value: dict[str, Any] = json.loads(ended.stdout)
    except ValueError as error:
        raise EngineError("the program printed no JSON", where=argv[0]) from error
    return value
