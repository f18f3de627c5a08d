"""Every file that a process uses, whatever for: mapped, held open, run, or its working folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_DELETED = " (deleted)"


def held_paths(pid: int) -> frozenset[str]:
    """Return the absolute paths that process `pid` maps in any way, holds open, runs, or stands in.

    A file that was read and closed before is not among them. Empty for a process that is gone or may not be inspected.
    """
    folder, found = Path(f"/proc/{pid}"), set()
    with suppress(OSError):
        for line in (folder / "maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            found.add(line.split(maxsplit=5)[-1])
    links = [folder / "exe", folder / "cwd"]
    with suppress(OSError):
        links += (folder / "fd").iterdir()
    for link in links:
        with suppress(OSError):
            found.add(str(link.readlink()))
    return frozenset(path.removesuffix(_DELETED) for path in found if path.startswith(os.sep))
