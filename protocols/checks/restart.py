"""A killed server and a saved slot: what was on disk comes back, and nothing else does."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.checks.answers import need_answer, read_answers
from protocols.checks.base import Capability, CheckBase, CheckOutcome, field, rows_of
from protocols.measurements import CheckObservation

EXCHANGES: Final = ("prompt", "save", "continued", "cold", "erase", "restore", "restored")


class RestartCheck(CheckBase):
    """A conversation whose slot was saved goes on after its server was killed as it does without that.

    Before the restore the new server must find nothing: a prefix that outlives its process on its own would make every
    cold measurement warm.
    """

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"server", "slot_files", "token_ids"})

    kind: Literal["restart"]
    """The check."""
    prompt_tokens: int = Field(ge=16, le=1_048_576)
    """Tokens of the conversation that is saved."""
    generated_tokens: int = Field(default=8, ge=2, le=4096)
    """Greedy tokens of each answer."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of the token ids."""


def judge_restart(check: RestartCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where the restored answer equals the uninterrupted one, from restored cells, and the cold one has none."""
    answers = read_answers(rows_of(observation.facts, "exchanges", len(EXCHANGES)))
    found = {name: need_answer(answers, name) for name in EXCHANGES}
    inputs: dict[str, JsonValue] = {
        "cached_tokens": {name: found[name].cached for name in ("continued", "cold", "restored")},
        "killed_by": field(dict(observation.facts), "killed_by", str),
    }
    broken = [f"{name}: {answer.problem}" for name, answer in found.items() if answer.problem is not None]
    if broken:
        return CheckOutcome("FAIL", f"The server did not carry a step out: {'; '.join(broken)}.", inputs)
    continued, cold, restored = found["continued"], found["cold"], found["restored"]
    problems = [
        f"the {name} answer has other tokens than the uninterrupted one{_first(continued.tokens, found[name].tokens)}"
        for name in ("cold", "restored")
        if found[name].tokens is None or found[name].tokens != continued.tokens
    ]
    if cold.cached:
        problems.append(f"the new server had {cold.cached} tokens in a cache before anything was restored")
    if restored.cached is not None and restored.cached < check.prompt_tokens:
        problems.append(f"the restored slot gave {restored.cached} tokens, expected {check.prompt_tokens} or more")
    if problems:
        return CheckOutcome("FAIL", f"After the restart: {'; '.join(problems)}.", inputs)
    reason = (
        f"After SIGKILL and a restart the slot of {check.prompt_tokens} tokens comes back from its file and goes on "
        "with equal tokens; before that the new server had nothing in a cache."
    )
    return CheckOutcome("PASS", reason, inputs)


def _first(left: tuple[int, ...] | None, right: tuple[int, ...] | None) -> str:
    for place, (a, b) in enumerate(zip(left or (), right or (), strict=False)):
        if a != b:
            return f" (token {place}: {a} and {b})"
    return ""
