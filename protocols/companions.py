"""Figures that stand beside a loss and decide nothing: the exact randomisation test, and which metrics moved.

The randomisation test asks only for the coins. Had no coin mattered, each block's contrast would have had the other
sign with chance one half; so the share of the 2^b ways to toss the coins that give a contrast as far out as the one
seen is a p-value without any model of the noise. It cannot fall below 2^-b: five blocks are needed for p < 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from protocols.anytime import block_contrasts
from protocols.stats import AT_MARGIN, Observation, t_tail

MOST_BLOCKS = 20
"""All 2^b ways are counted up to here, which takes a blink; beyond it the test is not given."""


@dataclass(frozen=True, kw_only=True)
class RandomisationTest:
    """Chances, over the coins alone, of a result as far out as this one.

    p_loss        ... if the candidate were as fast as the baseline; small speaks for a loss
    p_margin      ... if the candidate lost the whole margin; small speaks for less than that
    p_least       the least that b blocks can give
    """

    blocks: int
    p_loss: float
    p_margin: float
    p_least: float


def randomisation_test(observations: Sequence[Observation], margin: float) -> RandomisationTest | None:
    """Return the test over the coins of mirrored blocks; None without blocks, or with more than `MOST_BLOCKS`."""
    contrasts = block_contrasts(observations)
    if not contrasts or len(contrasts) > MOST_BLOCKS:
        return None
    shift = math.log1p(-margin)
    return RandomisationTest(
        blocks=len(contrasts),
        p_loss=_share_as_low(contrasts),
        p_margin=_share_as_low([shift - value for value in contrasts]),
        p_least=0.5 ** len(contrasts),
    )


def _share_as_low(contrasts: Sequence[float]) -> float:
    """Return the share of all signs under which the sum is as low as it is, ties included."""
    sums = np.zeros(1)
    for value in contrasts:
        sums = np.concatenate([sums + value, sums - value])
    return float(np.mean(sums <= math.fsum(contrasts) + AT_MARGIN))


def two_sided_p(beta: float, standard_error: float, df: int) -> float:
    """Return the chance of a change at least as far from zero, were there none."""
    if standard_error <= 0:
        return 0.0 if beta else 1.0
    return 2 * t_tail(abs(beta) / standard_error, df)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's adjusted p-values, in the given order: the chance of a single false name among all of them.

    Only for the question which of several metrics moved. A verdict needs no such correction: all its gates must pass,
    and each can only pass on its own.
    """
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}
