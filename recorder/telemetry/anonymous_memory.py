"""Memory of a process that no file holds."""

from __future__ import annotations

from protocols.errors import HostError


def anonymous_bytes(pid: int) -> int:
    """Return anonymous memory and what of it is swapped out, in bytes. HostError where the process cannot be read.

    Pages of mapped files (a model) come and go with the host, so they do not count.
    """
    import psutil

    try:
        maps = psutil.Process(pid).memory_maps(grouped=False)
    except psutil.Error as error:
        raise HostError(f"the memory of process {pid} cannot be read: {error}") from None
    return sum(int(one.anonymous) + int(one.swap) for one in maps)
