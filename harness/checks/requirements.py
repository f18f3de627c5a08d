"""Runs a project's requirements, one after the other: each a program in the protocol's folder, ended at its limit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.cache import cache_folder
from harness.checks.context import CheckContext
from harness.host_guard import GUARD_VARIABLE
from harness.programs import run_program
from harness.requirement_files import Commands
from protocols.canonical import JsonValue
from protocols.checks.requirements import ASSAY, MAX_OUTPUT_BYTES, Requirement, RequirementsCheck
from protocols.lock import FileIdentity

_PACKAGES: Final = Path(__file__).parents[2]
"""Folder that this Assay is imported from."""


def run_requirements(context: CheckContext, check: RequirementsCheck) -> dict[str, JsonValue]:
    """Return how each program ended; leave its output, standard output and error as they came."""
    prepared = context.prepared
    arm = prepared.arms[context.arm]
    commands = Commands(base=prepared.base, resolved=arm.resolved, build=arm.build, model_path=prepared.model_path)
    locked = {
        one.requirement: one.files
        for one in prepared.lock.requirements
        if (one.check, one.arm) == (check.id, context.arm)
    }
    rows: list[JsonValue] = []
    for one in check.requirements:
        row, output = _run(commands, one, locked[one.id])
        context.outputs[one.id] = output
        rows.append({"id": one.id, **row})
    return {"requirements": rows}


def _run(
    commands: Commands, requirement: Requirement, locked: Sequence[FileIdentity]
) -> tuple[dict[str, JsonValue], bytes]:
    now = commands.identities(requirement)
    # Before what this host lacks: a file that was locked was here, and its loss is no excuse.
    if gone := sorted({file.name for file in locked} - {file.name for file in now}):
        return {"gone": [*gone], **_ended()}, b""
    if (unmet := commands.unmet(requirement)) is not None:
        return {"unmet": unmet}, b""
    if changed := sorted({file.name for file in (*now, *locked) if file not in now or file not in locked}):
        return {"changed": [*changed], **_ended()}, b""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-requirement-") as folder:
        own = _own_environment(Path(folder)) if requirement.run[0] == ASSAY else {}
        ended = run_program(
            commands.argv(requirement),
            environment=commands.environment | own,
            cwd=commands.base,
            limit_s=requirement.limit_s,
            most_bytes=MAX_OUTPUT_BYTES,
            place=Path(folder),
        )
    spent_ms = round((time.monotonic() - started_s) * 1000)
    row = _ended(
        exit_code=ended.code,
        signal=ended.signal,
        is_timed_out=ended.is_timed_out,
        is_too_long=ended.is_too_long,
    )
    return row | {"spent_ms": spent_ms, "output_bytes": len(ended.output)}, ended.output


def _own_environment(folder: Path) -> dict[str, str]:
    """Return what this Assay needs as a program: its packages, its cache, and a guard of its own.

    The campaign holds the host already, so that `assay smoke` within it would wait for itself.
    """
    return {
        "PYTHONPATH": str(_PACKAGES),
        "ASSAY_CACHE": str(cache_folder()),
        GUARD_VARIABLE: str(folder / "host.guard"),
    }


def _ended(
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    is_timed_out: bool = False,
    is_too_long: bool = False,
) -> dict[str, JsonValue]:
    return {"exit_code": exit_code, "signal": signal, "is_timed_out": is_timed_out, "is_too_long": is_too_long}
