"""Prompts with a private code: exact distances, nothing said twice, and the same words on every host."""

from __future__ import annotations

import itertools

import pytest

from engine.recall_prompts import KEY_TOKENS, LEAD_TOKENS, follow_up, recall_prompt
from engine.recall_vocabulary import END_TOKEN, FIRST_WORD, WORDS, text_of, word


@pytest.mark.parametrize("asked", [0, 2])
def test_the_key_comes_back_exactly_at_the_distance(asked: int) -> None:
    prompt = recall_prompt("a", secrets=3, asked=asked, distance_tokens=500)
    key = prompt.secrets[asked].key
    given, again = (at for at, one in enumerate(prompt.ids) if one == key[0])
    assert again - given == prompt.distance_tokens == 500
    assert prompt.ids[given : given + KEY_TOKENS] == prompt.ids[again:] == key
    assert prompt.ids[given + KEY_TOKENS :][: len(prompt.expected_ids)] == prompt.expected_ids


def test_the_default_asks_for_a_code_from_13062_tokens_earlier() -> None:
    prompt = recall_prompt("a")
    assert len(prompt.ids) == LEAD_TOKENS + 13_062 + KEY_TOKENS
    assert prompt.distance_tokens == 13_062


def test_keys_and_codes_are_said_once_and_filler_many_times() -> None:
    prompt = recall_prompt("a", secrets=4)
    for secret in prompt.secrets:
        assert all(prompt.ids.count(one) == 1 for one in secret.code)
    filler = prompt.ids[LEAD_TOKENS + 40 : -KEY_TOKENS]
    assert len(filler) / len(set(filler)) > 20


def test_a_text_is_its_words() -> None:
    prompt = recall_prompt("a", distance_tokens=30)
    assert all(FIRST_WORD <= one < END_TOKEN for one in prompt.ids)
    assert prompt.text == "".join(word(one - FIRST_WORD) for one in prompt.ids)
    assert prompt.text.split()[-KEY_TOKENS:] == text_of(prompt.secrets[0].key).split()
    assert prompt.expected_text == text_of(prompt.expected_ids)
    with pytest.raises(ValueError, match="only ids of words"):
        text_of((FIRST_WORD - 1,))


def test_conversations_differ_and_a_name_always_gives_the_same_one() -> None:
    one, other = recall_prompt("a", distance_tokens=200), recall_prompt("b", distance_tokens=200)
    assert one == recall_prompt("a", distance_tokens=200)
    assert set(one.secrets[0].key + one.expected_ids).isdisjoint(other.ids)
    assert word(0) == " bacabaca"
    assert len({word(number) for number in range(WORDS)}) == WORDS


def test_conversations_can_share_keys_but_not_codes() -> None:
    one = recall_prompt("a", keys_of="k", secrets=2, distance_tokens=200)
    other = recall_prompt("b", keys_of="k", secrets=2, distance_tokens=200)
    for mine, theirs in zip(one.secrets, other.secrets, strict=True):
        assert mine.key == theirs.key
        assert set(mine.code).isdisjoint(theirs.code)


def test_all_questions_about_one_conversation_begin_alike() -> None:
    prompts = [recall_prompt("a", secrets=3, asked=asked, distance_tokens=300) for asked in range(3)]
    for shorter, longer in itertools.pairwise(prompts):
        assert longer.ids[: len(shorter.ids) - KEY_TOKENS] == shorter.ids[:-KEY_TOKENS]


def test_a_follow_up_keeps_prompt_and_reply_and_asks_for_another_secret() -> None:
    prompt = recall_prompt("a", secrets=2, distance_tokens=200)
    turn = follow_up(prompt, prompt.expected_ids, asked=1)
    assert turn.ids[: len(prompt.ids) + 8] == prompt.ids + prompt.expected_ids
    assert turn.ids[-KEY_TOKENS:] == prompt.secrets[1].key
    assert turn.expected_ids == prompt.secrets[1].code
    assert turn.ids[-KEY_TOKENS - turn.distance_tokens] == turn.ids[-KEY_TOKENS]
    new = turn.ids[len(prompt.ids) + 8 : -KEY_TOKENS]
    assert set(new).isdisjoint(one for secret in prompt.secrets for one in secret.key + secret.code)


@pytest.mark.parametrize(
    "options", [{"asked": 1}, {"asked": -1}, {"secrets": 0}, {"distance_tokens": 9}, {"lead_tokens": -1}]
)
def test_what_cannot_be_built_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="secret"):
        recall_prompt("a", **{"distance_tokens": 200, **options})
    with pytest.raises(ValueError, match="secret 7 is not one of 1"):
        follow_up(recall_prompt("a", distance_tokens=200), (), asked=7)
