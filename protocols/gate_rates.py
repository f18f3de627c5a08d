"""The rates that speed gates judge: one metric of every measured load, on one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from protocols.canonical import JsonValue
from protocols.gate_schema import LossGate, MirrorGapGate, ScreenLossGate
from protocols.gate_view import View
from protocols.measurements import ARMS
from protocols.metrics import Clock, LoadRate, choose_clock, load_rate
from protocols.results import GateResult, GateStatus, some_of

SpeedGate = LossGate | MirrorGapGate | ScreenLossGate

METRIC_WORDS = {"prefill_rate": "prefill rate", "generation_rate": "generation rate"}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """One metric of every measured load, on one clock, in schedule order."""

    clock: Clock
    loads: tuple[LoadRate, ...]

    def of_arm(self, arm: str, block: int | None = None) -> list[float]:
        """Return the rates of one arm, of one block or of all, in order."""
        return [load.rate for load in self.loads if load.arm == arm and (block is None or load.block == block)]

    def without(self, blocks: Mapping[int, object]) -> Rates:
        """Return the rates without the loads of some blocks."""
        return replace(self, loads=tuple(load for load in self.loads if load.block not in blocks))

    def payload(self, gate: SpeedGate) -> dict[str, JsonValue]:
        """Return what every speed gate records of its inputs."""
        return {
            "workload": gate.workload,
            "metric": gate.metric,
            "clock": self.clock,
            "loads": [load.payload() for load in self.loads],
            "timing_disagreements": [load.label for load in self.loads if load.timing_disagreement],
        }


def speed_result(
    gate: SpeedGate,
    status: GateStatus,
    reason: str,
    inputs: Mapping[str, JsonValue],
    *,
    threshold: str | None = None,
    margin: str | None = None,
) -> GateResult:
    """Return the result of a speed gate."""
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


def rates_of(view: View, gate: SpeedGate) -> Rates | str:
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
