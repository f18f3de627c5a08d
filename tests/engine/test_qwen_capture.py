"""Captured tensors: the names asked for, a limit, and no trace in the results."""

from __future__ import annotations

import numpy as np
import pytest
from qwen_data import opened, oracle

from engine.worker import EngineWorker
from protocols.errors import EngineError


def test_capturing_changes_no_byte_of_the_results(tiny_a: EngineWorker) -> None:
    tokens = oracle("tiny-a")["long.ids"].tolist()
    opened(tiny_a, ubatch_tokens=64)
    needed = tiny_a.decode(tokens, start=0)
    opened(tiny_a, ubatch_tokens=64)
    tiny_a.capture(["*"])
    assert (tiny_a.decode(tokens, start=0) == needed).all()
    names = {entry.name for entry in tiny_a.captured()}
    assert {
        "embedding",
        "ple.rows",
        "ple.embedding",
        "residual.0",
        "mixed.5",
        "attended.2",
        "experts.3",
        "selected.2",
    } <= names
    assert {entry.ubatch for entry in tiny_a.captured()} == {0, 1, 2}
    tiny_a.capture([])
    tiny_a.remove(sequence=0)
    assert (tiny_a.decode(tokens, start=0) == needed).all()
    assert tiny_a.captured() == []


def test_only_the_names_asked_for_are_captured(tiny_a: EngineWorker) -> None:
    opened(tiny_a)
    tiny_a.capture(["residual.3", "experts.*"])
    tiny_a.decode([1, 2, 3], start=0)
    found = tiny_a.captured()
    assert [entry.name for entry in found if entry.name.startswith("residual")] == ["residual.3"]
    assert sum(entry.name.startswith("experts") for entry in found) == 6
    shapes = {entry.name: entry.values.shape for entry in found}
    assert shapes["residual.3"] == (1, 3, 4, 64)
    assert shapes["experts.0"] == (1, 1, 3, 2)
    assert found[0].values.dtype == np.dtype("<i4")


def test_past_the_limit_a_decode_goes_on_and_says_what_is_missing(tiny_a: EngineWorker) -> None:
    tokens = [1, 2, 3, 4]
    opened(tiny_a)
    needed = tiny_a.decode(tokens, start=0)
    opened(tiny_a)
    of_layer = len(tokens) * 4 * 64 * 4
    tiny_a.capture(["residual.*"], max_bytes=2 * of_layer)
    assert (tiny_a.decode(tokens, start=0) == needed).all()
    found = tiny_a.captured()
    assert [entry.name for entry in found] == [f"residual.{i}" for i in range(6)]
    assert [entry.values is None for entry in found] == [False, False, True, True, True, True]


def test_no_name_is_an_error(tiny_a: EngineWorker) -> None:
    opened(tiny_a)
    with pytest.raises(EngineError, match="no name"):
        tiny_a.capture([","])
