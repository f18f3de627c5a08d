"""The loss gate: the candidate's loss with its interval, at every look, with and without invalid blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols import screens
from protocols.canonical import JsonValue, decimal_text, real_text
from protocols.decision import LossJudgement, LossRule, judge_loss
from protocols.gate_rates import METRIC_WORDS, Rates, rates_of, speed_result
from protocols.gate_schema import LossGate
from protocols.gate_validity import left_out_sentence, unchecked_sentence, validity_payload
from protocols.gate_view import View
from protocols.gate_words import decision_sentence, look_sentence, whole_sentence
from protocols.looks import Look
from protocols.measurements import ARMS
from protocols.metrics import rate_per_s
from protocols.results import GateResult, GateStatus, some_of
from protocols.schema import BlocksSchedule
from protocols.stats import Calibration, LossFit, Observation, fit_loss, is_loss_detected


def evaluate_loss(
    gate: LossGate,
    view: View,
    done: Mapping[str, GateResult],
    calibration: Calibration | None,
    looks: Sequence[Look] = (),
) -> GateResult:
    """Judge non-inferiority (or equivalence): the candidate's loss against the margin, with its one-sided bounds.

    In this order: INCONCLUSIVE where loads or requests are missing, NOT_COMPARABLE where a gate in `after` did not
    PASS, NOT_RUN where the rate is not defined, and then what the fit says, without the blocks that a rule about the
    host made invalid.
    """
    margin = decimal_text(gate.margin_pct)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return speed_result(gate, "INCONCLUSIVE", f"No loss is computed: {missing}.", {}, margin=margin)
    blockers = [f"{name} is {done[name].status}" for name in gate.after if done[name].status != "PASS"]
    if blockers:
        reason = f"The speeds are not comparable, because {some_of(blockers)}: equal work comes first."
        return speed_result(gate, "NOT_COMPARABLE", reason, {"blocked_by": list(blockers)}, margin=margin)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return speed_result(gate, "NOT_RUN", f"No loss is computed: {rates}.", {}, margin=margin)
    rule = _rule(gate, view, looks)
    kept = rates.without(view.invalid_blocks)
    whole = judge_loss(_observations(rates), rule, calibration=calibration) if view.invalid_blocks else None
    if whole is not None and not kept.loads:
        reason = f"No loss is computed. {_left_out(view, whole)}{unchecked_sentence(view)}"
        inputs = {**validity_payload(view), "all_blocks": _whole_payload(whole)}
        return speed_result(gate, "INCONCLUSIVE", reason, inputs, margin=margin)
    judgement = judge_loss(_observations(kept), rule, calibration=calibration)
    return _judged(gate, view, kept, judgement, rule, whole)


def _rule(gate: LossGate, view: View, looks: Sequence[Look]) -> LossRule:
    schedule = view.protocol.schedule
    return LossRule(
        margin=float(gate.margin_pct / 100),
        alpha=float(gate.alpha),
        equivalence=gate.equivalence,
        looks=tuple(look for look in looks if view.blocks is None or look.blocks <= view.blocks),
        stopping=schedule.stopping if isinstance(schedule, BlocksSchedule) else "spent",
    )


def _judged(
    gate: LossGate, view: View, kept: Rates, judgement: LossJudgement, rule: LossRule, whole: LossJudgement | None
) -> GateResult:
    fit = judgement.fit
    decision: GateStatus = judgement.decision
    limits = _limits_of(view, fit)
    if decision == "PASS" and limits:
        decision = "SCREEN_ONLY"
    if decision == "SCREEN_ONLY" and view.invalid_blocks and not fit.can_qualify:
        decision = "INCONCLUSIVE"  # the design could have decided; what is left of it cannot
    inputs: dict[str, JsonValue] = {
        **kept.payload(gate),
        **fit_payload(fit),
        **_companions(kept, fit),
        "loss_detected": is_loss_detected(fit),
        "limits": list(limits),
    }
    reason = decision_sentence(
        METRIC_WORDS[gate.metric],
        fit,
        decision,
        gate.margin_pct,
        limits,
        equivalence=gate.equivalence,
        alpha=rule.alpha if rule.looks else None,
    )
    if gate.equivalence:
        inputs["equivalence"] = True
    if rule.looks:
        inputs["looks"] = [_look_payload(one.look, one.fit, one.decision) for one in judgement.looks]
        reason += f" {look_sentence(judgement, view.planned_blocks())}"
    inputs |= validity_payload(view)
    reason += unchecked_sentence(view)
    if whole is not None:
        inputs["all_blocks"] = _whole_payload(whole)
        reason += f" {_left_out(view, whole)}"
    apart = [load.label for load in kept.loads if load.timing_disagreement]
    if kept.clock == "server" and apart:
        reason += (
            f" The engine's own times and the client's differ by more than 2 % and 20 ms in {some_of(apart)}: a note "
            "that fails nothing; the limit of a gate over replies is another, wider one."
        )
    return speed_result(gate, decision, reason, inputs, margin=decimal_text(gate.margin_pct))


def _look_payload(look: Look, fit: LossFit, decision: str) -> dict[str, JsonValue]:
    return {
        "blocks": look.blocks,
        "level": real_text(look.level),
        "loss_pct": real_text(100 * fit.loss),
        "loss_low_pct": _percent_or_none(fit.loss_low),
        "loss_high_pct": _percent_or_none(fit.loss_high),
        "decision": decision,
    }


def _whole_payload(whole: LossJudgement) -> dict[str, JsonValue]:
    return {**fit_payload(whole.fit), "decision": whole.decision}


def _left_out(view: View, whole: LossJudgement) -> str:
    return f"{left_out_sentence(view.invalid_blocks)} {whole_sentence(whole)}"


def _observations(rates: Rates, *, client: bool = False) -> list[Observation]:
    seen: list[Observation] = []
    for load in rates.loads:
        rate = load.rate
        if client and load.client_ns is not None:
            rate = rate_per_s(load.tokens, load.client_ns)
        is_candidate = load.arm == "candidate"
        seen.append(Observation(index=load.index, is_candidate=is_candidate, rate=rate, block=load.block))
    return seen


def _limits_of(view: View, fit: LossFit) -> list[str]:
    """Return phrases that say why this campaign cannot say more than a screen, whatever its numbers are."""
    limits: list[str] = []
    not_fresh = [arm for arm in ARMS if view.protocol.arm(arm).engine.kind == "openai"]
    if not_fresh:
        are = "is an endpoint that is" if len(not_fresh) == 1 else "are endpoints that are"
        limits.append(f"the {' and the '.join(not_fresh)} {are} not started afresh for each load")
    if view.protocol.claim == "screen":
        limits.append("the protocol claims only a screen")
    if not fit.can_qualify:
        loads = fit.baseline_loads + fit.candidate_loads
        is_pair = fit.sigma_source == "calibrated"
        limits.append(
            f"{loads} loads cannot tell a drift of the host from a change"
            if is_pair
            else f"{loads} loads without calibrated noise of this host carry no more"
        )
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
