"""The tiny qwen4exp models, what two independent implementations computed on them, and sessions to compare with it.

`oracle/README.md` says where every array comes from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.worker import EngineWorker, Session

HERE = Path(__file__).resolve().parent
MODELS = ("tiny-a", "tiny-b", "tiny-c")
PROMPTS = ("short", "long", "ngram", "text")
# Single precision throughout; A.12 of the specification this engine was written from.
SAME = 1e-4
SAME_HALF = 5e-3
RATIO = {"tiny-a": 4, "tiny-b": 4, "tiny-c": 8}
BUDGET = {"tiny-a": 32, "tiny-b": 32, "tiny-c": 64}


def tiny_model(name: str) -> Path:
    """Return the file of a tiny model."""
    return HERE / "models" / f"{name}.gguf"


@cache
def oracle(name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one oracle file."""
    with np.load(HERE / "oracle" / f"{name}.npz") as arrays:
        return dict(arrays)


def distance(found: NDArray[Any], needed: NDArray[Any]) -> float:
    """Return the largest absolute difference; NaN counts as infinite."""
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(needed, np.float64))
    return float(np.nan_to_num(difference, nan=np.inf).max())


def session(**changes: Any) -> Session:
    """Return settings for exact comparison: one thread, single precision."""
    return Session(**{"context_tokens": 512, "threads": 1, "kv_type": "f32", "has_flash_attention": False, **changes})


def opened(worker: EngineWorker, **changes: Any) -> EngineWorker:
    """Open a session and return the worker."""
    worker.open_session(session(**changes))
    return worker


def stepwise(worker: EngineWorker, tokens: Iterable[int], start: int, sequence: int = 0) -> NDArray[np.float32]:
    """Decode token by token; the logits of all."""
    return np.concatenate(
        [worker.decode([token], start=start + i, sequence=sequence) for i, token in enumerate(tokens)]
    )


class Image:
    """The image prompt of a model: text, a 6 x 5 image, text."""

    def __init__(self, name: str) -> None:
        arrays = oracle(name)
        self.ids = arrays["image.ids"].tolist()
        self.at = arrays["image.pos_tyx"].astype(np.int32)
        self.embeddings = arrays["image.embd"].astype(np.float32)
        self.first, self.end = (int(value) for value in arrays["image.span"])
        self.logits = arrays["image.logits_hf"]

    def decode(self, worker: EngineWorker, first: int, end: int, sequence: int = 0) -> NDArray[np.float32]:
        """Decode rows [first, end) in one batch, whatever they are."""
        tokens = [-1 if self.first <= i < self.end else self.ids[i] for i in range(first, end)]
        rows = self.embeddings[max(first, self.first) - self.first : max(min(end, self.end) - self.first, 0)]
        return worker.decode_rows(
            tokens, self.at[:, first:end], sequences=sequence, embeddings=rows if len(rows) else None
        )

    def decode_all(self, worker: EngineWorker, sequence: int = 0) -> NDArray[np.float32]:
        """Decode the three batches: text, image, text."""
        cuts = (0, self.first, self.end, len(self.ids))
        return np.concatenate([self.decode(worker, a, b, sequence) for a, b in itertools.pairwise(cuts)])


def greedy(worker: EngineWorker, prompt: Sequence[int], count: int, sequence: int = 0) -> list[int]:
    """Return `count` greedy tokens after a prompt in a fresh sequence."""
    out = [int(worker.decode(list(prompt), start=0, sequence=sequence, rows="last")[-1].argmax())]
    while len(out) < count:
        start = len(prompt) + len(out) - 1
        out.append(int(worker.decode([out[-1]], start=start, sequence=sequence)[-1].argmax()))
    return out


def greedy_with_drafts(
    worker: EngineWorker, prompt: Sequence[int], count: int, depth: int, sequence: int = 0
) -> tuple[list[int], list[tuple[list[int], int]]]:
    """Return the same with drafts, and what each round drafted and accepted."""
    out = [int(worker.decode(list(prompt), start=0, sequence=sequence, rows="last")[-1].argmax())]
    rounds = []
    while len(out) < count:
        found = worker.draft_round(out[-1], left=count - len(out), depth=depth, sequence=sequence)
        out += found.tokens
        rounds.append((found.drafts, found.accepted))
    return out, rounds
