"""Gates over checks in process: what an arm shows, and whether that is what it must show."""

from __future__ import annotations

from protocols.canonical import JsonValue
from protocols.check_rules import judge_check
from protocols.checks.base import CheckOutcome
from protocols.gate_schema import CheckGate
from protocols.gate_view import View
from protocols.results import GateResult, GateStatus


def evaluate_check(gate: CheckGate, view: View) -> GateResult:
    """Judge one check of one arm.

    A control PASSes where its check FAILs, and FAILs where the check finds nothing: then the check is blind.
    """
    outcome = judge_check(view.protocol.check(gate.check), view.measurements.check(gate.check, gate.arm))
    status, reason = _against(gate, outcome)
    inputs: dict[str, JsonValue] = {
        "check": gate.check, "arm": gate.arm, "expect": gate.expect, "outcome": outcome.status, **outcome.inputs,
    }  # fmt: skip
    return GateResult(id=gate.id, kind=gate.kind, status=status, required=gate.required, reason=reason, inputs=inputs)


def _against(gate: CheckGate, outcome: CheckOutcome) -> tuple[GateStatus, str]:
    if gate.expect == "PASS" or outcome.status in {"NOT_RUN", "INCONCLUSIVE"}:
        return outcome.status, outcome.reason
    if outcome.status == "FAIL":
        return "PASS", f"The control fails as it must: {outcome.reason}"
    return "FAIL", f"The control must fail, and the check finds nothing: {outcome.reason}"
