from __future__ import annotations

import math
import random

import pytest

from protocols.decision import LossRule, judge_loss
from protocols.next_step import MOST_BLOCKS, QUIET_BLOCKS, blocks_to_decide, blocks_to_pass, is_host_too_noisy
from protocols.plan import Noise, chances_at
from protocols.stats import Observation

ABBA = (False, True, True, False)


def decided(blocks: int, sigma: float, loss: float, margin: float, campaigns: int) -> float:
    """The share of simulated campaigns that the real decision decides."""
    noise, count = random.Random(9), 0
    for _ in range(campaigns):
        seen = [
            Observation(
                index=place,
                is_candidate=ABBA[place % 4],
                rate=math.exp(ABBA[place % 4] * math.log1p(-loss) + noise.gauss(0, sigma)),
            )
            for place in range(4 * blocks)
        ]
        count += judge_loss(seen, LossRule(margin=margin)).decision in {"PASS", "FAIL"}
    return count / campaigns


@pytest.mark.parametrize(
    ("sigma", "loss", "margin"), [(0.04, 0.0, 0.1), (0.1, 0.02, 0.1), (0.02, 0.3, 0.1), (0.01, 0.005, 0.02)]
)
def test_the_stated_number_of_blocks_is_the_fewest_that_decide_with_the_wanted_chance(
    sigma: float, loss: float, margin: float
) -> None:
    step = blocks_to_decide(sigma, loss, margin, 0.05)
    assert step is not None
    assert step.chance >= 0.8
    assert decided(step.blocks, sigma, loss, margin, 1500) == pytest.approx(step.chance, abs=0.045)
    if step.blocks > 2:
        fewer = chances_at(
            100 * loss, math.sqrt(1 / (step.blocks - 1)), 4 * step.blocks - 7, Noise(sigma=sigma), margin=margin
        )
        assert fewer.p_pass + fewer.p_fail < 0.8


def test_an_estimate_at_the_margin_is_decided_by_no_number_of_blocks() -> None:
    assert blocks_to_decide(0.01, 0.02, 0.02, 0.05) is None
    passes = blocks_to_pass(0.01, 0.02, 0.05)
    assert passes is not None
    assert 2 <= passes.blocks <= MOST_BLOCKS


def test_no_noise_at_all_needs_the_two_blocks_that_show_it() -> None:
    step = blocks_to_decide(0.0, 0.0, 0.02, 0.05)
    assert step is not None
    assert step.blocks == 2


@pytest.mark.parametrize(("sigma", "margin", "is_noisy"), [(0.04, 0.1, False), (0.1, 0.1, False), (0.59, 0.1, True)])
def test_a_host_is_too_noisy_where_an_equal_candidate_needs_more_blocks_than_anyone_should_run(
    sigma: float, margin: float, is_noisy: bool
) -> None:
    passes = blocks_to_pass(sigma, margin, 0.05)
    assert is_host_too_noisy(sigma, margin, 0.05) is is_noisy is (passes is None or passes.blocks > QUIET_BLOCKS)


def test_as_many_blocks_as_a_protocol_may_have_are_a_step_and_one_more_are_none() -> None:
    """The noise at which the last block is just enough, found by halving."""
    low, high = 0.01, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if blocks_to_pass(middle, 0.1, 0.05) is None else (middle, high)
    step = blocks_to_pass(low, 0.1, 0.05)
    assert step is not None
    assert (step.blocks, blocks_to_pass(high, 0.1, 0.05)) == (MOST_BLOCKS, None)
    assert MOST_BLOCKS == 64


def test_a_chance_of_exactly_what_is_wanted_is_enough() -> None:
    step = blocks_to_pass(0.04, 0.1, 0.05)
    assert step is not None
    assert blocks_to_pass(0.04, 0.1, 0.05, power=step.chance) == step
