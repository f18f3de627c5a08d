"""What the rules of validity look at, from samples of telemetry."""

from __future__ import annotations

from collections.abc import Mapping

from recorder.host_counts import host_counts
from recorder.telemetry.sample import FieldSpec, Reading, Sample

S = 1_000_000_000


def sample(second: int, values: Mapping[str, int | None]) -> Sample:
    readings = []
    for key, raw in values.items():
        name, _, instance = key.partition("@")
        field = FieldSpec(name=name, unit="count", kind="counter", domain="host", source="x", instance=instance)
        readings.append(Reading(field=field, raw=raw, status="ok" if raw is not None else "error"))
    at = second * S
    return Sample(tick=second, deadline_ns=at, t_begin_ns=at, t_end_ns=at, readings=tuple(readings))


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
