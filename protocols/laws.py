"""Laws that an engine must keep: pairs of histories that must give the same logits, drawn from a seed.

A case is one such pair. What its law says is not trusted: `promise` follows both histories and refuses a pair whose
compared steps do not stand after the same tokens, so that a shortened case is a case or is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pydantic import Field

from protocols.check_schema import split_mix
from protocols.history import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    History,
    Image,
    Machine,
    Meaningless,
    Operation,
    Restore,
    Run,
    Save,
    SessionSettings,
    Step,
    trace,
)
from protocols.vocabulary import KvType, Part

LawName = Literal[
    "split=unified",
    "chunked=whole",
    "restored=continued",
    "copied=single",
    "reused=fresh",
    "rolled-back=never",
    "beside=alone",
]
Weights = Literal["single", "half", "quantised"]
TOLERANCE: Final[Mapping[KvType, float]] = {"f32": 1e-4, "f16": 5e-3, "q8_0": 0.05}
"""Largest absolute difference of logits where bytes are not promised, by the type of the cache."""
ROUNDING: Final[Mapping[Weights, float]] = {"single": 0.0, "half": 5e-3, "quantised": 2.0}
"""The same by the type of the weights: activations are rounded to half precision or to 8 bits with them."""
_GOLDEN: Final = 0x9E3779B97F4A7C15
_OWN: Final = "A"
_Item = TypeVar("_Item")


class Case(Part):
    """Two histories that must give the same logits."""

    law: LawName
    """The law that it was drawn under."""
    seed: int = Field(ge=0, lt=2**64)
    """Seed of the token ids."""
    left: History
    """The history with what must not matter."""
    right: History
    """The history without it."""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What decides which cases make sense for a model.

    `takes_images`: rows of images and a rollback setting. `is_byte_exact`: the engine promises the same bytes wherever
    cells lie, for rows that are evaluated in equal ubatches. `weights`: the coarsest type of the weights.
    """

    takes_images: bool
    is_byte_exact: bool
    weights: Weights = "single"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What must hold: equal bytes, or a largest absolute difference in logits; and the cells both sessions need."""

    is_bytes: bool
    tolerance: float
    cells_each: int
    cells_together: int


def promise(case: Case, abilities: Abilities) -> Promise:
    """Return what a case promises. Raises Meaningless where its histories do not mean the same."""
    left, right = trace(case.left), trace(case.right)
    if not left.compared or [one.cells for one in left.compared] != [one.cells for one in right.compared]:
        raise Meaningless("the compared steps do not stand after the same tokens")
    if case.left.settings.kv_type != case.right.settings.kv_type:
        raise Meaningless("caches of different types hold different numbers")
    is_equal = [one.batches for one in left.compared] == [one.batches for one in right.compared]
    is_bytes = abilities.is_byte_exact and is_equal
    return Promise(
        is_bytes=is_bytes,
        tolerance=0.0 if is_bytes else max(TOLERANCE[case.left.settings.kv_type], ROUNDING[abilities.weights]),
        cells_each=max(left.most_cells, right.most_cells),
        cells_together=max(left.most_together, right.most_together),
    )


class Draw:
    """Numbers that follow from a seed: the outputs of SplitMix64 (Steele, Lea, Flood 2014), one after the other."""

    def __init__(self, seed: int) -> None:
        self._state = seed % 2**64

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1."""
        value = split_mix(self._state)
        self._state = (self._state + _GOLDEN) % 2**64
        return value % bound

    def one_in(self, count: int) -> bool:
        """Return true once in `count` times."""
        return self.below(count) == 0

    def pick(self, items: Sequence[_Item]) -> _Item:
        """Return one of the items."""
        return items[self.below(len(items))]

    def length(self, most: int = 255) -> int:
        """Return a number from 1 to `most`; every order of magnitude is as likely."""
        power = 1 << self.below(math.ceil(math.log2(most + 1)))
        return min(most, power + self.below(power))


def draw_case(law: LawName, seed: int, number: int, abilities: Abilities) -> Case:
    """Return case `number` of a law for a seed: the same on every host."""
    start = split_mix(seed)
    for byte in law.encode():
        start = split_mix(start ^ byte)
    draw = Draw(split_mix(start + number))
    left, right = LAWS[law](draw, abilities)
    return Case(law=law, seed=draw.below(2**32), left=left, right=right)


def _settings(draw: Draw, abilities: Abilities, *, rollback: int = 0, sequences: int = 4) -> SessionSettings:
    """Return settings; a rollback of at least so many tokens where the model has that setting."""
    return SessionSettings(
        kv_type=draw.pick(("f32", "f32", "f16", "q8_0")),
        ubatch_tokens=draw.pick((512, 512, 64, 32, 7)),
        sequences=sequences,
        is_unified=draw.one_in(2),
        rollback_tokens=rollback + draw.pick((0, 0, 1, 3)) if abilities.takes_images else 0,
    )


def _changed(settings: SessionSettings, **changes: object) -> SessionSettings:
    return SessionSettings.model_validate({**settings.model_dump(), **changes})


def _evaluate(sequence: int, conversation: str, tokens: int) -> Operation:
    return Evaluate(runs=(Run(sequence=sequence, conversation=conversation, tokens=tokens),))


def _piece(draw: Draw, abilities: Abilities, sequence: int, conversation: str) -> Operation:
    """Return a batch that a sequence goes on with: text, or an image where the model takes one."""
    if abilities.takes_images and draw.one_in(5):
        return Image(sequence=sequence, conversation=conversation, side=2 + draw.below(4))
    return _evaluate(sequence, conversation, draw.length())


def _prompt(draw: Draw, abilities: Abilities, sequence: int = 0) -> list[Operation]:
    return [_piece(draw, abilities, sequence, _OWN) for _ in range(1 + draw.below(3))]


def _moved(operations: Sequence[Operation], sequence: int) -> list[Operation]:
    """Return the batches of a prompt in another sequence."""
    return [
        _evaluate(sequence, one.runs[0].conversation, one.runs[0].tokens)
        if isinstance(one, Evaluate)
        else one.model_copy(update={"sequence": sequence})
        for one in operations
    ]


def _steps(draw: Draw, sequence: int = 0, conversation: str = _OWN) -> list[Operation]:
    return [Step(sequence=sequence, conversation=conversation, tokens=1) for _ in range(1 + draw.below(4))]


def _company(draw: Draw, abilities: Abilities, sequence: int) -> list[Operation]:
    """Return what both histories may begin with: another conversation, which stays in the last sequence."""
    return [_piece(draw, abilities, sequence, "Z")] if draw.one_in(3) else []


_Pair = tuple[History, History]


def _pair(settings: SessionSettings, left: Sequence[Operation], right: Sequence[Operation]) -> _Pair:
    return History(settings=settings, operations=tuple(left)), History(settings=settings, operations=tuple(right))


def _free_operation(draw: Draw, abilities: Abilities, settings: SessionSettings) -> Operation:
    """Return any operation; the machine says whether it makes sense."""
    sequence, other = draw.below(settings.sequences), draw.below(settings.sequences)
    state = draw.pick("ab")
    kind = draw.below(12)
    if kind < 5:
        return _piece(draw, abilities, sequence, draw.pick("ABC"))
    if kind == 5:
        runs = [Run(sequence=one, conversation=draw.pick("ABC"), tokens=draw.length(63)) for one in (sequence, other)]
        return Evaluate(runs=tuple(runs))
    edits: tuple[Operation, ...] = (
        Copy(source=sequence, target=other),
        Cut(sequence=sequence, tokens=1 + draw.below(max(1, settings.rollback_tokens))),
        Drop(sequence=sequence),
        Save(sequence=sequence, state=state),
        Restore(sequence=sequence, state=state),
        Step(sequence=sequence, conversation=_OWN, tokens=1 + draw.below(3)),
    )
    return edits[kind - 6]


def _split_unified(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw any history in split caches, and the same in a unified one."""
    settings = _changed(_settings(draw, abilities, rollback=draw.below(4)), is_unified=False)
    machine, operations = Machine(settings), list[Operation]()
    for _ in range(4 + draw.below(8)):
        one = _free_operation(draw, abilities, settings)
        if isinstance(one, Cut) and not (operations and isinstance(operations[-1], Evaluate)):
            continue  # a recurrent state goes back over what was evaluated just now
        try:
            machine.apply(one)
        except Meaningless:
            continue
        operations.append(one)
    filled = [place for place, held in enumerate(machine.held) if held] or [0]
    operations += [one for place in filled for one in _steps(draw, place)]
    left, right = _pair(settings, operations, operations)
    return left, History(settings=_changed(settings, is_unified=True), operations=right.operations)


def _chunked_whole(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw a text in batches of any size, and in one."""
    settings = _settings(draw, abilities)
    text, steps, company = max(draw.length(), draw.length()), _steps(draw), _company(draw, abilities, 3)
    left, todo = [*company], text
    while todo:
        part = draw.length(todo)
        left.append(_evaluate(0, _OWN, part))
        todo -= part
    one, other = _pair(settings, [*left, *steps], [*company, _evaluate(0, _OWN, text), *steps])
    return one, History(settings=_changed(settings, ubatch_tokens=512), operations=other.operations)


def _restored_continued(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw a conversation that is saved, and restored into any sequence, and one that just goes on."""
    prompt, steps, company = _prompt(draw, abilities), _steps(draw), _company(draw, abilities, 3)
    target = draw.below(3)
    left = [*company, *prompt, Save(sequence=0, state="a")]
    if draw.one_in(2):
        left.append(Drop(sequence=0))
    if draw.one_in(2):
        left.append(_piece(draw, abilities, draw.below(3), "B"))
    left += [Restore(sequence=target, state="a"), *_moved(steps, target)]
    return _pair(_settings(draw, abilities), left, [*company, *prompt, *steps])


def _copied_single(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw a prompt that is copied to sequences that go on differently, and the same prompt evaluated in each."""
    prompt, company, copies = _prompt(draw, abilities), _company(draw, abilities, 3), 1 + draw.below(2)
    left = [*company, *prompt, *(Copy(source=0, target=place) for place in range(1, copies + 1))]
    right = [*company, *(one for place in range(copies + 1) for one in _moved(prompt, place))]
    steps = [one for place in range(copies + 1) for one in _steps(draw, place, "ABC"[place])]
    if draw.one_in(2):
        left.insert(-1 if draw.one_in(2) else len(left), _piece(draw, abilities, copies + 1, "D"))
    return _pair(_settings(draw, abilities, sequences=5), [*left, *steps], [*right, *steps])


def _reused_fresh(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw a conversation in a sequence that held another one, evaluated again or from a cache, and a fresh one."""
    prompt, steps, company = _prompt(draw, abilities), _steps(draw), _company(draw, abilities, 3)
    before = [_piece(draw, abilities, 0, "B") for _ in range(1 + draw.below(2))]
    if draw.one_in(3):
        cached = [*_moved(prompt, 1), Save(sequence=1, state="a"), *([Drop(sequence=1)] if draw.one_in(2) else [])]
        left = [*cached, *before, Restore(sequence=0, state="a")]
    else:
        left = [*before, Drop(sequence=0), *prompt]
    return _pair(_settings(draw, abilities), [*company, *left, *steps], [*company, *prompt, *steps])


def _rolled_back_never(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw a conversation from which wrong tokens are taken back, another one going on meanwhile, and one without."""
    wrong = 1 + draw.below(4)
    operations = [*_prompt(draw, abilities), *_steps(draw)]
    left: list[Operation] = []
    for one in operations:
        left.append(one)
        if one is not operations[-1] and draw.below(3):
            left += [_evaluate(0, "B", wrong), Cut(sequence=0, tokens=wrong)]
            left += [_evaluate(1, "C", draw.length(15))] if draw.one_in(2) else []
    return _pair(_settings(draw, abilities, rollback=wrong), left, operations)


def _beside_alone(draw: Draw, abilities: Abilities) -> _Pair:
    """Draw a conversation between whose batches others come and go, and one that is alone."""
    operations = [*_prompt(draw, abilities), *_steps(draw)]
    settings = _settings(draw, abilities)
    left, machine = list[Operation](), Machine(settings)
    for one in operations:
        for _ in range(draw.below(3)):
            there = _piece(draw, abilities, 1 + draw.below(3), draw.pick("BC"))
            others: tuple[Operation, ...] = (
                there,
                there,
                Copy(source=1 + draw.below(3), target=1 + draw.below(3)),
                Drop(sequence=1 + draw.below(3)),
            )
            other = draw.pick(others)
            try:
                machine.apply(other)
            except Meaningless:
                continue
            left.append(other)
        if isinstance(one, Evaluate) and draw.one_in(4):
            one = Evaluate(runs=(Run(sequence=1, conversation="B", tokens=draw.length(31)), *one.runs))
        machine.apply(one)
        left.append(one)
    return _pair(settings, left, operations)


LAWS: Final[Mapping[LawName, Callable[[Draw, Abilities], _Pair]]] = {
    "split=unified": _split_unified,
    "chunked=whole": _chunked_whole,
    "restored=continued": _restored_continued,
    "copied=single": _copied_single,
    "reused=fresh": _reused_fresh,
    "rolled-back=never": _rolled_back_never,
    "beside=alone": _beside_alone,
}
"""The laws, each with what draws a pair of histories."""
