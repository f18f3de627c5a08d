"""Histories: plain operations on the sequences of a session, and what they must mean whatever the engine does.

A history is played by an engine and followed here by a machine that knows no arithmetic: it only keeps which tokens
each sequence holds. Two histories whose compared steps stand after the same tokens must give the same logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Final, NamedTuple

from protocols.operations import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    Generate,
    History,
    Image,
    Operation,
    Restore,
    Run,
    Save,
    SessionSettings,
    Skip,
    Step,
)

GREEDY: Final = "="
"""Stands for the conversation of tokens that were chosen by their logits: equal cells before them, equal tokens."""
DRAFTED: Final = -1
"""Stands for the row of a token that may have come from a draft: which one it was is not known here."""


class Meaningless(ValueError):  # noqa: N818 - not an error of a person: most shortened histories are
    """An operation that no session can carry out, such as a copy over a sequence that holds something."""


class Cell(NamedTuple):
    """One cell of a sequence: a token, or with `side` > 0 the cell `place` of an image. `end` is the next position.

    Positions count what is there. In the cache a cell stands `skipped` further.
    """

    conversation: str
    position: int
    side: int
    place: int
    end: int
    skipped: int = 0


class Start(NamedTuple):
    """Where something begins: the position among those that are there, and how many were left out before it."""

    position: int
    skipped: int

    @property
    def cached(self) -> int:
        """Position in the cache."""
        return self.position + self.skipped


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

    @property
    def meaning(self) -> tuple[Cell, ...]:
        """Return the cells by what decides logits: how far they are apart, not where the first one stands."""
        start = self.cells[0].skipped
        return tuple(cell._replace(skipped=cell.skipped - start) for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a history means.

    `starts` has, for each operation, where each of its runs (one for a step or an image) goes on; for a cut, from where
    it removes. `compared` are the steps, `generated` the first token of each generation.
    `most_cells` is the most that one sequence holds at any time, `most_together` the most of all together.
    `do_policies_agree` says whether blocks by rank and by position bucket are the same ones at any time: no position is
    left out, no cell is shared, and an image is alone in its cells.
    """

    starts: tuple[tuple[Start, ...], ...]
    compared: tuple[Compared, ...]
    generated: tuple[Compared, ...]
    do_policies_agree: bool
    most_cells: int
    most_together: int


class Machine:
    """Follows operations. An operation that is Meaningless changes nothing."""

    def __init__(self, settings: SessionSettings) -> None:
        self._ubatch, self._is_unified = settings.ubatch_tokens, settings.is_unified
        self._draft_tokens = settings.draft_tokens
        self.held: list[list[tuple[Cell, Batch]]] = [[] for _ in range(settings.sequences)]
        self.states: dict[str, list[tuple[Cell, Batch]]] = {}
        self.compared: list[Compared] = []
        self.generated: list[Compared] = []
        self._is_shared = False
        self._pending = [0] * settings.sequences

    @singledispatchmethod
    def apply(self, operation: Operation) -> tuple[Start, ...]:
        """Carry an operation out; return where it starts (see Trace). Raises Meaningless."""
        raise TypeError(f"{operation!r} is no operation")

    @apply.register
    def _(self, operation: Evaluate) -> tuple[Start, ...]:
        if len({run.sequence for run in operation.runs}) < len(operation.runs):
            raise Meaningless("a sequence has one run in a batch")
        for run in operation.runs:
            self._whole(run.sequence)
        batches = iter(self._batches([run.tokens for run in operation.runs]))
        return tuple(self._extend(run.sequence, [run.conversation] * run.tokens, batches) for run in operation.runs)

    @apply.register
    def _(self, operation: Step) -> tuple[Start, ...]:
        self._whole(operation.sequence)
        starts = []
        for _ in range(operation.tokens):
            starts.append(self._extend(operation.sequence, [operation.conversation], [Batch((1,), 0)]))
            self.compared.append(self._now(operation.sequence))
        return (starts[0],)

    @apply.register
    def _(self, operation: Generate) -> tuple[Start, ...]:
        if operation.depth > self._draft_tokens:
            raise Meaningless("the session does not draft so many tokens")
        self._whole(operation.sequence)
        batch = Batch((operation.depth + 1,), DRAFTED) if operation.depth else Batch((1,), 0)
        start = self._extend(operation.sequence, [operation.conversation], [batch])
        self.generated.append(self._now(operation.sequence))
        self._extend(operation.sequence, [GREEDY] * (operation.tokens - 1), [batch] * (operation.tokens - 1))
        return (start,)

    @apply.register
    def _(self, operation: Skip) -> tuple[Start, ...]:
        self._whole(operation.sequence)
        self._pending[operation.sequence] = operation.positions
        return ()

    @apply.register
    def _(self, operation: Image) -> tuple[Start, ...]:
        sequence, side, places = operation.sequence, operation.side, operation.places
        if not places:
            raise Meaningless("the image has no such cells")
        if operation.first:
            last = self._filled(sequence)[-1][0]
            if last[2:4] != (side, operation.first - 1) or last.conversation != operation.conversation:
                raise Meaningless("an image goes on where its last part ended")
            start, skipped = last.position, last.skipped
        else:
            self._whole(sequence)
            start, skipped = self.end(sequence), self._take_skip(sequence)
        cells = [Cell(operation.conversation, start, side, place, start + side, skipped) for place in places]
        self.held[sequence] += zip(cells, self._batches([len(cells)]), strict=True)
        return (Start(start, skipped),)

    @apply.register
    def _(self, operation: Copy) -> tuple[Start, ...]:
        held = self._filled(operation.source)
        if self._sequence(operation.target) or self._pending[operation.target]:
            raise Meaningless("a copy needs an empty target")
        self.held[operation.target] = [*held]
        self._is_shared = self._is_shared or self._is_unified
        return ()

    @apply.register
    def _(self, operation: Cut) -> tuple[Start, ...]:
        held, count = self._filled(operation.sequence), operation.tokens
        if len(held) < count or any(cell.side for cell, _ in held[-count:]):
            raise Meaningless("only tokens can be cut off, and no more than there are")
        self.held[operation.sequence] = held[:-count]
        first = held[-count][0]
        return (Start(first.position, first.skipped),)

    @apply.register
    def _(self, operation: Drop) -> tuple[Start, ...]:
        self._filled(operation.sequence)
        self.held[operation.sequence] = []
        return ()

    @apply.register
    def _(self, operation: Save) -> tuple[Start, ...]:
        self.states[operation.state] = [*self._filled(operation.sequence)]
        return ()

    @apply.register
    def _(self, operation: Restore) -> tuple[Start, ...]:
        self._sequence(operation.sequence)
        if self._pending[operation.sequence]:
            raise Meaningless("positions are left out before tokens")
        if operation.state not in self.states:
            raise Meaningless("nothing was saved under this name")
        self.held[operation.sequence] = [*self.states[operation.state]]
        return ()

    @property
    def do_policies_agree(self) -> bool:
        """Whether blocks by rank and by position bucket are the same now, as far as is known here (see Trace)."""
        filled = [held for held in self.held if held]
        has_image = any(cell.side for held in filled for cell, _ in held)
        is_beside = has_image and self._is_unified and len(filled) > 1
        return not (self._is_shared or is_beside or any(held[-1][0].skipped for held in filled))

    def end(self, sequence: int) -> int:
        """Return the position at which a sequence goes on. Raises Meaningless where there is no such sequence."""
        held = self._sequence(sequence)
        return held[-1][0].end if held else 0

    def _now(self, sequence: int) -> Compared:
        cells, batches = zip(*self.held[sequence], strict=True)
        return Compared(cells=cells, batches=batches)

    def _whole(self, sequence: int) -> None:
        """Raise Meaningless where a sequence ends inside an image."""
        held = self._sequence(sequence)
        if held and held[-1][0].place + 1 < held[-1][0].side ** 2:
            raise Meaningless("an image goes on before anything else")

    def _take_skip(self, sequence: int) -> int:
        """Return how much is left out before the next cell of a sequence."""
        held, pending = self.held[sequence], self._pending[sequence]
        self._pending[sequence] = 0
        return (held[-1][0].skipped if held else 0) + pending

    def _extend(self, sequence: int, conversations: Sequence[str], batches: Iterable[Batch]) -> Start:
        """Add tokens, one for each conversation named, from as many batches; return where they begin."""
        start, skipped = self.end(sequence), self._take_skip(sequence)
        for at, (name, batch) in enumerate(zip(conversations, batches, strict=False), start):
            self.held[sequence].append((Cell(name, at, 0, 0, at + 1, skipped), batch))
        return Start(start, skipped)

    def _sequence(self, sequence: int) -> list[tuple[Cell, Batch]]:
        if sequence >= len(self.held):
            raise Meaningless(f"the session has no sequence {sequence}")
        return self.held[sequence]

    def _filled(self, sequence: int) -> list[tuple[Cell, Batch]]:
        held = self._sequence(sequence)
        if not held:
            raise Meaningless(f"the sequence {sequence} is empty")
        if self._pending[sequence]:
            raise Meaningless("positions are left out before tokens")
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
    starts, most, together, agree = [], 0, 0, True
    for operation in history.operations:
        starts.append(machine.apply(operation))
        sizes = [len(held) for held in machine.held]
        most, together = max(most, *sizes), max(together, sum(sizes))
        agree = agree and machine.do_policies_agree
    return Trace(
        starts=tuple(starts),
        compared=tuple(machine.compared),
        generated=tuple(machine.generated),
        do_policies_agree=agree,
        most_cells=most,
        most_together=together,
    )


def conversations(history: History) -> Mapping[str, set[int]]:
    """Return the conversations of a history's texts, each with the positions at which it has tokens."""
    found: dict[str, set[int]] = {}
    for operation, starts in zip(history.operations, trace(history).starts, strict=True):
        runs = operation.runs if isinstance(operation, Evaluate) else (operation,)
        for run, start in zip(runs, starts, strict=False):
            if isinstance(run, Run | Step | Generate):
                tokens = 1 if isinstance(run, Generate) else run.tokens
                found.setdefault(run.conversation, set()).update(range(start.position, start.position + tokens))
    return found
