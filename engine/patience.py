"""How long an answer may take, counted only while this process ran.

A runner that was stopped (Ctrl-Z, a debugger, SIGSTOP) and goes on must not say that the engine was too slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

_SLICE_S: Final = 1.0
_MOST_OF_A_SLICE_S: Final = 5.0
"""What a wait of one slice may count for: a busy host wakes us late, one that stopped us wakes us much later."""


class Pollable(Protocol):
    """What `select.poll` gives."""

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Wait for so many ms. Returns what is ready."""
        ...


class Patience:
    """Seconds that are left to wait, over several waits. `now_s` is for tests."""

    def __init__(self, seconds: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.left_s = seconds
        self._now_s = now_s

    def wait(self, source: Pollable) -> bool:
        """Return whether the source is ready before the time is over; what is there already counts, however late."""
        while True:
            started_s = self._now_s()
            is_ready = bool(source.poll(max(0.0, min(self.left_s, _SLICE_S)) * 1000))
            self.left_s -= min(self._now_s() - started_s, _MOST_OF_A_SLICE_S)
            if is_ready or self.left_s <= 0:
                return is_ready
