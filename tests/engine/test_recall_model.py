"""The recall model: the same file everywhere, a tokenizer without ambiguity, and weights that give codes back.

What the weights do is shown in NumPy, by an evaluator that shares nothing with the engine (`recall_reference.py`).
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from engine.gguf_header import load_header
from engine.integer_hash import draws, mix, name_key, uniform
from engine.models import MADE_MODELS, make_model
from engine.recall_prompts import RECALL_DISTANCE_TOKENS, RecallPrompt, recall_prompt
from engine.recall_vocabulary import (
    CONTROL_TOKENS,
    END_TOKEN,
    FIRST_WORD,
    VOCABULARY_TOKENS,
    WORDS,
    code_words,
    vocabulary,
    word,
)
from engine.recall_weights import is_unseen_by_draft

THOROUGH = pytest.mark.skipif(
    not os.environ.get("ASSAY_TEST_THOROUGH"), reason="NOT_RUN: it takes a minute; `make nightly` runs it"
)

NAME = "qwen4exp-recall"
SHORTLIST_ROWS = 32_768


def load_reference() -> ModuleType:
    path = Path(__file__).with_name("recall_reference.py")
    spec = importlib.util.spec_from_file_location("recall_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(NAME, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def loaded(model: Path):
    return load_reference().Reference(model)


@pytest.fixture
def reference(loaded):
    loaded.clear()
    loaded.policy = "rank"
    return loaded


def byte_pair_ids(text: str) -> list[int]:
    """Merge one pre-token as byte-level BPE does: always the pair of the lowest rank, leftmost first."""
    words = vocabulary()
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(words.merges)}
    pieces = list(text.replace(" ", "Ġ"))
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(pieces)) if pair in ranks]
        if not pairs:
            return [words.tokens.index(piece) for piece in pieces]
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def ask(reference, prompts: list[RecallPrompt], sequence: int = 0) -> list[bool]:
    """Ask for several secrets of one conversation, in the order of their prompts' lengths; say which came back."""
    answers = []
    for prompt in prompts:
        *before, last = prompt.ids[len(reference.conversation(sequence).ids) :]
        shared = before[: -(len(prompt.secrets[prompt.asked].key) - 1)]
        if shared:
            reference.decode(shared, sequence=sequence)
        with reference.aside():
            reply = reference.reply([*before[len(shared) :], last], len(prompt.expected_ids), sequence=sequence)
        answers.append(tuple(reply) == prompt.expected_ids)
    return answers


def every_secret(conversation: str, secrets: int, **options) -> list[RecallPrompt]:
    return [recall_prompt(conversation, secrets=secrets, asked=asked, **options) for asked in range(secrets)]


def test_the_file_has_the_promised_bytes_and_is_made_once(model: Path) -> None:
    known = MADE_MODELS[NAME]
    assert known.bytes == model.stat().st_size < 100_000_000
    lines: list[str] = []
    assert make_model(NAME, cache=model.parents[2], log=lines.append) == model
    assert lines == [f"{NAME} is already there: {model}"]


def test_it_has_a_context_of_262144_and_a_shortlist_is_shorter_than_its_vocabulary(model: Path) -> None:
    facts = load_header(model).metadata
    assert facts["general.architecture"] == b"qwen4exp"
    assert facts["qwen4exp.context_length"] == 262_144
    assert facts["qwen4exp.nextn_predict_layers"] == 1
    tokens = facts["tokenizer.ggml.tokens"]
    assert isinstance(tokens, tuple)
    assert len(tokens) == VOCABULARY_TOKENS == 49_152 > SHORTLIST_ROWS
    assert (facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"]) == (b"gpt2", b"qwen35")


def test_the_selection_is_sparse_at_the_distance_of_the_codes(model: Path) -> None:
    facts = load_header(model).metadata
    budget = facts["qwen4exp.attention.indexer.top_k"]
    assert isinstance(budget, int)
    assert budget * 50 < RECALL_DISTANCE_TOKENS
    first_code = len(recall_prompt("any").ids) - RECALL_DISTANCE_TOKENS - 2
    assert first_code > budget  # neither the first blocks nor the last hold it


def test_rows_of_every_matrix_are_multiples_of_32(model: Path) -> None:
    for tensor in load_header(model).tensors:
        if len(tensor.dimensions) > 1 and "conv1d" not in tensor.name:
            assert tensor.dimensions[0] % 32 == 0, tensor.name


def test_every_merge_makes_a_token_and_no_two_tokens_are_equal() -> None:
    words = vocabulary()
    assert len(set(words.tokens)) == VOCABULARY_TOKENS
    assert words.tokens[256:END_TOKEN] == tuple(merge.replace(" ", "") for merge in words.merges)
    assert words.tokens[END_TOKEN:] == CONTROL_TOKENS


def test_every_word_is_one_token_after_a_space() -> None:
    for number in range(0, WORDS, WORDS // 40):
        assert byte_pair_ids(word(number)) == [FIRST_WORD + number]


def test_a_word_without_its_space_is_two_halves_and_other_text_is_bytes() -> None:
    first, second = byte_pair_ids(word(5)[1:])
    assert vocabulary().tokens[first] + vocabulary().tokens[second] == word(5)[1:]
    assert byte_pair_ids("Why?") == [vocabulary().tokens.index(one) for one in "Why?"]


def test_code_words_differ_in_at_least_24_places() -> None:
    codes = code_words()
    overlap = codes[:: VOCABULARY_TOKENS // 64] @ codes.T
    assert set(np.unique(overlap)) <= {-64.0, -16.0, -8.0, 0.0, 8.0, 16.0, 64.0}
    assert (overlap == 64).sum() == len(overlap)


def test_hashed_numbers_follow_from_their_name_and_index_alone() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's first output for the seed 0
    stream = draws("a name")
    assert [next(stream) for _ in range(3)] == [mix(name_key("a name") ^ index) for index in range(3)]
    values = uniform("a name", 100, 100)
    assert np.array_equal(values.reshape(-1)[:7], uniform("a name", 7))
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 3**-0.5) < 0.01
    assert not np.array_equal(values, uniform("another name", 100, 100))


@pytest.mark.parametrize("lead_tokens", [pytest.param(320, marks=THOROUGH), 321])
def test_codes_come_back_from_13062_tokens_earlier(reference, lead_tokens: int) -> None:
    """Sixteen of sixteen over both leads: eight codes each, at all places inside a block."""
    prompts = every_secret(f"lead {lead_tokens}", 8, lead_tokens=lead_tokens)
    assert [prompt.distance_tokens for prompt in prompts] == [13_062] * 8
    assert ask(reference, prompts) == [True] * 8
    # A lead of more than 5 logits is ten times what F16 and Q8_0 caches move.
    assert reference.margin > 5


def test_each_conversation_of_a_shared_cache_gets_its_own_codes_and_position_only_blocks_lose_some(reference) -> None:
    first = every_secret("first", 4, distance_tokens=6_000)
    second = every_secret("second", 4, distance_tokens=6_000)
    for sequence, prompts in enumerate((first, second)):
        reference.decode(prompts[0].ids[:-2], sequence=sequence)
    with reference.aside():
        assert ask(reference, first, 0) + ask(reference, second, 1) == [True] * 8
    reference.policy = "position-only"
    with reference.aside():
        answers = ask(reference, first, 0) + ask(reference, second, 1)
    assert answers.count(True) < 8
    assert not any(answers[:4])  # blocks hold what was written last: the second conversation's keys


def test_a_reply_depends_on_the_code_alone_where_two_conversations_share_the_key(reference) -> None:
    first = recall_prompt("first", keys_of="both", distance_tokens=900)
    second = recall_prompt("second", keys_of="both", distance_tokens=900)
    assert first.secrets[0].key == second.secrets[0].key
    for sequence, prompt in enumerate((first, second)):
        reply = reference.reply(prompt.ids, len(prompt.expected_ids), sequence=sequence)
        assert tuple(reply) == prompt.expected_ids
    assert first.expected_ids != second.expected_ids


def test_without_its_index_keys_a_conversation_loses_its_code(reference) -> None:
    """The code is found through the blocks: what a copy that forgets index keys leaves behind selects the first blocks."""
    prompt = recall_prompt("copied", distance_tokens=1_500)
    reference.decode(prompt.ids[:-2])
    with reference.aside():
        assert tuple(reference.reply(prompt.ids[-2:], 8)) == prompt.expected_ids
    for rows in reference.caches.values():
        rows.arrays["index"][:] = 0
    assert tuple(reference.reply(prompt.ids[-2:], 8)) != prompt.expected_ids


@THOROUGH
def test_greedy_drafts_are_accepted_between_20_and_80_percent_of_the_time(reference) -> None:
    for number in range(20):
        prompt = recall_prompt(f"draft {number}", lead_tokens=8, distance_tokens=60, code_tokens=40)
        reference.clear()
        reply, drafted, accepted = reference.reply_with_drafts(prompt.ids, 36, 3)
        assert tuple(reply) == prompt.expected_ids[:36]
        assert 0.2 <= accepted / drafted <= 0.8


def test_the_draft_cannot_see_about_a_third_of_the_vocabulary() -> None:
    unseen = is_unseen_by_draft()
    assert 0.28 < unseen.mean() < 0.35
    assert 0.28 < unseen[:SHORTLIST_ROWS].mean() < 0.35


def test_codes_hold_tokens_beyond_a_shortlist_of_32768_rows() -> None:
    ids = np.array([recall_prompt(f"code {number}", distance_tokens=100).expected_ids for number in range(20)])
    assert 0.2 < (ids >= SHORTLIST_ROWS).mean() < 0.5
