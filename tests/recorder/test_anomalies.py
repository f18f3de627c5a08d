"""Anomalies of a load: golden trains with the exact anomaly, its cause, and what must not be one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.anomalies import Anomaly, MarkedPhase, find_anomalies, sampling_period_ns
from recorder.phases import Phase
from recorder.telemetry.sample import FieldSpec, Reading, Sample

MS = 1_000_000
PERIOD_MS = 250
GPU = "0000:06:00.0"
MHZ = 1_000_000
STEADY, LOW = 2000 * MHZ, 1700 * MHZ

Values = Mapping[str, int | None]


def samples(n: int, at: Callable[[int], Values], *, skip: frozenset[int] = frozenset()) -> tuple[Sample, ...]:
    """``n`` ticks of 250 ms; ``at`` gives the values of each tick, by name (on the GPU) or ``name@``."""
    made = []
    for tick in range(n):
        if tick in skip:
            continue
        readings = []
        for key, raw in at(tick).items():
            name, is_host, _ = key.partition("@")
            field = FieldSpec(
                name=name, unit=name.rpartition("_")[2], kind="gauge", domain="host", source="x",
                instance="" if is_host else GPU,
            )  # fmt: skip
            readings.append(Reading(field=field, raw=raw, status="ok" if raw is not None else "error"))
        t_ns = tick * PERIOD_MS * MS
        made.append(Sample(tick=tick, deadline_ns=t_ns, t_begin_ns=t_ns, t_end_ns=t_ns, readings=tuple(readings)))
    return tuple(made)


def prefill(ticks: int) -> tuple[MarkedPhase, ...]:
    phase = Phase(name="prefill", start_ns=0, end_ns=(ticks - 1) * PERIOD_MS * MS)
    return (MarkedPhase(request=3, phase=phase),)


def clocks(low: range, ticks: int = 40, **more: Callable[[int], int | None]) -> tuple[Sample, ...]:
    """A steady clock that is low at some ticks, with other fields beside it."""

    def at(tick: int) -> Values:
        values: dict[str, int | None] = {"gfx_clock_hz": LOW if tick in low else STEADY, "gfx_busy_ppm": 970_000}
        return values | {name.replace("_AT", "@"): value(tick) for name, value in more.items()}

    return samples(ticks, at)


def collapses(taken: tuple[Sample, ...], ticks: int = 40) -> list[Anomaly]:
    return [one for one in find_anomalies(taken, prefill(ticks)) if one.kind == "clock_collapse"]


def test_four_ticks_under_nine_tenths_of_the_middle_third_are_a_collapse() -> None:
    (found,) = collapses(clocks(range(30, 34)))
    assert found == Anomaly(
        kind="clock_collapse", start_ns=7_500 * MS, end_ns=8_250 * MS, field="gfx_clock_hz", value=LOW,
        cause="unexplained", request=3, phase="prefill",
    )  # fmt: skip


def test_three_ticks_are_none_and_neither_is_a_clock_of_nine_tenths() -> None:
    assert collapses(clocks(range(30, 33))) == []
    taken = samples(40, lambda tick: {"gfx_clock_hz": 1800 * MHZ if tick > 30 else STEADY, "gfx_busy_ppm": 970_000})
    assert collapses(taken) == []


def test_a_collapse_ends_with_two_recovered_ticks_and_one_does_not_end_it() -> None:
    one = samples(
        40,
        lambda tick: {
            "gfx_clock_hz": LOW if tick in {*range(28, 32), *range(33, 36)} else STEADY,
            "gfx_busy_ppm": 970_000,
        },
    )
    (found,) = collapses(one)
    assert (found.start_ns, found.end_ns) == (28 * 250 * MS, 35 * 250 * MS)
    two = samples(
        40,
        lambda tick: {
            "gfx_clock_hz": LOW if tick in {*range(4, 8), *range(32, 36)} else STEADY,
            "gfx_busy_ppm": 970_000,
        },
    )
    assert [one.start_ns for one in collapses(two)] == [1000 * MS, 8000 * MS]


def test_a_clock_that_sinks_while_the_gpu_has_nothing_to_do_is_no_collapse() -> None:
    taken = samples(
        40,
        lambda tick: {
            "gfx_clock_hz": LOW if tick >= 30 else STEADY,
            "gfx_busy_ppm": 100_000 if tick >= 30 else 970_000,
        },
    )
    assert collapses(taken) == []


def test_a_collapse_outside_the_phases_is_nobodys() -> None:
    assert collapses(clocks(range(34, 40)), ticks=33) == []


@pytest.mark.parametrize(
    ("beside", "cause"),
    [
        ({"throttle_thm_gfx_raw": lambda tick: max(0, tick - 30)}, "thermal"),
        ({"event_hw_thermal_ns": lambda tick: max(0, tick - 30) * 1000}, "thermal"),
        ({"temp_margin_mc": lambda tick: 2000 if tick >= 30 else 9000}, "thermal"),
        ({"throttle_bits": lambda tick: 1 << 36 if tick >= 30 else 0}, "thermal"),
        ({"clock_event_bits": lambda tick: 64 if tick >= 30 else 0}, "thermal"),
        ({"throttle_sppt_raw": lambda tick: max(0, tick - 30)}, "power"),
        ({"clock_event_bits": lambda tick: 4 if tick >= 30 else 0}, "power"),
        ({"board_power_uw": lambda tick: 690_000_000, "power_limit_uw": lambda tick: 700_000_000}, "power"),
        ({"board_power_uw": lambda tick: 600_000_000, "power_limit_uw": lambda tick: 700_000_000}, "unexplained"),
        ({"gfx_clock_limit_hz": lambda tick: 1700 * MHZ if tick >= 30 else 2900 * MHZ}, "limit"),
        ({"proc_majflt_count_AT": lambda tick: max(0, tick - 30)}, "host"),
        ({"proc_runq_wait_ns_AT": lambda tick: max(0, tick - 30) * 10 * MS}, "host"),
        ({"throttle_thm_gfx_raw": lambda tick: 77}, "unexplained"),
        ({"throttle_thm_gfx_raw": lambda tick: min(tick, 10)}, "unexplained"),
        (
            {
                "throttle_thm_gfx_raw": lambda tick: max(0, tick - 30),
                "throttle_sppt_raw": lambda tick: max(0, tick - 30),
            },
            "thermal",
        ),
    ],
)
def test_a_collapse_has_a_cause_only_where_an_independent_field_says_so_at_that_time(beside, cause: str) -> None:
    (found,) = collapses(clocks(range(31, 38), **beside))
    assert found.cause == cause


def of(kind: str, taken: tuple[Sample, ...]) -> list[tuple[int, int, str, int, str | None]]:
    found = [one for one in find_anomalies(taken, ()) if one.kind == kind]
    return [(one.start_ns // MS, one.end_ns // MS, one.field, one.value, one.cause) for one in found]


def test_throttling_is_found_from_counters_and_from_bits_with_its_span() -> None:
    counter = samples(12, lambda tick: {"event_power_cap_ns": 500 * min(max(tick - 4, 0), 3)})
    assert of("throttle", counter) == [(1000, 1750, "event_power_cap_ns", 1500, "power")]
    bits = samples(12, lambda tick: {"throttle_bits": {3: 1 << 36, 4: 1 << 36, 5: 1 << 4 | 1 << 36}.get(tick, 0)})
    assert of("throttle", bits) == [
        (750, 1000, "throttle_bits", 1 << 36, "thermal"),
        (1250, 1250, "throttle_bits", 1 << 4 | 1 << 36, "power+thermal"),
    ]
    idle = samples(12, lambda tick: {"clock_event_bits": 1})
    assert of("throttle", idle) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("swap", "swap_out_pages"),
        ("major_faults", "proc_majflt_count"),
        ("memory_pressure", "psi_memory_some_us"),
        ("oom_kill", "oom_kill_count"),
    ],
)
def test_a_counter_that_moves_is_one_anomaly_with_what_it_gained(kind: str, name: str) -> None:
    taken = samples(10, lambda tick: {f"{name}@": 7 + (tick >= 4) + (tick >= 5)})
    assert of(kind, taken) == [(750, 1250, name, 2, None)]
    assert of(kind, samples(10, lambda tick: {f"{name}@": 7})) == []
    assert of(kind, samples(10, lambda tick: {f"{name}@": None})) == []


def test_a_governor_and_a_profile_that_change_are_found_at_the_change() -> None:
    taken = samples(
        6, lambda tick: {"cpu_governor_code@": int(tick >= 3), "gpu_performance_level_code": int(tick == 5)}
    )
    assert of("governor_changed", taken) == [(500, 750, "cpu_governor_code", 1, None)]
    assert of("profile_changed", taken) == [(1000, 1250, "gpu_performance_level_code", 1, None)]


def test_processes_of_others_on_the_gpu_and_a_full_memory_are_found() -> None:
    taken = samples(
        4,
        lambda tick: {
            "gpu_foreign_process_count": int(tick == 2),
            "mem_available_bytes@": 100 - 33 * tick,
            "mem_total_bytes@": 64,
        },
    )
    assert of("foreign_gpu_process", taken) == [(500, 500, "gpu_foreign_process_count", 1, None)]
    assert of("memory_floor", taken) == [(750, 750, "mem_available_bytes", 1, None)]


def test_waiting_matters_from_one_percent_on() -> None:
    def waiting(permille: int) -> tuple[Sample, ...]:
        return samples(
            5,
            lambda tick: {
                "psi_io_some_us@": tick * 250 * permille,
                "proc_runq_wait_ns@": tick * 250 * 1000 * permille * 4,
                "proc_thread_count@": 4,
            },
        )

    assert of("io_pressure", waiting(10)) == [(0, 1000, "psi_io_some_us", 10_000, None)]
    assert of("runq_wait", waiting(10)) == [(0, 1000, "proc_runq_wait_ns", 40_000_000, None)]
    assert of("io_pressure", waiting(9)) == of("runq_wait", waiting(9)) == []


def test_a_gap_of_more_than_three_periods_between_samples_is_found() -> None:
    taken = samples(20, lambda tick: {}, skip=frozenset({5, 6, 7}))
    assert sampling_period_ns(taken) == 250 * MS
    assert of("sample_gap", taken) == [(1000, 2000, "gap_ns", 1_000_000_000, None)]
    assert of("sample_gap", samples(20, lambda tick: {}, skip=frozenset({5, 6}))) == []


def test_a_quiet_load_has_no_anomaly() -> None:
    quiet = clocks(
        range(0), throttle_bits=lambda tick: 0, event_power_cap_ns=lambda tick: 5, proc_majflt_count_AT=lambda tick: 3,
        gpu_foreign_process_count=lambda tick: 0, cpu_governor_code_AT=lambda tick: 0,
    )  # fmt: skip
    assert find_anomalies(quiet, prefill(40)) == ()
    assert find_anomalies((), ()) == ()


NAMES = (
    "gfx_clock_hz", "gfx_busy_ppm", "throttle_bits", "clock_event_bits", "event_power_cap_ns", "proc_majflt_count",
    "mem_available_bytes", "mem_total_bytes", "proc_thread_count", "proc_runq_wait_ns", "cpu_governor_code",
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 2**62)), max_size=14))
def test_arbitrary_values_never_break_it_and_anomalies_lie_within_the_load(rows: list[Values]) -> None:
    taken = samples(len(rows), lambda tick: rows[tick])
    for one in find_anomalies(taken, prefill(max(len(rows), 2))):
        assert 0 <= one.start_ns <= one.end_ns <= (len(rows) - 1) * PERIOD_MS * MS
