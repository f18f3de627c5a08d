"""What a name that somebody wrote leads to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

MAX_GIVEN_BYTES: Final = 64 << 20
"""Most bytes of a file that somebody names: `/dev/zero` or a wrong file must not fill the memory."""


def is_file(path: Path) -> bool:
    """Return whether a file is there. A name that no file can have (too long, a NUL in it) leads to none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises OSError for a name that is too long


def read_given(path: Path) -> bytes:
    """Return the bytes of a file or pipe that somebody named. OSError where it cannot be read or is too long."""
    with path.open("rb") as file:
        data = file.read(MAX_GIVEN_BYTES + 1)
    if len(data) > MAX_GIVEN_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_GIVEN_BYTES} bytes")
    return data
