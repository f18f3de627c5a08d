"""False alarms: a protocol over two right builds, where no gate may fire, and how often each did in repeated campaigns.

Both arms become builds of one source without a fault, linked in two orders; what a control had to show in a faulty
baseline, the right one must show as well.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocols.errors import ProtocolError
from protocols.gate_schema import LossGate, MirrorGapGate, ScreenLossGate
from protocols.load import LoadedProtocol, parse_protocol
from protocols.schema import BundledEngine

SPEED_KINDS: Final = (LossGate, MirrorGapGate, ScreenLossGate)
"""Gates over rates: noise makes them fire now and then; every other gate is exact."""
SPEED_ALARMS_PER_CAMPAIGN: Final = 0.1
"""Share of the campaigns in which a gate over rates may fire."""


@dataclass(frozen=True, kw_only=True)
class GateAlarms:
    """What one gate showed over all campaigns."""

    gate: str
    is_exact: bool
    statuses: Counter[str]
    campaigns: int

    @property
    def fired(self) -> int:
        """Number of campaigns in which it failed."""
        return self.statuses["FAIL"]

    @property
    def judged(self) -> int:
        """Number of campaigns in which it said anything: one that was not run could not fire."""
        return self.campaigns - self.statuses["NOT_RUN"]

    @property
    def is_too_often(self) -> bool:
        """Whether an exact gate fired at all, or one over rates in more than its share of the campaigns."""
        return self.fired > (0 if self.is_exact else SPEED_ALARMS_PER_CAMPAIGN * self.judged)


def fault_free(loaded: LoadedProtocol) -> LoadedProtocol:
    """Return the protocol over two builds without a fault. ProtocolError where an arm is no build of ours."""
    value: dict[str, Any] = loaded.protocol.model_dump(mode="json")
    for name, arm in (("baseline", loaded.protocol.arms.baseline), ("candidate", loaded.protocol.arms.candidate)):
        if not isinstance(arm.engine, BundledEngine):
            message = f"found an engine of kind {arm.engine.kind}, expected bundled"
            raise ProtocolError(message, where=f"{loaded.protocol.id}: arms.{name}.engine.kind")
        engine = value["arms"][name]["engine"]
        engine |= {"faults": [], "path": "guarded", "layout_salt": int(name == "candidate")}
    for gate in value["gates"]:
        if "expect" in gate:
            gate["expect"] = "PASS"
    value["id"] = f"{loaded.protocol.id}.fault-free"[:64]
    value["title"] = f"No fault: {loaded.protocol.title}"[:200]
    value["purpose"] = f"Shows how often a gate of {loaded.protocol.id} fires where both arms are right builds."
    value["expect"] = None
    return parse_protocol((json.dumps(value, indent=1) + "\n").encode(), loaded.path)


def count_alarms(loaded: LoadedProtocol, campaigns: Sequence[Iterable[tuple[str, str]]]) -> tuple[GateAlarms, ...]:
    """Count what each gate of the protocol showed. `campaigns` holds (gate id, status) of every gate, a row each."""
    seen: dict[str, Counter[str]] = {gate.id: Counter() for gate in loaded.protocol.gates}
    for campaign in campaigns:
        for gate, status in campaign:
            seen[gate][status] += 1
    return tuple(
        GateAlarms(
            gate=gate.id,
            is_exact=not isinstance(gate, SPEED_KINDS),
            statuses=seen[gate.id],
            campaigns=len(campaigns),
        )
        for gate in loaded.protocol.gates
    )
