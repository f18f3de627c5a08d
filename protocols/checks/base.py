"""What every kind of check shares: its name and needs, the outcome of a judgement, and readers of recorded facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.errors import EvidenceError
from protocols.vocabulary import Identifier, KvType, Part

T = TypeVar("T")
CheckStatus = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT_RUN"]
Capability = Literal["library", "package", "suites", "server", "slot_files", "token_ids"]

_SERVED: Final[frozenset[Capability]] = frozenset({"server", "slot_files", "token_ids"})
CAPABILITIES: Final[Mapping[str, frozenset[Capability]]] = {
    "bundled": _SERVED | {"library", "package", "suites"},
    "folder": _SERVED | {"library", "package", "suites"},
    "llama-server": _SERVED,
    "openai": frozenset(),
}
"""What an engine of each kind can be asked; a check that needs more is NOT_RUN there."""

RECALL_MODEL: Final = "qwen4exp-recall"
"""The model that gives codes of its prompt back. One that ignores its prompt would pass or fail for no reason."""

UNMET: Final[Mapping[Capability, str]] = {
    "library": "no library of its own to load",
    "package": "no build that `assay engine pack` takes",
    "suites": "no suites of block selection beside it",
    "server": "no server that we start ourselves",
    "slot_files": "no slots that can be saved and restored",
    "token_ids": "no token ids in its answers",
}


class CheckBase(Part):
    """What every check states."""

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"library"})
    BESIDE: ClassVar[bool] = False
    """Whether the other arm is measured beside the judged one, in turns."""
    MODEL: ClassVar[str | None] = None
    """The one model that its prompts are made for, by the name that the file gives itself; None where any will do."""

    id: Identifier
    """Name of the check."""


class SessionCheck(CheckBase):
    """A check over one session of an engine in process."""

    kv_type: KvType = "f16"
    """Element type of the cache."""
    ubatch_tokens: int = Field(default=512, ge=1, le=8192)
    """Most tokens of one graph evaluation."""


class CheckOutcome(NamedTuple):
    """What a check shows of an arm."""

    status: CheckStatus
    reason: str
    inputs: dict[str, JsonValue]


def unmet_need(check: CheckBase, kind: str) -> str | None:
    """Return what an engine of this kind lacks for a check, in words; None where it has all."""
    lacking = sorted(check.NEEDS - CAPABILITIES[kind])
    return f"an arm of kind {kind} has {UNMET[lacking[0]]}" if lacking else None


def rows_of(facts: Mapping[str, JsonValue], name: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return a list of objects among the facts. EvidenceError where there is none of `count` rows."""
    rows = facts.get(name)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise EvidenceError(f"the check left no {name}")
    if count is not None and len(rows) != count:
        raise EvidenceError(f"the check left {len(rows)} {name}, expected {count}")
    return [dict(row) for row in rows if isinstance(row, dict)]


def field(row: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a member of a row. EvidenceError where it is missing or of another kind."""
    value = row.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise EvidenceError(f"the check left no {name} of the form that it writes")
    return value


def real(row: Mapping[str, Any], name: str) -> float:
    """Return a real number, which facts hold as text. EvidenceError where it is none."""
    try:
        return float(field(row, name, str))
    except ValueError:
        raise EvidenceError(f"the {name} that the check left is no number") from None
