"""How many mirrored blocks would decide, were noise and loss as they look: what the cheapest next step rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from protocols.plan import POWER, Chances, Noise, chances_at

MOST_BLOCKS = 64
"""More blocks than a protocol may have are no step."""


class BlocksStep(NamedTuple):
    """A number of mirrored blocks and the chance that they decide, or pass."""

    blocks: int
    chance: float


QUIET_BLOCKS = 16
"""A host on which an equal candidate needs more blocks than this to pass is to be made quiet, not measured longer."""


def blocks_to_decide(
    sigma: float, loss: float, margin: float, alpha: float, *, power: float = POWER
) -> BlocksStep | None:
    """Return the fewest blocks that PASS or FAIL with a chance of `power`; None past `MOST_BLOCKS`.

    `sigma` is the noise of ln(rate) of a load, `loss` the true loss and `margin` the margin, all as fractions.
    """
    return _fewest(sigma, loss, margin, alpha, power, lambda chances: chances.p_pass + chances.p_fail)


def blocks_to_pass(sigma: float, margin: float, alpha: float, *, power: float = POWER) -> BlocksStep | None:
    """Return the fewest blocks that PASS a candidate without any loss with a chance of `power`."""
    return _fewest(sigma, 0.0, margin, alpha, power, lambda chances: chances.p_pass)


def is_host_too_noisy(sigma: float, margin: float, alpha: float) -> bool:
    """Whether even a candidate without any loss would need more than `QUIET_BLOCKS` blocks at this noise of a load."""
    passes = blocks_to_pass(sigma, margin, alpha)
    return passes is None or passes.blocks > QUIET_BLOCKS


def _fewest(
    sigma: float, loss: float, margin: float, alpha: float, power: float, chance_of: Callable[[Chances], float]
) -> BlocksStep | None:
    noise = Noise(sigma=sigma)
    for blocks in range(2, MOST_BLOCKS + 1):
        df = 4 * blocks - 3  # two blocks leave five, more than MIN_DF
        chances = chances_at(100 * min(loss, 0.999), math.sqrt(1 / blocks), df, noise, alpha=alpha, margin=margin)
        chance = chance_of(chances)
        if chance >= power:
            return BlocksStep(blocks, chance)
    return None
