"""The first tensor that differs, and nothing that does not."""

from __future__ import annotations

import numpy as np
import pytest
from qwen_data import opened, oracle

from engine.captured import Captured
from engine.divergence import Divergence, first_divergence, tensor_sha256
from engine.worker import EngineWorker
from protocols.errors import EngineError


def entry(name: str, values: object, kind: str = "<f4") -> Captured:
    return Captured(name, 0, None if values is None else np.array(values, kind))


def test_equal_tensors_do_not_diverge() -> None:
    step = [entry("a", [1.0, np.nan]), entry("b", [3], "<i4"), entry("c", None)]
    assert first_divergence(step, step) is None
    assert tensor_sha256(step[0]) == tensor_sha256(entry("x", [1.0, np.nan]))
    assert tensor_sha256(step[2]) is None


def test_the_first_difference_beyond_the_tolerance_is_named() -> None:
    one = [entry("a", [[1.0, 2.0]]), entry("b", [[1.0, 2.0], [3.0, 4.0]]), entry("c", [9.0])]
    two = [entry("a", [[1.0, 2.1]]), entry("b", [[1.0, 2.0], [3.5, 4.0]]), entry("c", [0.0])]
    found = first_divergence(one, two)
    assert found is not None
    assert (found.name, found.place) == ("a", (0, 1))
    assert first_divergence(one, two, tolerance=0.2) == Divergence(1, "b", 0, (1, 0), 0.5)
    assert first_divergence(one, two, tolerance=10) is None


def test_whole_numbers_and_nan_have_no_tolerance() -> None:
    found = first_divergence([entry("experts.0", [1, 2], "<i4")], [entry("experts.0", [1, 3], "<i4")], tolerance=10)
    assert found is not None
    found = first_divergence([entry("a", [1.0])], [entry("a", [np.nan])], tolerance=10)
    assert found is not None
    assert found.difference == np.inf


def test_what_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(EngineError, match="same tensors"):
        first_divergence([entry("a", [1.0])], [entry("b", [1.0])])
    with pytest.raises(EngineError, match="another shape"):
        first_divergence([entry("a", [1.0])], [entry("a", [1.0, 2.0])])
    with pytest.raises(EngineError, match="left out"):
        first_divergence([entry("a", [1.0])], [entry("a", None)])


def test_another_token_diverges_at_the_embedding_and_another_way_of_computing_nowhere(tiny_a: EngineWorker) -> None:
    tokens = oracle("tiny-a")["text.ids"].tolist()

    def step(ids: list[int], **changes: bool) -> list[Captured]:
        opened(tiny_a, **changes)
        tiny_a.capture(["embedding", "ple.rows", "residual.*", "experts.*", "selected.*"])
        tiny_a.decode(ids, start=0)
        return tiny_a.captured()

    needed = step(tokens)
    assert first_divergence(needed, step(tokens)) is None
    assert first_divergence(needed, step(tokens, has_flash_attention=True), tolerance=1e-3) is None
    found = first_divergence(needed, step([*tokens[:60], tokens[60] ^ 1, *tokens[61:]]))
    assert found is not None
    assert (found.name, found.place[0]) == ("ple.rows", 0)
