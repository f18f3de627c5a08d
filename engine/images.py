"""Made-up images for models that take embeddings: rows that follow from a seed, and coordinates of text around them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.worker import EngineWorker
from protocols.check_schema import split_mix

AXES: Final = 3
WITH_IMAGES: Final = frozenset({"qwen4exp"})
"""Architectures that take the rows of an image."""


@dataclass(frozen=True, kw_only=True)
class MadeUpImage:
    """A square image: `side` * `side` embeddings between -1 and 1, [cells, n_embd], the same on every host."""

    side: int
    embeddings: NDArray[np.float32]

    @property
    def sha256(self) -> str:
        """Hash of the embeddings: little-endian float32, row by row."""
        return hashlib.sha256(self.embeddings.astype("<f4").tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PlacedRows:
    """Rows of one decode with their coordinates [t, y, x]; `end` is where the text after them goes on."""

    tokens: list[int]
    positions: NDArray[np.int32]
    embeddings: NDArray[np.float32] | None
    end: int

    def evaluate(self, worker: EngineWorker) -> None:
        """Evaluate the rows in sequence 0, without logits."""
        wanted = [False] * len(self.tokens)
        worker.decode_rows(self.tokens, self.positions, embeddings=self.embeddings, wanted=wanted)


def made_up_image(side: int, width: int, *, seed: int) -> MadeUpImage:
    """Return the image of a seed for a model whose embeddings have `width` elements."""
    start = np.uint64(split_mix(seed))
    with np.errstate(over="ignore"):
        values = _split_mix_all(start + np.arange(side * side * width, dtype=np.uint64))
    whole = (values >> np.uint64(40)).astype(np.float32)
    return MadeUpImage(side=side, embeddings=(whole / np.float32(1 << 23) - np.float32(1)).reshape(side * side, width))


def place_text(tokens: Sequence[int], start: int) -> PlacedRows:
    """Return text from a position on."""
    at = np.tile(np.arange(start, start + len(tokens), dtype=np.int32), (AXES, 1))
    return PlacedRows(tokens=[*tokens], positions=at, embeddings=None, end=start + len(tokens))


def place_image(before: Sequence[int], image: MadeUpImage, after: Sequence[int] = (), *, start: int = 0) -> PlacedRows:
    """Return text, an image, and text.

    The cells of an image at t = P stand at (P, P + row, P + column); the text after it goes on at P + side.
    """
    head, side = place_text(before, start), image.side
    at = head.end
    row, column = np.divmod(np.arange(side * side), side)
    cells = np.stack([np.full(side * side, at), at + row, at + column]).astype(np.int32)
    tail = place_text(after, at + side)
    return PlacedRows(
        tokens=[*head.tokens, *[-1] * (side * side), *tail.tokens],
        positions=np.hstack([head.positions, cells, tail.positions]),
        embeddings=image.embeddings,
        end=tail.end,
    )


def _split_mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `split_mix` of every value."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
