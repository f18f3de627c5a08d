from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.decision import LossRule, judge_loss
from protocols.looks import Look, spent_levels
from protocols.stats import Observation, decide_loss, fit_loss

ABBA = (False, True, True, False)
LOOKS = tuple(Look(blocks=b, level=level) for b, level in zip((2, 3, 4), spent_levels((2, 3, 4), 0.05), strict=True))


def observe(rates: list[float], factor: float = 1.0) -> list[Observation]:
    return [
        Observation(
            index=place + 1,
            is_candidate=ABBA[place % 4],
            rate=rate * (factor if ABBA[place % 4] else 1),
            block=place // 4 + 1,
        )
        for place, rate in enumerate(rates)
    ]


def noisy(loads: int, sigma: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [100 * math.exp(source.gauss(0, sigma)) for _ in range(loads)]


def test_without_looks_all_loads_are_judged_once_at_alpha() -> None:
    seen = observe(noisy(8, 0.01, 1))
    judgement = judge_loss(seen, LossRule(margin=0.02))
    assert judgement.fit == fit_loss(seen)
    assert judgement.decision == decide_loss(fit_loss(seen), 0.02)
    assert judgement.looks == ()


def test_the_first_look_that_decides_counts_and_later_loads_change_nothing() -> None:
    rule = LossRule(margin=0.02, looks=LOOKS)
    early = observe(noisy(8, 0.001, 2))
    assert judge_loss(early + observe(noisy(16, 0.001, 2))[8:], rule).decision == "PASS"
    spoiled = [*observe(noisy(16, 0.001, 2))[:8], *observe([100.0] * 16, factor=0.5)[8:]]
    judgement = judge_loss(spoiled, rule)
    assert (judgement.decision, len(judgement.looks), judgement.looks[0].look.blocks) == ("PASS", 1, 2)


def test_a_campaign_that_no_look_decides_is_open_at_the_last_one() -> None:
    judgement = judge_loss(observe(noisy(16, 0.2, 3)), LossRule(margin=0.02, looks=LOOKS))
    assert judgement.decision == "INCONCLUSIVE"
    assert [one.look.blocks for one in judgement.looks] == [2, 3, 4]


def test_a_loss_of_exactly_the_margin_is_open_at_every_look() -> None:
    judgement = judge_loss(observe([100.0] * 16, factor=0.98), LossRule(margin=0.02, looks=LOOKS))
    assert {one.decision for one in judgement.looks} == {"INCONCLUSIVE"}


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "PASS"), (0.95, "FAIL"), (1.05, "FAIL"), (0.98, "INCONCLUSIVE")]
)
def test_equivalence_fails_a_loss_and_a_gain_alike(factor: float, expected: str) -> None:
    seen = observe(noisy(8, 0.0005, 4), factor)
    rule = LossRule(margin=0.02, equivalence=True)
    assert judge_loss(seen, rule).decision == expected


def test_a_gain_of_exactly_the_margin_is_not_equivalence() -> None:
    # Swapped, the baseline loses exactly 2 % against this candidate.
    seen = observe([100.0] * 8, 1 / 0.98)
    assert judge_loss(seen, LossRule(margin=0.02, equivalence=True)).decision == "INCONCLUSIVE"
    assert judge_loss(seen, LossRule(margin=0.02)).decision == "PASS"


@given(st.integers(0, 10_000), st.floats(0.9, 1.1), st.floats(0.001, 0.05))
def test_equivalence_does_not_care_which_arm_is_called_the_candidate(seed: int, factor: float, sigma: float) -> None:
    seen = observe(noisy(8, sigma, seed), factor)
    swapped = [
        Observation(index=one.index, is_candidate=not one.is_candidate, rate=one.rate, block=one.block) for one in seen
    ]
    rule = LossRule(margin=0.03, equivalence=True)
    assert judge_loss(seen, rule).decision == judge_loss(swapped, rule).decision


@given(st.integers(0, 10_000), st.floats(0.9, 1.1))
def test_equivalence_never_passes_what_non_inferiority_does_not(seed: int, factor: float) -> None:
    seen = observe(noisy(8, 0.01, seed), factor)
    if judge_loss(seen, LossRule(margin=0.05, equivalence=True)).decision == "PASS":
        assert judge_loss(seen, LossRule(margin=0.05)).decision == "PASS"


def test_bounds_that_hold_at_any_time_are_wider_than_those_of_one_look() -> None:
    seen = observe(noisy(8, 0.01, 6))
    look = (Look(blocks=2, level=0.05),)
    one = judge_loss(seen, LossRule(margin=0.02, looks=look)).fit
    any_time = judge_loss(seen, LossRule(margin=0.02, looks=look, stopping="anytime")).fit
    assert one.loss_high is not None
    assert any_time.loss_high is None or any_time.loss_high > one.loss_high
