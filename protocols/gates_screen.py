"""The older point screens as gates: the mirror gap and the pooled change. They can reject, never qualify."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protocols import screens
from protocols.canonical import JsonValue, decimal_text, real_text
from protocols.gate_rates import METRIC_WORDS, Rates, rates_of, speed_result
from protocols.gate_schema import MirrorGapGate, ScreenLossGate
from protocols.gate_validity import left_out_sentence, unchecked_sentence, validity_payload
from protocols.gate_view import View
from protocols.results import GateResult, GateStatus


class _Screened(NamedTuple):
    """What a screen says about some loads; `short` says it in a few words beside another set of loads."""

    status: GateStatus
    reason: str
    short: str
    inputs: dict[str, JsonValue]


def evaluate_mirror_gap(gate: MirrorGapGate, view: View) -> GateResult:
    """Judge whether the two halves of each block agree: the largest gap is at most the limit, exactly it included."""
    limit = decimal_text(gate.limit_pp)
    return _screen(gate, view, limit, "No mirror gap is computed", lambda rates: _screen_gap(gate, rates, limit))


def _screen_gap(gate: MirrorGapGate, rates: Rates, limit: str) -> _Screened:
    blocks = sorted({load.block for load in rates.loads if load.block is not None})
    if not blocks or any(load.block is None for load in rates.loads):
        reason = "No mirror gap is computed: the schedule is not made of mirrored blocks."
        return _Screened("NOT_RUN", reason, "no mirror gap", {})
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
    is_within = screens.is_gap_within(gaps[worst], float(gate.limit_pp))
    reason = (
        f"The halves of block {worst} disagree by {gaps[worst]:.2f} percentage points in the "
        f"{METRIC_WORDS[gate.metric]}, {'within' if is_within else 'over'} the limit of {limit}; this is about drift."
    )
    short = f"the largest gap would be {gaps[worst]:.2f} percentage points"
    return _Screened("PASS" if is_within else "FAIL", reason, short, {"blocks": rows, "gap_pp": real_text(gaps[worst])})


def evaluate_screen_loss(gate: ScreenLossGate, view: View) -> GateResult:
    """Apply the older point screen to the pooled change: a loss of exactly the limit fails, less is SCREEN_ONLY."""
    limit = decimal_text(gate.max_loss_pct)
    return _screen(gate, view, limit, "No change is computed", lambda rates: _screen_loss(gate, rates, limit))


def _screen_loss(gate: ScreenLossGate, rates: Rates, limit: str) -> _Screened:
    change = screens.pooled_change_pct(rates.of_arm("baseline"), rates.of_arm("candidate"))
    inputs: dict[str, JsonValue] = {"pooled_change_pct": real_text(change)}
    words = f"The pooled change of the {METRIC_WORDS[gate.metric]} is {change:+.2f} %"
    short = f"the pooled change would be {change:+.2f} %"
    if screens.is_loss_within(change, float(gate.max_loss_pct)):
        reason = f"{words}, a loss under the limit of {limit} %: a screen, which can reject but never qualify."
        return _Screened("SCREEN_ONLY", reason, short, inputs)
    return _Screened("FAIL", f"{words}, a loss not under the limit of {limit} %.", short, inputs)


def _screen(
    gate: MirrorGapGate | ScreenLossGate, view: View, limit: str, without: str, judge: Callable[[Rates], _Screened]
) -> GateResult:
    """Judge the loads without the blocks that a rule about the host took out, and say what all of them would give.

    `without` begins the sentence that says why nothing is computed.
    """
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return speed_result(gate, "INCONCLUSIVE", f"{without}: {missing}.", {}, threshold=limit)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return speed_result(gate, "NOT_RUN", f"{without}: {rates}.", {}, threshold=limit)
    kept = rates.without(view.invalid_blocks)
    inputs = kept.payload(gate) | validity_payload(view)
    if kept.loads:
        found = judge(kept)
    else:
        reason = f"{without}: every block broke a rule about the host."
        found = _Screened("INCONCLUSIVE", reason, "", {})
    reason = found.reason + unchecked_sentence(view)
    if view.invalid_blocks:
        whole = judge(rates)
        inputs["all_blocks"] = {**whole.inputs, "decision": whole.status}
        reason += f" {left_out_sentence(view.invalid_blocks)} With every block {whole.short}: {whole.status}."
    return speed_result(gate, found.status, reason, inputs | found.inputs, threshold=limit)
