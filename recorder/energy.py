"""Energy of a phase, from a counter where there is one, else from power over time.

1. Counter (uJ): difference over the phase, interpolated at the edges. The bound is ``near_bound`` of
   trains.py, plus one update period of the sensor at mean power for each edge.
   Readings may be far apart: a counter forgets nothing, as long as it wraps at most once between two.
2. Power (uW): trapezoids with interpolated edges. A gap of more than three periods is not bridged. The
   bound is the sensor's filter (at each edge, window times the step in power across it) plus what power between
   two samples may have done while it rose or fell from one to the other.

A figure that is not above its own bound is none: the sensor cannot resolve a phase that short (``unresolved``).
Power that covers under 95 % of a phase gives no figure. Every figure carries method, domain, coverage and
bound; energies of different domains are never added (an APU's socket power contains its CPU).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from recorder.phases import GAP_PERIODS, Phase
from recorder.telemetry.sample import Domain
from recorder.trains import Point, counter_delta, integral, sampling_bound

Method = Literal["counter", "trapezoid"]

MINIMUM_COVERAGE: Final = Fraction(95, 100)
_LEAST_SAMPLES: Final = 2
"""Between two samples nothing is known: a phase without two of its own has no energy from power."""
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy of one phase in one domain.

    energy_uj  None with a ``reason`` (closed list: no_samples, low_coverage, not_spanned, counter_reset, unresolved)
    bound_uj   the sensor's own error bound; it says nothing about how true the sensor is
    """

    phase: str
    domain: Domain
    method: Method
    energy_uj: Fraction | None
    coverage: Fraction
    bound_uj: Fraction | None
    n: int
    reason: str | None = None

    def per_token_uj(self, tokens: int | None) -> Fraction | None:
        """Return energy by tokens (evaluated, generated, accepted or drafted); None where either is unknown or 0."""
        return None if self.energy_uj is None or not tokens else self.energy_uj / tokens


def counter_energy(
    points: Sequence[Point],
    phase: Phase,
    *,
    domain: Domain,
    period_ns: int,
    modulus_uj: int | None = None,
    update_ns: int = 0,
) -> Energy:
    """Return the energy that a counter in uJ shows. ``update_ns`` is the sensor's own update period."""
    moved = counter_delta(points, phase.start_ns, phase.end_ns, max_gap_ns=GAP_PERIODS * period_ns, modulus=modulus_uj)
    n = _count_inside(points, phase)
    reason = None
    if not points:
        reason = "no_samples"
    elif moved.resets:
        reason = "counter_reset"
    elif moved.delta is None:
        reason = "not_spanned"
    if reason is not None or moved.delta is None or moved.near_bound is None:
        return _without_figure(phase, domain, "counter", moved.coverage, n, reason)
    staleness = 2 * moved.delta * update_ns / phase.length_ns
    return _figure(phase, domain, "counter", moved.delta, moved.near_bound + staleness, moved.coverage, n)


def power_energy(
    points: Sequence[Point], phase: Phase, *, domain: Domain, period_ns: int, window_us: int | None = None
) -> Energy:
    """Return the integral of a power in uW. ``window_us`` is the longest of window, filter and update."""
    area = integral(points, phase.start_ns, phase.end_ns, GAP_PERIODS * period_ns)
    coverage = area.covered_ns / phase.length_ns if phase.length_ns > 0 else Fraction(0)
    n = _count_inside(points, phase)
    if not points or coverage < MINIMUM_COVERAGE:
        reason = "low_coverage" if points else "no_samples"
        return _without_figure(phase, domain, "trapezoid", coverage, n, reason)
    if n < _LEAST_SAMPLES:
        return _without_figure(phase, domain, "trapezoid", coverage, n, "unresolved")
    window_ns = (window_us or 0) * 1000
    between = sampling_bound(points, phase.start_ns, phase.end_ns, GAP_PERIODS * period_ns)
    steps = sum(_step_across(points, edge_ns, window_ns) for edge_ns in (phase.start_ns, phase.end_ns))
    bound = (steps * window_ns + between) / _NS_PER_S
    return _figure(phase, domain, "trapezoid", area.total / _NS_PER_S, bound, coverage, n)


def best_energy(counter: Energy | None, power: Energy | None) -> Energy | None:
    """Return the counter's figure if it has one, else the power's, else whichever says why there is none."""
    for energy in (counter, power):
        if energy is not None and energy.energy_uj is not None:
            return energy
    return counter or power


def _figure(
    phase: Phase, domain: Domain, method: Method, energy_uj: Fraction, bound_uj: Fraction, coverage: Fraction, n: int
) -> Energy:
    is_resolved = bound_uj < energy_uj
    return Energy(
        phase=phase.name,
        domain=domain,
        method=method,
        energy_uj=energy_uj if is_resolved else None,
        coverage=coverage,
        bound_uj=bound_uj,
        n=n,
        reason=None if is_resolved else "unresolved",
    )


def _without_figure(
    phase: Phase, domain: Domain, method: Method, coverage: Fraction, n: int, reason: str | None
) -> Energy:
    return Energy(
        phase=phase.name,
        domain=domain,
        method=method,
        energy_uj=None,
        coverage=coverage,
        bound_uj=None,
        n=n,
        reason=reason,
    )


def _count_inside(points: Sequence[Point], phase: Phase) -> int:
    return sum(phase.start_ns <= point.t_ns <= phase.end_ns for point in points)


def _step_across(points: Sequence[Point], edge_ns: int, window_ns: int) -> int:
    """Return the step in power from one window before an edge to one window after it."""
    before = max(bisect_right(points, edge_ns - window_ns, key=lambda point: point.t_ns) - 1, 0)
    after = min(bisect_left(points, edge_ns + window_ns, key=lambda point: point.t_ns), len(points) - 1)
    return abs(points[after].raw - points[before].raw)
