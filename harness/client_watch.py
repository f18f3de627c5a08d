"""How far the client itself can be trusted while a load runs: its own error bar, recorded with the load.

Three questions, answered while the requests of one load are sent:

1. Was the client there when bytes came? A timer of its event loop that should fire each 10 ms fires late by the *lag*.
   A read that comes meanwhile is stamped late by up to that much, so the lag bounds the error of a single stamp.
2. Is the clock sound? The smallest step that the monotonic clock shows, and how far the wall clock went away from it
   (a step, or slewing, of the host's time; no measured time uses the wall clock).
3. Was the client itself the bottleneck? Its CPU time by the time that passed; near 1000 permille of one core it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final

EVENT: Final = "client.watched"
"""The event of a load that holds the numbers."""
PERIOD_S: Final = 0.01
_PROBES: Final = 200


class ClientWatch:
    """Watches one event loop from `start` to `stop`."""

    def __init__(self) -> None:
        self.lags_ns: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._started_ns = self._offset_ns = self._cpu_ns = 0

    def start(self) -> None:
        """Begin, inside the running loop."""
        self._started_ns, self._offset_ns, self._cpu_ns = time.monotonic_ns(), clock_offset_ns(), time.process_time_ns()
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            due_ns = time.monotonic_ns() + int(PERIOD_S * 1e9)
            await asyncio.sleep(PERIOD_S)
            self.lags_ns.append(max(0, time.monotonic_ns() - due_ns))

    def stop(self) -> dict[str, int | None]:
        """End, and return the numbers: microseconds and nanoseconds as named, None where nothing was seen."""
        if self._task is not None:
            self._task.cancel()
        watched_ns = time.monotonic_ns() - self._started_ns
        cpu_ns = time.process_time_ns() - self._cpu_ns
        lags = sorted(self.lags_ns)
        return {
            "watched_ns": watched_ns,
            "lag_count": len(lags),
            "lag_median_us": rank_us(lags, 0.5),
            "lag_p99_us": rank_us(lags, 0.99),
            "lag_max_us": rank_us(lags, 1),
            "clock_step_ns": smallest_step_ns(),
            "wall_clock_moved_us": (clock_offset_ns() - self._offset_ns) // 1000,
            "cpu_permille": round(1000 * cpu_ns / watched_ns) if watched_ns else None,
        }


def rank_us(sorted_ns: list[int], share: float) -> int | None:
    """Return the value that this share of the values does not exceed, in whole microseconds, rounded up."""
    if not sorted_ns:
        return None
    place = max(0, min(len(sorted_ns) - 1, round(share * len(sorted_ns)) - 1))
    return -(-sorted_ns[place] // 1000)


def clock_offset_ns() -> int:
    """Return wall clock minus monotonic clock: the wall clock is read between two looks at the other, closest pair."""
    found = []
    for _ in range(9):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]


def smallest_step_ns() -> int | None:
    """Return the smallest difference of two looks at the monotonic clock that is not 0; None if it stands still."""
    looks = [time.monotonic_ns() for _ in range(_PROBES)]
    steps = [after - before for before, after in pairwise(looks) if after != before]
    return min(steps) if steps else None


@asynccontextmanager
async def watched(note: Callable[[str, dict[str, int | None]], None]) -> AsyncIterator[None]:
    """Watch the client for the time of the block, and note the numbers at its end, however it ends."""
    watch = ClientWatch()
    watch.start()
    try:
        yield
    finally:
        note(EVENT, watch.stop())
