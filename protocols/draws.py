"""Pieces of random histories: numbers, settings, prompts and steps, drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from protocols.check_schema import split_mix
from protocols.history import Machine, Meaningless
from protocols.operations import Copy, Drop, Evaluate, History, Image, Operation, Run, SessionSettings, Step

Weights = Literal["single", "half", "quantised"]
OWN: Final = "A"
"""The conversation that is compared."""
_GOLDEN: Final = 0x9E3779B97F4A7C15
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What decides which cases make sense for a model.

    `takes_images`: rows of images and a rollback setting. `is_byte_exact`: the engine promises the same bytes wherever
    cells lie, for rows that are evaluated in equal ubatches. `weights`: the coarsest type of the weights. `is_small`:
    thousands of tokens take seconds, and hundreds of thousands of cells fit into memory.
    """

    takes_images: bool
    is_byte_exact: bool
    weights: Weights = "single"
    is_small: bool = False


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


def draw_settings(draw: Draw, abilities: Abilities, *, rollback: int = 0, sequences: int = 4) -> SessionSettings:
    """Return settings; a rollback of at least so many tokens where the model has that setting."""
    return SessionSettings(
        kv_type=draw.pick(("f32", "f32", "f16", "q8_0")),
        ubatch_tokens=draw.pick((512, 512, 64, 32, 7)),
        sequences=sequences,
        is_unified=draw.one_in(2),
        rollback_tokens=rollback + draw.pick((0, 0, 1, 3)) if abilities.takes_images else 0,
    )


def changed(settings: SessionSettings, **changes: object) -> SessionSettings:
    """Return the settings with some of them changed."""
    return SessionSettings.model_validate({**settings.model_dump(), **changes})


def text(sequence: int, conversation: str, tokens: int) -> Operation:
    """Return a batch of text."""
    return Evaluate(runs=(Run(sequence=sequence, conversation=conversation, tokens=tokens),))


def draw_piece(draw: Draw, abilities: Abilities, sequence: int, conversation: str) -> Operation:
    """Return a batch that a sequence goes on with: text, or an image where the model takes one."""
    if abilities.takes_images and draw.one_in(5):
        return Image(sequence=sequence, conversation=conversation, side=2 + draw.below(4))
    return text(sequence, conversation, draw.length())


def draw_prompt(draw: Draw, abilities: Abilities, sequence: int = 0) -> list[Operation]:
    """Return the batches of a prompt."""
    return [draw_piece(draw, abilities, sequence, OWN) for _ in range(1 + draw.below(3))]


def moved(operations: Sequence[Operation], sequence: int) -> list[Operation]:
    """Return the batches of a prompt in another sequence."""
    return [
        text(sequence, one.runs[0].conversation, one.runs[0].tokens)
        if isinstance(one, Evaluate)
        else one.model_copy(update={"sequence": sequence})
        for one in operations
    ]


def draw_steps(draw: Draw, sequence: int = 0, conversation: str = OWN) -> list[Operation]:
    """Return compared steps."""
    return [Step(sequence=sequence, conversation=conversation, tokens=1) for _ in range(1 + draw.below(4))]


def draw_company(draw: Draw, abilities: Abilities, sequence: int) -> list[Operation]:
    """Return what both histories may begin with: another conversation, which stays in the last sequence."""
    return [draw_piece(draw, abilities, sequence, "Z")] if draw.one_in(3) else []


Pair = tuple[History, History]


def pair(settings: SessionSettings, left: Sequence[Operation], right: Sequence[Operation]) -> Pair:
    """Return two histories with the same settings."""
    return History(settings=settings, operations=tuple(left)), History(settings=settings, operations=tuple(right))


def draw_others(draw: Draw, abilities: Abilities, machine: Machine) -> list[Operation]:
    """Return what other sequences do meanwhile, which the machine follows: come, grow, are copied and go."""
    found: list[Operation] = []
    for _ in range(draw.below(3)):
        there = draw_piece(draw, abilities, 1 + draw.below(3), draw.pick("BC"))
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
        found.append(other)
    return found
