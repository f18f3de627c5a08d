"""Sensors over a phase: golden trains with exact expected values."""

from __future__ import annotations

import runpy
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.derive import derive_request
from recorder.phases import MINIMUM_SAMPLES, Phase, margin_of, phase_mean, phases_of
from recorder.trains import Point

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
MS = 1_000_000
PERIOD = 250 * MS


def phase(start_ms: int, end_ms: int) -> Phase:
    return Phase(name="generation", start_ns=start_ms * MS, end_ns=end_ms * MS)


def train(*pairs: tuple[int, int]) -> tuple[Point, ...]:
    return tuple(Point(ms * MS, raw) for ms, raw in pairs)


def every(period_ms: int, end_ms: int, value) -> tuple[Point, ...]:
    return train(*((ms, value(ms)) for ms in range(0, end_ms + 1, period_ms)))


def mean_of(points, interval: Phase, margin_ms: int = 250):
    return phase_mean(points, interval, period_ns=PERIOD, margin_ns=margin_ms * MS)


def test_phases_are_marked_by_the_clients_stamps() -> None:
    request = derive_request(S.exchange(S.good_events(), sent_ns=3 * MS), "native")
    assert phases_of(request) == (
        Phase(name="prefill", start_ns=3 * MS, end_ns=10 * MS),
        Phase(name="generation", start_ns=10 * MS, end_ns=30 * MS),
    )


def test_a_request_with_one_token_has_no_generation_and_one_without_has_no_phase() -> None:
    one = derive_request(S.exchange([(10, S.token(1, "a", 1)), (11, S.final(1))]), "native")
    assert [found.name for found in phases_of(one)] == ["prefill"]
    none = derive_request(S.exchange([(11, S.final(0))]), "native")
    assert phases_of(none) == ()


def test_the_margin_is_the_longest_of_period_window_and_filter() -> None:
    assert margin_of(PERIOD) == PERIOD
    assert margin_of(PERIOD, window_us=1_000_000) == 1000 * MS
    assert margin_of(PERIOD, window_us=1, filter_us=300_000) == 300 * MS


def test_a_constant_has_itself_as_mean() -> None:
    found = mean_of(every(250, 4000, lambda ms: 7), phase(0, 4000))
    assert (found.status, found.mean, found.n) == ("OK", 7, 15)
    assert found.coverage == Fraction(3500, 4000)
    assert found.quarters == (7, 7, 7, 7)
    assert (found.minimum, found.p05, found.p50, found.p95, found.maximum) == (7, 7, 7, 7, 7)
    assert (found.slope, found.changes, found.longest_equal) == (0, 0, 15)
    assert found.max_gap_ns == 250 * MS


def test_a_step_at_a_known_time_gives_the_time_weighted_mean() -> None:
    """100 until 2 s, 200 from 2.25 s: the trapezoid in between counts half and half."""
    points = every(250, 4000, lambda ms: 100 if ms <= 2000 else 200)
    found = mean_of(points, phase(0, 4000))
    expected = Fraction(1750 * 100 + 250 * 150 + 1500 * 200, 3500)
    assert found.mean == expected
    assert (found.minimum, found.p50, found.maximum, found.changes) == (100, 100, 200, 1)
    # Quarters of the interior, 875 ms each; the step lies in the third.
    third = Fraction(875 * 200 - 250 * 50, 875)
    assert found.quarters == (100, 100, third, 200)


def test_a_ramp_has_its_middle_as_mean_and_its_slope() -> None:
    found = mean_of(every(250, 4000, lambda ms: 3 * ms), phase(0, 4000))
    assert found.mean == 3 * 2000
    assert found.slope == 3 * 60_000
    assert found.quarters == tuple(3 * (250 + 875 * k + Fraction(875, 2)) for k in range(4))
    assert (found.p05, found.p50, found.p95) == (3 * 250, 3 * 2000, 3 * 3750)


def test_values_within_the_margins_do_not_count() -> None:
    points = every(250, 4000, lambda ms: 10**6 if ms < 1000 or ms > 3000 else 50)
    assert mean_of(points, phase(0, 4000), margin_ms=1000).mean == 50
    assert mean_of(points, phase(0, 4000), margin_ms=900).mean == 50
    assert mean_of(points, phase(0, 4000), margin_ms=700).mean > 50


def test_a_filtered_step_is_right_inside_a_margin_of_its_filter() -> None:
    """A sensor that averages over 1 s climbs for 1 s after the phase begins."""
    points = every(250, 6000, lambda ms: 600 if ms >= 1000 else 600 * ms // 1000)
    assert mean_of(points, phase(0, 6000), margin_ms=1000).mean == 600
    assert mean_of(points, phase(0, 6000), margin_ms=250).mean < 600


def test_the_mean_is_by_time_and_not_by_tick() -> None:
    """Nine ticks crowd into the first second, the last ones are sparse."""
    points = train(*((ms, 0) for ms in range(0, 1000, 125)), (1000, 100), (1750, 100), (2500, 100), (3000, 100))
    found = phase_mean(points, phase(0, 3000), period_ns=PERIOD, margin_ns=0)
    assert found.mean == Fraction(125 * 50 + 2000 * 100, 3000)
    assert found.n == 12


def test_a_gap_lowers_the_coverage_and_is_not_bridged() -> None:
    points = [
        point
        for point in every(250, 10_000, lambda ms: 10 if ms < 5000 else 30)
        if not 4000 * MS < point.t_ns < 6000 * MS
    ]
    found = mean_of(points, phase(0, 10_000))
    assert found.coverage == Fraction(3750 + 3750, 10_000)
    assert found.mean == 20
    assert found.max_gap_ns == 2000 * MS
    assert found.quarters == (10, 10, 30, 30)


def test_a_quarter_that_is_mostly_uncovered_has_no_mean() -> None:
    points = [point for point in every(250, 10_000, lambda ms: 10) if not 3100 * MS < point.t_ns < 5000 * MS]
    assert mean_of(points, phase(0, 10_000)).quarters == (10, None, 10, 10)


@pytest.mark.parametrize("n", range(MINIMUM_SAMPLES))
def test_too_few_samples_are_insufficient_and_have_no_number(n: int) -> None:
    found = mean_of(every(250, 250 * max(n, 1) + 250, lambda ms: 5), phase(0, 250 * (n + 1)))
    assert (found.status, found.mean, found.quarters) == ("INSUFFICIENT", None, ())
    assert found.n <= n


def test_eight_samples_are_enough() -> None:
    found = mean_of(every(250, 2250, lambda ms: 5), phase(0, 2250))
    assert (found.status, found.n, found.mean) == ("OK", 8, 5)


def test_a_phase_shorter_than_its_margins_is_insufficient_and_no_samples_are_absent() -> None:
    assert mean_of(every(250, 400, lambda ms: 5), phase(0, 400)).status == "INSUFFICIENT"
    found = mean_of((), phase(0, 4000))
    assert (found.status, found.n, found.max_gap_ns) == ("ABSENT", 0, None)


def test_a_frozen_sensor_shows_as_one_row_of_equal_samples() -> None:
    points = every(250, 4000, lambda ms: 42 if ms <= 3000 else 43)
    found = mean_of(points, phase(0, 4000))
    assert (found.longest_equal, found.changes) == (12, 1)


@given(st.lists(st.integers(0, 10**6), min_size=10, max_size=40))
def test_a_mean_lies_between_its_extremes(values: list[int]) -> None:
    points = train(*((250 * index, value) for index, value in enumerate(values)))
    found = phase_mean(points, phase(0, 250 * (len(values) - 1)), period_ns=PERIOD, margin_ns=0)
    assert found.status == "OK"
    assert found.minimum <= found.mean <= found.maximum
    assert found.minimum <= found.p05 <= found.p50 <= found.p95 <= found.maximum
    assert sum(found.quarters) / 4 == found.mean or len(values) % 4 != 1


def test_the_margin_keeps_a_filtered_step_out_of_the_mean() -> None:
    """A sensor that averages over 1 s sees a step from 100 to 500 at 2000 ms as a ramp of four samples."""
    truth = [100 if ms < 2000 else 500 for ms in range(0, 8001, 250)]
    seen = [
        sum(truth[max(0, k - 4) : k]) // len(truth[max(0, k - 4) : k] or [1]) if k else 100 for k in range(len(truth))
    ]
    points = train(*((250 * k, value) for k, value in enumerate(seen)))
    assert seen[8:13] == [100, 200, 300, 400, 500]
    with_margin = mean_of(points, phase(2000, 7000), margin_ms=margin_of(PERIOD, window_us=1_000_000) // MS)
    assert (with_margin.mean, with_margin.n, with_margin.changes) == (500, 13, 0)
    without = mean_of(points, phase(2000, 7000), margin_ms=0)
    assert without.mean == 500 - Fraction(400 * 500, 5000)
