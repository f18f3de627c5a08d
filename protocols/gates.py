"""Gates: typed rules over measurements. Each gate gives one result; the results combine in `verdicts.py`.

Equal work comes first: a speed gate names in `after` the gates that must PASS before speeds are comparable at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocols.errors import ProtocolError
from protocols.gate_schema import (
    CheckGate,
    ColdCacheGate,
    CompletenessGate,
    EqualCountersGate,
    EqualWorkGate,
    ExactTokensGate,
    Gate,
    LossGate,
    MirrorGapGate,
    SoundRepliesGate,
)
from protocols.gate_view import View
from protocols.gates_check import evaluate_check
from protocols.gates_exact import (
    evaluate_cold_cache,
    evaluate_completeness,
    evaluate_equal_counters,
    evaluate_equal_work,
    evaluate_exact_tokens,
)
from protocols.gates_replies import evaluate_sound_replies
from protocols.gates_screen import evaluate_mirror_gap, evaluate_screen_loss
from protocols.gates_speed import evaluate_loss
from protocols.looks import Look, look_blocks, looks_of
from protocols.measurements import CampaignMeasurements
from protocols.results import GateResult, GateStatus
from protocols.schema import Protocol
from protocols.stats import Calibration

__all__ = ["Calibrations", "GateResult", "GateStatus", "Levels", "blocks_wanted", "evaluate_gates"]

Calibrations = Mapping[tuple[str, str], Calibration]
"""Calibrated noise of a load of this host, by (workload, metric)."""

Levels = Mapping[str, Sequence[Look]]
"""The looks of each loss gate by its id, with the levels that the lock froze."""


def evaluate_gates(
    protocol: Protocol,
    measurements: CampaignMeasurements,
    *,
    calibrations: Calibrations | None = None,
    levels: Levels | None = None,
) -> tuple[GateResult, ...]:
    """Evaluate every gate of the protocol and return the results in the protocol's order.

    `calibrations` and `levels` are those of the lock; without calibrations, designs of few loads are screens. With
    looks, the gates are evaluated as at the first look that ended the campaign, whatever was measured after it; one
    that was cut short after a look is as undecided as that look left it.
    ProtocolError where gates wait for each other or for a gate that does not exist: a loaded protocol has neither.
    """
    before: tuple[GateResult, ...] = ()
    ends: tuple[int | None, ...] = (*look_blocks(protocol.schedule)[:-1], None)
    for blocks in ends:
        view = View.of(protocol, measurements, blocks=blocks)
        if before and view.is_cut_short:
            return tuple(_not_reached(result, view) for result in before)
        before = _evaluate_view(view, calibrations or {}, levels or {})
        if view.missing_loads or not _wants_more(before):
            break
    return before


def _not_reached(result: GateResult, view: View) -> GateResult:
    """Say of a loss that is still open that the next look was not reached."""
    if result.kind != "loss" or result.status != "INCONCLUSIVE":
        return result
    blocks = view.planned_blocks() if view.blocks is None else view.blocks
    first, more = view.missing_loads[0], len(view.missing_loads) - 1
    missing = first if not more else f"{first}, and {more} more {'load is' if more == 1 else 'loads are'} missing"
    reason = f"{result.reason} The next look, after {blocks} blocks, was not reached: {missing}."
    return replace(result, reason=reason, inputs={**result.inputs, "next_look": blocks})


def blocks_wanted(
    protocol: Protocol,
    measurements: CampaignMeasurements,
    *,
    calibrations: Calibrations | None = None,
    levels: Levels | None = None,
) -> int | None:
    """Return how many blocks must be complete before the next judgement; None where the gates are decided.

    ValueError for a protocol without looks: all its loads are wanted, and there is nothing to ask.
    """
    looks = look_blocks(protocol.schedule)
    if not looks:
        raise ValueError("the protocol has no looks")
    for blocks in looks:
        view = View.of(protocol, measurements, blocks=blocks)
        if view.missing_loads:
            return blocks
        if not _wants_more(_evaluate_view(view, calibrations or {}, levels or {})):
            return None
    return None


def _wants_more(results: Sequence[GateResult]) -> bool:
    """Return whether further blocks could change the verdict: a required loss is open, and nothing else decides."""
    required = [result for result in results if result.required]
    if any(result.status in {"FAIL", "NOT_RUN", "NOT_COMPARABLE"} for result in required):
        return False
    return any(result.kind == "loss" and result.status == "INCONCLUSIVE" for result in required)


def _evaluate_view(view: View, calibrations: Calibrations, levels: Levels) -> tuple[GateResult, ...]:
    protocol = view.protocol
    done: dict[str, GateResult] = {}
    waiting = {gate.id: gate for gate in protocol.gates}
    while waiting:
        ready = [gate for gate in waiting.values() if all(name in done for name in _after(gate))]
        if not ready:
            raise ProtocolError(f"the gates {', '.join(sorted(waiting))} wait for gates that never come", where="gates")
        for gate in ready:
            done[gate.id] = _evaluate(gate, view, done, calibrations, levels)
            del waiting[gate.id]
    return tuple(done[gate.id] for gate in protocol.gates)


def _after(gate: Gate) -> tuple[str, ...]:
    return gate.after if isinstance(gate, LossGate) else ()


def _evaluate(
    gate: Gate, view: View, done: Mapping[str, GateResult], calibrations: Calibrations, levels: Levels
) -> GateResult:
    match gate:
        case CompletenessGate():
            return evaluate_completeness(gate, view)
        case ExactTokensGate():
            return evaluate_exact_tokens(gate, view)
        case EqualWorkGate():
            return evaluate_equal_work(gate, view)
        case EqualCountersGate():
            return evaluate_equal_counters(gate, view)
        case ColdCacheGate():
            return evaluate_cold_cache(gate, view)
        case SoundRepliesGate():
            return evaluate_sound_replies(gate, view)
        case LossGate():
            looks = levels.get(gate.id) or looks_of(view.protocol.schedule, float(gate.alpha))
            return evaluate_loss(gate, view, done, calibrations.get((gate.workload, gate.metric)), looks)
        case CheckGate():
            return evaluate_check(gate, view)
        case MirrorGapGate():
            return evaluate_mirror_gap(gate, view)
        case _:
            return evaluate_screen_loss(gate, view)
