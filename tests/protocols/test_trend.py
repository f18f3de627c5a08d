from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats as scipy_stats

from protocols import trend as module
from protocols.trend import ALPHA, Point, aa_band, find_trend


def series(levels: list[float], error: float, seed: int, df: int = 5) -> list[Point]:
    """Campaigns of eight loads with these true changes, each with an error that it estimates from its own loads."""
    source = random.Random(seed)
    found = []
    for place, level in enumerate(levels):
        spread = math.sqrt(sum(source.gauss(0, 1) ** 2 for _ in range(df)) / df)
        found.append(
            Point(name=f"r{place}", change=level + source.gauss(0, error), error=error * max(spread, 1e-6), df=df)
        )
    return found


@pytest.mark.parametrize(("campaigns", "df"), [(2, 1), (2, 5), (3, 5), (12, 5), (20, 5)])
def test_a_series_without_a_change_names_one_as_rarely_as_it_says(campaigns: int, df: int) -> None:
    """Two campaigns of one block named a change in 20 of 100 series: their error was taken as known."""
    many = 1500
    named = sum(bool(find_trend(series([0.0] * campaigns, 0.005, seed, df)).changes) for seed in range(many))
    assert named / many <= ALPHA + 3 * math.sqrt(ALPHA / many)
    assert named > 0


def test_a_step_is_found_at_its_place_with_its_size() -> None:
    levels = [0.0] * 6 + [-0.03] * 6
    found = [find_trend(series(levels, 0.005, seed)) for seed in range(60)]
    assert sum(any(change.at == 6 for change in trend.changes) for trend in found) >= 55
    trend = found[0]
    (change,) = [one for one in trend.changes if one.at == 6]
    assert change.before == pytest.approx(0.0, abs=0.006)
    assert change.after == pytest.approx(-0.03, abs=0.006)
    assert change.p < ALPHA


def test_two_steps_are_found_one_by_one() -> None:
    levels = [0.0] * 8 + [-0.05] * 8 + [0.02] * 8
    trend = find_trend(series(levels, 0.005, 3))
    assert [change.at for change in trend.changes] == [8, 16]
    assert len(trend.levels) == 24
    assert trend.levels[0] == trend.levels[7] != trend.levels[8]


def test_the_errors_are_pooled_over_the_campaigns() -> None:
    points = [Point(name="a", change=0, error=0.01, df=5), Point(name="b", change=0, error=0.002, df=5)]
    trend = find_trend(points)
    assert trend.errors[0] == trend.errors[1] == pytest.approx(math.sqrt((0.01**2 + 0.002**2) / 2))
    longer = find_trend([*points, Point(name="c", change=0, error=0.004, df=13)])
    assert longer.errors[2] == pytest.approx(longer.errors[0] * math.sqrt(8 / 16))


def test_what_a_relink_can_do_hides_a_step_of_that_size() -> None:
    points = series([0.0] * 6 + [-0.02] * 6, 0.003, 5)
    assert find_trend(points).changes
    assert not find_trend(points, relink=0.03).changes


def test_the_band_is_what_an_engine_against_itself_stays_within() -> None:
    band = aa_band(0.01, 10, math.sqrt(4 / 8))
    assert band == pytest.approx(scipy_stats.t.ppf(0.975, 10) * 0.01 * math.sqrt(0.5), rel=1e-12)
    trend = find_trend(series([0.0, 0.0, -0.1], 0.002, 6), band=band)
    assert [trend.is_outside(place) for place in range(3)] == [False, False, True]
    assert not find_trend(series([-0.1], 0.002, 6)).is_outside(0)


def test_a_single_campaign_is_a_series_without_a_change() -> None:
    trend = find_trend(series([0.01], 0.002, 7))
    assert trend.changes == ()
    assert len(trend.levels) == 1


def test_equal_campaigns_do_not_divide_by_zero() -> None:
    points = [Point(name=str(n), change=0.0, error=0.0, df=5) for n in range(5)]
    assert find_trend(points).changes == ()


def maxima_at_once(shares: tuple[float, ...], df: int) -> np.ndarray:
    """The formula as it was, over one array: 1.9 GB for 2,000 campaigns."""
    weights, source = np.array(shares), np.random.default_rng(module.SEED)
    noise = source.standard_normal((module.SIMULATED, len(shares))) / np.sqrt(weights)
    left, whole = np.cumsum(weights)[:-1], weights.sum()
    sums = np.cumsum(noise * weights, axis=1)
    means_left, means_right = sums[:, :-1] / left, (sums[:, -1:] - sums[:, :-1]) / (whole - left)
    maxima = (np.abs(means_left - means_right) / np.sqrt(1 / left + 1 / (whole - left))).max(axis=1)
    return maxima / np.sqrt(source.chisquare(df, module.SIMULATED) / df) if df > 0 else maxima


@pytest.mark.parametrize(("campaigns", "df"), [(2, 1), (3, 0), (40, 200)])
def test_maxima_that_are_simulated_in_parts_are_those_of_one_array(campaigns: int, df: int) -> None:
    weights = np.random.default_rng(campaigns).uniform(0.2, 2, campaigns)
    shares = tuple(np.round(weights / weights.sum(), 9))
    assert np.array_equal(module._null_maxima.__wrapped__(shares, df), maxima_at_once(shares, df))


def test_the_work_for_many_campaigns_grows_with_n_log_n_and_the_memory_with_n(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 campaigns with seven changes: each part of the series is simulated once, in arrays of `_PART` rows."""
    campaigns, rows, places = 2000, [], []
    scan = module._scan

    def counted(noise: np.ndarray, weights: np.ndarray) -> np.ndarray:
        rows.append(len(noise))
        places.append(noise.size)
        return scan(noise, weights)

    monkeypatch.setattr(module, "_scan", counted)
    monkeypatch.setattr(module, "SIMULATED", 600)
    module._null_maxima.cache_clear()
    try:
        found = find_trend(series([0.03 * (place * 8 // campaigns % 2) for place in range(campaigns)], 0.005, 1))
    finally:
        module._null_maxima.cache_clear()
    assert len(found.changes) == 7
    assert sum(places) <= 601 * campaigns * math.log2(campaigns)
    assert max(rows) == 500


def test_a_change_whose_chance_is_just_alpha_is_not_named() -> None:
    """Two campaigns, one place: the chance depends on nothing but their scores."""
    points = [Point(name="a", change=0.0, error=0.01, df=5), Point(name="b", change=0.02, error=0.01, df=5)]
    (change,) = find_trend(points, alpha=1.1).changes
    assert 0 < change.p < 1
    assert find_trend(points, alpha=change.p).changes == ()
    assert find_trend(points, alpha=change.p + 1e-9).changes == (change,)
