from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from protocols.companions import MOST_BLOCKS, holm, randomisation_test, two_sided_p
from protocols.stats import Observation, fit_loss

MIRRORS = ((False, True, True, False), (True, False, False, True))


def observe(rates: list[float], coins: list[int]) -> list[Observation]:
    return [
        Observation(index=place, is_candidate=MIRRORS[coins[place // 4]][place % 4], rate=rate, block=place // 4 + 1)
        for place, rate in enumerate(rates)
    ]


def test_p_is_the_share_of_all_ways_to_toss_the_coins() -> None:
    """Every way is laid out and fitted: no shortcut through signs."""
    noise = random.Random(2)
    rates, coins = [100 * math.exp(noise.gauss(0, 0.02)) for _ in range(20)], [0, 1, 1, 0, 1]
    seen = fit_loss(observe(rates, coins)).beta
    ways = [fit_loss(observe(rates, list(way))).beta for way in itertools.product((0, 1), repeat=5)]
    test = randomisation_test(observe(rates, coins), 0.02)
    assert test is not None
    assert test.p_loss == sum(beta <= seen + 1e-12 for beta in ways) / 32
    assert test.p_least == 1 / 32


def test_p_of_the_margin_is_small_where_the_candidate_is_no_slower() -> None:
    rates = [100.0, 101.0, 101.0, 100.0] * 6
    test = randomisation_test(observe(rates, [0] * 6), 0.02)
    assert test is not None
    assert (test.p_margin, test.p_loss) == (1 / 64, 1.0)


def test_without_any_difference_a_small_p_is_as_rare_as_it_says() -> None:
    noise, small, campaigns = random.Random(4), 0, 2000
    for _ in range(campaigns):
        coins = [noise.randrange(2) for _ in range(6)]
        rates = [100 * math.exp(noise.gauss(0, 0.02) - 0.03 * place) for place in range(24)]
        test = randomisation_test(observe(rates, coins), 0.02)
        assert test is not None
        small += test.p_loss <= 3 / 64
    assert small / campaigns == pytest.approx(3 / 64, abs=4 * math.sqrt(3 / 64 / campaigns))


def test_more_blocks_than_can_be_counted_and_loads_without_blocks_give_no_test() -> None:
    many = observe([1.0] * 4 * (MOST_BLOCKS + 1), [0] * (MOST_BLOCKS + 1))
    assert randomisation_test(many, 0.02) is None
    assert randomisation_test([Observation(index=0, is_candidate=False, rate=1.0)], 0.02) is None


def test_the_two_sided_p_is_that_of_students_t() -> None:
    assert two_sided_p(-0.03, 0.01, 5) == pytest.approx(2 * scipy_stats.t.sf(3, 5), rel=1e-12)
    assert (two_sided_p(0.0, 0.0, 5), two_sided_p(0.1, 0.0, 5)) == (1.0, 0.0)


def test_holm_gives_the_published_adjustment() -> None:
    # Four p-values by hand: 4 * .005, 3 * .01, 2 * .03 and 1 * .04, none below the one before it.
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert list(found) == ["a", "b", "c", "d"]
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_and_keeps_their_order(values: list[float]) -> None:
    given_p = {str(place): value for place, value in enumerate(values)}
    found = holm(given_p)
    assert all(given_p[name] <= found[name] <= 1 for name in found)
    for one, other in itertools.combinations(found, 2):
        if given_p[one] < given_p[other]:
            assert found[one] <= found[other]
