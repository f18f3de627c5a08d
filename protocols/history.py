"""Histories: plain operations on the sequences of a session, and what they must mean whatever the engine does.

A history is played by an engine and followed here by a machine that knows no arithmetic: it only keeps which tokens
each sequence holds. Two histories whose compared steps stand after the same tokens must give the same logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from protocols.vocabulary import KvType, Part

_MOST_TOKENS: Final = 4096
SequenceId = Annotated[int, Field(ge=0, lt=16)]
Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
Conversation = Annotated[str, Field(pattern=r"^[A-Z]$")]
State = Annotated[str, Field(pattern=r"^[a-z]$")]


class SessionSettings(Part):
    """Settings of the session that a history is played in."""

    kv_type: KvType = "f32"
    """Type of the cache."""
    ubatch_tokens: Tokens = 512
    """Most tokens of one graph evaluation."""
    sequences: int = Field(default=1, ge=1, le=16)
    """Sequences of the session."""
    is_unified: bool = False
    """Whether all sequences share one pool of cells."""
    rollback_tokens: int = Field(default=0, ge=0, le=64)
    """Tokens that a recurrent state can take back."""


class Run(Part):
    """Tokens of a conversation at the end of a sequence."""

    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the text: the id of a token follows from the case's seed, this name and the position."""
    tokens: Tokens
    """How many."""


class Evaluate(Part):
    """Evaluate runs of different sequences in one batch."""

    do: Literal["evaluate"] = "evaluate"
    """The operation."""
    runs: Annotated[tuple[Run, ...], Field(strict=False, min_length=1, max_length=16)]
    """The batch, run after run."""


class Step(Part):
    """Evaluate tokens one by one; the logits of each are compared with those of the other history."""

    do: Literal["step"] = "step"
    """The operation."""
    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the text."""
    tokens: Tokens
    """How many."""


class Image(Part):
    """Evaluate a made-up square image in one batch; its cells share a position."""

    do: Literal["image"] = "image"
    """The operation."""
    sequence: SequenceId
    """Sequence that goes on."""
    conversation: Conversation
    """Names the image."""
    side: int = Field(ge=1, le=16)
    """Rows and columns."""


class Copy(Part):
    """Copy a whole sequence to an empty one."""

    do: Literal["copy"] = "copy"
    """The operation."""
    source: SequenceId
    """Sequence that is copied."""
    target: SequenceId
    """Empty sequence that gets the copy."""


class Cut(Part):
    """Remove tokens at the end of a sequence."""

    do: Literal["cut"] = "cut"
    """The operation."""
    sequence: SequenceId
    """Sequence that becomes shorter."""
    tokens: Tokens
    """How many."""


class Drop(Part):
    """Remove a whole sequence."""

    do: Literal["drop"] = "drop"
    """The operation."""
    sequence: SequenceId
    """Sequence that becomes empty."""


class Save(Part):
    """Save the state of a sequence under a name."""

    do: Literal["save"] = "save"
    """The operation."""
    sequence: SequenceId
    """Sequence that is saved."""
    state: State
    """Name of the state."""


class Restore(Part):
    """Replace a sequence by a saved state."""

    do: Literal["restore"] = "restore"
    """The operation."""
    sequence: SequenceId
    """Sequence that is replaced."""
    state: State
    """Name of the state."""


Operation = Annotated[
    Evaluate | Step | Image | Copy | Cut | Drop | Save | Restore,
    Field(discriminator="do"),
]


class History(Part):
    """Operations in a fresh session."""

    settings: SessionSettings
    """Settings of the session."""
    operations: Annotated[tuple[Operation, ...], Field(strict=False, max_length=200)]
    """The operations, in order."""


class Meaningless(ValueError):  # noqa: N818 - not an error of a person: most shortened histories are
    """An operation that no session can carry out, such as a copy over a sequence that holds something."""


class Cell(NamedTuple):
    """One cell of a sequence: a token, or with `side` > 0 the cell `place` of an image. `end` is the next position."""

    conversation: str
    position: int
    side: int
    place: int
    end: int


class Batch(NamedTuple):
    """How a cell was evaluated: the lengths of the runs in its ubatch, and its row there.

    The arithmetic of a row may depend on them: another number of rows means another order of sums.
    """

    runs: tuple[int, ...]
    row: int


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One compared step: the cells of its sequence, itself the last, and how each of them was evaluated."""

    cells: tuple[Cell, ...]
    batches: tuple[Batch, ...]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a history means.

    `starts` has, for each operation, the position from which each of its runs (one for a step or an image) goes on;
    for a cut, the position from which it removes. `most_cells` is the most that one sequence holds at any time,
    `most_together` the most of all together.
    """

    starts: tuple[tuple[int, ...], ...]
    compared: tuple[Compared, ...]
    most_cells: int
    most_together: int


class Machine:
    """Follows operations. An operation that is Meaningless changes nothing."""

    def __init__(self, settings: SessionSettings) -> None:
        self._ubatch = settings.ubatch_tokens
        self.held: list[list[tuple[Cell, Batch]]] = [[] for _ in range(settings.sequences)]
        self.states: dict[str, list[tuple[Cell, Batch]]] = {}
        self.compared: list[Compared] = []

    @singledispatchmethod
    def apply(self, operation: Operation) -> tuple[int, ...]:
        """Carry an operation out; return where it starts (see Trace). Raises Meaningless."""
        raise TypeError(f"{operation!r} is no operation")

    @apply.register
    def _(self, operation: Evaluate) -> tuple[int, ...]:
        starts = tuple(self.end(run.sequence) for run in operation.runs)
        if len({run.sequence for run in operation.runs}) < len(operation.runs):
            raise Meaningless("a sequence has one run in a batch")
        batches = iter(self._batches([run.tokens for run in operation.runs]))
        for run, start in zip(operation.runs, starts, strict=True):
            self.held[run.sequence] += [
                (Cell(run.conversation, at, 0, 0, at + 1), next(batches)) for at in range(start, start + run.tokens)
            ]
        return starts

    @apply.register
    def _(self, operation: Step) -> tuple[int, ...]:
        start, held = self.end(operation.sequence), self.held[operation.sequence]
        for at in range(start, start + operation.tokens):
            held.append((Cell(operation.conversation, at, 0, 0, at + 1), Batch((1,), 0)))
            cells, batches = zip(*held, strict=True)
            self.compared.append(Compared(cells=cells, batches=batches))
        return (start,)

    @apply.register
    def _(self, operation: Image) -> tuple[int, ...]:
        start, side = self.end(operation.sequence), operation.side
        cells = [Cell(operation.conversation, start, side, place, start + side) for place in range(side * side)]
        self.held[operation.sequence] += zip(cells, self._batches([len(cells)]), strict=True)
        return (start,)

    @apply.register
    def _(self, operation: Copy) -> tuple[int, ...]:
        held = self._filled(operation.source)
        if self._sequence(operation.target):
            raise Meaningless("a copy needs an empty target")
        self.held[operation.target] = [*held]
        return ()

    @apply.register
    def _(self, operation: Cut) -> tuple[int, ...]:
        held, count = self._sequence(operation.sequence), operation.tokens
        if len(held) < count or any(cell.side for cell, _ in held[-count:]):
            raise Meaningless("only tokens can be cut off, and no more than there are")
        self.held[operation.sequence] = held[:-count]
        return (held[-count][0].position,)

    @apply.register
    def _(self, operation: Drop) -> tuple[int, ...]:
        self._filled(operation.sequence)
        self.held[operation.sequence] = []
        return ()

    @apply.register
    def _(self, operation: Save) -> tuple[int, ...]:
        self.states[operation.state] = [*self._filled(operation.sequence)]
        return ()

    @apply.register
    def _(self, operation: Restore) -> tuple[int, ...]:
        self._sequence(operation.sequence)
        if operation.state not in self.states:
            raise Meaningless("nothing was saved under this name")
        self.held[operation.sequence] = [*self.states[operation.state]]
        return ()

    def end(self, sequence: int) -> int:
        """Return the position at which a sequence goes on. Raises Meaningless where there is no such sequence."""
        held = self._sequence(sequence)
        return held[-1][0].end if held else 0

    def _sequence(self, sequence: int) -> list[tuple[Cell, Batch]]:
        if sequence >= len(self.held):
            raise Meaningless(f"the session has no sequence {sequence}")
        return self.held[sequence]

    def _filled(self, sequence: int) -> list[tuple[Cell, Batch]]:
        held = self._sequence(sequence)
        if not held:
            raise Meaningless(f"the sequence {sequence} is empty")
        return held

    def _batches(self, lengths: Sequence[int]) -> list[Batch]:
        """Return how each row of a batch is evaluated: in ubatches, in the order of its rows."""
        owners = [place for place, length in enumerate(lengths) for _ in range(length)]
        found: list[Batch] = []
        for first in range(0, len(owners), self._ubatch):
            part = owners[first : first + self._ubatch]
            runs = tuple(part.count(owner) for owner in dict.fromkeys(part))
            found += [Batch(runs, row) for row in range(len(part))]
        return found


def trace(history: History) -> Trace:
    """Follow a history. Raises Meaningless where an operation cannot be carried out."""
    machine = Machine(history.settings)
    starts, most, together = [], 0, 0
    for operation in history.operations:
        starts.append(machine.apply(operation))
        sizes = [len(held) for held in machine.held]
        most, together = max(most, *sizes), max(together, sum(sizes))
    return Trace(starts=tuple(starts), compared=tuple(machine.compared), most_cells=most, most_together=together)


def conversations(history: History) -> Mapping[str, set[int]]:
    """Return the conversations of a history's texts, each with the positions at which it has tokens."""
    found: dict[str, set[int]] = {}
    for operation, starts in zip(history.operations, trace(history).starts, strict=True):
        runs = operation.runs if isinstance(operation, Evaluate) else (operation,)
        for run, start in zip(runs, starts, strict=False):
            if isinstance(run, Run | Step):
                found.setdefault(run.conversation, set()).update(range(start, start + run.tokens))
    return found
