"""A store as a tree of files: read, put back, and what one change of it is."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Container
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

Files = dict[str, bytes]


class Change(NamedTuple):
    """One fault. ``words`` are texts of which one must stand in the place or message of a finding.

    ``is_forged`` says that the forger also makes the database anew: see `rebuild`.
    """

    kind: str
    words: tuple[str, ...]
    apply: Callable[[Path], object]
    is_forged: bool = False


def read_tree(root: Path) -> Files:
    """Return every file of a store by name."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


class Stamp(NamedTuple):
    """What changes with every change of a file: whoever writes to it, or puts another one in its place, changes these."""

    inode: int
    size: int
    changed_ns: int


Stamps = dict[str, Stamp]
_TICK_NS: Final = 100_000_000
"""Two writes within a tick of the file system's clock may leave one stamp: younger stamps are not trusted."""


def restore(root: Path, pristine: Files, stamps: Stamps | None = None) -> None:
    """Undo whatever was done to a copy. A file whose stamp is still the one that was taken here is not read again."""
    known = {} if stamps is None else stamps
    folders = {str(parent) for name in pristine for parent in PurePosixPath(name).parents}
    _remove_strange(root, "", pristine, folders)
    for name, data in pristine.items():
        path = root / name
        if (stamp := _stamp(path)) is not None and known.get(name) == stamp:
            continue
        if stamp is None or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(data)
        if (stamp := _stamp(path)) is not None and time.time_ns() - stamp.changed_ns > _TICK_NS:
            known[name] = stamp


def _remove_strange(folder: Path, prefix: str, pristine: Files, folders: Container[str]) -> None:
    """Remove what is no file or folder of the pristine copy, or stands where one of the other kind belongs."""
    with os.scandir(folder) as found:
        entries = [*found]
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if name in folders:
                _remove_strange(Path(entry.path), f"{name}/", pristine, folders)
            else:
                shutil.rmtree(entry.path)
        elif name not in pristine or not entry.is_file(follow_symlinks=False):
            Path(entry.path).unlink()


def _stamp(path: Path) -> Stamp | None:
    """Return the stamp of a plain file; None where there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return Stamp(found.st_ino, found.st_size, found.st_ctime_ns) if stat.S_ISREG(found.st_mode) else None


def dump(database: bytes, folder: Path) -> str:
    """Return everything that a database file says, as text; the error where it cannot be read."""
    path = folder / "dump.sqlite"
    path.write_bytes(database)
    connection = sqlite3.connect(path)
    try:
        pragmas = [connection.execute(f"PRAGMA {name}").fetchall() for name in ("application_id", "user_version")]
        return repr(pragmas) + "\n".join(connection.iterdump())
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
