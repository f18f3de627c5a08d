from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ProtocolError
from protocols.prompt import MAX_TOKENS, cold_text, exact_text, freeze_prompt


def by_words(text: str) -> list[int]:
    """Tokenize like a byte-pair model in spirit: words with their space, digits and marks one by one."""
    return [sum(part.encode()) for part in re.findall(r" ?[A-Za-z]+| ?[0-9]|[^A-Za-z0-9]", text)]


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


def in_pairs(text: str) -> list[int]:
    """Tokenize two bytes to one id, so that single characters do not always add a token."""
    return [sum(text.encode()[place : place + 2]) for place in range(0, len(text.encode()), 2)]


@pytest.mark.parametrize("tokenize", [by_words, by_bytes, in_pairs])
@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 100, 512, 8192])
def test_a_prompt_has_exactly_the_stated_number_of_tokens(tokenize: object, tokens: int) -> None:
    assert callable(tokenize)
    assert len(tokenize(exact_text(tokenize, tokens, 7))) == tokens


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**32))
def test_any_length_and_any_seed_give_an_exact_prompt(tokens: int, seed: int) -> None:
    text = exact_text(by_words, tokens, seed)
    assert len(by_words(text)) == tokens
    assert text == exact_text(by_words, tokens, seed)


def test_a_frozen_request_holds_the_tokenisation_of_its_text_and_is_reproducible() -> None:
    body = freeze_prompt(by_words, 512, 3)
    assert body == freeze_prompt(by_words, 512, 3)
    assert body != freeze_prompt(by_words, 512, 4)
    members = json.loads(body)
    assert members["prompt"] == by_words(exact_text(by_words, 512, 3))
    assert members["n_predict"] == 128
    assert json.loads(freeze_prompt(by_words, 16, 3, generated_tokens=8))["n_predict"] == 8


def test_prompts_of_different_seeds_part_within_the_first_sentence() -> None:
    starts = {cold_text(seed, 3).split("\n")[0] for seed in range(200)}
    assert len(starts) == 200


def test_no_sentence_of_a_prompt_repeats() -> None:
    lines = cold_text(1, 2000).split("\n")
    assert len(set(lines)) == len(lines)
    # Without their numbers they hardly repeat either.
    assert len({line.split(". ", 1)[-1] for line in lines}) == len(lines)


def test_a_longer_text_begins_like_a_shorter_one() -> None:
    assert cold_text(5, 40).startswith(cold_text(5, 20))


@pytest.mark.parametrize("tokens", [0, -1, MAX_TOKENS + 1])
def test_an_impossible_length_is_refused(tokens: int) -> None:
    with pytest.raises(ProtocolError, match="not possible"):
        freeze_prompt(by_words, tokens, 1)


def test_a_tokenizer_that_never_gives_the_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no text of exactly 3 tokens"):
        exact_text(lambda text: [0, 0] * len(text), 3, 1)


def test_a_tokenizer_that_changes_its_mind_is_refused() -> None:
    calls: list[str] = []

    def counted(text: str) -> list[int]:
        calls.append(text)
        return by_words(text)

    exact_text(counted, 64, 1)
    calls_of_the_search = len(calls)
    calls.clear()
    with pytest.raises(ProtocolError, match="different ids"):
        freeze_prompt(lambda text: counted(text)[: 63 if len(calls) > calls_of_the_search else None], 64, 1)
