"""The lock of a store: one writer, named in the file, and a mark that says whether it closed in order.

The flock goes with the process, however it ends. The text stays after a crash: an empty file means that the last
writer closed the store, any text that it did not, so that the next one looks for what was left unfinished.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Final

from protocols.errors import HostError
from recorder.clock import Clock
from recorder.files import Files, host_errors

_TRIES: Final = 20
_WAIT_S: Final = 0.05  # an audit holds the lock for an instant to see whether it is free


class StoreLock:
    """An acquired lock. ``was_left_open`` says that the writer before did not close the store in order."""

    def __init__(self, path: Path, *, files: Files, clock: Clock) -> None:
        """Take the lock. Raises `HostError` that names the holder if another process has it."""
        self.path: Final = path
        self._files: Final = files
        with host_errors("open the lock of the store", path):
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _try(self._descriptor):
            holder = read_holder(path)
            os.close(self._descriptor)
            raise HostError(
                f"another recorder holds this store ({holder or 'no name given'})",
                where=str(path),
                hint="wait until it ends; one store takes one campaign at a time",
            )
        self.was_left_open = path.stat().st_size > 0
        name = json.dumps({"pid": os.getpid(), "since_utc_ns": str(clock.utc_ns())})
        try:
            with host_errors("write the lock of the store", path):
                os.ftruncate(self._descriptor, 0)
                files.write(self._descriptor, name.encode())
                files.fsync(self._descriptor)
        except BaseException:
            self.release(is_clean=not self.was_left_open)
            raise

    def release(self, *, is_clean: bool) -> None:
        """Give the lock back. ``is_clean`` says that nothing was left unfinished."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            if is_clean:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)


def _try(descriptor: int) -> bool:
    for number in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if number + 1 < _TRIES:
                time.sleep(_WAIT_S)
        else:
            return True
    return False


def read_holder(path: Path) -> str:
    """Return the text of a lock file; empty if there is none, or if the store was closed in order."""
    if not path.is_file():  # a folder or a pipe in its place is for the audit to find
        return ""
    return path.read_text("utf-8", "replace").strip()


def is_held(path: Path) -> bool:
    """Whether a writer has the store open now. Changes nothing on the disk."""
    if not path.is_file():
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
