"""The older point screens as gates: the mirror gap and the pooled change. They can reject, never qualify."""

from __future__ import annotations

from protocols import screens
from protocols.canonical import JsonValue, decimal_text, real_text
from protocols.gate_rates import METRIC_WORDS, rates_of, speed_result
from protocols.gate_schema import MirrorGapGate, ScreenLossGate
from protocols.gate_view import View
from protocols.results import GateResult


def evaluate_mirror_gap(gate: MirrorGapGate, view: View) -> GateResult:
    """Judge whether the two halves of each block agree: the largest gap is at most the limit, exactly it included."""
    limit = decimal_text(gate.limit_pp)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return speed_result(gate, "INCONCLUSIVE", f"No mirror gap is computed: {missing}.", {}, threshold=limit)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return speed_result(gate, "NOT_RUN", f"No mirror gap is computed: {rates}.", {}, threshold=limit)
    rates = rates.without(view.invalid_blocks)
    blocks = sorted({load.block for load in rates.loads if load.block is not None})
    if not rates.loads:
        reason = "No mirror gap is computed: every block broke a rule about the host."
        return speed_result(gate, "INCONCLUSIVE", reason, {}, threshold=limit)
    if not blocks or any(load.block is None for load in rates.loads):
        reason = "No mirror gap is computed: the schedule is not made of mirrored blocks."
        return speed_result(gate, "NOT_RUN", reason, rates.payload(gate), threshold=limit)
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
    return speed_result(gate, "PASS" if is_within else "FAIL", reason, inputs, threshold=limit)


def evaluate_screen_loss(gate: ScreenLossGate, view: View) -> GateResult:
    """Apply the older point screen to the pooled change: a loss of exactly the limit fails, less is SCREEN_ONLY."""
    limit = decimal_text(gate.max_loss_pct)
    missing = view.missing_for(gate.workload)
    if missing is not None:
        return speed_result(gate, "INCONCLUSIVE", f"No change is computed: {missing}.", {}, threshold=limit)
    rates = rates_of(view, gate)
    if isinstance(rates, str):
        return speed_result(gate, "NOT_RUN", f"No change is computed: {rates}.", {}, threshold=limit)
    rates = rates.without(view.invalid_blocks)
    if not rates.loads:
        reason = "No change is computed: every block broke a rule about the host."
        return speed_result(gate, "INCONCLUSIVE", reason, {}, threshold=limit)
    change = screens.pooled_change_pct(rates.of_arm("baseline"), rates.of_arm("candidate"))
    inputs = {**rates.payload(gate), "pooled_change_pct": real_text(change)}
    words = f"The pooled change of the {METRIC_WORDS[gate.metric]} is {change:+.2f} %"
    if screens.is_loss_within(change, float(gate.max_loss_pct)):
        reason = f"{words}, a loss under the limit of {limit} %: a screen, which can reject but never qualify."
        return speed_result(gate, "SCREEN_ONLY", reason, inputs, threshold=limit)
    return speed_result(gate, "FAIL", f"{words}, a loss not under the limit of {limit} %.", inputs, threshold=limit)
