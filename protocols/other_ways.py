"""Other ways to decide about the same loads, for the published comparison only: no gate uses them.

Each takes ln(rate) and arms of many campaigns, a row each, and returns which of them it passes and which it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from protocols.schedule import LOADS_PER_BLOCK
from protocols.simulate import Arms, Floats

Mask = NDArray[np.bool_]


class Decided(NamedTuple):
    """Which campaigns a way passes, and which it fails; the rest it leaves open."""

    passed: Mask
    failed: Mask


Way = Callable[[Floats, Arms, float], Decided]
MAX_GAP_PP = 3.0
ALPHA = 0.05


def point_screen(logs: Floats, arms: Arms, margin: float) -> Decided:
    """Pooled change of geometric means against the limit, mirror gap of each block at most 3 points; no noise."""
    change = _mean(logs, arms) - _mean(logs, ~arms)
    is_within = -np.expm1(change) < margin
    if arms.shape[1] % LOADS_PER_BLOCK == 0:
        gaps = [_gap(logs[:, at : at + 4], arms[:, at : at + 4]) for at in range(0, arms.shape[1], LOADS_PER_BLOCK)]
        is_within &= np.max(gaps, axis=0) <= MAX_GAP_PP
    return Decided(is_within, ~is_within)


def _gap(logs: Floats, arms: Arms) -> Floats:
    """Return the mirror gap of one block: its first baseline load with its first candidate load, and the second."""
    rows = len(logs)
    baseline, candidate = logs[~arms].reshape(rows, 2), logs[arms].reshape(rows, 2)
    changes = 100 * np.expm1(candidate - baseline)
    gap: Floats = np.abs(changes[:, 0] - changes[:, 1])
    return gap


def welch(logs: Floats, arms: Arms, margin: float) -> Decided:
    """Welch's t over the loads of both arms pooled: no blocks, no drift."""
    each = arms.shape[1] // 2
    rows = len(logs)
    candidate, baseline = logs[arms].reshape(rows, each), logs[~arms].reshape(rows, each)
    parts = [side.var(axis=1, ddof=1) / each for side in (candidate, baseline)]
    df = sum(parts) ** 2 / sum(part**2 / (each - 1) for part in parts)
    change = candidate.mean(axis=1) - baseline.mean(axis=1)
    return _by_bounds(change, np.sqrt(sum(parts)), df, margin)


def paired_by_block(logs: Floats, arms: Arms, margin: float) -> Decided:
    """Student's t over the contrasts of the blocks, one a block."""
    signs = np.where(arms, 0.5, -0.5)
    contrasts = (logs * signs).reshape(len(logs), -1, LOADS_PER_BLOCK).sum(axis=2)
    blocks = contrasts.shape[1]
    return _by_bounds(contrasts.mean(axis=1), contrasts.std(axis=1, ddof=1) / math.sqrt(blocks), blocks - 1, margin)


def _by_bounds(change: Floats, error: Any, df: Any, margin: float) -> Decided:  # noqa: ANN401 - array or number
    reach = special.stdtrit(df, 1 - ALPHA) * error
    limit = math.log1p(-margin)
    return Decided(change - reach > limit, change + reach < limit)


def _mean(logs: Floats, arms: Arms) -> Floats:
    mean: Floats = (logs * arms).sum(axis=1) / arms.sum(axis=1)
    return mean


WAYS: Mapping[str, Way] = {
    "point screen": point_screen,
    "Welch, loads pooled": welch,
    "paired t, one value a block": paired_by_block,
}
