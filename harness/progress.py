"""What a running campaign tells whoever waits for it, free of any terminal.

The runner calls these in order; `harness.console` shows them. Nothing here is evidence: rates shown while a load runs
are counted from the stream as it passes, and never recorded.
"""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    """Receives the course of a campaign."""

    def begin(self, *, campaign_id: str, n_positions: int, n_done: int) -> None:
        """Say that a campaign goes on, with n_done of its positions complete."""

    def position(self, *, number: int, label: str, arm: str) -> None:
        """Say that the load at the number-th position (from 1) starts."""

    def phase(self, text: str) -> None:
        """Say what the load does now."""

    def tick(self, *, event_count: int, seconds: float, machine: str) -> None:
        """Say how many stream events came in so many seconds, and the state of the machine; about once a second."""

    def load_done(self, *, state: str, reason: str | None) -> None:
        """Say how a load ended."""

    def say(self, text: str) -> None:
        """Say one line."""

    def warn(self, text: str) -> None:
        """Say one line that deserves attention."""

    def end(self) -> None:
        """Say that no more loads follow."""


class Clockwork:
    """The arithmetic of progress: position, elapsed time, and time left from the loads that ended."""

    def __init__(self) -> None:
        self.campaign_id = ""
        self.n_positions = 0
        self.number = 0
        self.label = ""
        self.arm = ""
        self._durations_s: list[float] = []
        self._started_s = 0.0

    def begin(self, campaign_id: str, n_positions: int) -> None:
        """Start to count."""
        self.campaign_id, self.n_positions = campaign_id, n_positions

    def position(self, number: int, label: str, arm: str) -> None:
        """Start a load's clock."""
        self.number, self.label, self.arm = number, label, arm
        self._started_s = time.monotonic()

    def load_done(self) -> float:
        """Stop the load's clock and return its seconds."""
        seconds = time.monotonic() - self._started_s
        self._durations_s.append(seconds)
        return seconds

    def left(self) -> str:
        """Return the time left in words; unknown before the first load ended."""
        if not self._durations_s:
            return "time left unknown"
        mean = sum(self._durations_s) / len(self._durations_s)
        rest = (self.n_positions - self.number + 1) * mean - (time.monotonic() - self._started_s)
        minutes, seconds = divmod(max(0, round(rest)), 60)
        return f"{minutes} min {seconds:02d} s left" if minutes else f"{seconds} s left"

    def head(self) -> str:
        """Return position, label and arm in words."""
        return f"[{self.number}/{self.n_positions}] {self.label} {self.arm}"
