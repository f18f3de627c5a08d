from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from protocols.looks import SEED, Look, levels_agree, look_blocks, looks_of, simulated_fits, spent_levels
from protocols.schema import BlocksSchedule, ExplicitSchedule

LOOKS = (2, 3, 4, 6)


def blocks(**changes: object) -> BlocksSchedule:
    return BlocksSchedule.model_validate({"kind": "blocks", "blocks": 6, **changes})


def test_a_single_look_spends_everything_and_no_look_nothing() -> None:
    assert spent_levels((4,), 0.05) == (0.05,)
    assert spent_levels((), 0.05) == ()


def test_every_look_spends_less_than_alpha_and_more_than_its_share_of_a_split() -> None:
    levels = spent_levels(LOOKS, 0.05)
    assert all(0.05 / len(LOOKS) <= level < 0.05 for level in levels)
    assert sum(levels) > 0.05  # looks of one campaign are alike, so together they may use more than alpha


def test_the_levels_are_the_same_every_time() -> None:
    first = spent_levels((2, 4), 0.05)
    spent_levels.cache_clear()
    assert spent_levels((2, 4), 0.05) == first


@pytest.mark.parametrize("looks", [(1, 2), (3, 2), (2, 2)])
def test_looks_that_fall_or_begin_at_one_block_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="looks must rise"):
        spent_levels(looks, 0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_an_independent_simulation_spends_alpha_in_the_stated_shares(alpha: float) -> None:
    """Another generator, an explicit least-squares fit, coins in any order: the chance that is spent is the stated one."""
    source = np.random.Generator(np.random.MT19937(7))
    campaigns, levels = 40_000, spent_levels(LOOKS, alpha)
    mirrors = np.array([[0, 1, 1, 0], [1, 0, 0, 1]])
    arm = mirrors[source.integers(0, 2, size=6)].reshape(-1).astype(float)
    y = source.standard_normal((campaigns, 24)) + 0.3 * np.arange(24)
    alive, passed = np.ones(campaigns, dtype=bool), []
    for count, level in zip(LOOKS, levels, strict=True):
        loads = 4 * count
        columns = np.column_stack([np.ones(loads), arm[:loads], np.arange(loads)])
        solution, squares, *_ = np.linalg.lstsq(columns, y[:, :loads].T, rcond=None)
        error = np.sqrt(squares / (loads - 3) * np.linalg.inv(columns.T @ columns)[1, 1])
        t, limit = solution[1] / error, scipy_stats.t.ppf(1 - level, loads - 3)
        passed.append(float(np.mean(alive & (t > limit))))
        alive &= np.abs(t) <= limit
    spent = np.cumsum(passed)
    for count, share in zip(LOOKS, spent, strict=True):
        allowed = alpha * count / 6
        assert share == pytest.approx(allowed, abs=4 * np.sqrt(allowed / campaigns) + 0.0005)


def test_a_schedule_without_looks_is_judged_once() -> None:
    assert look_blocks(blocks()) == ()
    assert look_blocks(ExplicitSchedule(kind="explicit", order=("A1", "C1"))) == ()
    assert looks_of(blocks(), 0.05) == ()


def test_anytime_bounds_look_after_every_block_at_the_whole_level() -> None:
    schedule = blocks(stopping="anytime")
    assert look_blocks(schedule) == (2, 3, 4, 5, 6)
    assert looks_of(blocks(stopping="anytime", looks=(3, 6)), 0.05) == (
        Look(blocks=3, level=0.05),
        Look(blocks=6, level=0.05),
    )


def test_levels_agree_up_to_the_noise_of_another_generator_and_no_further() -> None:
    one = looks_of(blocks(looks=LOOKS), 0.05)
    near = [Look(blocks=look.blocks, level=look.level * 1.02) for look in one]
    far = [Look(blocks=look.blocks, level=look.level * 1.2) for look in one]
    assert levels_agree(near, one)
    assert not levels_agree(far, one)
    assert not levels_agree(one[:-1], one)


def test_the_simulated_fit_is_the_least_squares_fit_of_the_same_noise() -> None:
    """Sums are kept from block to block; here every look is laid out as a whole and fitted."""
    campaigns = 7
    source = np.random.default_rng(SEED)
    y = np.hstack([source.standard_normal((campaigns, 4)) for _ in range(5)])
    arm = np.tile([0.0, 1.0, 1.0, 0.0], 5)
    fits = simulated_fits((2, 3, 5), campaigns)
    assert [fit.blocks for fit in fits] == [2, 3, 5]
    for fit in fits:
        loads = 4 * fit.blocks
        columns = np.column_stack([np.ones(loads), arm[:loads], np.arange(loads)])
        solution, squares, *_ = np.linalg.lstsq(columns, y[:, :loads].T, rcond=None)
        error = np.sqrt(squares / (loads - 3) * np.linalg.inv(columns.T @ columns)[1, 1])
        contrasts = (y[:, :loads] * (2 * arm[:loads] - 1)).reshape(campaigns, fit.blocks, 4).sum(axis=2) / 2
        assert fit.beta == pytest.approx(solution[1], abs=1e-12)
        assert fit.error == pytest.approx(error, rel=1e-9)
        assert fit.spread == pytest.approx(contrasts.var(axis=1) * fit.blocks, rel=1e-9)
