"""The source tree of an engine: where the bundled one lies, and the hash of every file that goes into a build."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from protocols.errors import EngineError

_SOURCES: Final = ("CMakeLists.txt", "cmake/**/*", "include/**/*", "src/**/*")


def source_folder() -> Path:
    """Return the bundled source tree: the folder of this package, in a wheel and in a checkout."""
    return Path(__file__).absolute().parent


def hash_sources(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that goes into a build, by name relative to `folder`.

    Raises EngineError when `folder` is no engine source tree.
    """
    if not (folder / "CMakeLists.txt").is_file():
        raise EngineError("this folder holds no engine source (no CMakeLists.txt)", where=str(folder))
    files = {path for pattern in _SOURCES for path in folder.glob(pattern) if path.is_file()}
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)
    }
