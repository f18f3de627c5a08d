"""What a name that somebody wrote leads to."""

from __future__ import annotations

import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether a file is there. A name that no file can have (too long, a NUL in it) leads to none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises OSError for a name that is too long
