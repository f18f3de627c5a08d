"""What the rules of validity look at, from samples of telemetry."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from protocols.validity import READING_WORDS
from recorder import anomalies
from recorder.anomalies import MarkedPhase, find_anomalies
from recorder.host_counts import READING_OF_ANOMALY, host_counts, partial_counts, readings_of_fields
from recorder.phases import Phase
from recorder.telemetry.host import GOVERNORS
from recorder.telemetry.sample import FieldSpec, Kind, Reading, Sample

S = 1_000_000_000


def sample(second: int, values: Mapping[str, int | None], kind: Kind = "counter", late: int = 0) -> Sample:
    readings = []
    for key, raw in values.items():
        name, _, instance = key.partition("@")
        field = FieldSpec(name=name, unit="count", kind=kind, domain="host", source="x", instance=instance)
        readings.append(Reading(field=field, raw=raw, status="ok" if raw is not None else "error"))
    at = (second + late) * S
    return Sample(tick=second, deadline_ns=second * S, t_begin_ns=at, t_end_ns=at, readings=tuple(readings))


def test_counters_count_from_the_first_sample_to_the_last() -> None:
    first = {"proc_majflt_count": 7, "swap_in_pages": 100, "psi_cpu_some_us": 1000}
    last = {"proc_majflt_count": 9, "swap_in_pages": 100, "psi_cpu_some_us": 501_000}
    assert host_counts([sample(0, first), sample(2, last)]) == {
        "engine_major_faults": 2,
        "swap_in_pages": 0,
        "cpu_pressure_permille": 250,
        "longest_sample_gap_ms": 2000,
    }


def test_what_the_host_does_not_give_is_absent_and_never_zero() -> None:
    assert host_counts([]) == {}
    assert host_counts([sample(0, {"proc_majflt_count": 5})]) == {}
    gap = {"longest_sample_gap_ms": 1000}
    assert host_counts([sample(0, {"swap_in_pages": 5}), sample(1, {"swap_in_pages": None})]) == gap


def test_a_counter_that_fell_counts_nothing() -> None:
    counts = host_counts([sample(0, {"swap_in_pages": 5}), sample(1, {"swap_in_pages": 1})])
    assert counts == {"longest_sample_gap_ms": 1000}


def test_every_change_of_every_governor_counts() -> None:
    codes = [{"cpu_governor_code@p0": a, "cpu_governor_code@p1": b} for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))]
    assert host_counts([sample(n, one) for n, one in enumerate(codes)])["governor_changes"] == 3


def test_the_worst_moment_counts_for_memory_processes_of_others_and_gaps() -> None:
    first = {"mem_total_bytes": 1000, "mem_available_bytes": 400, "gpu_foreign_process_count@x": 0}
    last = {"mem_total_bytes": None, "mem_available_bytes": 25, "gpu_foreign_process_count@x": 2}
    counts = host_counts([sample(0, first), sample(1, first), sample(5, last)])
    assert counts["memory_used_permille"] == 975
    assert counts["foreign_gpu_processes"] == 2
    assert counts["longest_sample_gap_ms"] == 4000


def test_waiting_for_a_cpu_counts_by_thread() -> None:
    rows = [{"proc_thread_count": 4, "proc_runq_wait_ns": wait} for wait in (0, S // 5)]
    assert host_counts([sample(0, rows[0]), sample(10, rows[1])])["engine_runq_wait_permille"] == 5


def test_throttling_and_collapses_are_counted_only_where_a_field_could_show_them() -> None:
    steady = [sample(n, {"gfx_clock_hz@x": 5, "throttle_bits@x": 16 if n == 2 else 0}) for n in range(4)]
    counts = host_counts(steady)
    assert (counts["throttle_events"], counts["clock_collapses"]) == (1, 0)
    assert "throttle_events" not in host_counts([sample(0, {"a_count": 1}), sample(1, {"a_count": 1})])


def test_a_changed_profile_counts() -> None:
    rows = [{"platform_profile_code": 0, "gpu_performance_level_code@x": level} for level in (0, 3, 0)]
    assert host_counts([sample(n, row) for n, row in enumerate(rows)])["profile_changes"] == 2


def test_a_governor_other_than_performance_counts_at_the_worst_moment() -> None:
    performance, powersave = GOVERNORS.index("performance"), GOVERNORS.index("powersave")
    codes = [(performance, performance), (powersave, powersave), (powersave, performance)]
    rows = [{"cpu_governor_code@p0": one, "cpu_governor_code@p1": other} for one, other in codes]
    assert host_counts([sample(n, row) for n, row in enumerate(rows)])["cpus_off_performance_governor"] == 2
    assert host_counts([sample(n, rows[0]) for n in range(2)])["cpus_off_performance_governor"] == 0
    assert "cpus_off_performance_governor" not in host_counts([sample(0, {"a": 1})])


CAUSES = [
    ("clock_event_bits", 4, (1, 1, 0)),  # a GPU at its power cap is at work
    ("clock_event_bits", 128, (1, 1, 0)),
    ("clock_event_bits", 32, (1, 0, 1)),
    ("clock_event_bits", 64, (1, 0, 1)),
    ("clock_event_bits", 8, (1, 0, 1)),
    ("clock_event_bits", 4 | 32, (1, 1, 1)),
    ("clock_event_bits", 1 | 2 | 16 | 256, (0, 0, 0)),  # idle, set clocks, synchronous boost, displays: no throttling
    ("throttle_bits", 1 << 0, (1, 1, 0)),
    ("throttle_bits", 1 << 16, (1, 1, 0)),
    ("throttle_bits", 1 << 32, (1, 0, 1)),
    ("throttle_bits", 1 << 46, (1, 0, 1)),
]


@pytest.mark.parametrize(("field", "bits", "expected"), CAUSES)
def test_throttling_for_power_is_told_from_throttling_for_heat(
    field: str, bits: int, expected: tuple[int, int, int]
) -> None:
    rows = [{f"{field}@x": bits if n in (2, 3) else 0} for n in range(6)]
    counts = host_counts([sample(n, row, "state") for n, row in enumerate(rows)])
    names = ("throttle_events", "power_throttle_events", "thermal_throttle_events")
    assert tuple(counts[name] for name in names) == expected


def test_a_host_that_shows_only_one_cause_decides_only_the_rule_of_that_cause() -> None:
    counts = host_counts([sample(n, {"event_power_cap_ns@x": 5 * n}) for n in range(3)])
    assert (counts["throttle_events"], counts["power_throttle_events"]) == (1, 1)
    assert "thermal_throttle_events" not in counts
    assert "thermal_throttle_events" not in readings_of_fields(frozenset({"event_power_cap_ns"}))


TRAINS: dict[str, tuple[Kind, list[dict[str, int | None]]]] = {
    "clock_collapse": (
        "gauge",
        [{"gfx_clock_hz@x": 500 if 2 <= n <= 7 else 1000, "gfx_busy_ppm@x": 990_000} for n in range(30)],
    ),
    "throttle": ("counter", [{"throttle_thm_gfx_raw@x": max(n - 3, 0), "throttle_spl_raw@x": n} for n in range(8)]),
    "foreign_gpu_process": ("gauge", [{"gpu_foreign_process_count@x": int(n == 3)} for n in range(8)]),
    "swap": ("counter", [{"swap_in_pages": n, "swap_out_pages": 2 * n} for n in range(8)]),
    "major_faults": ("counter", [{"proc_majflt_count": n} for n in range(8)]),
    "memory_floor": ("gauge", [{"mem_total_bytes": 3200, "mem_available_bytes": 99 - n} for n in range(8)]),
    "memory_pressure": ("counter", [{"psi_memory_some_us": 2000 * n} for n in range(8)]),
    "io_pressure": ("counter", [{"psi_io_some_us": 20_000 * n} for n in range(8)]),
    "runq_wait": ("counter", [{"proc_thread_count": 2, "proc_runq_wait_ns": S * n // 10} for n in range(8)]),
    "oom_kill": ("counter", [{"oom_kill_count": n // 5} for n in range(8)]),
    "governor_changed": ("state", [{"cpu_governor_code": n // 4, "energy_preference_code": n // 5} for n in range(8)]),
    "profile_changed": ("state", [{"platform_profile_code": n // 4} for n in range(8)]),
    "sample_gap": ("gauge", [{"a": 1} for _ in range(8)]),
}
"""For each kind of anomaly, readings once a second of a load that has it and no other."""


@pytest.mark.parametrize("kind", TRAINS)
def test_every_anomaly_can_be_a_rule_and_counts_where_it_is_found(kind: str) -> None:
    reading_kind, rows = TRAINS[kind]
    is_late = kind == "sample_gap"
    samples = [sample(n, row, reading_kind, late=9 if is_late and n == 7 else 0) for n, row in enumerate(rows)]
    phases = [MarkedPhase(request=0, phase=Phase(name="generation", start_ns=0, end_ns=29 * S))]
    assert {one.kind for one in find_anomalies(samples, phases)} == {kind}
    counts = host_counts(samples, phases)
    least = {"sample_gap": 3001, "memory_floor": 969}.get(kind, 1)
    assert all(counts[reading] >= least for reading in READING_OF_ANOMALY[kind])


def test_the_list_of_anomalies_has_a_rule_for_each() -> None:
    listed = set(re.findall(r"^([a-z_]+) {2,}\S", anomalies.__doc__ or "", re.MULTILINE))
    assert listed == set(READING_OF_ANOMALY) == set(TRAINS)
    assert {reading for readings in READING_OF_ANOMALY.values() for reading in readings} <= set(READING_WORDS)


def test_a_failed_read_leaves_a_state_partial_and_a_counter_only_at_its_ends() -> None:
    def of(kind: Kind, *raws: int | None) -> frozenset[str]:
        name = "clock_event_bits" if kind == "state" else "swap_in_pages"
        return partial_counts([sample(n, {f"{name}@x": raw}, kind) for n, raw in enumerate(raws)])

    throttles = {"throttle_events", "power_throttle_events", "thermal_throttle_events"}
    assert of("state", 0, None, 0) == throttles
    assert of("state", 0, 0, 0) == frozenset()
    assert of("counter", 1, None, 3) == frozenset()
    assert of("counter", 1, 2, None) == {"swap_in_pages"}
    assert of("counter", None, 2, 3) == {"swap_in_pages"}
    assert of("state", None, None) == frozenset()  # a host that never gives it has no count at all


def test_a_reading_that_is_not_due_is_no_failed_one() -> None:
    field = FieldSpec(name="gpu_foreign_process_count", unit="count", kind="gauge", domain="gfx", source="x")
    readings = (Reading(field=field, raw=0), Reading(field=field, raw=None, status="not_due"))
    samples = [
        Sample(tick=n, deadline_ns=n, t_begin_ns=n, t_end_ns=n, readings=(reading,))
        for n, reading in enumerate((*readings, readings[0]))
    ]
    assert partial_counts(samples) == frozenset()


def test_a_thread_that_ends_takes_no_wait_back() -> None:
    """Its share left the sum, and the count fell below zero: no rule could be broken after it."""
    rows = [{"proc_thread_count": 2, "proc_runq_wait_ns": wait} for wait in (0, S, S // 2, S)]
    assert host_counts([sample(n, row) for n, row in enumerate(rows)])["engine_runq_wait_permille"] == 250
