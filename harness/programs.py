"""Runs a program of others to its end: with a limit of time and of output, and with nothing left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from engine.process import EngineProcess
from harness.orphans import ending_children

_POLL_S: Final = 0.02
_ERROR_BYTES: Final = 4096


class ProgramEnd(NamedTuple):
    """How a program ended. `error` is the end of its standard error, empty where that went into `output`."""

    code: int | None
    signal: int | None
    is_timed_out: bool
    is_too_long: bool
    output: bytes
    error: bytes


def run_program(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None,
    limit_s: float,
    most_bytes: int,
    place: Path,
    has_one_output: bool = True,
) -> ProgramEnd:
    """Run a program; end it, and all that it started, at its limit of time or where it wrote more than `most_bytes`.

    `place` is a folder for its output. With `has_one_output` both streams go there as they come, else standard output
    alone. Raises EngineError where it cannot be started.
    """
    log = place / "output"
    error_log = log if has_one_output else place / "error"
    started_s = time.monotonic()
    with (
        log.open("xb+") as written,  # held open: the program may remove the name
        error_log.open("ab+") as complaints,
        ending_children(),
        EngineProcess.start(argv, env=environment, stdout_log=log, stderr_log=error_log, cwd=cwd) as process,
    ):
        files = (written, complaints)
        deadline_s = started_s + limit_s
        is_timed_out = is_too_long = False
        while process.is_alive and not is_timed_out and not is_too_long:
            time.sleep(_POLL_S)
            is_timed_out = time.monotonic() >= deadline_s
            is_too_long = any(os.fstat(one.fileno()).st_size > most_bytes for one in files)
        ended = process.stop(0)
        is_too_long = is_too_long or any(os.fstat(one.fileno()).st_size > most_bytes for one in files)
        output = written.read(most_bytes)
        error = b""
        if not has_one_output:
            complaints.seek(max(0, os.fstat(complaints.fileno()).st_size - _ERROR_BYTES))
            error = complaints.read(_ERROR_BYTES)
    return ProgramEnd(ended.code, ended.signal, is_timed_out and ended.was_forced, is_too_long, output, error)
