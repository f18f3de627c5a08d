"""Memory that one process alone has and that no file holds."""

from __future__ import annotations

import psutil

from protocols.errors import HostError


def dirty_bytes(pid: int) -> int:
    """Return private dirty pages and those swapped out, in bytes. HostError where the process cannot be read.

    Clean pages of mapped files (a model) come and go with the host, so they do not count.
    """
    try:
        maps = psutil.Process(pid).memory_maps(grouped=False)
    except psutil.Error as error:
        raise HostError(f"the memory of process {pid} cannot be read: {error}") from None
    return sum(int(one.private_dirty) + int(one.swap) for one in maps)
