"""Rows about the phases of requests: one golden load whose every number is known."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

from recorder.derive import derive_request
from recorder.http1 import parse_response
from recorder.load_files import Exchange, SampleFile
from recorder.phase_rows import marked_phases, phase_rows, spacing_ns
from recorder.request_rows import ReadExchange, read_exchange
from recorder.telemetry.sample import FieldSpec, Reading, Sample
from recorder.trains import Point

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
MS = 1_000_000
GPU = "0000:06:00.0"

# Prefill from 10 s to 20 s at 600 W, generation from 20 s to 26 s at 300 W, before and after 100 W.
SENT_MS, FIRST_MS, LAST_MS, END_MS = 10_000, 20_000, 26_000, 30_000


def spec(name: str, unit: str, kind: str = "gauge", **more: object) -> FieldSpec:
    return FieldSpec(name=name, unit=unit, kind=kind, domain="board", source="x", instance=GPU, **more)  # type: ignore[arg-type]


INSTANT = spec("board_power_instant_uw", "uw", update_us=100_000)
AVERAGE = spec("board_power_uw", "uw", window_us=1_000_000)
LIMIT = spec("power_limit_uw", "uw")
ENERGY = spec("board_energy_uj", "uj", "counter", update_us=100_000)
CLOCK = spec("gfx_clock_hz", "hz")
SLOW = spec("temp_margin_mc", "mc")
COUNT = spec("board_some_count", "count")
FIELDS = (INSTANT, AVERAGE, LIMIT, ENERGY, CLOCK, SLOW, COUNT)


def watts(ms: int) -> int:
    return 600 if SENT_MS <= ms < FIRST_MS else 300 if FIRST_MS <= ms < LAST_MS else 100


def joules(ms: int) -> int:
    parts = ((0, SENT_MS, 100), (SENT_MS, FIRST_MS, 600), (FIRST_MS, LAST_MS, 300), (LAST_MS, END_MS, 100))
    return sum((max(0, min(ms, end) - start)) * power for start, end, power in parts) // 1000


def sample(ms: int, tick: int, readings: dict[FieldSpec, int], *, is_edge: bool = False) -> Sample:
    return Sample(
        tick=tick,
        deadline_ns=ms * MS,
        t_begin_ns=ms * MS,
        t_end_ns=ms * MS,
        readings=tuple(Reading(field=field, raw=raw) for field, raw in readings.items()),
        is_edge=is_edge,
    )


def tick_readings(tick: int) -> dict[FieldSpec, int]:
    ms = 250 * tick
    readings = {
        INSTANT: watts(ms) * 1_000_000,
        AVERAGE: watts(ms) * 1_000_000,
        LIMIT: 700_000_000,
        CLOCK: 1_980_000_000 if ms < 15_000 else 1_900_000_000,
        COUNT: 5,
    }
    if tick % 4 == 0:
        readings |= {ENERGY: joules(ms) * 1_000_000, SLOW: 9_000}
    return readings


def golden_samples() -> SampleFile:
    samples = [sample(250 * tick, tick, tick_readings(tick)) for tick in range(END_MS // 250 + 1)]
    edges = [
        sample(ms, ms // 250, {ENERGY: joules(ms) * 1_000_000}, is_edge=True)
        for ms in (SENT_MS + 4, FIRST_MS + 4, LAST_MS + 4)
    ]
    return SampleFile(FIELDS, tuple(sorted([*samples, *edges], key=lambda one: one.t_mid_ns)))


def read(number: int = 2, workload: str | None = "cold") -> ReadExchange:
    exchange = Exchange(
        number=number, name="cold.1", file="wire/002-cold.1.wire", route="/completion", kind="native",
        workload=workload, repeat=1, is_warmup=False,
    )  # fmt: skip
    events = [(FIRST_MS, S.token(1, "a", 1)), (LAST_MS, S.token(2, "b", 2)), (LAST_MS + 1, S.final(2))]
    wire = S.exchange(events, sent_ns=SENT_MS * MS)
    whole = read_exchange(exchange, S.record([]))
    return ReadExchange(
        exchange=whole.exchange, wire=wire, response=parse_response(wire.reads), derived=derive_request(wire, "native")
    )


def rows_of(table: str) -> dict[tuple[str, str], dict]:
    found = phase_rows(golden_samples(), [read()])[table]
    return {(row["phase"], FIELDS[row["field"]].name): row for row in found}


def test_the_phases_of_a_workloads_requests_are_marked_and_no_others() -> None:
    marked = marked_phases([read(), read(3, None)])
    assert [(one.request, one.phase.name, one.phase.start_ns // MS, one.phase.end_ns // MS) for one in marked] == [
        (2, "prefill", SENT_MS, FIRST_MS),
        (2, "generation", FIRST_MS, LAST_MS),
    ]


def test_every_gauge_of_a_physical_unit_has_its_mean_with_n_and_coverage() -> None:
    rows = rows_of("phase_sensor")
    assert {name for _, name in rows} == {
        "board_power_instant_uw",
        "board_power_uw",
        "power_limit_uw",
        "gfx_clock_hz",
        "temp_margin_mc",
    }
    prefill = rows["prefill", "board_power_instant_uw"]
    assert (prefill["status"], prefill["mean"], prefill["n"]) == ("OK", 600_000_000, 39)
    assert (prefill["margin_ns"], prefill["coverage_ppm"]) == (250 * MS, 950_000)
    assert (prefill["changes"], prefill["longest_equal"], prefill["is_frozen"]) == (0, 39, 1)
    generation = rows["generation", "board_power_uw"]
    assert (generation["margin_ns"], generation["n"], generation["mean"]) == (1000 * MS, 17, 300_000_000)


def test_a_clock_that_sinks_shows_in_the_quarters_and_the_slope() -> None:
    row = rows_of("phase_sensor")["prefill", "gfx_clock_hz"]
    # 18 trapezoids of 250 ms at 1980 MHz, one between, and 19 at 1900 MHz.
    assert row["mean"] == round((18 * 1_980_000_000 + 1_940_000_000 + 19 * 1_900_000_000) / 38)
    assert (row["q1"], row["q4"]) == (1_980_000_000, 1_900_000_000)
    assert row["slope_per_min"] < 0
    assert (row["changes"], row["is_frozen"]) == (1, 0)


def test_a_field_that_is_read_rarely_is_judged_by_its_own_spacing() -> None:
    prefill, generation = (rows_of("phase_sensor")[phase, "temp_margin_mc"] for phase in ("prefill", "generation"))
    assert (prefill["status"], prefill["n"], prefill["mean"]) == ("OK", 9, 9_000)
    assert (generation["status"], generation["n"], generation["mean"]) == ("INSUFFICIENT", 5, None)


def test_the_counter_gives_the_energy_of_each_phase_within_a_bound_that_its_edge_readings_make_small() -> None:
    rows = rows_of("phase_energy")
    prefill, generation = (rows[phase, "board_energy_uj"] for phase in ("prefill", "generation"))
    assert (prefill["method"], prefill["is_best"], prefill["domain"]) == ("counter", 1, "board")
    assert abs(prefill["energy_uj"] - 6_000_000_000) <= prefill["bound_uj"]
    assert abs(generation["energy_uj"] - 1_800_000_000) <= generation["bound_uj"]
    # One update period of 100 ms at each edge, 60 J of 6 kJ, is nearly all of the bound.
    assert 120_000_000 <= prefill["bound_uj"] <= 130_000_000
    assert prefill["coverage_ppm"] == 1_000_000


def test_power_over_time_stands_beside_the_counter_and_a_limit_is_no_power() -> None:
    rows = rows_of("phase_energy")
    assert {name for _, name in rows} == {"board_energy_uj", "board_power_instant_uw", "board_power_uw"}
    instant = rows["prefill", "board_power_instant_uw"]
    assert (instant["method"], instant["is_best"], instant["reason"]) == ("trapezoid", 0, None)
    # The fall from 600 to 300 W lies in the last interval of the phase.
    assert instant["energy_uj"] == 6_000_000_000 - 150 * 250_000
    assert abs(instant["energy_uj"] - 6_000_000_000) <= instant["bound_uj"]


def test_without_a_counter_the_instantaneous_power_is_the_one_to_use() -> None:
    whole = golden_samples()
    without = [
        sample(
            one.t_mid_ns // MS,
            one.tick,
            {r.field: r.raw for r in one.readings if r.field != ENERGY and r.raw is not None},
        )
        for one in whole.samples
        if not one.is_edge
    ]
    fields = tuple(field for field in FIELDS if field != ENERGY)
    found = phase_rows(SampleFile(fields, tuple(without)), [read()])["phase_energy"]
    assert {fields[row["field"]].name for row in found if row["is_best"]} == {"board_power_instant_uw"}


def test_a_counter_has_its_gain_in_each_phase() -> None:
    run = spec("proc_run_ns", "ns", "counter")
    busy = [sample(250 * tick, tick, {run: 500 * MS * tick}) for tick in range(END_MS // 250 + 1)]
    rows = phase_rows(SampleFile((run,), tuple(busy)), [read()])["phase_counter"]
    assert [(row["phase"], row["delta"], row["bound"], row["coverage_ppm"]) for row in rows] == [
        ("prefill", 20_000 * MS, 0, 1_000_000),
        ("generation", 12_000 * MS, 0, 1_000_000),
    ]


def test_an_anomaly_is_a_row_with_its_request_and_phase() -> None:
    whole = golden_samples()
    bits = spec("throttle_bits", "code", "state")
    marked = [
        sample(one.t_mid_ns // MS, one.tick, {bits: 16 if one.tick == 60 else 0})
        for one in whole.samples
        if not one.is_edge
    ]
    (row,) = phase_rows(SampleFile((bits,), tuple(marked)), [read()])["anomaly"]
    assert row == {
        "ordinal": 0, "kind": "throttle", "start_ns": 15_000 * MS, "end_ns": 15_000 * MS, "field": "throttle_bits",
        "value": 16, "cause": "power", "request": None, "phase": None,
    }  # fmt: skip


def test_a_load_without_ticks_has_no_figures() -> None:
    assert phase_rows(SampleFile((), ()), [read()]) == {
        "phase_sensor": [],
        "phase_counter": [],
        "phase_energy": [],
        "anomaly": [],
    }
    assert spacing_ns((), 250) == 250
    assert spacing_ns([Point(0, 1), Point(1000, 1), Point(2000, 1)], 250) == 1000
