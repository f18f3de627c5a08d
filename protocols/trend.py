"""Change points in a series of campaigns of one question: between which releases did a rate move, and by how much.

Each campaign gives one change of ln(rate) against the same baseline, with its standard error. A change point is looked
for where splitting the series explains it best: the largest standardised difference of the two means. Its chance under
no change at all is simulated for the very errors of this series, and for how well they are known, so that looking at
every place, and at few campaigns, costs what it must.
What holds for the whole is then asked of each part (binary segmentation).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from protocols.stats import t_quantile

ALPHA = 0.05
"""Chance of naming a change in a series that has none."""

Floats = NDArray[np.float64]

SIMULATED = 20_000
_PART = 500
"""Series that are simulated at a time."""
SEED = 20_261_129


@dataclass(frozen=True, kw_only=True)
class Point:
    """One campaign: its change of ln(rate) against the baseline, its standard error, and degrees of freedom."""

    name: str
    change: float
    error: float
    df: int


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """A change between point `at - 1` and point `at` of the series."""

    at: int
    before: float
    """Mean change of ln(rate) of the segment before."""
    after: float
    p: float
    """Chance of a step as sharp anywhere in this part, were there none."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A series cut at its change points. `errors` are those in use; `band` is what an A/A campaign stays within."""

    points: tuple[Point, ...]
    errors: tuple[float, ...]
    changes: tuple[ChangePoint, ...]
    levels: tuple[float, ...]
    """Mean change of ln(rate) of the segment of each point."""
    band: float | None

    def is_outside(self, place: int) -> bool:
        """Return whether a point leaves the A/A band."""
        return self.band is not None and abs(self.points[place].change) > self.band


def find_trend(
    points: Sequence[Point], *, band: float | None = None, relink: float = 0.0, alpha: float = ALPHA
) -> Trend:
    """Cut a series at its change points.

    The errors of all campaigns are pooled, because each alone knows its noise from a few loads only; `relink` is what a
    mere relink does to ln(rate), which no load of one build can show, and is added to every error.
    """
    errors = _pooled_errors(points, relink)
    df, values = sum(point.df for point in points), [point.change for point in points]
    changes = sorted(_changes(values, errors, 0, alpha, df), key=lambda one: one.at)
    cuts = [0, *(one.at for one in changes), len(points)]
    levels: list[float] = []
    for start, end in pairwise(cuts):
        levels += [_mean(points, errors, start, end)] * (end - start)
    return Trend(points=tuple(points), errors=tuple(errors), changes=tuple(changes), levels=tuple(levels), band=band)


def aa_band(sigma: float, df: int, factor: float, *, alpha: float = ALPHA) -> float:
    """Return how far an A/A campaign strays from zero at most, in ln(rate), with chance 1 - alpha.

    `factor` is the standard error of a campaign for a noise of 1: sqrt(4 / L) in mirrored blocks.
    """
    return t_quantile(1 - alpha / 2, df) * sigma * factor


def _pooled_errors(points: Sequence[Point], relink: float) -> list[float]:
    """Share one noise over the campaigns: their own errors differ by chance more than by the host."""
    total = sum(point.df for point in points)
    if total == 0:
        return [math.hypot(point.error, relink) for point in points]
    # In mirrored blocks the error is the noise times sqrt(4 / L), with L - 3 degrees of freedom.
    factors = [math.sqrt(4 / (point.df + 3)) for point in points]
    squares = [point.df * (point.error / factor) ** 2 for point, factor in zip(points, factors, strict=True)]
    noise = math.sqrt(math.fsum(squares) / total)
    return [math.hypot(noise * factor, relink) for factor in factors]


def _changes(
    values: Sequence[float], errors: Sequence[float], start: int, alpha: float, df: int
) -> Iterator[ChangePoint]:
    if len(values) < 2:
        return
    weights = 1 / np.maximum(np.array(errors), 1e-12) ** 2
    scan = _scan(np.array([values]), weights)[0]
    at = int(np.argmax(scan)) + 1
    p = float(np.mean(_null_maxima(tuple(np.round(weights / weights.sum(), 9)), df) >= scan[at - 1]))
    if p >= alpha:
        return
    left, right = np.average(values[:at], weights=weights[:at]), np.average(values[at:], weights=weights[at:])
    yield ChangePoint(at=start + at, before=float(left), after=float(right), p=p)
    yield from _changes(values[:at], errors[:at], start, alpha, df)
    yield from _changes(values[at:], errors[at:], start + at, alpha, df)


def _scan(rows: Floats, weights: Floats) -> Floats:
    """Return the standardised difference of the means left and right of each place, a row for each series."""
    left = np.cumsum(weights)[:-1]
    whole = weights.sum()
    sums = np.cumsum(rows * weights, axis=1)
    means_left, means_right = sums[:, :-1] / left, (sums[:, -1:] - sums[:, :-1]) / (whole - left)
    scores: Floats = np.abs(means_left - means_right) / np.sqrt(1 / left + 1 / (whole - left))
    return scores


@lru_cache(maxsize=64)
def _null_maxima(shares: tuple[float, ...], df: int) -> Floats:
    """Return the largest score of many series without a change, whose errors are as these; the same every time.

    The noise that the errors share is known with `df` degrees of freedom: a small one makes every score large.
    """
    weights, source = np.array(shares), np.random.default_rng(SEED)
    parts = []
    for first in range(0, SIMULATED, _PART):  # all at once would be gigabytes for thousands of campaigns
        noise = source.standard_normal((min(_PART, SIMULATED - first), len(shares))) / np.sqrt(weights)
        parts.append(_scan(noise, weights).max(axis=1))
    maxima: Floats = np.concatenate(parts)
    if df > 0:
        maxima /= np.sqrt(source.chisquare(df, SIMULATED) / df)
    return maxima


def _mean(points: Sequence[Point], errors: Sequence[float], start: int, end: int) -> float:
    weights = [1 / max(error, 1e-12) ** 2 for error in errors[start:end]]
    return math.fsum(w * one.change for w, one in zip(weights, points[start:end], strict=True)) / math.fsum(weights)
