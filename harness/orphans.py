"""Ends what a program leaves behind when it ends: daemons and other children that moved out of its process group.

They would go on beside the loads that are measured next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SET_CHILD_SUBREAPER: Final = 36
_MOST_S: Final = 5.0
_POLL_S: Final = 0.01


@contextmanager
def ending_children() -> Iterator[None]:
    """Let every descendant that outlives its parent become a child of this process, and end it after the block.

    Children that were there before are left alone. No other thread may start processes meanwhile.
    """
    before = _children()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        # What is ended may leave children of its own, so until none is left.
        deadline_s = time.monotonic() + _MOST_S
        while (left := _children() - before) and time.monotonic() < deadline_s:
            for pid in left:
                _end(pid)
            time.sleep(_POLL_S)
        libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    """Return the processes whose parent is this one, whichever thread started them."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(folder.name))
    return found
