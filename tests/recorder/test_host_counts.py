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
    }


def test_what_the_host_does_not_give_is_absent_and_never_zero() -> None:
    assert host_counts([]) == {}
    assert host_counts([sample(0, {"proc_majflt_count": 5})]) == {}
    assert host_counts([sample(0, {"swap_in_pages": 5}), sample(1, {"swap_in_pages": None})]) == {}


def test_a_counter_that_fell_counts_nothing() -> None:
    assert host_counts([sample(0, {"swap_in_pages": 5}), sample(1, {"swap_in_pages": 1})]) == {}


def test_every_change_of_every_governor_counts() -> None:
    codes = [{"cpu_governor_code@p0": a, "cpu_governor_code@p1": b} for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))]
    assert host_counts([sample(n, one) for n, one in enumerate(codes)])["governor_changes"] == 3
