"""Whether a further look fits into the time that is left for it."""

from __future__ import annotations

import pytest

from harness.looks_budget import LooksBudget
from protocols.schema import Limits


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def budget(clock: Clock, limits: Limits, *lengths_s: float) -> LooksBudget:
    made = LooksBudget(limits=limits, clock_s=clock)
    for length_s in lengths_s:

        def load(length_s: float = length_s) -> None:
            clock.now_s += length_s

        assert made.timed(load) is None
    return made


@pytest.mark.parametrize(("loads", "fits"), [(4, True), (5, True), (6, False)])
def test_a_look_fits_where_its_loads_end_in_time_at_the_pace_of_the_slowest(loads: int, fits: bool) -> None:
    clock = Clock()
    made = budget(clock, Limits(looks_min=2), 10.0, 4.0, 8.0, 6.0, 10.0, 8.0, 10.0, 8.0, 6.0)  # 50 s are left
    refusal = made.refusal(loads)
    assert (refusal is None) == fits
    if refusal is not None:
        assert (
            refusal == "the next look does not fit: 6 loads of up to 10.0 s, and 50 s of the 2 min for looks are left"
        )


def test_without_a_limit_for_looks_the_time_of_the_campaign_is_one() -> None:
    clock = Clock()
    made = budget(clock, Limits(campaign_min=1), 20.0)
    assert (made.refusal(2), made.refusal(3) is None) == (None, False)


def test_a_campaign_that_is_resumed_has_no_pace_yet_and_begins() -> None:
    assert budget(Clock(), Limits(looks_min=1)).refusal(200) is None


def test_a_load_that_broke_hands_its_reason_on() -> None:
    assert LooksBudget(limits=Limits()).timed(lambda: "the engine ended") == "the engine ended"
