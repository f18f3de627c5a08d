"""Gates: typed rules over measurements. Each gate gives one result; the results combine in `verdicts.py`.

Equal work comes first: a speed gate names in `after` the gates that must PASS before speeds are comparable at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.errors import ProtocolError
from protocols.gate_schema import (
    ColdCacheGate,
    CompletenessGate,
    EqualCountersGate,
    EqualWorkGate,
    ExactTokensGate,
    Gate,
    LossGate,
    MirrorGapGate,
)
from protocols.gate_view import View
from protocols.gates_exact import (
    evaluate_cold_cache,
    evaluate_completeness,
    evaluate_equal_counters,
    evaluate_equal_work,
    evaluate_exact_tokens,
)
from protocols.gates_speed import evaluate_loss, evaluate_mirror_gap, evaluate_screen_loss
from protocols.measurements import CampaignMeasurements
from protocols.results import GateResult, GateStatus
from protocols.schema import Protocol
from protocols.stats import Calibration

__all__ = ["Calibrations", "GateResult", "GateStatus", "evaluate_gates"]

Calibrations = Mapping[tuple[str, str], Calibration]
"""Calibrated noise of a load of this host, by (workload, metric)."""


def evaluate_gates(
    protocol: Protocol, measurements: CampaignMeasurements, *, calibrations: Calibrations | None = None
) -> tuple[GateResult, ...]:
    """Evaluate every gate of the protocol and return the results in the protocol's order.

    `calibrations` are those of the lock; without them, designs of few loads are screens. ProtocolError where gates
    wait for each other or for a gate that does not exist: a loaded protocol has neither.
    """
    view = View.of(protocol, measurements)
    done: dict[str, GateResult] = {}
    waiting = {gate.id: gate for gate in protocol.gates}
    while waiting:
        ready = [gate for gate in waiting.values() if all(name in done for name in _after(gate))]
        if not ready:
            raise ProtocolError(f"the gates {', '.join(sorted(waiting))} wait for gates that never come", where="gates")
        for gate in ready:
            done[gate.id] = _evaluate(gate, view, done, calibrations or {})
            del waiting[gate.id]
    return tuple(done[gate.id] for gate in protocol.gates)


def _after(gate: Gate) -> tuple[str, ...]:
    return gate.after if isinstance(gate, LossGate) else ()


def _evaluate(gate: Gate, view: View, done: Mapping[str, GateResult], calibrations: Calibrations) -> GateResult:
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
        case LossGate():
            return evaluate_loss(gate, view, done, calibrations.get((gate.workload, gate.metric)))
        case MirrorGapGate():
            return evaluate_mirror_gap(gate, view)
        case _:
            return evaluate_screen_loss(gate, view)
