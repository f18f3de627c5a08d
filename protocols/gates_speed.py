"""Gates over rates: the loss with its interval, and the older point screens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocols import screens
from protocols.canonical import JsonValue, decimal_text, real_text
from protocols.gate_schema import LossGate, MirrorGapGate, ScreenLossGate
from protocols.gate_view import View, some_of
from protocols.gate_words import decision_sentence
from protocols.measurements import ARMS
from protocols.metrics import Clock, LoadRate, choose_clock, load_rate, rate_per_s
from protocols.results import GateResult, GateStatus
from protocols.stats import Calibration, LossFit, Observation, decide_loss, fit_loss, is_loss_detected

_SpeedGate = LossGate | MirrorGapGate | ScreenLossGate

METRIC_WORDS = {"prefill_rate": "prefill rate", "generation_rate": "generation rate"}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """One metric of every measured load, on one clock, in schedule order."""

    clock: Clock
    loads: tuple[LoadRate, ...]

    def of_arm(self, arm: str, block: int | None = None) -> list[float]:
        """Return the rates of one arm, of one block or of all, in order."""
        return [load.rate for load in self.loads if load.arm == arm and (block is None or load.block == block)]

    def payload(self, gate: _SpeedGate) -> dict[str, JsonValue]:
        """Return what every speed gate records of its inputs."""
        return {
            "workload": gate.workload,
            "metric": gate.metric,
            "clock": self.clock,
            "loads": [load.payload() for load in self.loads],
            "timing_disagreements": [load.label for load in self.loads if load.timing_disagreement],
        }


def _result(
    gate: _SpeedGate,
    status: GateStatus,
    reason: str,
    inputs: Mapping[str, JsonValue],
    *,
    threshold: str | None = None,
    margin: str | None = None,
) -> GateResult:
    return GateResult(
        id=gate.id,
        kind=gate.kind,
        status=status,
        required=gate.required,
        reason=reason,
        inputs=inputs,
        threshold=threshold,
        margin=margin,
    )


def rates_of(view: View, gate: _SpeedGate) -> Rates | str:
    """Return the rates that a gate needs, or a phrase that says why they do not exist."""
    loads = view.measured_loads()
    words = METRIC_WORDS[gate.metric]
    absent = [arm for arm in ARMS if not any(load.arm == arm for load in loads)]
    if absent:
        return f"the schedule has no measured load of the {' and the '.join(absent)}"
    clock = choose_clock(loads, gate.workload, gate.metric)
    if clock is None:
        return f"neither the server's nor the client's times of the {words} cover every load"
    found = [(load.label, load_rate(load, gate.workload, gate.metric, clock)) for load in loads]
    undefined = [label for label, rate in found if rate is None]
    if undefined:
        return f"the {words} is not defined in {some_of(undefined)} (too few tokens, or their count is unknown)"
    return Rates(clock=clock, loads=tuple(rate for _, rate in found if rate is not None))


def evaluate_loss(
    gate: LossGate, view: View, done: Mapping[str, GateResult], calibration: Calibration | None
) -> GateResult:
    """Judge non-inferiority: the candidate's loss against the margin, with its one-sided bounds.

    In this order: INCONCLUSIVE where loads or requests are missing, NOT_COMPARABLE where a gate in `after` did not
    PASS, NOT_RUN where the rate is not defined, and then what the fit says.
    """
    margin = decimal_text(gate.margin_pct)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return _result(gate, "INCONCLUSIVE", f"No loss is computed: {missing}.", {}, margin=margin)
    blockers = [f"{name} is {done[name].status}" for name in gate.after if done[name].status != "PASS"]
    if blockers:
        reason = f"The speeds are not comparable, because {some_of(blockers)}: equal work comes first."
        return _result(gate, "NOT_COMPARABLE", reason, {"blocked_by": list(blockers)}, margin=margin)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return _result(gate, "NOT_RUN", f"No loss is computed: {rates}.", {}, margin=margin)
    fit = fit_loss(_observations(rates), alpha=float(gate.alpha), calibration=calibration)
    decision: GateStatus = decide_loss(fit, float(gate.margin_pct / 100))
    limits = _limits_of(view, fit)
    if decision == "PASS" and limits:
        decision = "SCREEN_ONLY"
    inputs = {
        **rates.payload(gate),
        **fit_payload(fit),
        **_companions(rates, fit),
        "loss_detected": is_loss_detected(fit),
    }
    inputs["limits"] = list(limits)
    reason = decision_sentence(METRIC_WORDS[gate.metric], fit, decision, gate.margin_pct, limits)
    if rates.clock == "server" and inputs["timing_disagreements"]:
        reason += " The engine's own times and the client's disagree in some loads; see the inputs."
    return _result(gate, decision, reason, inputs, margin=margin)


def _observations(rates: Rates, *, client: bool = False) -> list[Observation]:
    seen: list[Observation] = []
    for load in rates.loads:
        rate = load.rate
        if client and load.client_ns is not None:
            rate = rate_per_s(load.tokens, load.client_ns)
        seen.append(Observation(index=load.index, is_candidate=load.arm == "candidate", rate=rate))
    return seen


def _limits_of(view: View, fit: LossFit) -> list[str]:
    """Return phrases that say why this campaign cannot say more than a screen, whatever its numbers are."""
    limits: list[str] = []
    not_fresh = [arm for arm in ARMS if view.protocol.arm(arm).engine.kind == "openai"]
    if not_fresh:
        limits.append(f"the {' and the '.join(not_fresh)} is an endpoint that is not started afresh for each load")
    if view.protocol.claim == "screen":
        limits.append("the protocol claims only a screen")
    if not fit.can_qualify:
        loads = fit.baseline_loads + fit.candidate_loads
        limits.append(f"{loads} loads without calibrated noise of this host carry no more")
    return limits


def fit_payload(fit: LossFit) -> dict[str, JsonValue]:
    """Return everything that a reader needs of a fit, as canonical JSON: percentages of loss, sigma in percent."""
    return {
        "n_baseline": fit.baseline_loads,
        "n_candidate": fit.candidate_loads,
        "alpha": real_text(fit.alpha),
        "beta": real_text(fit.beta),
        "loss_pct": real_text(100 * fit.loss),
        "loss_low_pct": _percent_or_none(fit.loss_low),
        "loss_high_pct": _percent_or_none(fit.loss_high),
        "sigma_pct": _percent_or_none(fit.sigma),
        "sigma_source": fit.sigma_source,
        "sigma_of_these_loads_pct": _percent_or_none(fit.residual_sigma),
        "standard_error_pct": _percent_or_none(fit.standard_error),
        "df": fit.df,
        "residual_df": fit.residual_df,
        "drift_pct_per_load": None if fit.gamma is None else _percent_or_none(fit.gamma),
        "is_noisier_than_calibration": fit.is_noisier_than_calibration,
    }


def _percent_or_none(fraction: float | None) -> str | None:
    return None if fraction is None else real_text(100 * fraction)


def _companions(rates: Rates, fit: LossFit) -> dict[str, JsonValue]:
    """Return figures that stand beside the loss and decide nothing: the pooled change, and the client's clock."""
    pooled = screens.pooled_change_pct(rates.of_arm("baseline"), rates.of_arm("candidate"))
    companions: dict[str, JsonValue] = {"pooled_change_pct": real_text(pooled), "client_loss_pct": None}
    if rates.clock == "server" and all(load.client_ns for load in rates.loads):
        client = fit_loss(_observations(rates, client=True), alpha=fit.alpha)
        companions["client_loss_pct"] = real_text(100 * client.loss)
    return companions


def evaluate_mirror_gap(gate: MirrorGapGate, view: View) -> GateResult:
    """Judge whether the two halves of each block agree: the largest gap is at most the limit, exactly it included."""
    limit = decimal_text(gate.limit_pp)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return _result(gate, "INCONCLUSIVE", f"No mirror gap is computed: {missing}.", {}, threshold=limit)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return _result(gate, "NOT_RUN", f"No mirror gap is computed: {rates}.", {}, threshold=limit)
    blocks = sorted({load.block for load in rates.loads if load.block is not None})
    if not blocks or any(load.block is None for load in rates.loads):
        reason = "No mirror gap is computed: the schedule is not made of mirrored blocks."
        return _result(gate, "NOT_RUN", reason, rates.payload(gate), threshold=limit)
    rows: list[JsonValue] = []
    gaps: dict[int, float] = {}
    for block in blocks:
        pair = rates.of_arm("baseline", block), rates.of_arm("candidate", block)
        first, second = screens.mirror_changes_pct(*pair)
        gaps[block] = screens.mirror_gap_pp(*pair)
        rows.append(
            {
                "block": block,
                "first_change_pct": real_text(first),
                "second_change_pct": real_text(second),
                "gap_pp": real_text(gaps[block]),
            }
        )
    worst = max(gaps, key=lambda block: gaps[block])
    inputs = {**rates.payload(gate), "blocks": rows, "gap_pp": real_text(gaps[worst])}
    is_within = screens.is_gap_within(gaps[worst], float(gate.limit_pp))
    reason = (
        f"The halves of block {worst} disagree by {gaps[worst]:.2f} percentage points in the "
        f"{METRIC_WORDS[gate.metric]}, {'within' if is_within else 'over'} the limit of {limit}; this is about drift."
    )
    return _result(gate, "PASS" if is_within else "FAIL", reason, inputs, threshold=limit)


def evaluate_screen_loss(gate: ScreenLossGate, view: View) -> GateResult:
    """Apply the older point screen to the pooled change: a loss of exactly the limit fails, less is SCREEN_ONLY."""
    limit = decimal_text(gate.max_loss_pct)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return _result(gate, "INCONCLUSIVE", f"No change is computed: {missing}.", {}, threshold=limit)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return _result(gate, "NOT_RUN", f"No change is computed: {rates}.", {}, threshold=limit)
    change = screens.pooled_change_pct(rates.of_arm("baseline"), rates.of_arm("candidate"))
    inputs = {**rates.payload(gate), "pooled_change_pct": real_text(change)}
    words = f"The pooled change of the {METRIC_WORDS[gate.metric]} is {change:+.2f} %"
    if screens.is_loss_within(change, float(gate.max_loss_pct)):
        reason = f"{words}, a loss under the limit of {limit} %: a screen, which can reject but never qualify."
        return _result(gate, "SCREEN_ONLY", reason, inputs, threshold=limit)
    return _result(gate, "FAIL", f"{words}, a loss not under the limit of {limit} %.", inputs, threshold=limit)
