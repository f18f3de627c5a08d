"""From what an engine answered to the cases of a smoke reference: only what can be asked again becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from protocols.canonical import JsonValue
from protocols.checks.base import field
from protocols.errors import EngineError, EvidenceError
from protocols.smoke import SmokeRun, first_difference
from protocols.smoke_exchanges import answer_name
from protocols.smoke_reference import SmokeCase

ROUNDS: Final = 2
"""How often each prompt is asked: a reference of an engine that contradicts itself would fail everywhere."""


class SmokePrompt(NamedTuple):
    """What is asked: a text whose ids the engine is to find, or ids, and how many tokens the reply has."""

    id: str
    text: str | None
    ids: tuple[int, ...] | None
    n_tokens: int
    n_prompt: int | None = None
    """Tokens that the prompt must have; None does not ask."""

    def payload(self) -> dict[str, JsonValue]:
        """Return the prompt as plain JSON values."""
        return {**self._asdict(), "ids": None if self.ids is None else [*self.ids]}


def recorded_prompt(value: Mapping[str, Any]) -> SmokePrompt:
    """Return a prompt from what `payload` made of it. EvidenceError where it has another form."""
    ids, text, n_prompt = value.get("ids"), value.get("text"), field(value, "n_prompt", int)
    is_list = isinstance(ids, list) and all(type(one) is int for one in ids)
    if not (is_list or ids is None) or not isinstance(text, str | None) or (ids is None and text is None):
        raise EvidenceError("a prompt of the smoke is neither a text nor a list of ids")
    held = None if ids is None else tuple(ids)
    return SmokePrompt(field(value, "id", str), text, held, field(value, "n_tokens", int), n_prompt)


def make_cases(prompts: Sequence[SmokePrompt], run: SmokeRun) -> tuple[SmokeCase, ...]:
    """Return one case for each prompt. EngineError names the first thing that could not be asked again."""
    problems = [run.start_problem, *run.mapping_problems, run.own_end and f"it ended by itself: {run.own_end}"]
    problems += [f"{name}: {one.problem}" for name, one in run.prompts.items() if one.problem]
    problems += [f"{name}: {one.problem}" for name, one in run.answers.items() if one.problem]
    problems += [f"{name}: no token ids came" for name, one in run.answers.items() if one.tokens is None]
    problems.append(run.stop_problem)
    for problem in filter(None, problems):
        raise _no_reference(problem)
    return tuple(_case(prompt, run) for prompt in prompts)


def _case(prompt: SmokePrompt, run: SmokeRun) -> SmokeCase:
    ids = prompt.ids if prompt.ids is not None else run.prompts[prompt.id].ids
    if prompt.n_prompt not in {None, len(ids)}:
        raise _no_reference(
            f"{prompt.id}: the engine makes {len(ids)} tokens of the prompt, and the protocol states {prompt.n_prompt}"
        )
    first = run.answers[prompt.id]
    tokens = first.tokens or ()
    if len(tokens) != prompt.n_tokens:
        raise _no_reference(f"{prompt.id}: the reply has {len(tokens)} tokens, and {prompt.n_tokens} were asked for")
    for number in range(2, ROUNDS + 1):
        again = run.answers[answer_name(prompt.id, number)]
        place = first_difference(tokens, again.tokens or ())
        if place is not None or (again.drafted, again.accepted) != (first.drafted, first.accepted):
            what = "other drafts" if place is None else f"another token at {place}"
            raise _no_reference(
                f"{prompt.id}: asked again, it gives {what}", hint="a check of kind determinism shows more"
            )
    has_drafts = first.drafted is not None and first.accepted is not None
    return SmokeCase(
        id=prompt.id,
        prompt=prompt.text,
        prompt_tokens=ids,
        reply_tokens=tokens,
        drafted_tokens=first.drafted if has_drafts else None,
        accepted_tokens=first.accepted if has_drafts else None,
    )


def _no_reference(problem: str, hint: str | None = None) -> EngineError:
    return EngineError(f"no reference can be made of this engine: {problem}", hint=hint)
