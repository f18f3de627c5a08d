"""Perplexity of a list of tokens under a model: e to the mean negative log-likelihood of each next token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocols.errors import EngineError


class Perplexity(NamedTuple):
    """`predicted` tokens, and their mean negative log-likelihood in nats."""

    predicted: int
    mean_nll: float

    @property
    def value(self) -> float:
        """The perplexity."""
        return float(np.exp(self.mean_nll))


def perplexity(tokens: Sequence[int], blocks: Iterable[NDArray[np.float32]]) -> Perplexity:
    """Return the perplexity of `tokens` [n] by the logits at each of them, `blocks` of shape [rows, vocabulary].

    The first token is given, and the last row predicts nothing: n - 1 tokens count. Sums in float64. Raises EngineError
    for fewer than two tokens, for rows that are missing, or for logits that are not finite.
    """
    if len(tokens) < 2:
        raise EngineError(f"{len(tokens)} tokens predict nothing", hint="give a longer text")
    total, place = 0.0, 0
    for block in blocks:
        following = np.asarray(tokens[place + 1 : place + 1 + len(block)], dtype=np.int64)
        rows = block[: len(following)].astype(np.float64)
        if not np.isfinite(rows).all():
            raise EngineError("the logits are not finite")
        highest = rows.max(axis=1, initial=-np.inf)
        sums = np.log(np.exp(rows - highest[:, None]).sum(axis=1)) + highest
        total += float((sums - rows[np.arange(len(rows)), following]).sum())
        place += len(block)
    if place != len(tokens):
        raise EngineError(f"the engine gave the logits of {place} tokens, expected {len(tokens)}")
    return Perplexity(predicted=len(tokens) - 1, mean_nll=total / (len(tokens) - 1))
