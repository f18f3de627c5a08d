"""The section of the report about the machine: sensors and energy by phase, clocks beside rates, anomalies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from reports import style
from reports.facts import Facts, LoadFact
from reports.machine import CONSISTENT_PP, AnomalyFact, ClockView, CoresFact, EnergyFact, SensorFact

Row = tuple[object, ...]
Rows = Iterator[tuple[Sequence[str], list[Row]]]

_SHOWN: Final[Mapping[str, Callable[[float | None], str]]] = {
    "gfx_clock_hz": style.megahertz,
    "smu_gfx_clock_hz": style.megahertz,
    "board_power_instant_uw": style.watts,
    "board_power_uw": style.watts,
    "socket_power_uw": style.watts,
    "smu_socket_power_uw": style.watts,
    "temp_gpu_mc": style.celsius,
    "temp_edge_mc": style.celsius,
    "temp_junction_mc": style.celsius,
    "cpu_temp_mc": style.celsius,
}
_GROUPS: Final = (
    ("gfx_clock_hz", "smu_gfx_clock_hz"),
    ("board_power_instant_uw", "board_power_uw", "socket_power_uw", "smu_socket_power_uw"),
    ("temp_gpu_mc", "temp_edge_mc", "temp_junction_mc", "cpu_temp_mc"),
)
"""Of each group, the report shows the first that a device has; all sensors stand in its JSON and in the database."""

_REASONS: Final = {
    "no_samples": "no samples",
    "low_coverage": "the samples cover under 95 % of it",
    "not_spanned": "the readings do not reach over it",
    "counter_reset": "the counter was reset",
    "unresolved": "too short for this sensor",
}


def sensor_rows(facts: Facts) -> list[Row]:
    """Return one row for each sensor, phase and load."""
    return [
        (
            load.label,
            load.arm,
            _request(one),
            one.phase,
            f"{one.name} {one.device}".strip(),
            _mean(one),
            one.n,
            style.whole_percent(one.coverage_pct),
            ", ".join(_SHOWN[one.name](value) for value in one.quarters) if one.status == "OK" else style.ABSENT,
        )
        for load in _loads(facts)
        for one in _chosen(load.machine.sensors)
    ]


def _chosen(sensors: Sequence[SensorFact]) -> Iterator[SensorFact]:
    names = {(one.device, one.name) for one in sensors}
    for one in sensors:
        for group in _GROUPS:
            first = next((name for name in group if (one.device, name) in names), None)
            if one.name == first:
                yield one


def _request(one: SensorFact | EnergyFact | CoresFact) -> str:
    return f"{one.workload}, request {one.request}"


def _loads(facts: Facts) -> Iterator[LoadFact]:
    return (load for load in facts.loads if not load.is_burn_in)


def _mean(one: SensorFact) -> str:
    if one.status != "OK":
        return one.status
    frozen = " (frozen)" if one.is_frozen else ""
    return f"{_SHOWN[one.name](one.mean)}{frozen}"


def energy_rows(facts: Facts) -> list[Row]:
    """Return one row for each domain, phase and load, with method, coverage and bound in every one."""
    return [
        (
            load.label,
            load.arm,
            _request(one),
            one.phase,
            f"{one.domain} {one.device}".strip(),
            one.method,
            _energy(one),
            style.whole_percent(one.coverage_pct) if one.method == "trapezoid" else style.ABSENT,
            "; ".join(f"{style.joules(value)} a {words}" for words, value in one.per_token_uj.items()) or style.ABSENT,
        )
        for load in _loads(facts)
        for one in load.machine.energies
    ]


def _energy(one: EnergyFact) -> str:
    if one.energy_uj is None:
        return _REASONS.get(one.reason or "", one.reason or style.ABSENT)
    return f"{style.joules(one.energy_uj)} ± {style.joules(one.bound_uj)}"


def cores_rows(facts: Facts) -> list[Row]:
    """Return the CPU cores that the engine kept busy, for each phase and load."""
    return [
        (load.label, load.arm, _request(one), one.phase, style.chance(one.cores))
        for load in _loads(facts)
        for one in load.machine.cores
    ]


def clock_rows(facts: Facts) -> list[Row]:
    """Return clock beside rate, candidate over baseline."""
    return [
        (
            view.workload,
            view.phase,
            view.device,
            f"{view.n_baseline} and {view.n_candidate}",
            style.ratio(view.clock_ratio),
            style.ratio(view.rate_ratio),
            _consistency(view),
        )
        for view in facts.clock_views
    ]


def _consistency(view: ClockView) -> str:
    return "consistent" if view.is_consistent else "not consistent"


def anomaly_lines(facts: Facts) -> Iterator[str]:
    """Yield one line for each load and kind of anomaly; causes only where a field of its own shows them."""
    for load in _loads(facts):
        by_kind: dict[tuple[str, str | None, str], list[AnomalyFact]] = {}
        for one in load.machine.anomalies:
            by_kind.setdefault((one.kind, one.cause, one.field), []).append(one)
        for (kind, cause, name), found in by_kind.items():
            first = found[0]
            where = f" in {first.phase} of {first.workload}" if first.phase else ""
            why = f", cause: {cause}" if cause else ""
            yield (
                f"{load.label}: {kind}{where}, {style.times(len(found))}, first {style.decimal_seconds(first.start_s)} "
                f"after sampling began, {name} {style.count(first.value)}{why}"
            )


def machine_tables(facts: Facts) -> Iterator[tuple[str, Sequence[str], list[Row]]]:
    """Yield a sentence, columns and rows for each table that has rows."""
    head = ("load", "arm", "workload", "phase")
    band = style.points(CONSISTENT_PP)
    for sentence, columns, rows in (
        (
            "Means over the interior of each phase, weighted by time, with samples, coverage and quarters.",
            (*head, "sensor", "mean", "n", "coverage", "quarters"),
            sensor_rows(facts),
        ),
        (
            "Energy by domain; domains overlap and are never added. The bound is the sensor's own.",
            (*head, "domain", "method", "energy", "coverage", "by token"),
            energy_rows(facts),
        ),
        (
            f"Clock beside rate, candidate over baseline: consistent if within {band}, whatever the cause.",
            ("workload", "phase", "device", "loads", "clock ratio", "rate ratio", "together"),
            clock_rows(facts),
        ),
        ("CPU cores that the engine kept busy.", (*head, "cores"), cores_rows(facts)),
    ):
        if rows:
            yield sentence, columns, rows
