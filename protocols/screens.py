"""The older point screens: changes in percent without an interval. They can reject, never qualify.

Formulas and the strictness at the limits are those of the published test vectors: a loss of exactly the limit fails,
a gap of exactly the limit passes. Values within `AT_LIMIT` of a limit count as at the limit, so that rounding cannot
decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

AT_LIMIT = 1e-9
"""Percentage points within which a value counts as exactly at a limit; float64 rounding is a thousand times smaller."""


def change_pct(baseline: float, candidate: float) -> float:
    """Return (candidate / baseline - 1) in percent: above zero is faster for rates and slower for times."""
    return (candidate / baseline - 1) * 100


def pooled_change_pct(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """Return the change in percent between the geometric means of the baseline's and the candidate's rates.

    ValueError where an arm has no rate.
    """
    if not baseline or not candidate:
        raise ValueError("a pooled change needs rates of both arms")
    if len(baseline) == len(candidate) == 1:
        return change_pct(baseline[0], candidate[0])
    if len(baseline) == len(candidate) == 2:
        # One block: the published form, so that old figures come out to the last bit.
        return (math.sqrt(candidate[0] * candidate[1] / (baseline[0] * baseline[1])) - 1) * 100
    return math.expm1(_mean_log(candidate) - _mean_log(baseline)) * 100


def _mean_log(rates: Sequence[float]) -> float:
    return math.fsum(math.log(rate) for rate in rates) / len(rates)


def mirror_changes_pct(baseline: Sequence[float], candidate: Sequence[float]) -> tuple[float, float]:
    """Return the change in each half of one block, first half first: (A1, C1) and (A2, C2)."""
    (first_a, second_a), (first_c, second_c) = baseline, candidate
    return change_pct(first_a, first_c), change_pct(second_a, second_c)


def mirror_gap_pp(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """Return how far the two halves of one block disagree, in percentage points.

    With a steady drift per load the gap is twice the drift: it is a statement about drift, not about noise.
    """
    first, second = mirror_changes_pct(baseline, candidate)
    return abs(first - second)


def median_change_pct(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """Return the change in percent between medians, for costs (times): above zero is dearer."""
    return change_pct(statistics.median(baseline), statistics.median(candidate))


def weighted_mean(parts: Sequence[tuple[int, float]]) -> float:
    """Return the mean over parts of (number of samples, mean). ValueError where there are no samples."""
    total = sum(count for count, _ in parts)
    if total <= 0:
        raise ValueError("a weighted mean needs samples")
    return math.fsum(count * mean for count, mean in parts) / total


def is_loss_within(change: float, max_loss_pct: float) -> bool:
    """Return whether a change in percent (negative is a loss) loses less than the limit; exactly the limit does not."""
    return -change < max_loss_pct - AT_LIMIT


def is_increase_within(change: float, max_increase_pct: float) -> bool:
    """Return whether a cost rises by less than the limit; exactly the limit does not."""
    return change < max_increase_pct - AT_LIMIT


def is_gap_within(gap_pp: float, limit_pp: float) -> bool:
    """Return whether a mirror gap is at most the limit; exactly the limit is."""
    return gap_pp <= limit_pp + AT_LIMIT
