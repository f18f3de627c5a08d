"""What one start of an engine left for a smoke: every exchange as it came, and what it means.

The runner reads its own exchanges with this, and so does an audit with the recorded ones: there is one reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from protocols.canonical import MAX_INTEGER, JsonValue
from protocols.checks.answers import OK, read_answers
from protocols.checks.base import field
from protocols.errors import EvidenceError
from protocols.smoke import PromptIds, SmokeRun

PROPS: Final = "/props"
_TOKENIZE: Final = "/tokenize"


def tokenize_name(identifier: str) -> str:
    """Return the name of the exchange that asked for the ids of a text; no workload can have it."""
    return f"{identifier}{_TOKENIZE}"


def answer_name(identifier: str, number: int) -> str:
    """Return the name of the `number`-th answer, from 1, to one prompt."""
    return identifier if number == 1 else f"{identifier}/{number}"


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """One start, as it is kept. `exchanges` are ``{"name","status","body"}`` in the order in which they were made."""

    ready_ms: int | None = None
    start_problem: str | None = None
    mapping_problems: tuple[str, ...] = ()
    exchanges: tuple[Mapping[str, Any], ...] = ()
    own_end: str | None = None
    stop_problem: str | None = None

    def payload(self) -> dict[str, JsonValue]:
        """Return the run as plain JSON values."""
        return {
            "ready_ms": self.ready_ms,
            "start_problem": self.start_problem,
            "mapping_problems": [*self.mapping_problems],
            "exchanges": [dict(row) for row in self.exchanges],
            "own_end": self.own_end,
            "stop_problem": self.stop_problem,
        }

    def read(self) -> SmokeRun:
        """Return what the exchanges say. EvidenceError where a name stands twice, or a row has another form."""
        rows = [dict(row) for row in self.exchanges]
        props = next((_object(row) for row in rows if row["name"] == PROPS), {})
        asked = [row for row in rows if str(row["name"]).endswith(_TOKENIZE)]
        answers = [row for row in rows if row["name"] != PROPS and not str(row["name"]).endswith(_TOKENIZE)]
        held = _count(props, "memory_plan", "device_bytes")
        return SmokeRun(
            ready_ms=self.ready_ms,
            start_problem=self.start_problem,
            mapping_problems=self.mapping_problems,
            context_tokens=_count(props, "default_generation_settings", "n_ctx"),
            slots=_count(props, "total_slots"),
            is_on_gpu=None if held is None else held > 0,
            prompts={str(row["name"]).removesuffix(_TOKENIZE): read_prompt_ids(row) for row in asked},
            answers=read_answers(answers),
            own_end=self.own_end,
            stop_problem=self.stop_problem,
        )


def recorded_run(value: Mapping[str, Any]) -> RecordedRun:
    """Return a run from what `payload` made of it. EvidenceError where it has another form."""
    exchanges, problems = field(value, "exchanges", list), field(value, "mapping_problems", list)
    for row in exchanges:
        if not isinstance(row, dict):
            raise EvidenceError("an exchange of the smoke is no object")
        field(row, "name", str), field(row, "status", int), field(row, "body", str)
    if not all(isinstance(one, str) for one in problems):
        raise EvidenceError("a problem of the smoke is no text")
    words = {name: value.get(name) for name in ("start_problem", "own_end", "stop_problem")}
    ready_ms = value.get("ready_ms")
    if not all(isinstance(one, str | None) for one in words.values()) or type(ready_ms) not in {int, type(None)}:
        raise EvidenceError("the smoke does not say how its engine started and ended")
    return RecordedRun(ready_ms=ready_ms, mapping_problems=tuple(problems), exchanges=tuple(exchanges), **words)


def read_prompt_ids(row: Mapping[str, Any]) -> PromptIds:
    """Return the ids that the engine made of a text, from its answer."""
    tokens = _object(row).get("tokens")
    if isinstance(tokens, list) and tokens and all(type(one) is int and 0 <= one <= MAX_INTEGER for one in tokens):
        return PromptIds(tuple(tokens))
    return PromptIds((), f"{_TOKENIZE} gave no ids (status {row['status']})")


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object of an answer; an empty one where it is none."""
    if row["status"] != OK:
        return {}
    with suppress(ValueError, RecursionError):
        value = json.loads(row["body"])
        if isinstance(value, dict):
            return value
    return {}


def _count(value: Any, *path: str) -> int | None:  # noqa: ANN401 - walks JSON values
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else None
