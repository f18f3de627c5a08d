"""One small change of a source file that a test should notice, and how a sample of them is drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of the bytes [start, end) of a file. Lines and columns count from 1; `path` is relative to the checkout."""

    path: str
    line: int
    column: int
    start: int
    end: int
    old: str
    new: str

    @property
    def words(self) -> str:
        """Return place and change in one line."""
        return f"{self.path}:{self.line}:{self.column}: {_one_line(self.old)} -> {_one_line(self.new)}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed file. Raises ValueError where the file is not the one that the mutant was made of."""
        if source[self.start : self.end] != self.old.encode():
            raise ValueError(f"{self.path} is another file than the one that this change was made for")
        return source[: self.start] + self.new.encode() + source[self.end :]


def draw(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` of the mutants, or all where there are fewer: the same for a seed, in an order that is drawn.

    Each file has its share of any beginning of it, so that a run that is stopped early has tried them all.
    """
    generator = random.Random(seed)
    by_file: dict[str, list[Mutant]] = {}
    for one in mutants:
        by_file.setdefault(one.path, []).append(one)
    placed: list[tuple[float, Mutant]] = []
    for of_file in by_file.values():
        generator.shuffle(of_file)
        offset = generator.random()
        placed += [((place + offset) / len(of_file), one) for place, one in enumerate(of_file)]
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])[:count]]


def _one_line(text: str) -> str:
    return " ".join(text.split())
