from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.anytime import MIXTURE, anytime_fit, anytime_reach, block_contrasts
from protocols.stats import Observation, fit_loss

ABBA = (False, True, True, False)


def observe(rates: list[float]) -> list[Observation]:
    return [
        Observation(index=place, is_candidate=ABBA[place % 4], rate=rate, block=place // 4 + 1)
        for place, rate in enumerate(rates)
    ]


def e_value(contrasts: list[float], shift: float) -> float:
    """The mixture of t likelihood ratios as it is published, for one shift."""
    moved = [value - shift for value in contrasts]
    n, total, squares = len(moved), sum(moved), sum(value**2 for value in moved)
    ratio = 1 - total**2 / ((n + MIXTURE) * squares)
    return math.sqrt(MIXTURE / (n + MIXTURE)) * ratio ** (-n / 2)


@given(st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=12), st.sampled_from([0.05, 0.01]))
def test_the_interval_ends_where_the_e_value_reaches_one_over_two_alpha(contrasts: list[float], alpha: float) -> None:
    reach = anytime_reach(contrasts, alpha)
    mean = math.fsum(contrasts) / len(contrasts)
    if reach is None or reach < 1e-9:
        return
    assert e_value(contrasts, mean + reach) == pytest.approx(1 / (2 * alpha), rel=1e-6)
    assert e_value(contrasts, mean + 0.9 * reach) < 1 / (2 * alpha) < e_value(contrasts, mean + 1.1 * reach)


def test_an_unbounded_interval_is_one_that_no_shift_leaves() -> None:
    assert anytime_reach([0.01], 0.05) is None
    assert anytime_reach([0.01, 0.02], 0.0001) is None
    assert e_value([0.01, 0.02], 1e9) < 1 / (2 * 0.0001)


def test_a_steady_drift_changes_no_contrast() -> None:
    flat = block_contrasts(observe([100.0] * 8))
    falling = block_contrasts(observe([100.0 * 0.99**place for place in range(8)]))
    assert flat == pytest.approx([0.0, 0.0], abs=1e-12)
    assert falling == pytest.approx([0.0, 0.0], abs=1e-12)


def test_a_block_of_one_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="one arm only"):
        block_contrasts(observe([1.0, 1.0, 1.0, 1.0])[:1])


def test_the_mean_contrast_is_the_loss_of_the_drift_adjusted_fit() -> None:
    noise = random.Random(3)
    seen = observe([100 * math.exp(noise.gauss(0, 0.02)) for _ in range(24)])
    fit = fit_loss(seen)
    anytime = anytime_fit(fit, seen)
    assert anytime.beta == pytest.approx(fit.beta, rel=1e-9)
    assert anytime.loss_low is not None
    assert anytime.loss_high is not None
    assert fit.loss_low is not None
    assert fit.loss_high is not None
    assert anytime.loss_low < fit.loss_low < fit.loss_high < anytime.loss_high


def test_looking_after_every_block_for_ever_errs_no_more_than_promised() -> None:
    noise, campaigns, errors = random.Random(5), 3000, 0
    for _ in range(campaigns):
        contrasts = [noise.gauss(0, 0.01) for _ in range(2)]
        while len(contrasts) <= 40:
            reach = anytime_reach(contrasts, 0.05)
            if reach is not None and math.fsum(contrasts) / len(contrasts) > reach:
                errors += 1
                break
            if reach is not None and -math.fsum(contrasts) / len(contrasts) > reach:
                break
            contrasts.append(noise.gauss(0, 0.01))
    assert errors / campaigns <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / campaigns)
