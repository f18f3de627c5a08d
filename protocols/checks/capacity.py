"""The longest prompt that the settings promise, with a floor of free memory below which nothing goes on."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.checks.answers import OK, read_answer
from protocols.checks.base import Capability, CheckBase, CheckOutcome, field
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation

CLIENT_ERRORS = range(400, 500)


class CapacityCheck(CheckBase):
    """A prompt that fills the stated context is served whole, one that does not fit is refused, and the server lives.

    While it runs, the host's available memory is watched; below the floor the server is stopped, and the check FAILs.
    """

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"server"})

    kind: Literal["capacity"]
    """The check."""
    context_tokens: int | None = Field(default=None, ge=64, le=16_777_216)
    """Context that is filled; null means that of the arm's settings."""
    generated_tokens: int = Field(default=8, ge=1, le=4096)
    """Tokens that are generated at the end of the context."""
    memory_floor_mib: int = Field(default=512, ge=1, le=2**31 - 1)
    """Available memory of the host below which the server is stopped, in MiB."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of the token ids."""


def judge_capacity(check: CapacityCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where the context was filled and the longer prompt refused."""
    facts = dict(observation.facts)
    context, lowest, was_stopped = _course(check, facts)
    inputs: dict[str, JsonValue] = {"context_tokens": context, "lowest_available_mib": lowest}
    prompt, floor = context - check.generated_tokens, check.memory_floor_mib
    if was_stopped:
        reason = (
            f"Stopped while a prompt of {prompt} tokens was served: {lowest} MiB of memory were available, and the "
            f"floor is {floor} MiB."
        )
        return CheckOutcome("FAIL", reason, inputs)
    whole = read_answer(_exchange(facts, "whole"))
    if whole.problem is not None:
        return CheckOutcome("FAIL", f"A prompt of {prompt} tokens was not served: {whole.problem}.", inputs)
    seen = None if whole.evaluated is None else whole.evaluated + (whole.cached or 0)
    inputs |= {"prompt_tokens": seen, "generated_tokens": None if whole.tokens is None else len(whole.tokens)}
    over, health = field(_exchange(facts, "over"), "status", int), field(facts, "health_status", int)
    inputs |= {"over_status": over, "health_status": health}
    problems = []
    if seen is not None and seen != prompt:
        problems.append(f"the engine counts {seen} prompt tokens, {prompt} were sent")
    if whole.tokens is not None and len(whole.tokens) != check.generated_tokens:
        problems.append(f"{len(whole.tokens)} tokens were generated, expected {check.generated_tokens}")
    if over not in CLIENT_ERRORS:
        problems.append(f"a prompt of {context + 1} tokens got status {over}, expected a refusal")
    if health != OK:
        problems.append("the server does not answer any more")
    if lowest < floor:  # what happens between two looks at the memory stops nothing
        problems.append(f"{lowest} MiB of memory were available, and the floor is {floor} MiB")
    if problems:
        return CheckOutcome("FAIL", f"Capacity: {'; '.join(problems)}.", inputs)
    reason = (
        f"A prompt of {prompt} tokens and {check.generated_tokens} generated ones fill the context of {context}; one "
        f"that does not fit is refused, and the server lives. At least {lowest} MiB of memory stayed available."
    )
    return CheckOutcome("PASS", reason, inputs)


def _course(check: CapacityCheck, facts: dict[str, JsonValue]) -> tuple[int, int, bool]:
    """Return context and lowest memory, and whether the floor stopped it. EvidenceError where they contradict."""
    context, lowest = field(facts, "context_tokens", int), field(facts, "lowest_available_mib", int)
    was_stopped, floor = field(facts, "was_stopped", bool), check.memory_floor_mib
    if check.context_tokens is not None and context != check.context_tokens:
        raise EvidenceError(f"the check filled a context of {context} tokens, expected {check.context_tokens}")
    if was_stopped and lowest >= floor:
        raise EvidenceError(f"the check was stopped at its floor of {floor} MiB, and {lowest} MiB were available")
    return context, lowest, was_stopped


def _exchange(facts: dict[str, JsonValue], name: str) -> dict[str, JsonValue]:
    one = facts.get(name)
    if not isinstance(one, dict):
        raise EvidenceError(f"the check left no exchange {name}")
    return one
