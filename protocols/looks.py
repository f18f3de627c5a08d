"""Looks: after how many blocks a campaign is judged, and the level that each look may spend.

A look is a chance to be wrong. The levels are set so that all looks together pass a loss of exactly the margin with
chance alpha at most: after b of B blocks, alpha * b / B may have been spent. The level of a look is found by simulating
the fit's own t statistic under normal noise, whose joint distribution over the looks depends neither on the size of the
noise nor on a steady drift. The seed is fixed; a lock freezes the levels, so that nobody has to trust the generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from protocols.schema import BlocksSchedule, ExplicitSchedule

SIMULATED = 400_000
"""Campaigns behind one set of levels: the chance that is spent is then known to about 0.0004."""

SEED = 20_261_129

TOLERANCE = 0.05
"""Relative difference that two sets of levels may have and still be the same rule: another generator, another noise."""

_DIGITS = 1_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Look:
    """One judgement during a campaign: after `blocks` blocks, each one-sided bound at `level`."""

    blocks: int
    level: float


def look_blocks(schedule: BlocksSchedule | ExplicitSchedule) -> tuple[int, ...]:
    """Return the numbers of blocks after which a campaign is judged; empty where it is judged once, at its end."""
    if isinstance(schedule, ExplicitSchedule):
        return ()
    if schedule.stopping == "anytime" and not schedule.looks:
        return tuple(range(2, schedule.blocks + 1))
    return schedule.looks


def looks_of(schedule: BlocksSchedule | ExplicitSchedule, alpha: float) -> tuple[Look, ...]:
    """Return the looks of a schedule with the level of each bound; anytime bounds need no spending."""
    blocks = look_blocks(schedule)
    if isinstance(schedule, BlocksSchedule) and schedule.stopping == "anytime":
        return tuple(Look(blocks=count, level=alpha) for count in blocks)
    levels = spent_levels(blocks, alpha)
    return tuple(Look(blocks=count, level=level) for count, level in zip(blocks, levels, strict=True))


@lru_cache(maxsize=64)
def spent_levels(blocks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Return the level of each one-sided bound at each look; the same every time. A single look gets all of alpha.

    ValueError where the looks do not rise, or begin before two blocks: one block leaves too little to estimate noise.
    """
    if not blocks:
        return ()
    if blocks[0] < 2 or any(after <= before for before, after in pairwise(blocks)):
        raise ValueError("looks must rise, and begin at two blocks or more")
    if len(blocks) == 1:
        return (alpha,)
    alive = np.ones(SIMULATED, dtype=np.bool_)
    levels: list[float] = []
    spent = 0.0
    for seen_fit in simulated_fits(blocks, SIMULATED):
        count, statistic = seen_fit.blocks, np.abs(seen_fit.beta) / seen_fit.error
        allowed = alpha * count / blocks[-1]
        seen = statistic[alive]
        # Passing and failing are mirror images at the margin: together they may end twice the share.
        ends = int(2 * (allowed - spent) * SIMULATED)
        place = max(len(seen) - 1 - ends, 0)
        limit = float(np.partition(seen, place)[place])
        alive &= statistic <= limit
        spent = 1 / 2 * (1 - float(alive.mean()))
        level = float(special.stdtr(4 * count - 3, -limit))
        levels.append(int(level * _DIGITS) / _DIGITS)
    return tuple(levels)


@dataclass(frozen=True, kw_only=True)
class SimulatedFits:
    """What many campaigns show at one look, for a noise of 1 and no loss: estimate, its error, spread of the blocks."""

    blocks: int
    beta: Floats
    error: Floats
    """Standard error of `beta`, with 4 * blocks - 3 degrees of freedom."""
    spread: Floats
    """Sum of squares of the block contrasts about their mean."""


def simulated_fits(blocks: Sequence[int], campaigns: int) -> list[SimulatedFits]:
    """Return the drift-adjusted fit at each look, over simulated campaigns without any loss; the same every time.

    In mirrored blocks the arm is orthogonal to the place, so the loss is the mean contrast of the blocks and the sums
    can be kept from block to block; which mirror a block takes changes no distribution.
    """
    source = np.random.default_rng(SEED)
    total, squares, placed, contrast, contrasts = (np.zeros(campaigns) for _ in range(5))
    found: list[SimulatedFits] = []
    for block in range(blocks[-1]):
        noise: Any = source.standard_normal((campaigns, 4))
        # Column by column: a sum along rows of four is much slower.
        first, second, third, fourth = noise.T
        total += first + second + third + fourth
        squares += first**2 + second**2 + third**2 + fourth**2
        placed += noise @ np.arange(4.0 * block, 4.0 * block + 4)
        one = (second + third - first - fourth) / 2
        contrast += one
        contrasts += one**2
        count = block + 1
        if count not in blocks:
            continue
        loads = 4 * count
        beta = contrast / count
        drift = placed - total * (loads - 1) / 2
        residual = squares - total**2 / loads - count * beta**2 - drift**2 / (loads * (loads**2 - 1) / 12)
        error = np.sqrt(residual / (loads - 3) / count)
        found.append(SimulatedFits(blocks=count, beta=beta, error=error, spread=contrasts - count * beta**2))
    return found


def levels_agree(found: Sequence[Look], expected: Sequence[Look]) -> bool:
    """Return whether two sets of looks are one rule: the same blocks, and levels within `TOLERANCE` of each other."""
    return [look.blocks for look in found] == [look.blocks for look in expected] and all(
        abs(one.level - other.level) <= TOLERANCE * other.level for one, other in zip(found, expected, strict=True)
    )
