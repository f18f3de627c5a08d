"""Private codes through the server: each conversation gets its own back, whoever speaks beside it or before it."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.checks.answers import Answer, need_answer, read_answers
from protocols.checks.base import RECALL_MODEL, Capability, CheckBase, CheckOutcome, field, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.results import some_of
from protocols.vocabulary import KvMode

TURNS: Final = ("first", "follow-up")


class ServedRecallCheck(CheckBase):
    """Over HTTP, each conversation gets its own private codes back, whoever speaks beside it or had its slot before.

    Conversations in the slots of one server start at once, follow up, and give their slots to others. Answers come
    streamed and whole in turns. A first request may take no more from the cache than its prompt shares with what the
    slot held; a follow-up must take its whole earlier prompt. The model is `qwen4exp-recall`, which
    answers from its prompt.
    """

    NEEDS: ClassVar[frozenset[Capability]] = frozenset({"server"})
    MODEL: ClassVar[str | None] = RECALL_MODEL

    kind: Literal["served_recall"]
    """The check."""
    slots: int = Field(default=2, ge=1, le=16)
    """Slots of the server; so many conversations start at the same time."""
    rounds: int = Field(default=2, ge=1, le=16)
    """How often every slot is given to a new conversation."""
    distance_tokens: int = Field(ge=64, le=1_048_576)
    """Tokens between a key and its first question."""
    kv_mode: KvMode = "unified"
    """Whether each slot has its own cells, or all share one pool."""
    must_reuse: bool = True
    """Whether a follow-up must take its whole earlier prompt from the cache; false only limits what it may take."""

    def names(self) -> list[str]:
        """Return the names of the conversations: round and slot, counted from 1."""
        return [f"{turn + 1}.{slot + 1}" for turn in range(self.rounds) for slot in range(self.slots)]


def judge_served_recall(check: ServedRecallCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where every code came back whole, nobody saw another's, and the caches held what they may."""
    conversations = rows_of(observation.facts, "conversations", check.rounds * check.slots)
    if [field(one, "name", str) for one in conversations] != check.names():
        raise EvidenceError("the conversations of the check are not one for each slot and round")
    answers = read_answers(rows_of(observation.facts, "exchanges", 2 * len(conversations)))
    codes: dict[tuple[str, str], str] = {}
    for one in conversations:
        for turn, code in zip(TURNS, field(one, "codes", list), strict=True):
            codes[str(one["name"]), turn] = _code(code)
    lost, leaked, caches, broken = [], [], [], []
    for one in conversations:
        for turn in TURNS:
            name = str(one["name"])
            answer = need_answer(answers, f"{name} {turn}")
            foreign = [code for (owner, _), code in codes.items() if owner != name]
            if answer.problem is not None:
                broken.append(f"{answer.name}: {answer.problem}")
                continue
            if not answer.content.strip().startswith(codes[name, turn]):
                lost.append(answer.name)
            if any(code in answer.content for code in foreign):
                leaked.append(answer.name)
            least, most = _bounds(field(one, f"cached_{_key(turn)}", list))
            caches += _cache_problems(answer, least if check.must_reuse else 0, most)
    asked = len(codes)
    inputs: dict[str, JsonValue] = {
        "asked": asked, "recalled": asked - len(lost) - len(broken), "lost": [*lost], "leaked": [*leaked],
        "cache": [*caches], "broken": [*broken],
    }  # fmt: skip
    problems = [f"no whole answer: {some_of(broken)}"] if broken else []
    problems += [f"codes lost (round.slot turn): {some_of(lost)}"] if lost else []
    problems += [f"replies that give another conversation's code: {some_of(leaked)}"] if leaked else []
    problems += [f"cache: {some_of(caches)}"] if caches else []
    if problems:
        return CheckOutcome(
            "FAIL", f"{inputs['recalled']} of {asked} served codes came back; {'; '.join(problems)}.", inputs
        )
    reason = (
        f"All {asked} private codes came back over HTTP: {check.slots} slots at once, {check.rounds} rounds with slots "
        f"reused, the first of each from {check.distance_tokens} tokens; no foreign code, caches as expected."
    )
    return CheckOutcome("PASS", reason, inputs)


def _code(code: object) -> str:
    """Return a code as it must come back. EvidenceError where it is empty, which every reply would contain."""
    text = str(code).strip()
    if not text:
        raise EvidenceError("a conversation of the check has no code")
    return text


def _bounds(bounds: list[object]) -> tuple[int, int]:
    """Return the least and the most tokens that a cache may give. EvidenceError where they are none."""
    match bounds:
        case [int(least), int(most)] if bool not in map(type, bounds) and 0 <= least <= most:
            return least, most
    raise EvidenceError("the check left no bounds of what the cache may give")


def _key(turn: str) -> str:
    return turn.replace("-", "_")


def _cache_problems(answer: Answer, least: int, most: int) -> list[str]:
    """Compare the tokens taken from the cache with the least and the most that the history allows."""
    if answer.cached is None or least <= answer.cached <= most:
        return []
    wanted = f"{least}" if least == most else f"{least} to {most}"
    return [f"{answer.name} took {answer.cached} tokens from the cache, expected {wanted}"]
