"""Rows of large tables in columns: a stream has three rows for each event, too many to make a mapping of each.

A block holds the rows of one request in one table; `RowBlocks` is a sequence of rows like any other, made one by one
where somebody asks. Whoever writes or compares millions of them takes the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, overload

Column = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one request. ``key`` names the columns that are the same in each row, ``columns`` the others."""

    key: Mapping[str, int]
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def tuples(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield each row as a tuple of these columns."""
        size = len(self)
        return zip(
            *(repeat(self.key[name], size) if name in self.key else self.columns[name] for name in names), strict=True
        )


class RowBlocks(Sequence[dict[str, Any]]):
    """The rows of several blocks of one table, in order."""

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks: Final = [*blocks]

    def extend(self, other: RowBlocks) -> None:
        """Put the rows of others behind these."""
        self.blocks.extend(other.blocks)

    def tuples(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield each row as a tuple of these columns."""
        return chain.from_iterable(block.tuples(names) for block in self.blocks)

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self.blocks:
            names = (*block.key, *block.columns)
            for row in block.tuples(names):
                yield dict(zip(names, row, strict=True))

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return list(self)[place]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


AllRows = dict[str, list[dict[str, Any]] | RowBlocks]
"""Rows by table name, those of large tables in columns."""
