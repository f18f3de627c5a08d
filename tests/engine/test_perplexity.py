"""Perplexity against sums by hand, and of a real model against the logits that it writes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engine.build import EngineBuild
from engine.perplexity import perplexity
from engine.worker import EngineWorker
from protocols.errors import EngineError

ROWS = np.log(np.array([[1, 1, 2], [3, 1, 4], [1, 1, 1]], dtype=np.float32))
"""Probabilities 1/4 1/4 1/2, 3/8 1/8 1/2, and thirds that predict nothing."""


@pytest.mark.parametrize("sizes", [(3,), (1, 2), (2, 1), (1, 1, 1)])
def test_the_blocks_may_be_of_any_size(sizes: tuple[int, ...]) -> None:
    blocks = np.split(ROWS, np.cumsum(sizes)[:-1])
    found = perplexity([2, 2, 0], blocks)
    assert found.predicted == 2
    assert found.value == pytest.approx(math.sqrt(1 / (1 / 2 * 3 / 8)), rel=1e-6)


def test_large_logits_do_not_overflow() -> None:
    found = perplexity([0, 1], [ROWS[:2] + np.float32(5000)])
    assert found.value == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "rows", "words"),
    [
        ([1], ROWS[:1], "predict nothing"),
        ([], ROWS[:0], "predict nothing"),
        ([1, 2, 0], ROWS[:2], "the logits of 2 tokens, expected 3"),
        ([1, 2], np.full((2, 3), np.nan, dtype=np.float32), "not finite"),
    ],
)
def test_what_gives_no_perplexity_is_an_error(tokens: list[int], rows: np.ndarray, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        perplexity(tokens, [rows])


def test_a_model_reads_words_in_order_better_than_out_of_order(smollm2: Path, bundled_build: EngineBuild) -> None:
    text = "The capital of France is Paris, and the capital of Italy is Rome."
    mixed = " ".join(sorted(text.split()))
    found = []
    with EngineWorker(bundled_build.library) as worker:
        worker.load(smollm2)
        for one in (text, mixed):
            tokens = worker.tokenize(one)
            logits = worker.logits(tokens).astype(np.float64)
            log_sums = np.log(np.exp(logits).sum(axis=1))
            by_hand = np.mean([log_sums[n] - logits[n, tokens[n + 1]] for n in range(len(tokens) - 1)])
            value = perplexity(tokens, worker.logit_blocks(tokens, ubatch_tokens=5))
            assert value.mean_nll == pytest.approx(by_hand, rel=2e-2)  # other batches, F16 cache
            found.append(value.value)
    assert 1 < found[0] < found[1] / 2
