"""Interpolation, integrals and counter differences on exact numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.telemetry.sample import FieldSpec, Reading, Sample
from recorder.trains import Point, counter_delta, integral, points_of, unwrapped, value_at

FAR = 10**9


def train(*pairs: tuple[int, int]) -> tuple[Point, ...]:
    return tuple(Point(*pair) for pair in pairs)


TRAINS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1000)), min_size=2, max_size=12).map(
    lambda steps: tuple(Point(sum(step for step, _ in steps[: index + 1]), raw) for index, (_, raw) in enumerate(steps))
)


def test_values_are_interpolated_and_unknown_outside() -> None:
    ramp = train((0, 10), (10, 20), (30, 20))
    assert [value_at(ramp, t) for t in (-1, 0, 3, 10, 20, 30, 31)] == [None, 10, 13, 20, 20, 20, None]
    assert value_at((), 0) is None


def test_the_integral_of_a_ramp_is_exact_between_any_two_times() -> None:
    ramp = train((0, 0), (10, 10), (20, 20))
    assert integral(ramp, 0, 20, FAR) == (200, 20)
    assert integral(ramp, 5, 7, FAR) == (12, 2)
    assert integral(ramp, 3, 4, FAR) == (Fraction(7, 2), 1)
    assert integral(ramp, -50, 70, FAR) == (200, 20)
    assert integral(ramp, 20, 30, FAR) == integral((), 0, 9, FAR) == (0, 0)


def test_a_gap_is_not_bridged() -> None:
    gap = train((0, 4), (10, 4), (100, 4), (110, 4))
    assert integral(gap, 0, 110, 30) == (80, 20)
    assert integral(gap, 0, 110, 90) == (440, 110)


@given(TRAINS, st.data())
def test_splitting_an_interval_never_changes_the_sum(points: tuple[Point, ...], data: st.DataObject) -> None:
    low, high = points[0].t_ns, points[-1].t_ns
    a, b, c = sorted(data.draw(st.tuples(*[st.integers(low - 5, high + 5)] * 3)))
    max_gap = data.draw(st.sampled_from([5, 20, FAR]))
    whole, left, right = (integral(points, *edges, max_gap) for edges in ((a, c), (a, b), (b, c)))
    assert whole == (left.total + right.total, left.covered_ns + right.covered_ns)
    assert 0 <= whole.covered_ns <= c - a


def test_a_counter_moves_by_its_interpolated_difference_within_its_bound() -> None:
    counter = train((0, 100), (10, 200), (20, 300), (30, 460))
    moved = counter_delta(counter, 5, 25, max_gap_ns=30)
    assert (moved.delta, moved.bound, moved.coverage) == (230, 260, 1)
    assert (moved.wraps, moved.resets, moved.changes) == (0, 0, 3)
    at_readings = counter_delta(counter, 10, 30, max_gap_ns=30)
    assert (at_readings.delta, at_readings.bound) == (260, 0)


def test_a_counter_that_wraps_goes_on() -> None:
    counter = train((0, 90), (10, 98), (20, 6), (30, 14))
    moved = counter_delta(counter, 0, 30, max_gap_ns=30, modulus=100)
    assert (moved.delta, moved.wraps, moved.resets) == (24, 1, 0)
    assert [point.raw for point in unwrapped(counter, 100)[0]] == [90, 98, 106, 114]


def test_a_counter_that_is_reset_has_no_difference() -> None:
    moved = counter_delta(train((0, 90), (10, 98), (20, 6)), 0, 20, max_gap_ns=30)
    assert (moved.delta, moved.bound, moved.resets) == (None, None, 1)
    before = counter_delta(train((0, 90), (10, 98), (20, 6)), 0, 10, max_gap_ns=30)
    assert (before.delta, before.resets) == (8, 0)


@pytest.mark.parametrize(("start", "end"), [(-1, 20), (0, 21), (40, 50)])
def test_a_counter_that_does_not_reach_over_both_ends_has_no_difference(start: int, end: int) -> None:
    assert counter_delta(train((0, 1), (20, 3)), start, end, max_gap_ns=30).delta is None
    assert counter_delta((), start, end, max_gap_ns=30).delta is None


@given(
    TRAINS.map(lambda points: tuple(Point(t, sum(p.raw for p in points[: i + 1])) for i, (t, _) in enumerate(points))),
    st.data(),
)
def test_counter_differences_add_up_and_hold_their_bound(points: tuple[Point, ...], data: st.DataObject) -> None:
    a, b, c = sorted(data.draw(st.tuples(*[st.integers(points[0].t_ns, points[-1].t_ns)] * 3)))
    whole, left, right = (counter_delta(points, *edges, max_gap_ns=FAR) for edges in ((a, c), (a, b), (b, c)))
    assert whole.delta == left.delta + right.delta
    # Any monotonic course between the readings lies within the bound: the last reading before, the first after.
    before = max(point.raw for point in points if point.t_ns <= a)
    after = min(point.raw for point in points if point.t_ns >= c)
    assert abs((after - before) - whole.delta) <= whole.bound


def test_missing_readings_are_no_points() -> None:
    spec = FieldSpec(name="x_count", unit="count", kind="gauge", domain="host", source="s")
    other = FieldSpec(name="x_count", unit="count", kind="gauge", domain="host", source="s", instance="b")
    samples = [
        Sample(
            tick=0,
            deadline_ns=0,
            t_begin_ns=0,
            t_end_ns=2,
            readings=(Reading(field=spec, raw=5), Reading(field=other, raw=6)),
        ),
        Sample(
            tick=1, deadline_ns=0, t_begin_ns=10, t_end_ns=12, readings=(Reading(field=spec, raw=None, status="error"),)
        ),
        Sample(tick=2, deadline_ns=0, t_begin_ns=20, t_end_ns=22, readings=(Reading(field=spec, raw=0),)),
    ]
    assert points_of(samples, "x_count") == ((1, 5), (21, 0))
    assert points_of(samples, "x_count@b") == ((1, 6),)
