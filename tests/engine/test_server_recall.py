"""Two conversations in two slots at once: each gets its own private codes back, and never the other's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.recall_prompts import CODE_TOKENS, RECALL_DISTANCE_TOKENS, RecallPrompt, follow_up, recall_prompt

THOROUGH = pytest.mark.skipif(
    not os.environ.get("ASSAY_TEST_THOROUGH"), reason="NOT_RUN: it takes minutes; `make nightly` runs it"
)


def ask(server: Any, prompt: RecallPrompt, *, streamed: bool = False, **more: Any) -> dict[str, Any]:
    """Ask for the code; the answer as the whole route gives it."""
    body = {"prompt": list(prompt.ids), "n_predict": CODE_TOKENS, "temperature": 0, "return_tokens": True, **more}
    if not streamed:
        return server.post("/completion", **body)
    *events, last = server.stream("/completion", **body)
    return last | {"tokens": [token for event in events for token in event["tokens"]]}


def is_private(answer: dict[str, Any], own: RecallPrompt, other: RecallPrompt) -> bool:
    """Whether it is the own code, whole, without any word of the other conversation's codes."""
    foreign = {token for secret in other.secrets for token in secret.code}
    return tuple(answer["tokens"]) == own.expected_ids and not foreign & set(answer["tokens"])


def tokens_evaluated(server: Any) -> int:
    """How many tokens the engine has evaluated for all requests together."""
    lines = server.exchange("GET", "/metrics")[2].decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("assay:tokens_evaluated_total ")))


@pytest.mark.parametrize("cache", [(), ("--kv-unified",), ("--kv-type", "q8_0")], ids=["split", "unified", "q8_0"])
@pytest.mark.parametrize(
    "distance_tokens", [700, pytest.param(RECALL_DISTANCE_TOKENS, marks=THOROUGH)], ids=["short", "thorough"]
)
def test_each_of_two_conversations_gets_its_own_codes_and_never_the_others(
    start_server: Callable[..., Any], recall_model: Path, in_parallel: Any, cache: tuple[str, ...], distance_tokens: int
) -> None:
    context = 3 * (distance_tokens + 600)
    server = start_server(
        *("--model", str(recall_model), "--parallel", "2", "--threads", "1", "--ctx-size", str(context), *cache)
    )
    # The same keys, so that only the conversation says which code is meant.
    first, second = (
        recall_prompt(name, keys_of="both", distance_tokens=distance_tokens, secrets=2) for name in ("first", "second")
    )
    answers = in_parallel(lambda: ask(server, first), lambda: ask(server, second, streamed=True))
    assert {answer["id_slot"] for answer in answers} == {0, 1}
    assert is_private(answers[0], first, second)
    assert is_private(answers[1], second, first)

    # Follow-ups, the other way round, on what the slots already hold.
    later = [
        follow_up(prompt, tuple(answer["tokens"]), asked=1)
        for prompt, answer in zip((first, second), answers, strict=True)
    ]
    n_before = tokens_evaluated(server)
    again = in_parallel(lambda: ask(server, later[1]), lambda: ask(server, later[0], streamed=True))
    assert is_private(again[0], later[1], later[0])
    assert is_private(again[1], later[0], later[1])
    for answer, prompt, before in zip(again, reversed(later), reversed(answers), strict=True):
        # All but the last generated token was in the cache, and only the rest was evaluated.
        n_kept = before["tokens_cached"]
        assert answer["id_slot"] == before["id_slot"]
        assert (answer["timings"]["cache_n"], answer["timings"]["prompt_n"]) == (n_kept, len(prompt.ids) - n_kept)

    n_prompt = sum(answer["timings"]["prompt_n"] for answer in again)
    assert tokens_evaluated(server) - n_before == n_prompt + 2 * (CODE_TOKENS - 1)

    # Another conversation takes the slot of the first; the second one goes on beside it.
    third = recall_prompt("third", keys_of="both", distance_tokens=distance_tokens, secrets=2, asked=1)
    slot = answers[0]["id_slot"]
    beyond = follow_up(later[1], tuple(again[0]["tokens"]), asked=0)
    taken, kept = in_parallel(lambda: ask(server, third, id_slot=slot), lambda: ask(server, beyond))
    assert (taken["id_slot"], kept["id_slot"]) == (slot, 1 - slot)
    assert taken["timings"]["cache_n"] == 0
    assert is_private(taken, third, first)
    assert is_private(taken, third, second)
    assert is_private(kept, beyond, third)
    assert kept["timings"]["cache_n"] == again[0]["tokens_cached"]

    # A prompt that has only the key, in a slot that has just held the answer, must not get it.
    bare = RecallPrompt(ids=first.ids[-2:], secrets=first.secrets, asked=0, distance_tokens=0)
    for conversation in (first, second, third):
        codes = {secret.code for secret in conversation.secrets}
        answer = ask(server, bare, id_slot=slot)
        assert answer["timings"]["cache_n"] == 0 or answer["timings"]["prompt_n"] == 1
        assert tuple(answer["tokens"]) not in codes
