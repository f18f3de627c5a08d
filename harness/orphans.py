"""Ends what a program leaves behind when it ends: daemons and other children that moved out of its process group.

They would go on beside the loads that are measured next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SET_CHILD_SUBREAPER: Final = 36
_MOST_S: Final = 5.0
_GOING_S: Final = 1.0
_POLL_S: Final = 0.01


@contextmanager
def ending_children() -> Iterator[Callable[[], set[int]]]:
    """Let every descendant that outlives its parent become a child of this process, and end it after the block.

    Yields a function that returns those that live on, after a moment for those that are ending. Children that were
    there before are left alone. No other thread may start processes meanwhile.
    """
    before = _children()

    def left() -> set[int]:
        deadline_s = time.monotonic() + _GOING_S
        while (found := _children(with_ended=False) - before) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return found

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield left
    finally:
        # What is ended may leave children of its own, so until none is left.
        deadline_s = time.monotonic() + _MOST_S
        while (remaining := _children() - before) and time.monotonic() < deadline_s:
            for pid in remaining:
                _end(pid)
            time.sleep(_POLL_S)
        libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _children(*, with_ended: bool = True) -> set[int]:
    """Return the processes whose parent is this one, whichever thread started them; the ended ones wait for it."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and (with_ended or state != "Z"):
                found.add(int(folder.name))
    return found
