"""What happened to the host during one load, as counts: what the protocol's rules of validity look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from recorder.anomalies import (
    CLOCKS,
    POWER_CAUSES,
    POWER_THROTTLE_FIELDS,
    THERMAL_THROTTLE_FIELDS,
    THROTTLE_FIELDS,
    Anomaly,
    MarkedPhase,
    Trains,
    find_anomalies,
)
from recorder.telemetry.host import GOVERNORS
from recorder.telemetry.sample import Sample

_GAINS: Final[Mapping[str, str]] = {
    "engine_major_faults": "proc_majflt_count",
    "swap_in_pages": "swap_in_pages",
    "swap_out_pages": "swap_out_pages",
    "oom_kills": "oom_kill_count",
}
_PRESSURES: Final[Mapping[str, str]] = {
    "cpu_pressure_permille": "psi_cpu_some_us",
    "memory_pressure_permille": "psi_memory_some_us",
    "io_pressure_permille": "psi_io_some_us",
}
_CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "governor_changes": ("cpu_governor_code",),
    "profile_changes": ("platform_profile_code", "energy_preference_code", "gpu_performance_level_code"),
}
_OFF_GOVERNOR: Final = "cpus_off_performance_governor"
_PERFORMANCE: Final = GOVERNORS.index("performance")


def _is_throttle(one: Anomaly) -> bool:
    return one.kind == "throttle"


def _is_for_power(one: Anomaly) -> bool:
    return _is_throttle(one) and not POWER_CAUSES.isdisjoint((one.cause or "").split("+"))


def _is_not_for_power(one: Anomaly) -> bool:
    return _is_throttle(one) and not POWER_CAUSES.issuperset((one.cause or "").split("+"))


_COUNTED: Final[Mapping[str, tuple[Callable[[Anomaly], bool], tuple[str, ...]]]] = {
    "clock_collapses": (lambda one: one.kind == "clock_collapse", CLOCKS),
    "throttle_events": (_is_throttle, THROTTLE_FIELDS),
    "power_throttle_events": (_is_for_power, POWER_THROTTLE_FIELDS),
    "thermal_throttle_events": (_is_not_for_power, THERMAL_THROTTLE_FIELDS),
}
"""Readings that count anomalies: which, and the fields of which the host must give one."""

READING_OF_ANOMALY: Final[Mapping[str, tuple[str, ...]]] = {
    "clock_collapse": ("clock_collapses",),
    "throttle": ("throttle_events", "power_throttle_events", "thermal_throttle_events"),
    "foreign_gpu_process": ("foreign_gpu_processes",),
    "swap": ("swap_in_pages", "swap_out_pages"),
    "major_faults": ("engine_major_faults",),
    "memory_floor": ("memory_used_permille",),
    "memory_pressure": ("memory_pressure_permille",),
    "io_pressure": ("io_pressure_permille",),
    "runq_wait": ("engine_runq_wait_permille",),
    "oom_kill": ("oom_kills",),
    "governor_changed": ("governor_changes", "profile_changes"),
    "profile_changed": ("profile_changes",),
    "sample_gap": ("longest_sample_gap_ms",),
}
"""The readings with which a protocol can make a rule of each kind of anomaly."""

_WAYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    **{name: ((field,),) for name, field in {**_GAINS, **_PRESSURES}.items()},
    **{
        name: tuple((field,) for field in fields)
        for name, fields in (*_CHANGES.items(), *((name, fields) for name, (_, fields) in _COUNTED.items()))
    },
    _OFF_GOVERNOR: (("cpu_governor_code",),),
    "foreign_gpu_processes": (("gpu_foreign_process_count",),),
    "memory_used_permille": (("mem_total_bytes", "mem_available_bytes"),),
    "engine_runq_wait_permille": (("proc_thread_count", "proc_runq_wait_ns"),),
    "longest_sample_gap_ms": ((),),
}
"""The fields that each reading needs, all of one of these groups."""


def host_counts(samples: Sequence[Sample], phases: Sequence[MarkedPhase] = ()) -> dict[str, int]:
    """Return each count over the time from the first sample to the last; collapses are those within ``phases``.

    A count whose field this host does not give, or that has fewer than two readings, is not there: absent is not zero.
    """
    series: dict[str, dict[str, list[int]]] = {}
    for sample in samples:
        for reading in sample.readings:
            if reading.raw is not None:
                series.setdefault(reading.field.name, {}).setdefault(reading.field.instance, []).append(reading.raw)
    counts = {name: gain for name, field in _GAINS.items() if (gain := _gain(series.get(field))) is not None}
    if len(samples) > 1:
        length_us = (samples[-1].t_mid_ns - samples[0].t_mid_ns) // 1000
        for name, field in _PRESSURES.items():
            gain = _gain(series.get(field))
            if gain is not None and length_us > 0:
                counts[name] = 1000 * gain // length_us
    for name, fields in _CHANGES.items():
        codes = [one for field in fields for one in series.get(field, {}).values()]
        if codes:
            counts[name] = sum(before != after for one in codes for before, after in pairwise(one))
    return counts | _moments(samples, Trains(samples)) | _anomalies(samples, phases, series)


def readings_of_fields(names: frozenset[str]) -> frozenset[str]:
    """Return the counts that a host with these fields can give."""
    return frozenset(name for name, ways in _WAYS.items() if any(names.issuperset(way) for way in ways))


def partial_counts(samples: Sequence[Sample]) -> frozenset[str]:
    """Return the counts that are known for a part of the load only, because a read of a field failed.

    They are at least what was counted. A counter needs its first and its last reading; all else needs every one.
    """
    states: dict[str, dict[str, list[bool]]] = {}
    counters: set[str] = set()
    for sample in samples:
        for reading in sample.readings:
            if reading.status != "not_due":
                one = states.setdefault(reading.field.name, {}).setdefault(reading.field.instance, [])
                one.append(reading.status == "ok")
            if reading.field.kind == "counter":
                counters.add(reading.field.name)
    given = {name: instances for name, instances in states.items() if any(map(any, instances.values()))}
    failed = {
        name
        for name, instances in given.items()
        if not all(ok[0] and ok[-1] if name in counters else all(ok) for ok in instances.values())
    }
    return frozenset(name for name, ways in _WAYS.items() if any(not failed.isdisjoint(way) for way in ways))


def _anomalies(
    samples: Sequence[Sample], phases: Sequence[MarkedPhase], series: Mapping[str, object]
) -> dict[str, int]:
    found = find_anomalies(samples, phases)
    return {
        name: sum(map(is_counted, found))
        for name, (is_counted, fields) in _COUNTED.items()
        if any(field in series for field in fields)
    }


def _moments(samples: Sequence[Sample], trains: Trains) -> dict[str, int]:
    """Return what the worst moment counts for."""
    counts = {}
    governors = Counter(
        point.t_ns
        for points in trains.of("cpu_governor_code").values()
        for point in points
        if point.raw != _PERFORMANCE
    )
    if trains.of("cpu_governor_code"):
        counts[_OFF_GOVERNOR] = max(governors.values(), default=0)
    users = [point.raw for points in trains.of("gpu_foreign_process_count").values() for point in points]
    if users:
        counts["foreign_gpu_processes"] = max(users)
    total = max((point.raw for points in trains.of("mem_total_bytes").values() for point in points), default=0)
    free = [point.raw for points in trains.of("mem_available_bytes").values() for point in points]
    if total > 0 and free:
        counts["memory_used_permille"] = 1000 * (total - min(free)) // total
    ticks = [sample.t_mid_ns for sample in samples if not sample.is_edge]
    if len(ticks) > 1:
        counts["longest_sample_gap_ms"] = max(after - before for before, after in pairwise(ticks)) // 1_000_000
        threads = max((one.raw for points in trains.of("proc_thread_count").values() for one in points), default=0)
        waits = [points for points in trains.of("proc_runq_wait_ns").values() if len(points) > 1]
        if threads and waits:
            # A thread that ends takes its share out of the sum: only rises are waits.
            rises = (after.raw - before.raw for points in waits for before, after in pairwise(points))
            wait_ns = sum(rise for rise in rises if rise > 0)
            counts["engine_runq_wait_permille"] = 1000 * wait_ns // ((ticks[-1] - ticks[0]) * threads)
    return counts


def _gain(instances: Mapping[str, Sequence[int]] | None) -> int | None:
    """Return how far a counter rose, over its instances; None where one has too few readings or fell."""
    if instances is None:
        return None
    gains = [values[-1] - values[0] for values in instances.values() if len(values) > 1]
    return sum(gains) if len(gains) == len(instances) and min(gains) >= 0 else None
