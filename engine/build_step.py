"""Runs one step of a build: its output goes to the log, and how far it is is told now and then."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from engine.build_log import steps_done

TELL_EVERY_S: Final = 20.0
"""A person who sees nothing for longer believes that nothing happens."""


def run_step(
    argv: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str],
    limit_s: float,
    tell: Callable[[str], None],
    every_s: float = TELL_EVERY_S,
) -> int:
    """Run a command, append its output to a log, and return its exit code; TimeoutError after `limit_s`.

    `tell` gets a line such as `12 of 94 files after 40 s` every `every_s` seconds, as soon as the log has counts.
    """
    with log.open("ab") as file:
        file.write(f"$ {' '.join(argv)}\n".encode())
        file.flush()
        begun_at, begun = file.tell(), time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(environment)
        )
        try:
            while (left_s := limit_s - (time.monotonic() - begun)) > 0:
                try:
                    return process.wait(timeout=min(every_s, left_s))
                except subprocess.TimeoutExpired:
                    done = steps_done(log.read_bytes()[begun_at:].decode("utf-8", "replace"))
                    if done is not None:
                        tell(f"{done[0]} of {done[1]} files after {time.monotonic() - begun:.0f} s")
        finally:
            process.kill()
            process.wait()
    raise TimeoutError
