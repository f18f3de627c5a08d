"""Rows that say what the machine did in each phase of each request: sensors, energies, anomalies.

They are derived from the samples and the stamps of a sealed load and from nothing else, like every row. Means and
energies are rounded to whole units here (bounds upwards), shares to millionths; exact values can be derived again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, NamedTuple

from recorder.anomalies import MarkedPhase, find_anomalies, sampling_period_ns
from recorder.energy import Energy, best_energy, counter_energy, power_energy
from recorder.load_files import SampleFile
from recorder.phases import GAP_PERIODS, Phase, PhaseMean, margin_of, phase_mean, phases_of
from recorder.request_rows import ReadExchange
from recorder.row_values import RowMap, optional_text
from recorder.telemetry.sample import FieldSpec
from recorder.trains import Point, counter_delta, points_of

SENSOR_UNITS: Final = frozenset({"hz", "uw", "mc", "ppm", "mb_per_s"})
FILTER_FIELD: Final = "smu_filter_time_us"
INSTANT: Final = "_instant_"


class Train(NamedTuple):
    """A field, its number in the load, and its values."""

    number: int
    field: FieldSpec
    points: tuple[Point, ...]


def marked_phases(reads: Sequence[ReadExchange]) -> tuple[MarkedPhase, ...]:
    """Return the phases of every request of a workload, warm-ups too."""
    return tuple(
        MarkedPhase(request=read.exchange.number, phase=phase)
        for read in reads
        if read.is_measured and read.derived is not None
        for phase in phases_of(read.derived)
    )


def phase_rows(samples: SampleFile, reads: Sequence[ReadExchange]) -> RowMap:
    """Derive the rows of ``phase_sensor``, ``phase_counter``, ``phase_energy`` and ``anomaly``."""
    phases = marked_phases(reads)
    period_ns = sampling_period_ns(samples.samples)
    trains = [
        Train(number, field, points_of(samples.samples, field.key)) for number, field in enumerate(samples.fields)
    ]
    rows: RowMap = {"phase_sensor": [], "phase_counter": [], "phase_energy": []}
    for marked in phases:
        key = {"request": marked.request, "phase": marked.phase.name}
        if period_ns > 0:
            rows["phase_sensor"] += [key | row for row in _sensors(trains, marked.phase, period_ns)]
            rows["phase_counter"] += [key | row for row in _counters(trains, marked.phase, period_ns)]
            rows["phase_energy"] += [key | row for row in _energies(trains, marked.phase, period_ns)]
    rows["anomaly"] = [
        {
            "ordinal": ordinal,
            "kind": one.kind,
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
            "field": one.field,
            "value": one.value,
            "cause": optional_text(one.cause),
            "request": one.request,
            "phase": one.phase,
        }
        for ordinal, one in enumerate(find_anomalies(samples.samples, phases))
    ]
    return rows


def spacing_ns(points: Sequence[Point], period_ns: int) -> int:
    """Return how far readings of a field lie apart: slow fields are not read at every tick."""
    gaps = sorted(after.t_ns - before.t_ns for before, after in pairwise(points))
    return max(period_ns, gaps[len(gaps) // 2]) if gaps else period_ns


def _sensors(trains: Sequence[Train], phase: Phase, period_ns: int) -> Iterator[dict[str, Any]]:
    filters = {
        train.field.instance: max((point.raw for point in train.points), default=0)
        for train in trains
        if train.field.name == FILTER_FIELD
    }
    for train in trains:
        field = train.field
        if field.kind != "gauge" or field.unit not in SENSOR_UNITS:
            continue
        spacing = spacing_ns(train.points, period_ns)
        margin = margin_of(spacing, field.window_us, filters.get(field.instance))
        found = phase_mean(train.points, phase, period_ns=spacing, margin_ns=margin)
        yield {"field": train.number} | _sensor_row(found)


def _sensor_row(found: PhaseMean) -> dict[str, Any]:
    quarters = [_whole(one) for one in found.quarters] or [None] * 4
    return {
        "status": found.status,
        "n": found.n,
        "coverage_ppm": _ppm(found.coverage),
        "max_gap_ns": found.max_gap_ns,
        "margin_ns": found.margin_ns,
        "mean": _whole(found.mean),
        "q1": quarters[0],
        "q2": quarters[1],
        "q3": quarters[2],
        "q4": quarters[3],
        "minimum": found.minimum,
        "p05": found.p05,
        "p50": found.p50,
        "p95": found.p95,
        "maximum": found.maximum,
        "slope_per_min": _whole(found.slope),
        "changes": found.changes,
        "longest_equal": found.longest_equal,
        "is_frozen": int(found.status == "OK" and found.changes == 0),
    }


def _counters(trains: Sequence[Train], phase: Phase, period_ns: int) -> Iterator[dict[str, Any]]:
    """Yield how far each counter moved in a phase; energies have rows of their own."""
    for train in trains:
        if train.field.kind != "counter" or train.field.unit == "uj":
            continue
        gap_ns = GAP_PERIODS * spacing_ns(train.points, period_ns)
        moved = counter_delta(
            train.points, phase.start_ns, phase.end_ns, max_gap_ns=gap_ns, modulus=train.field.modulus
        )
        yield {
            "field": train.number,
            "delta": _whole(moved.delta),
            "bound": _up(moved.bound),
            "coverage_ppm": _ppm(moved.coverage),
        }


def _energies(trains: Sequence[Train], phase: Phase, period_ns: int) -> Iterator[dict[str, Any]]:
    """Yield every figure of each device and domain, the one to use marked."""
    groups: dict[tuple[str, str], list[tuple[Train, Energy]]] = {}
    for train in trains:
        energy = _energy(train, phase, period_ns)
        if energy is not None:
            groups.setdefault((train.field.domain, train.field.instance), []).append((train, energy))
    for found in groups.values():
        best = best_energy(_first(found, "counter"), _first(found, "trapezoid"))
        for train, energy in found:
            yield {
                "field": train.number,
                "domain": energy.domain,
                "instance": train.field.instance,
                "method": energy.method,
                "energy_uj": _whole(energy.energy_uj),
                "bound_uj": _up(energy.bound_uj),
                "coverage_ppm": _ppm(energy.coverage),
                "n": energy.n,
                "reason": energy.reason,
                "is_best": int(energy is best),
            }


def _energy(train: Train, phase: Phase, period_ns: int) -> Energy | None:
    field = train.field
    spacing = spacing_ns(train.points, period_ns)
    if field.unit == "uj" and field.kind == "counter":
        return counter_energy(
            train.points,
            phase,
            domain=field.domain,
            period_ns=spacing,
            modulus_uj=field.modulus,
            update_ns=(field.update_us or 0) * 1000,
        )
    if field.unit == "uw" and field.kind == "gauge" and "_limit_" not in field.name:
        # A value is up to one update old: at the edges that is worth as much as an averaging window of that length.
        window_us = max(field.window_us or 0, field.update_us or 0)
        return power_energy(train.points, phase, domain=field.domain, period_ns=spacing, window_us=window_us)
    return None


def _first(found: Sequence[tuple[Train, Energy]], method: str) -> Energy | None:
    """Return the figure of a method that rests on the sensor with the shortest window; one with a number first."""
    chosen = [(train, energy) for train, energy in found if energy.method == method]
    chosen.sort(key=lambda one: (one[1].energy_uj is None, INSTANT not in one[0].field.name, one[0].number))
    return chosen[0][1] if chosen else None


def _whole(value: Fraction | None) -> int | None:
    return None if value is None else round(value)


def _up(value: Fraction | None) -> int | None:
    """Round a bound upwards."""
    return None if value is None else -(-value.numerator // value.denominator)


def _ppm(share: Fraction) -> int:
    return round(share * 1_000_000)
