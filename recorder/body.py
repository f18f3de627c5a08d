"""The body of one answer: its bytes as one text, and which read brought which of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self


class BodyPiece(NamedTuple):
    """Body bytes that one read brought, with its time (monotonic, ns) and its place among the reads."""

    t_ns: int
    data: bytes
    read_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Body bytes with their times, in columns: one row for each read that brought at least one of them.

    ``ends[row]`` is how many bytes of ``data`` had come with that read, ``t_ns[row]`` its time (monotonic), and
    ``read_index[row]`` its place among the reads of the exchange. The byte at ``place`` came with the first row whose
    end is larger.
    """

    data: bytes
    ends: list[int]
    t_ns: list[int]
    read_index: list[int]

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, bytes, int]]) -> Self:
        """Put pieces (time, bytes, place of the read) together."""
        rows = [piece for piece in pieces if piece[1]]
        ends, total = [], 0
        for _, data, _ in rows:
            total += len(data)
            ends.append(total)
        return cls(
            data=b"".join([data for _, data, _ in rows]),
            ends=ends,
            t_ns=[t_ns for t_ns, _, _ in rows],
            read_index=[index for _, _, index in rows],
        )

    def pieces(self) -> Iterator[BodyPiece]:
        """Yield what each read brought, in order."""
        start = 0
        for end, t_ns, index in zip(self.ends, self.t_ns, self.read_index, strict=True):
            yield BodyPiece(t_ns, self.data[start:end], index)
            start = end
