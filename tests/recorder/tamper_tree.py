"""A store as a tree of files: read, put back, and what one change of it is."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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


def restore(root: Path, pristine: Files) -> None:
    """Undo whatever was done to a copy."""
    for path in sorted(root.rglob("*"), reverse=True):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or (name not in pristine and not path.is_dir()):
            path.unlink()
        elif path.is_dir() and (name in pristine or not any(other.startswith(f"{name}/") for other in pristine)):
            shutil.rmtree(path)
    for name, data in pristine.items():
        path = root / name
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(data)


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
