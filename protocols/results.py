"""What a gate says, as a record: status, reason, and everything that a reader needs to check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from protocols.canonical import JsonValue

GateStatus = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT_RUN", "NOT_COMPARABLE", "SCREEN_ONLY"]

LAST_WORDS = "; its last words:"
"""What stands between the reason of an engine's end and the lines of its log."""
NAMED_AT_MOST = 4
"""How many items a sentence names before it says how many more there are."""


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The outcome of one gate.

    `reason` is a sentence for people. `inputs` is canonical JSON with every number that the reason rests on (reals as
    text, see `canonical.real_text`). `threshold` is a limit as the protocol states it, `margin` the margin of a
    loss gate.
    """

    id: str
    kind: str
    status: GateStatus
    required: bool
    reason: str
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    threshold: str | None = None
    margin: str | None = None

    @property
    def loss_detected(self) -> bool:
        """Whether a loss gate PASSes although a loss above zero is shown: small, but real."""
        return self.status == "PASS" and self.inputs.get("loss_detected") is True

    def payload(self) -> dict[str, JsonValue]:
        """Return the result as canonical JSON, ready to be hashed and recorded."""
        return {
            "id": self.id,
            "kind": self.kind,
            "status": self.status,
            "required": self.required,
            "reason": self.reason,
            "inputs": dict(self.inputs),
            "threshold": self.threshold,
            "margin": self.margin,
        }


def in_short(reason: str) -> str:
    """Return a reason without the last words of the engine: they are shown in one place."""
    return reason.partition(LAST_WORDS)[0]


def some_of(items: Sequence[str]) -> str:
    """Join items to a phrase; past `NAMED_AT_MOST` of them it says how many more there are."""
    shown = list(items[:NAMED_AT_MOST])
    if len(items) > NAMED_AT_MOST:
        return f"{', '.join(shown)} and {len(items) - NAMED_AT_MOST} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
