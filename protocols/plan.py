"""What a design can decide before anything is started: loads, the smallest loss it resolves, and its chances.

The chances are exact under the model of `stats.py` with normal noise of a known size: the test statistic then has a
noncentral t distribution with L - 3 degrees of freedom. With looks they are simulated. The noise is an assumption, or
comes from A/A loads of the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from protocols.gate_schema import LossGate
from protocols.look_chances import look_chances
from protocols.looks import look_blocks, looks_of
from protocols.schedule import expand_schedule
from protocols.schema import BlocksSchedule, Protocol
from protocols.stats import CALIBRATION_ALPHA, LEAST_LOADS, MIN_DF, design_factor, f_quantile, t_quantile

POWER = 0.8
"""Chance with which the smallest resolvable loss is meant."""

LEAST_NOISE = 1e-9
"""Noise below this is none: chances are computed as with it, so that a host without any noise divides by nothing."""

TRUE_LOSSES_PCT = (0.0, 1.0, 2.0, 3.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviation of ln(rate) of a load; `df` are those of a calibration, None for an assumption."""

    sigma: float
    df: int | None = None


@dataclass(frozen=True, kw_only=True)
class Chances:
    """Probabilities of the results of one loss gate at one true loss; they sum to 1."""

    true_loss_pct: float
    p_pass: float
    p_fail: float
    p_screen_only: float
    p_inconclusive: float


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """What one loss gate can decide under the assumed noise."""

    gate: str
    is_required: bool
    can_qualify: bool
    """Whether a PASS is possible with this design and this noise."""
    margin_pct: float
    noise_pct: float
    minimal_detectable_loss_pct: float | None
    """Smallest margin that passes with a chance of `POWER` where there is no loss; None where no bound exists."""
    chances: tuple[Chances, ...]
    expected_loads: float
    """Measured loads where there is no loss: fewer than all of them where looks may end the campaign early."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one protocol asks of the host and what it can decide."""

    labels: tuple[str, ...]
    """Labels of all fresh loads in order, burn-in included."""
    measured_loads: int
    residual_df: int
    can_qualify: bool
    """Whether a PASS of every loss gate is possible with this design and this noise."""
    looks: tuple[int, ...]
    """Blocks after which the losses are judged; empty where they are judged once, at the end."""
    requests: int
    """HTTP requests of the whole campaign, warm-ups included."""
    budget_min: int
    gates: tuple[GatePlan, ...]


def plan_protocol(
    protocol: Protocol, noise: Noise | Mapping[str, Noise], *, true_losses_pct: Sequence[float] = TRUE_LOSSES_PCT
) -> Plan:
    """Return the plan of a protocol under the given noise of a load, the same for all loss gates or by gate."""
    positions = expand_schedule(protocol.schedule)
    measured = [position for position in positions if not position.is_burn_in]
    residual_df = _residual_df(len(measured))
    factor = design_factor([p.index for p in measured], [p.arm == "candidate" for p in measured])
    may_claim = protocol.claim == "non_inferiority" and _is_fresh(protocol)
    gates = tuple(
        _plan_gate(
            protocol,
            gate,
            noise if isinstance(noise, Noise) else noise[gate.id],
            factor=factor,
            loads=len(measured),
            may_claim=may_claim,
            true_losses_pct=true_losses_pct,
        )
        for gate in protocol.gates
        if isinstance(gate, LossGate)
    )
    per_load = sum(w.repeats + (w.warmup.repeats if w.warmup else 0) for w in protocol.workloads)
    return Plan(
        labels=tuple(position.label for position in positions),
        measured_loads=len(measured),
        residual_df=residual_df,
        can_qualify=may_claim and all(gate.can_qualify for gate in gates),
        looks=look_blocks(protocol.schedule),
        requests=per_load * len(positions),
        budget_min=protocol.limits.campaign_min,
        gates=gates,
    )


def _plan_gate(
    protocol: Protocol,
    gate: LossGate,
    noise: Noise,
    *,
    factor: float,
    loads: int,
    may_claim: bool,
    true_losses_pct: Sequence[float],
) -> GatePlan:
    residual_df = _residual_df(loads)
    is_able = may_claim and loads >= LEAST_LOADS and _qualifies(residual_df, noise)
    margin, alpha = float(gate.margin_pct / 100), float(gate.alpha)
    smallest = minimal_detectable_loss(factor, residual_df, noise, alpha=alpha)
    looks, expected_loads = looks_of(protocol.schedule, alpha), float(loads)
    if looks and isinstance(protocol.schedule, BlocksSchedule):
        stopping = protocol.schedule.stopping
        seen = [
            look_chances(looks, stopping, sigma=max(noise.sigma, LEAST_NOISE), margin=margin, true_loss=loss / 100)
            for loss in (*true_losses_pct, 0.0)
        ]
        expected_loads = seen[-1].loads
        chances = [
            _chances(loss, one.passed, one.failed, can_qualify=is_able)
            for loss, one in zip(true_losses_pct, seen, strict=False)
        ]
    else:
        chances = [
            chances_at(
                loss,
                factor,
                residual_df,
                noise,
                alpha=alpha,
                margin=margin,
                can_qualify=is_able,
                has_drift=loads >= LEAST_LOADS,
            )
            for loss in true_losses_pct
        ]
    return GatePlan(
        gate=gate.id,
        is_required=gate.required,
        can_qualify=is_able,
        margin_pct=float(gate.margin_pct),
        noise_pct=100 * noise.sigma,
        minimal_detectable_loss_pct=None if smallest is None else 100 * smallest,
        chances=tuple(chances),
        expected_loads=expected_loads,
    )


def _chances(true_loss_pct: float, under: float, over: float, *, can_qualify: bool) -> Chances:
    return Chances(
        true_loss_pct=true_loss_pct,
        p_pass=under if can_qualify else 0.0,
        p_fail=over,
        p_screen_only=0.0 if can_qualify else under,
        p_inconclusive=max(1 - under - over, 0.0),
    )


def _residual_df(loads: int) -> int:
    return max(loads - (3 if loads > 2 else 2), 0)


def _qualifies(residual_df: int, noise: Noise) -> bool:
    return residual_df >= MIN_DF or noise.df is not None


def _is_fresh(protocol: Protocol) -> bool:
    return all(arm.engine.kind != "openai" for arm in (protocol.arms.baseline, protocol.arms.candidate))


def _df_in_use(residual_df: int, noise: Noise) -> int | None:
    if residual_df < MIN_DF and noise.df is not None:
        return noise.df
    return residual_df if residual_df > 0 else None


def minimal_detectable_loss(factor: float, residual_df: int, noise: Noise, *, alpha: float = 0.05) -> float | None:
    """Return the smallest loss (a fraction) that the design resolves with a chance of `POWER`, or None without bounds.

    The usual formula: 1 - exp(-(t(1 - alpha) + t(POWER)) * sigma * factor), where factor is sqrt(4 / L) in mirrored
    blocks.
    """
    df = _df_in_use(residual_df, noise)
    if df is None:
        return None
    return -math.expm1(-(t_quantile(1 - alpha, df) + t_quantile(POWER, df)) * noise.sigma * factor)


def chances_at(
    true_loss_pct: float,
    factor: float,
    residual_df: int,
    noise: Noise,
    *,
    alpha: float = 0.05,
    margin: float,
    can_qualify: bool = True,
    has_drift: bool = True,
) -> Chances:
    """Return the chances of each result where the true loss is `true_loss_pct` percent and the margin is a fraction.

    Without `has_drift` there are two loads, which can reject at most.
    """
    shift = (math.log1p(-true_loss_pct / 100) - math.log1p(-margin)) / (max(noise.sigma, LEAST_NOISE) * factor)
    if residual_df < MIN_DF and noise.df is not None:
        under, over = _calibrated_chances(shift, residual_df, noise.df, alpha)
    elif residual_df > 0:
        quantile = t_quantile(1 - alpha, residual_df)
        under = 1 - float(special.nctdtr(residual_df, shift, quantile))
        over = float(special.nctdtr(residual_df, shift, -quantile))
    else:
        under, over = 0.0, 0.0
    if residual_df < MIN_DF and (noise.df is None or not has_drift):
        under = float(special.ndtr(shift))  # a screen looks at the estimate alone
    return _chances(true_loss_pct, under, over, can_qualify=can_qualify)


def _calibrated_chances(shift: float, residual_df: int, calibration_df: int, alpha: float) -> tuple[float, float]:
    """Return the chances that both bounds lie under, and over, the margin, where sigma is the calibration's.

    A campaign that is noisier than its calibration decides nothing; its noise is independent of its estimate.
    """
    quantile = t_quantile(1 - alpha, calibration_df)
    quiet = 1.0
    if residual_df > 0:
        limit = residual_df * f_quantile(1 - CALIBRATION_ALPHA, residual_df, calibration_df)
        quiet = float(special.chdtr(residual_df, limit))
    return quiet * float(special.ndtr(shift - quantile)), quiet * float(special.ndtr(-shift - quantile))
