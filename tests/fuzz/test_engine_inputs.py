"""Some changed model files, texts and requests of a fixed seed go to the engine in every test run."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest

from engine.build import installed_build
from protocols.errors import EngineError

FUZZ = runpy.run_path(str(Path(__file__).parent / "fuzz_engine.py"), run_name="fuzz_engine")


@pytest.mark.parametrize(("target", "most"), [("gguf", 40), ("tokenizer", 200), ("http", 300)])
def test_changed_inputs_bring_nothing_down(target: str, most: int) -> None:
    try:
        installed_build()
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    assert FUZZ["run"](target, 120, seed=4, most=most) == most


def test_changes_are_the_same_for_the_same_seed_and_rarely_none() -> None:
    data = bytes(range(256)) * 8
    made = [FUZZ["mutated"](random.Random(seed), data) for seed in range(100)]
    assert made == [FUZZ["mutated"](random.Random(seed), data) for seed in range(100)]
    assert sum(one != data for one in made) > 90
    assert len(set(made)) > 90


def test_an_answer_that_is_no_http_or_an_error_without_a_message_is_found() -> None:
    check = FUZZ["check_answer"]
    check(b"")
    check(b'HTTP/1.1 400 Bad Request\r\n\r\n{"error":{"message":"wrong"}}')
    for bad in (b"garbage", b"HTTP/1.1 400 Bad Request\r\n\r\n{}", b"HTTP/1.1 500 x\r\n\r\nnot json"):
        with pytest.raises((AssertionError, ValueError, KeyError)):
            check(bad)
