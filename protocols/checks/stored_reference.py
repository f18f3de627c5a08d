"""Exact tokens, and draft counts, against ids that stand in the protocol and are locked with it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.checks.answers import read_answers
from protocols.checks.base import Capability, CheckBase, CheckOutcome, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.vocabulary import Identifier

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class StoredReferenceCheck(CheckBase):
    """The answer to a workload's request begins with stored token ids."""

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"server", "token_ids"})

    kind: Literal["stored_reference"]
    """The check."""
    workload: Identifier
    """Workload whose request is sent once, to a fresh server."""
    tokens: Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1, max_length=65_536)]
    """Ids that the answer must begin with."""
    drafted_tokens: int | None = Field(default=None, ge=0, le=16_777_216)
    """Exact number of drafted tokens; null does not compare it."""
    accepted_tokens: int | None = Field(default=None, ge=0, le=16_777_216)
    """Exact number of accepted drafts; null does not compare it."""


def judge_stored_reference(check: StoredReferenceCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where the ids and the stated counts are equal."""
    answers = read_answers(rows_of(observation.facts, "exchanges", 1))
    if check.workload not in answers:
        raise EvidenceError(f"the check left no exchange {check.workload}")
    answer = answers[check.workload]
    if answer.problem is not None:
        return CheckOutcome("FAIL", f"The request was not answered: {answer.problem}.", {})
    if answer.tokens is None:
        return CheckOutcome("NOT_RUN", "The answer has no token ids.", {})
    inputs: dict[str, JsonValue] = {
        "compared": len(check.tokens),
        "drafted": answer.drafted,
        "accepted": answer.accepted,
    }
    for place, wanted in enumerate(check.tokens):
        found = answer.tokens[place] if place < len(answer.tokens) else None
        if found != wanted:
            inputs |= {"first_difference": place, "found": found, "expected": wanted}
            shown = "nothing" if found is None else str(found)
            return CheckOutcome("FAIL", f"Token {place} is {shown}, and the reference has {wanted}.", inputs)
    for name, wanted_count, count in (
        ("drafted", check.drafted_tokens, answer.drafted),
        ("accepted", check.accepted_tokens, answer.accepted),
    ):
        if wanted_count is not None and count is None:
            return CheckOutcome(
                "NOT_RUN", f"The tokens are those of the reference; the engine states no {name} tokens.", inputs
            )
        if wanted_count is not None and count != wanted_count:
            return CheckOutcome("FAIL", f"{count} tokens were {name}, and the reference has {wanted_count}.", inputs)
    return CheckOutcome("PASS", f"The first {len(check.tokens)} tokens are those of the reference.", inputs)
