"""The cache folder, where builds and models are kept, and the locks in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Log = Callable[[str], None]
"""Takes one line of progress."""


def cache_folder() -> Path:
    """Return where builds and models are kept: ASSAY_CACHE, else `assay` in the user's cache folder (XDG)."""
    named = os.environ.get("ASSAY_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "assay"


@contextmanager
def held(path: Path, log: Log, waiting_for: str) -> Iterator[None]:
    """Hold the lock file `path`; a process that is killed lets go of it by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for {waiting_for}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
