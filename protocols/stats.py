"""The loss of a candidate with an interval: drift-adjusted least squares on log rates, one fresh load an observation.

Model, for load i with rate r: ln r = a + beta * [candidate] + gamma * u + noise, where u is the load's place in the
schedule, centred. The loss is 1 - e^beta. Its one-sided bounds come from the t distribution with L - 3 degrees of
freedom, where L is the number of loads. In mirrored blocks the arm is orthogonal to the place, so a steady drift
costs nothing.

With fewer than `MIN_DF` degrees of freedom the noise of a load must come from A/A loads of the same host
(`Calibration`); without them, and with two loads always, the best result is SCREEN_ONLY. Sums are exactly rounded
(`math.fsum`), so every platform gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from scipy import special

MIN_DF = 3
"""Fewest degrees of freedom with which a campaign's own noise can carry a PASS."""

LEAST_LOADS = 3
"""Fewest loads that tell a change from a drift."""

CALIBRATION_ALPHA = 0.05
"""Level of the check that a campaign is not noisier than its calibration."""

AT_MARGIN = 1e-12
"""Fraction within which a bound counts as exactly at the margin (neither under nor above it): float64 rounding only."""

_EXPONENT_LIMIT = 700.0
"""Bounds of the log change are kept inside +-700, where e^x is still a finite float64."""

Decision = Literal["PASS", "FAIL", "INCONCLUSIVE", "SCREEN_ONLY"]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One load: its place in the schedule, its arm, its rate in tokens per second, and its mirrored block if any."""

    index: int
    is_candidate: bool
    rate: float
    block: int | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Noise of one load from A/A loads: standard deviation of ln(rate), with its degrees of freedom."""

    sigma: float
    df: int


@dataclass(frozen=True, kw_only=True)
class LossFit:
    """The fitted model. Losses are fractions (0.02 is 2 %); a negative loss is a gain."""

    baseline_loads: int
    candidate_loads: int
    alpha: float
    beta: float
    """Change of ln(rate) from baseline to candidate, drift removed where it can be estimated."""
    gamma: float | None
    """Change of ln(rate) from one load to the next; None with two loads, where drift cannot be told from the change."""
    residual_df: int
    """Loads minus fitted parameters; 0 where nothing is left to estimate noise from."""
    residual_sigma: float | None
    """Standard deviation of ln(rate) of a load as these loads show it; None without degrees of freedom."""
    sigma: float | None
    """Standard deviation in use for the bounds."""
    sigma_source: Literal["loads", "calibrated"] | None
    df: int | None
    """Degrees of freedom of `sigma`."""
    standard_error: float | None
    """Standard error of `beta`."""
    loss_low: float | None
    """One-sided lower bound of the loss at level `alpha`."""
    loss_high: float | None
    """One-sided upper bound of the loss at level `alpha`."""
    is_noisier_than_calibration: bool
    """Whether these loads vary more than the calibration allows, so that its sigma does not hold."""

    @property
    def loss(self) -> float:
        """Estimated loss as a fraction."""
        return loss_of(self.beta)

    @property
    def can_qualify(self) -> bool:
        """Whether the design carries a PASS: own noise with enough degrees of freedom, or calibrated noise.

        Two loads carry none, whatever is known of their noise: a drift of the host stands in the change itself.
        """
        if self.gamma is None:
            return False
        return self.sigma_source == "calibrated" or (self.sigma_source == "loads" and self.residual_df >= MIN_DF)


def loss_of(log_change: float) -> float:
    """Return the loss 1 - e^x of a change x of ln(rate)."""
    return -math.expm1(min(max(log_change, -_EXPONENT_LIMIT), _EXPONENT_LIMIT))


@lru_cache(maxsize=256)
def t_quantile(probability: float, df: int) -> float:
    """Return the quantile of Student's t distribution."""
    return float(special.stdtrit(df, probability))


def t_tail(value: float, df: int) -> float:
    """Return the chance that Student's t is above a value."""
    return float(special.stdtr(df, -value))


@lru_cache(maxsize=256)
def f_quantile(probability: float, df_numerator: int, df_denominator: int) -> float:
    """Return the quantile of the F distribution."""
    return float(special.fdtri(df_numerator, df_denominator, probability))


def design_factor(places: Sequence[int], is_candidate: Sequence[bool]) -> float:
    """Return the standard error of beta for a noise of 1: sqrt(1/nA + 1/nB) where the arm is orthogonal to the place.

    ValueError where an arm has no load, or where places repeat.
    """
    return math.sqrt(_Design.of(places, is_candidate).variance)


@dataclass(frozen=True, kw_only=True)
class _Design:
    """Centred columns of the model and the sums of their products."""

    arm: tuple[float, ...]
    place: tuple[float, ...]
    arm_arm: float
    arm_place: float
    place_place: float
    has_drift: bool

    @classmethod
    def of(cls, places: Sequence[int], is_candidate: Sequence[bool]) -> _Design:
        """Centre the columns. With two loads the place is dropped: it cannot be told from the arm."""
        loads = len(places)
        candidates = sum(is_candidate)
        if candidates in {0, loads}:
            raise ValueError("a loss needs at least one load of each arm")
        if len(set(places)) != loads or len(is_candidate) != loads:
            raise ValueError("every load needs a place of its own in the schedule")
        mean_place = math.fsum(places) / loads
        arm = tuple(float(flag) - candidates / loads for flag in is_candidate)
        place = tuple(position - mean_place for position in places)
        return cls(
            arm=arm,
            place=place,
            arm_arm=_dot(arm, arm),
            arm_place=_dot(arm, place),
            place_place=_dot(place, place),
            has_drift=loads >= LEAST_LOADS,
        )

    @property
    def determinant(self) -> float:
        return self.arm_arm * self.place_place - self.arm_place**2

    @property
    def variance(self) -> float:
        """Variance of beta for a noise of 1."""
        return self.place_place / self.determinant if self.has_drift else 1 / self.arm_arm


@lru_cache(maxsize=4096)
def _design(places: tuple[int, ...], is_candidate: tuple[bool, ...]) -> _Design:
    return _Design.of(places, is_candidate)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(left, right, strict=True))


def fit_loss(
    observations: Sequence[Observation], *, alpha: float = 0.05, calibration: Calibration | None = None
) -> LossFit:
    """Fit the model and return the loss with its one-sided bounds at level `alpha`.

    `calibration` is used where the loads alone leave fewer than `MIN_DF` degrees of freedom. ValueError where an arm
    has no load, a rate is not a positive finite number, or places repeat.
    """
    if any(not math.isfinite(seen.rate) or seen.rate <= 0 for seen in observations):
        raise ValueError("every rate must be a finite number above zero")
    design = _design(tuple(seen.index for seen in observations), tuple(seen.is_candidate for seen in observations))
    logs = [math.log(seen.rate) for seen in observations]
    beta, gamma, squares = _solve(design, logs)
    residual_df = max(len(logs) - (3 if design.has_drift else 2), 0)
    residual = math.sqrt(squares / residual_df) if residual_df > 0 else None
    sigma, source, df = _noise(residual, residual_df, calibration)
    error = None if sigma is None else sigma * math.sqrt(design.variance)
    reach = None if error is None or df is None else t_quantile(1 - alpha, df) * error
    candidates = sum(seen.is_candidate for seen in observations)
    return LossFit(
        baseline_loads=len(logs) - candidates,
        candidate_loads=candidates,
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        residual_df=residual_df,
        residual_sigma=residual,
        sigma=sigma,
        sigma_source=source,
        df=df,
        standard_error=error,
        loss_low=None if reach is None else loss_of(beta + reach),
        loss_high=None if reach is None else loss_of(beta - reach),
        is_noisier_than_calibration=source == "calibrated" and _is_noisier(residual, residual_df, calibration),
    )


def log_trend_noise(observations: Sequence[Observation]) -> tuple[float, int]:
    """Return the standard deviation of ln(rate) about a steady drift, whatever the arms, and its degrees of freedom.

    ValueError with fewer than three loads.
    """
    if len(observations) < 3:
        raise ValueError("a spread about a drift needs three loads or more")
    logs = [math.log(seen.rate) for seen in observations]
    mean, middle = math.fsum(logs) / len(logs), math.fsum(seen.index for seen in observations) / len(logs)
    places = [seen.index - middle for seen in observations]
    slope = _dot(places, [value - mean for value in logs]) / _dot(places, places)
    residuals = [value - mean - slope * place for value, place in zip(logs, places, strict=True)]
    df = len(logs) - 2
    return math.sqrt(_dot(residuals, residuals) / df), df


def _solve(design: _Design, logs: Sequence[float]) -> tuple[float, float | None, float]:
    """Return beta, gamma and the sum of squared residuals."""
    mean = math.fsum(logs) / len(logs)
    centred = [value - mean for value in logs]
    arm_log = _dot(design.arm, centred)
    if not design.has_drift:
        return arm_log / design.arm_arm, None, 0.0
    place_log = _dot(design.place, centred)
    beta = (design.place_place * arm_log - design.arm_place * place_log) / design.determinant
    gamma = (design.arm_arm * place_log - design.arm_place * arm_log) / design.determinant
    residuals = [y - beta * x - gamma * u for y, x, u in zip(centred, design.arm, design.place, strict=True)]
    return beta, gamma, _dot(residuals, residuals)


def _noise(
    residual: float | None, residual_df: int, calibration: Calibration | None
) -> tuple[float | None, Literal["loads", "calibrated"] | None, int | None]:
    if residual_df < MIN_DF and calibration is not None:
        return calibration.sigma, "calibrated", calibration.df
    if residual is None:
        return None, None, None
    return residual, "loads", residual_df


def _is_noisier(residual: float | None, residual_df: int, calibration: Calibration | None) -> bool:
    if residual is None or calibration is None:
        return False
    limit = calibration.sigma**2 * f_quantile(1 - CALIBRATION_ALPHA, residual_df, calibration.df)
    return residual**2 > limit


def gain_of(loss: float) -> float:
    """Return the loss of the baseline against the candidate, where the candidate loses `loss` against the baseline."""
    return -loss / (1 - loss)


def decide_loss(fit: LossFit, margin: float, *, equivalence: bool = False) -> Decision:
    """Return what the fit says about a margin (a fraction): the design's rule, strict at the margin.

    PASS where the upper bound is under the margin and the design can qualify; FAIL where the lower bound is above it.
    Designs that cannot qualify get SCREEN_ONLY where the estimate is under the margin. All else is INCONCLUSIVE, and
    so is a campaign that is noisier than its calibration. A bound of exactly the margin neither passes nor fails.

    For equivalence the rule holds on both sides (two one-sided tests): neither arm may lose the margin against the
    other, so that swapping the arms changes nothing.
    """
    if fit.is_noisier_than_calibration:
        return "INCONCLUSIVE"
    sides = [(fit.loss_low, fit.loss, fit.loss_high)]
    if equivalence:
        low, high = (None if bound is None else gain_of(bound) for bound in (fit.loss_high, fit.loss_low))
        sides.append((low, gain_of(fit.loss), high))
    if any(low is not None and low > margin + AT_MARGIN for low, _, _ in sides):
        return "FAIL"
    if fit.can_qualify:
        is_under = all(high is not None and high < margin - AT_MARGIN for _, _, high in sides)
        return "PASS" if is_under else "INCONCLUSIVE"
    return "SCREEN_ONLY" if all(loss < margin - AT_MARGIN for _, loss, _ in sides) else "INCONCLUSIVE"


def is_loss_detected(fit: LossFit) -> bool:
    """Return whether the lower bound of the loss is above zero: a loss is there, however small."""
    return fit.loss_low is not None and fit.loss_low > AT_MARGIN
