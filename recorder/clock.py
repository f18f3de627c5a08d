"""The two clocks of the recorder, behind one small protocol so that tests can turn them.

Monotonic times order what happened on one host and never step back. UTC times say when that was, and may
step: nothing is ever measured with them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

_NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Where the recorder takes its times from. Both results are nanoseconds."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds of ``CLOCK_MONOTONIC``."""
        ...

    def utc_ns(self) -> int:
        """Return nanoseconds since 1970-01-01T00:00:00Z by the host's wall clock."""
        ...


class SystemClock:
    """The clocks of this host."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds of ``CLOCK_MONOTONIC``."""
        return time.monotonic_ns()

    def utc_ns(self) -> int:
        """Return nanoseconds since 1970-01-01T00:00:00Z by the host's wall clock."""
        return time.time_ns()


def compact_utc(utc_ns: int) -> str:
    """Return ``20261129T152253Z``, a UTC time that may stand in a file name, to the second."""
    return datetime.fromtimestamp(utc_ns // _NS_PER_S, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
