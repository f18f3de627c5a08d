"""Drafts as served: the same answers as without them, counted, for every way a request can end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen_data import oracle, tiny_model

from engine.recall_prompts import recall_prompt

THOROUGH = pytest.mark.skipif(
    not os.environ.get("ASSAY_TEST_THOROUGH"), reason="NOT_RUN: it takes minutes; `make nightly` runs it"
)


@pytest.fixture
def start(start_scripted: Callable[..., Any], scripted_folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """Start the scripted server with three drafts at a time; it drafts wrongly for capital letters only."""

    def begin(*flags: str, **environment: str) -> Any:
        return start_scripted(
            *("--model", str(scripted_folder / "model"), "--ctx-size", "100", "--drafts", "3", *flags),
            environment={"SCRIPTED_TRACE": str(tmp_path / "trace"), **environment},
        )

    return begin


@pytest.fixture
def sizes(tmp_path: Path) -> Callable[[], list[int]]:
    """Return a function that gives the number of tokens of each decode so far."""
    return lambda: [int(line.partition(":")[2]) for line in (tmp_path / "trace").read_text().splitlines()]


def counts(answer: dict[str, Any]) -> tuple[int, int]:
    return answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]


def test_a_step_verifies_the_drafts_and_keeps_what_the_model_says(start: Any, sizes: Any) -> None:
    server = start()
    answer = server.post("/completion", prompt="abcdeFgh|", return_tokens=True)
    assert (answer["content"], answer["stop_type"]) == ("abcdeFgh", "eos")
    assert bytes(answer["tokens"][:-1]) == b"abcdeFgh"
    # a, then b c d e; F, wrongly drafted; g h and the end, and what is drafted beyond the end is not counted as right.
    assert sizes() == [9, 4, 4, 4]
    assert counts(answer) == (9, 5)
    assert answer["work"]["n_tokens_evaluated"] == 9 + 12
    assert answer["timings"]["predicted_n"] == 9
    *events, last = server.stream("/completion", prompt="abcdeFgh|")
    assert [event["tokens"] for event in events] == [[token] for token in answer["tokens"]]
    assert [event["tokens_predicted"] for event in events] == list(range(1, 10))
    assert counts(last) == (9, 5)


@pytest.mark.parametrize("limit", range(8))
def test_no_more_is_drafted_than_may_be_generated(start: Any, sizes: Any, limit: int) -> None:
    server = start()
    answer = server.post("/completion", prompt="abcdefgh|", n_predict=limit)
    assert (answer["content"], answer["stop_type"]) == ("abcdefgh"[:limit], "limit")
    # The last token is not evaluated, as without drafts.
    assert answer["tokens_cached"] == 9 + max(limit - 1, 0)
    assert sum(sizes()) == 9 + max(limit - 1, 0)


def test_the_context_ends_a_generation_with_drafts_as_one_without(start: Any) -> None:
    answer = start("--ctx-size", "16").post("/completion", prompt="abcdefghij|")
    assert (answer["content"], answer["stop_type"], answer["tokens_cached"]) == ("abcde", "limit", 15)


def test_a_stop_string_inside_a_round_ends_it_and_later_drafts_leave_no_cells(start: Any) -> None:
    server = start()
    answer = server.post("/completion", prompt="abcdefgh|", stop=["cd"])
    assert (answer["content"], answer["stopping_word"], answer["stop_type"]) == ("ab", "cd", "word")
    assert answer["tokens_cached"] == 9 + 3
    follow_up = server.post("/completion", prompt="abcdefgh|abcd", n_predict=2)
    assert (follow_up["timings"]["cache_n"], follow_up["content"]) == (12, "ef")


def test_an_end_token_inside_a_round_ends_it_unless_it_is_ignored(start: Any) -> None:
    server = start()
    assert server.post("/completion", prompt="ab|")["tokens_cached"] == 5
    body = {"prompt": "ab|", "ignore_eos": True, "n_predict": 6, "return_tokens": True, "temperature": 0}
    ignoring = server.post("/completion", **body)
    plain = start("--drafts", "0").post("/completion", **body)
    assert ignoring["tokens"] == plain["tokens"]
    assert counts(plain) == (0, 0) != counts(ignoring)


def test_a_biased_choice_refuses_the_draft(start: Any) -> None:
    answer = start().post("/completion", prompt="abcdef|", logit_bias=[["d", False], ["q", 5]], n_predict=6)
    assert answer["content"] == "abcqef"
    assert counts(answer)[1] < counts(answer)[0]


@pytest.mark.parametrize(
    ("prompt", "words"), [("ab\x01|", "the scripted failure"), ("ab\x02cd|", "not a number"), ("a\x04|", "no room")]
)
def test_a_failure_in_a_verification_ends_the_request_and_no_more(start: Any, prompt: str, words: str) -> None:
    server = start()
    assert words in server.refused("/completion", prompt=prompt)["message"]
    answer = server.post("/completion", prompt="abcd|")
    assert (answer["content"], answer["timings"]["cache_n"]) == ("abcd", 0)


def test_a_client_that_leaves_breaks_the_verification_off(start: Any) -> None:
    server = start()
    with server.begin("/completion", prompt="a\x05|", stream=True) as busy:
        server.wait_for(lambda: server.busy_slots() == 1)
        assert busy.recv(9) == b"HTTP/1.1 "
    server.wait_for(lambda: server.busy_slots() == 0)
    assert server.post("/completion", prompt="a\x05|bc|", n_predict=1)["timings"]["cache_n"] == 3


def test_slots_props_and_metrics_say_that_it_drafts(start: Any) -> None:
    server = start("--draft-kv-type", "q8_0", "--draft-vocab", "200")
    server.post("/completion", prompt="abcdeFgh|")
    assert server.get("/props")["drafts"] == {"n_draft": 3, "kv_type": "q8_0", "vocabulary": 200}
    assert server.get("/slots")[0]["speculative"] is True
    metrics = server.exchange("GET", "/metrics")[2].decode().splitlines()
    assert {"assay:tokens_drafted_total 9", "assay:tokens_drafted_accepted_total 5"} <= set(metrics)
    assert start("--drafts", "0").get("/slots")[0]["speculative"] is False


def test_the_environment_turns_drafts_on_and_off(start_scripted: Any, scripted_folder: Path) -> None:
    def drafts(*flags: str, **environment: str) -> int:
        server = start_scripted("--model", str(scripted_folder / "model"), *flags, environment=environment)
        return int(server.get("/props")["drafts"]["n_draft"])

    assert [drafts(ENABLE_MTP=value) for value in ("0", "1")] == [0, 3]
    assert drafts("--drafts", "6", ENABLE_MTP="0") == 6
    assert drafts() == 0


@pytest.fixture(scope="module")
def pair(start_server: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Return a function that starts two servers of a model, with and without drafts."""

    def begin(model: Path, *flags: str, drafts: int = 3) -> tuple[Any, Any]:
        shared = ("--model", str(model), "--threads", "1", *flags)
        return start_server(*shared, "--drafts", str(drafts)), start_server(*shared)

    return begin


@pytest.fixture(scope="module")
def tiny(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("slots")
    return pair(tiny_model("tiny-b"), "--ctx-size", "512", "--slot-save-path", str(folder))


def tiny_prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(20)
    return [rng.integers(0, 480, 20 + 5 * (seed % 20)).tolist() for seed in range(count)]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_twenty_prompts_get_the_tokens_of_a_run_without_drafts(tiny: tuple[Any, Any], temperature: float) -> None:
    """At temperature 0 over prompts that accept between 0.2 and 0.8 of their drafts; above it, for equal seeds."""
    n_useful = 0
    for seed, prompt in enumerate(tiny_prompts(60)):
        body = {
            "prompt": prompt,
            "n_predict": 32,
            "temperature": temperature,
            "seed": seed,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
            "repeat_penalty": 1.1 if seed % 3 == 0 else 1.0,
        }
        drafted, plain = (server.post("/completion", **body) for server in tiny)
        assert drafted["tokens"] == plain["tokens"], seed
        assert drafted["tokens_cached"] == plain["tokens_cached"]
        n, n_accepted = counts(drafted)
        assert (drafted["work"]["n_drafted"], drafted["work"]["n_accepted"]) == (n, n_accepted)
        n_useful += temperature > 0 or 0.2 <= n_accepted / n <= 0.8
        if n_useful == 20:
            return
    pytest.fail(f"only {n_useful} prompts of 60 accept between 0.2 and 0.8 of their drafts")


def test_probabilities_are_those_of_the_model_and_not_of_the_drafts(tiny: tuple[Any, Any]) -> None:
    body = {"prompt": tiny_prompts(1)[0], "n_predict": 12, "temperature": 0, "n_probs": 3, "ignore_eos": True}
    drafted, plain = (server.post("/completion", **body)["completion_probabilities"] for server in tiny)
    assert [one["id"] for one in drafted] == [one["id"] for one in plain]
    assert [one["logprob"] for one in drafted] == pytest.approx([one["logprob"] for one in plain], abs=2e-2)


def test_a_short_tail_is_taken_back_and_a_longer_cut_evaluates_anew(tiny: tuple[Any, Any]) -> None:
    server, plain = tiny
    prompt = tiny_prompts(12)[11]
    body = {"n_predict": 8, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    first = server.post("/completion", prompt=prompt, **body, cache_prompt=False)
    reply = first["tokens"]
    # A continuation keeps everything.
    longer = [*prompt, *reply[:7], 5, 6]
    assert server.post("/completion", prompt=longer, **body)["timings"]["cache_n"] == len(prompt) + 7
    # One token less than the cells: within what drafts can take back.
    cells = server.get("/slots")[0]["n_cells"]
    again = server.post("/completion", prompt=longer, **body)
    assert cells - len(longer) + 1 > 3
    assert again["timings"]["cache_n"] == 0, "eight generated tokens are too many to take back"
    assert again["tokens"] == plain.post("/completion", prompt=longer, **body, cache_prompt=False)["tokens"]
    short = server.post("/completion", prompt=longer, **{**body, "n_predict": 1})
    assert short["timings"]["cache_n"] == 0
    short = server.post("/completion", prompt=longer, **{**body, "n_predict": 1})
    assert (short["timings"]["cache_n"], short["timings"]["prompt_n"]) == (len(longer) - 1, 1)
    assert short["tokens"] == again["tokens"][:1]


def test_a_saved_slot_drafts_on_as_if_it_had_stayed(tiny: tuple[Any, Any]) -> None:
    server, plain = tiny
    prompt = tiny_prompts(5)[4]
    body = {"n_predict": 24, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    reply = server.post("/completion", prompt=prompt, **body, cache_prompt=False)["tokens"]
    assert server.post("/slots/0?action=save", filename="drafts")["n_saved"] == len(prompt) + 23
    follow_up = {"prompt": [*prompt, *reply, 7, 8, 9], **body}
    kept = server.post("/completion", **follow_up)
    server.post("/slots/0?action=erase")
    assert server.post("/slots/0?action=restore", filename="drafts")["n_restored"] == len(prompt) + 23
    restored = server.post("/completion", **follow_up)
    assert restored["timings"]["cache_n"] == kept["timings"]["cache_n"] == len(prompt) + 23
    assert (restored["tokens"], counts(restored)) == (kept["tokens"], counts(kept))
    assert restored["tokens"] == plain.post("/completion", **follow_up, cache_prompt=False)["tokens"]
    message = plain.refused("/slots/0?action=restore", filename="drafts")["message"]
    assert "it was saved with drafts, this session has none" in message


def test_a_shortlist_limits_the_drafts_and_never_the_answer(pair: Any) -> None:
    drafted, plain = pair(tiny_model("tiny-b"), "--ctx-size", "512", "--draft-vocab", "200", drafts=6)
    prompt = oracle("mtp")["spec.1.prompt"].tolist()
    body = {"prompt": prompt, "n_predict": 48, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    found = drafted.post("/completion", **body)
    assert found["tokens"] == plain.post("/completion", **body)["tokens"]
    assert max(found["tokens"]) >= 200
    assert counts(found)[1] > 0


@pytest.mark.parametrize(
    ("count", "distance_tokens"), [(3, 60), pytest.param(20, 2_000, marks=THOROUGH)], ids=["short", "thorough"]
)
def test_the_recall_model_gives_its_codes_back_with_drafts(
    pair: Any, recall_model: Path, count: int, distance_tokens: int
) -> None:
    drafted, plain = pair(recall_model, "--ctx-size", "4096", "--draft-vocab", "0", "--draft-kv-type", "q8_0")
    for number in range(count):
        prompt = recall_prompt(f"draft {number}", lead_tokens=8, distance_tokens=distance_tokens, code_tokens=40)
        body = {"prompt": list(prompt.ids), "n_predict": 36, "temperature": 0, "return_tokens": True}
        found = drafted.post("/completion", **body)
        assert found["tokens"] == plain.post("/completion", **body)["tokens"]
        assert tuple(found["tokens"]) == prompt.expected_ids[:36]
        n, n_accepted = counts(found)
        assert 0.2 <= n_accepted / n <= 0.8
