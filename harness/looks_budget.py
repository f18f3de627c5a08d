"""Whether a further look fits into the time that the protocol leaves for it. The first look is always taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from protocols.schema import Limits


@dataclass(kw_only=True)
class LooksBudget:
    """The time since the campaign began, or was resumed, and the longest load since then. Time alone decides."""

    limits: Limits
    clock_s: Callable[[], float] = time.monotonic
    begun_s: float = field(init=False)
    longest_load_s: float = 0.0

    def __post_init__(self) -> None:
        self.begun_s = self.clock_s()

    def timed(self, run: Callable[[], str | None]) -> str | None:
        """Run one load, remember how long it took, and return what it returned."""
        started_s = self.clock_s()
        reason = run()
        self.longest_load_s = max(self.longest_load_s, self.clock_s() - started_s)
        return reason

    def refusal(self, loads: int) -> str | None:
        """Say why so many further loads would not end in time, or None."""
        minutes = self.limits.campaign_min
        if self.limits.looks_min is not None:
            minutes = min(minutes, self.limits.looks_min)
        left_s = 60 * minutes - (self.clock_s() - self.begun_s)
        if loads * self.longest_load_s <= left_s:
            return None
        return (
            f"the next look does not fit: {loads} loads of up to {self.longest_load_s:.1f} s, and "
            f"{max(left_s, 0):.0f} s of the {minutes} min for looks are left"
        )
