"""Trains of values over time: interpolation, integrals and counter differences, all exact.

Times are integers (monotonic ns), values are integers in their field's unit, results are Fractions, so
that splitting an interval never changes a sum. A gap longer than ``max_gap_ns`` is not bridged: what lies
in it was not measured, and the covered time says so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from recorder.telemetry.sample import Sample


class Point(NamedTuple):
    """One value at one time."""

    t_ns: int
    raw: int


class Integral(NamedTuple):
    """Integral of value over time (unit times ns), and the time it covers (ns)."""

    total: Fraction
    covered_ns: Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterDelta:
    """How far a counter moved between two times.

    delta     None where the train does not reach over both ends or where the counter was reset between them
    bound     the true difference lies within ``delta`` plus or minus this: what the counter moved between
              the two readings around each end
    near_bound  the same, if the rate at an end never passed twice the highest mean rate of the intervals around it:
              the value there is then that close to the nearer reading
    coverage  share of the interval that lies between readings no further apart than the longest gap allowed
    wraps     how often the counter passed its modulus
    resets    how often it went down without one
    changes   how often a reading differed from the one before
    """

    delta: Fraction | None
    bound: Fraction | None
    near_bound: Fraction | None
    coverage: Fraction
    wraps: int = 0
    resets: int = 0
    changes: int = 0


def points_of(samples: Iterable[Sample], key: str) -> tuple[Point, ...]:
    """Return the train of one field: the readings that have a value, at the middle of their sample."""
    return tuple(
        Point(sample.t_mid_ns, reading.raw)
        for sample in samples
        for reading in sample.readings
        if reading.raw is not None and reading.field.key == key
    )


def value_at(points: Sequence[Point], t_ns: int) -> Fraction | None:
    """Interpolate linearly; None outside the train."""
    if not points or not points[0].t_ns <= t_ns <= points[-1].t_ns:
        return None
    right = bisect_left(points, t_ns, key=lambda point: point.t_ns)
    after = points[right]
    if after.t_ns == t_ns:
        return Fraction(after.raw)
    before = points[right - 1]
    share = Fraction(t_ns - before.t_ns, after.t_ns - before.t_ns)
    return before.raw + (after.raw - before.raw) * share


def integral(points: Sequence[Point], start_ns: int, end_ns: int, max_gap_ns: int) -> Integral:
    """Integrate by trapezoids over [start, end], with interpolated values at both ends."""
    parts, twice, covered = Fraction(0), 0, 0
    for before, after, left, right in _intervals(points, start_ns, end_ns, max_gap_ns):
        covered += right - left
        if (left, right) == (before.t_ns, after.t_ns):
            twice += (before.raw + after.raw) * (right - left)  # whole intervals stay integers: twenty times as fast
            continue
        slope = Fraction(after.raw - before.raw, after.t_ns - before.t_ns)
        middle = before.raw + slope * (Fraction(left + right, 2) - before.t_ns)
        parts += middle * (right - left)
    return Integral(parts + Fraction(twice, 2), Fraction(covered))


def sampling_bound(points: Sequence[Point], start_ns: int, end_ns: int, max_gap_ns: int) -> Fraction:
    """Return how far `integral` may be off where the value, between two points, only rises or only falls."""
    bound = Fraction(0)
    for before, after, left, right in _intervals(points, start_ns, end_ns, max_gap_ns):
        # A whole interval errs by half its step at most, a part of one by all of it.
        is_whole = (left, right) == (before.t_ns, after.t_ns)
        bound += abs(after.raw - before.raw) * Fraction(right - left, 2 if is_whole else 1)
    return bound


def _intervals(
    points: Sequence[Point], start_ns: int, end_ns: int, max_gap_ns: int
) -> Iterator[tuple[Point, Point, int, int]]:
    """Yield the points around each interval that is no gap, and the part of it that lies in [start, end]."""
    first = max(bisect_right(points, start_ns, key=lambda point: point.t_ns) - 1, 0)
    for before, after in pairwise(points[first:]):
        if before.t_ns >= end_ns:
            break
        left, right = max(before.t_ns, start_ns), min(after.t_ns, end_ns)
        if right > left and after.t_ns - before.t_ns <= max_gap_ns:
            yield before, after, left, right


def unwrapped(points: Sequence[Point], modulus: int | None) -> tuple[tuple[Point, ...], int, int]:
    """Return the train without wraps, the number of wraps, and the number of resets (drops without modulus)."""
    lifted: list[Point] = []
    offset = wraps = resets = 0
    for index, point in enumerate(points):
        if index and point.raw < points[index - 1].raw:
            if modulus is None:
                resets += 1
            else:
                offset += modulus
                wraps += 1
        lifted.append(Point(point.t_ns, point.raw + offset))
    return tuple(lifted), wraps, resets


def counter_delta(
    points: Sequence[Point], start_ns: int, end_ns: int, *, max_gap_ns: int, modulus: int | None = None
) -> CounterDelta:
    """Return how far a counter moved in [start, end], interpolated at both ends."""
    first = max(bisect_right(points, start_ns, key=lambda point: point.t_ns) - 1, 0)
    last = bisect_left(points, end_ns, key=lambda point: point.t_ns)
    window, wraps, resets = unwrapped(points[first : last + 1], modulus)
    changes = sum(before.raw != after.raw for before, after in pairwise(window))
    covered = integral(window, start_ns, end_ns, max_gap_ns).covered_ns
    coverage = covered / (end_ns - start_ns) if end_ns > start_ns else Fraction(0)
    at_start, at_end = value_at(window, start_ns), value_at(window, end_ns)
    delta = bound = near = None
    if at_start is not None and at_end is not None and not resets:
        delta = at_end - at_start
        bound = Fraction(_step_around(window, start_ns) + _step_around(window, end_ns))
        near = _near(window, start_ns) + _near(window, end_ns)
    return CounterDelta(
        delta=delta, bound=bound, near_bound=near, coverage=coverage, wraps=wraps, resets=resets, changes=changes
    )


def _step_around(points: Sequence[Point], t_ns: int) -> int:
    """Return what the counter moved between the readings around a time; 0 for a reading at that time."""
    right = bisect_left(points, t_ns, key=lambda point: point.t_ns)
    if points[right].t_ns == t_ns:
        return 0
    return points[right].raw - points[right - 1].raw


def _near(points: Sequence[Point], t_ns: int) -> Fraction:
    """Return how far the value at a time is from its interpolation, by the rates around it; 0 at a reading."""
    right = bisect_left(points, t_ns, key=lambda point: point.t_ns)
    before, after = points[right - 1], points[right]
    if after.t_ns == t_ns:
        return Fraction(0)
    near = points[max(right - 2, 0) : right + 2]
    rate = max(Fraction(b.raw - a.raw, b.t_ns - a.t_ns) for a, b in pairwise(near) if b.t_ns > a.t_ns)
    distance_ns = min(t_ns - before.t_ns, after.t_ns - t_ns)
    return min(Fraction(after.raw - before.raw), 2 * rate * distance_ns)
