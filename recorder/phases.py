"""What a sensor says about one phase of a request.

Phases are marked with the client's stamps: prefill is [sent, first token event], generation is [first,
last token event]. A mean is taken over the interior only: both margins are as long as the longest of
sampling period, sensor window and sensor filter, because values nearer to an edge still hold the other
side. Under ``MINIMUM_SAMPLES`` samples in the interior there is no mean but INSUFFICIENT; n and coverage
stand beside every mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Final, Literal

from recorder.derive import DerivedRequest
from recorder.trains import Point, integral

PhaseName = Literal["prefill", "generation"]
MeanStatus = Literal["OK", "INSUFFICIENT", "ABSENT"]

MINIMUM_SAMPLES: Final = 8
GAP_PERIODS: Final = 3
"""A gap of more periods than this is not bridged."""

_NS_PER_MINUTE: Final = 60_000_000_000
_QUARTERS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One phase of one request, on the monotonic clock."""

    name: PhaseName
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Length of the phase."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseMean:
    """A sensor over the interior of a phase. Values are in the field's unit; None unless status is OK.

    n              samples in the interior
    coverage       covered time of the interior, by the whole phase's length
    max_gap_ns     longest time in the interior without a sample, edges included; None without a sample
    mean           time-weighted: trapezoids by covered time, not the mean of the ticks
    quarters       the same for each quarter of the interior; None for a quarter covered less than half
    p05, p50, p95  nearest rank over the samples
    slope          least squares, unit per minute
    changes        how often a sample differed from the one before
    longest_equal  longest row of equal samples: a plateau may be a stale sensor
    """

    phase: PhaseName
    status: MeanStatus
    n: int
    coverage: Fraction
    max_gap_ns: int | None
    margin_ns: int
    mean: Fraction | None = None
    quarters: tuple[Fraction | None, ...] = ()
    minimum: int | None = None
    p05: int | None = None
    p50: int | None = None
    p95: int | None = None
    maximum: int | None = None
    slope: Fraction | None = None
    changes: int = 0
    longest_equal: int = 0


def phases_of(request: DerivedRequest) -> tuple[Phase, ...]:
    """Return the phases that this request's stamps mark; none for a request without token events."""
    sent, first, last = request.sent_ns, request.first_token_ns, request.last_token_ns
    phases = []
    if sent is not None and first is not None and first > sent:
        phases.append(Phase(name="prefill", start_ns=sent, end_ns=first))
    if first is not None and last is not None and last > first:
        phases.append(Phase(name="generation", start_ns=first, end_ns=last))
    return tuple(phases)


def margin_of(period_ns: int, window_us: int | None = None, filter_us: int | None = None) -> int:
    """Return the margin in ns: the longest of period, sensor window and filter time."""
    return max(period_ns, (window_us or 0) * 1000, (filter_us or 0) * 1000)


def phase_mean(points: Sequence[Point], phase: Phase, *, period_ns: int, margin_ns: int) -> PhaseMean:
    """Describe a gauge over the interior of a phase."""
    start_ns, end_ns = phase.start_ns + margin_ns, phase.end_ns - margin_ns
    inside = [point for point in points if start_ns <= point.t_ns <= end_ns]
    n = len(inside)
    if not points or end_ns <= start_ns or n == 0:
        status: MeanStatus = "INSUFFICIENT" if points else "ABSENT"
        return PhaseMean(
            phase=phase.name, status=status, n=n, coverage=Fraction(0), max_gap_ns=None, margin_ns=margin_ns
        )
    max_gap = GAP_PERIODS * period_ns
    whole = integral(inside, start_ns, end_ns, max_gap)
    coverage = whole.covered_ns / phase.length_ns
    times = [start_ns, *(point.t_ns for point in inside), end_ns]
    longest_gap = max(after - before for before, after in pairwise(times))
    if n < MINIMUM_SAMPLES or whole.covered_ns == 0:
        return PhaseMean(
            phase=phase.name,
            status="INSUFFICIENT",
            n=n,
            coverage=coverage,
            max_gap_ns=longest_gap,
            margin_ns=margin_ns,
        )
    values = sorted(point.raw for point in inside)
    return PhaseMean(
        phase=phase.name,
        status="OK",
        n=n,
        coverage=coverage,
        max_gap_ns=longest_gap,
        margin_ns=margin_ns,
        mean=whole.total / whole.covered_ns,
        quarters=_quarters(inside, start_ns, end_ns, max_gap),
        minimum=values[0],
        p05=_nearest_rank(values, 5),
        p50=_nearest_rank(values, 50),
        p95=_nearest_rank(values, 95),
        maximum=values[-1],
        slope=_slope(inside),
        changes=sum(before.raw != after.raw for before, after in pairwise(inside)),
        longest_equal=max(len(list(row)) for _, row in groupby(point.raw for point in inside)),
    )


def _quarters(points: Sequence[Point], start_ns: int, end_ns: int, max_gap_ns: int) -> tuple[Fraction | None, ...]:
    length = end_ns - start_ns
    borders = [start_ns + length * quarter // _QUARTERS for quarter in range(_QUARTERS + 1)]
    means = []
    for left, right in pairwise(borders):
        part = integral(points, left, right, max_gap_ns)
        is_covered = right > left and 2 * part.covered_ns >= right - left
        means.append(part.total / part.covered_ns if is_covered else None)
    return tuple(means)


def _nearest_rank(values: Sequence[int], percent: int) -> int:
    return values[max(-(-len(values) * percent // 100) - 1, 0)]


def _slope(points: Sequence[Point]) -> Fraction | None:
    n = len(points)
    # Times are taken from the first, so that the sums stay small.
    times = [point.t_ns - points[0].t_ns for point in points]
    sum_t, sum_v = sum(times), sum(point.raw for point in points)
    spread = n * sum(t * t for t in times) - sum_t * sum_t
    if spread == 0:
        return None
    together = n * sum(t * point.raw for t, point in zip(times, points, strict=True)) - sum_t * sum_v
    return Fraction(together * _NS_PER_MINUTE, spread)
