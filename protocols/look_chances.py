"""The chances of a design with looks, by simulation of all looks at once: what a plan needs in a blink.

The rule is that of `decision.py`, written for many campaigns; a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from protocols.anytime import reach_factor
from protocols.looks import Look, SimulatedFits, simulated_fits
from protocols.stats import t_quantile

CAMPAIGNS = 20_000
"""Campaigns behind a chance: it is known to 0.004 at worst."""


class LookChances(NamedTuple):
    """Chances that some look passes, or fails, and the measured loads until then on average."""

    passed: float
    failed: float
    loads: float


@lru_cache(maxsize=8)
def _fits(blocks: tuple[int, ...]) -> list[SimulatedFits]:
    return simulated_fits(blocks, CAMPAIGNS)


def look_chances(
    looks: Sequence[Look],
    stopping: Literal["spent", "anytime"],
    *,
    sigma: float,
    margin: float,
    true_loss: float,
) -> LookChances:
    """Return the chances at a true loss, for normal noise `sigma` of ln(rate) of a load; fractions, not percent."""
    distance = (math.log1p(-true_loss) - math.log1p(-margin)) / sigma
    is_open = np.ones(CAMPAIGNS, dtype=np.bool_)
    passed = failed = loads = 0
    for look, fit in zip(looks, _fits(tuple(look.blocks for look in looks)), strict=True):
        loads += 4 * look.blocks * int(is_open.sum())
        if stopping == "spent":
            reach = t_quantile(1 - look.level, 4 * look.blocks - 3) * fit.error
        else:
            factor = reach_factor(look.blocks, look.level)
            reach = np.full(CAMPAIGNS, np.inf) if factor is None else factor * np.sqrt(fit.spread)
        passes = is_open & (fit.beta + distance - reach > 0)
        fails = is_open & (fit.beta + distance + reach < 0)
        passed, failed = passed + int(passes.sum()), failed + int(fails.sum())
        is_open &= ~(passes | fails)
        # A campaign that goes on is counted anew at the next look, with all of its loads.
        if look is not looks[-1]:
            loads -= 4 * look.blocks * int(is_open.sum())
    return LookChances(passed / CAMPAIGNS, failed / CAMPAIGNS, loads / CAMPAIGNS)
