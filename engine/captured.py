"""A tensor of a graph that was captured while it was evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray


class Captured(NamedTuple):
    """A named internal tensor of the last decode; `values` is None where the size limit was reached."""

    name: str
    ubatch: int
    values: NDArray[Any] | None  # float32, int32 or int64, slowest dimension first
