"""Bounds of the loss that hold at every number of blocks at once, so that a campaign may stop whenever it likes.

Each mirrored block gives one contrast of log rates, candidate minus baseline, in which a steady drift cancels. Under
normal noise of unknown size the mixture of t likelihood ratios over standardised effects N(0, 1 / c^2) is an e-process
(Lai 1976; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
2024): the chance that it ever passes 1 / (2 alpha) is 2 alpha, one half on each side. Where it does not pass, a value
stands in the interval, which has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from protocols.stats import LossFit, Observation, loss_of

MIXTURE = 0.25
"""c^2: standardised effects around 1 / c = 2 block contrasts are looked for. Fixed, so that nobody tunes it."""


def block_contrasts(observations: Sequence[Observation]) -> list[float]:
    """Return the change of the mean ln(rate) from baseline to candidate inside each block, in order of the blocks.

    Loads without a block are left out. ValueError where a block lacks an arm.
    """
    blocks: dict[int, tuple[list[float], list[float]]] = {}
    for seen in observations:
        if seen.block is not None:
            blocks.setdefault(seen.block, ([], []))[seen.is_candidate].append(math.log(seen.rate))
    contrasts: list[float] = []
    for number in sorted(blocks):
        baseline, candidate = blocks[number]
        if not baseline or not candidate:
            raise ValueError(f"block {number} has loads of one arm only")
        contrasts.append(math.fsum(candidate) / len(candidate) - math.fsum(baseline) / len(baseline))
    return contrasts


def anytime_reach(contrasts: Sequence[float], alpha: float) -> float | None:
    """Return how far from the mean contrast the interval reaches at level `alpha` a side; None where it is unbounded.

    A shift mu stays in the interval while sqrt(c^2 / (n + c^2)) * (1 - S^2 / ((n + c^2) V))^(-n / 2) < 1 / (2 alpha),
    with S and V the sum and the sum of squares of the contrasts less mu.
    """
    factor = reach_factor(len(contrasts), alpha)
    if factor is None:
        return None
    mean = math.fsum(contrasts) / len(contrasts)
    return factor * math.sqrt(math.fsum((value - mean) ** 2 for value in contrasts))


def reach_factor(count: int, alpha: float) -> float | None:
    """Return the reach for contrasts whose squared distances from their mean sum to 1; None where it is unbounded."""
    if count < 2:
        return None
    growth = (math.sqrt((count + MIXTURE) / MIXTURE) / (2 * alpha)) ** (2 / count)
    room = count + MIXTURE - growth * MIXTURE
    return None if room <= 0 else math.sqrt((count + MIXTURE) * (growth - 1) / (count * room))


def anytime_fit(fit: LossFit, observations: Sequence[Observation]) -> LossFit:
    """Return the fit with bounds that hold at any time in place of those of a single look."""
    contrasts = block_contrasts(observations)
    reach = anytime_reach(contrasts, fit.alpha)
    centre = math.fsum(contrasts) / len(contrasts)
    return replace(
        fit,
        beta=centre,
        loss_low=None if reach is None else loss_of(centre + reach),
        loss_high=None if reach is None else loss_of(centre - reach),
    )
