"""The native routes of engine-server with a real model, and side by side with what llama-server answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.worker import EngineWorker, Session

GOLDEN = json.loads((Path(__file__).parent / "golden" / "llama_server.json").read_text())
FRANCE = "The capital of France is"


def shape(value: Any) -> Any:
    """Names and types, without values: what a client's parser depends on."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    return "number" if isinstance(value, int | float) else "string"


def missing(theirs: Any, ours: Any, place: str = "") -> set[str]:
    """Places of `theirs` that `ours` lacks or has with another type."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = [missing(item, ours.get(key), f"{place}.{key}" if place else key) for key, item in theirs.items()]
        return set().union(*found)
    if isinstance(theirs, list) and isinstance(ours, list):
        return missing(theirs[0], ours[0], f"{place}[]") if theirs and ours else set()
    return set() if theirs == ours else {place}


# A batch of another size rounds its 8-bit activations differently: a choice that is closer than this may go either way.
NOISE = 0.2
SOME_PROMPTS = [golden["prompt"] for golden in GOLDEN["greedy"].values()][:8]


@pytest.fixture(scope="session")
def plain_server(start_server: Callable[..., Any], model_path: Path) -> Any:
    """Return a server with the arithmetic of llama-server's portable build: attention in separate operators."""
    return start_server("--model", str(model_path), "--ctx-size", "512", "--threads", "1", "--no-flash-attention")


def has_golden_arithmetic() -> bool:
    """Whether this processor sums in the order of the one that made the golden ids (llama-server needs it to run)."""
    return {"avx512f", "avx512_vnni"} <= set(Path("/proc/cpuinfo").read_text().split())


# Kernels for other processors sum in another order; with activations of 8 bits that moves a log-probability this far.
OTHER_ARITHMETIC = 0.35


def golden_precision() -> float:
    """How near the golden log-probabilities are. A processor without AVX512-FP16 gives the same ids, 2e-4 off."""
    if not has_golden_arithmetic():
        return OTHER_ARITHMETIC
    return 1e-4 if "avx512_fp16" in Path("/proc/cpuinfo").read_text().split() else 1e-3


@pytest.mark.parametrize("name", GOLDEN["greedy"])
def test_greedy_token_ids_equal_those_of_llama_server(plain_server: Any, name: str) -> None:
    """To the last id where the processor computes as the golden's did; else up to the first close choice.

    `tests/bench/engine_ids.py` compares with a llama-server that was built on the same host.
    """
    golden = GOLDEN["greedy"][name]
    body = {"n_predict": 64, "temperature": 0, "ignore_eos": True, "return_tokens": True, "cache_prompt": False}
    answer = plain_server.post("/completion", prompt=golden["prompt"], **body, n_probs=10)
    if has_golden_arithmetic():
        assert answer["tokens"] == golden["tokens"]
    for place, (ours, theirs) in enumerate(zip(answer["tokens"], golden["tokens"], strict=True)):
        if ours != theirs:
            choices = {one["id"]: one["logprob"] for one in answer["completion_probabilities"][place]["top_logprobs"]}
            assert choices[ours] - choices[theirs] < OTHER_ARITHMETIC
            break


@pytest.mark.parametrize("prompt", [*SOME_PROMPTS, "🚀" * 7, "今日の天気は"])
def test_the_server_serves_what_the_library_computes(
    server: Any, engine_folder: Path, model_path: Path, prompt: str
) -> None:
    answer = server.post(
        "/completion",
        prompt=prompt,
        n_predict=16,
        temperature=0,
        return_tokens=True,
        ignore_eos=True,
        cache_prompt=False,
    )
    with EngineWorker(engine_folder / "lib" / "libassay-engine.so") as worker:
        worker.load(model_path)
        worker.open_session(Session(context_tokens=512, threads=1))
        evaluated = worker.tokenize(prompt)
        assert answer["tokens_evaluated"] == len(evaluated)
        expected, position = [], 0
        for _ in range(16):
            logits = worker.decode(evaluated, start=position, rows="last")[-1].copy()
            logits[[0, 2]] = -np.inf  # the two tokens that end a reply
            position += len(evaluated)
            evaluated = [int(logits.argmax())]
            expected += evaluated
    assert answer["tokens"] == expected


def test_probabilities_equal_those_of_llama_server(plain_server: Any) -> None:
    answer = plain_server.post("/completion", prompt=FRANCE, n_predict=2, temperature=0, n_probs=5, cache_prompt=False)
    precision = golden_precision()
    for ours, theirs in zip(answer["completion_probabilities"], GOLDEN["probabilities"], strict=True):
        assert ours["id"] == theirs["token"]
        assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=precision)
        assert bytes(ours["bytes"]).decode() == ours["token"]
        assert [top["logprob"] for top in ours["top_logprobs"]] == pytest.approx(
            [top[1] for top in theirs["top"]], abs=precision
        )
        assert ours["top_logprobs"][0]["id"] == theirs["top"][0][0]


SAMPLERS_WE_LACK = {
    "dynatemp_range", "dynatemp_exponent", "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat",
    "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "n_keep", "n_discard", "min_keep", "grammar", "grammar_lazy",
    "grammar_triggers", "preserved_tokens", "chat_format", "reasoning_format", "reasoning_in_content", "generation_prompt",
    "speculative.types", "post_sampling_probs", "backend_sampling", "lora",
}  # fmt: skip


def test_answers_have_every_field_that_llama_server_has(server: Any) -> None:
    body = {"prompt": FRANCE, "n_predict": 2, "temperature": 0, "return_tokens": True, "n_probs": 2}
    shapes = GOLDEN["shapes"]
    lacking = {f"generation_settings.{name}" for name in SAMPLERS_WE_LACK}
    assert missing(shapes["/completion"], shape(server.post("/completion", **body))) == lacking
    events = server.stream("/completion", **body, timings_per_token=True, return_progress=True)
    assert missing(shapes["/completion progress event"], shape(events[0])) == set()
    assert missing(shapes["/completion token event"], shape(events[-2])) == set()
    assert missing(shapes["/completion last event"], shape(events[-1])) == lacking
    slots = {
        f"[].params.{name}"
        for name in SAMPLERS_WE_LACK
        - {"dry_sequence_breakers", "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens"}
    }
    assert missing(shapes["/slots"], shape(server.get("/slots"))) == slots
    for path, request in {
        "/tokenize": {"content": "a", "with_pieces": True},
        "/detokenize": {"tokens": [1]},
        "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
    }.items():
        assert missing(shapes[path], shape(server.post(path, **request))) == set()
    defaults = "default_generation_settings.params."
    # The number that the file itself gives, where llama-server writes a name.
    of_others = {
        "model_ftype",
        "modalities.video",
        "media_marker",
        "ui",
        "ui_settings",
        "is_sleeping",
        "cors_proxy_enabled",
    }
    props = missing(shapes["/props"], shape(server.get("/props")))
    assert {place for place in props if not place.startswith((defaults, "chat_template_caps"))} == of_others
    metrics = {
        line.split()[2]
        for line in server.exchange("GET", "/metrics")[2].decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert set(GOLDEN["metrics"]) - metrics == {name for name in GOLDEN["metrics"] if "spec_decode" in name}


def test_a_stream_carries_one_token_an_event_and_the_ids_of_the_whole_answer(server: Any) -> None:
    body = {"prompt": FRANCE, "n_predict": 24, "temperature": 0, "cache_prompt": False}
    whole = server.post("/completion", **body, return_tokens=True)
    *events, last = server.stream("/completion", **body)
    assert [len(event["tokens"]) for event in events] == [1] * 24
    assert [event["tokens"][0] for event in events] == whole["tokens"]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["tokens_predicted"] for event in events] == list(range(1, 25))
    assert {(event["stop"], event["id_slot"], event["index"], event["tokens_evaluated"]) for event in events} == {
        (False, 0, 0, 5)
    }
    assert (last["stop"], last["content"], last["tokens"], last["tokens_predicted"], last["stop_type"]) == (
        True,
        "",
        [],
        24,
        "limit",
    )
    assert last["prompt"] == FRANCE
    assert last["generation_settings"]["n_predict"] == 24
    # Exact counters: the same request does the same work, streamed or not.
    assert last["work"] == whole["work"]
    assert last["work"]["n_tokens_evaluated"] == 5 + 23


def test_timings_are_those_of_one_clock(server: Any) -> None:
    answer = server.post("/completion", prompt=FRANCE, n_predict=9, temperature=0, cache_prompt=False)
    timings = answer["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 5, 9)
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (0, 0)
    assert timings["prompt_per_second"] == pytest.approx(5 / timings["prompt_ms"] * 1e3)
    assert timings["predicted_per_second"] == pytest.approx(8 / timings["predicted_ms"] * 1e3)
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 8)
    single = server.post("/completion", prompt=FRANCE, n_predict=1)["timings"]
    assert (single["predicted_n"], single["predicted_ms"], single["predicted_per_second"]) == (1, 0, 0)
    events = server.stream("/completion", prompt=FRANCE, n_predict=9, temperature=0, timings_per_token=True)
    spent = [event["timings"]["predicted_ms"] for event in events]
    assert spent[0] == 0
    assert all(a < b for a, b in itertools.pairwise(spent[:-1]))
    assert spent[-1] == spent[-2]


def test_a_follow_up_reports_what_came_from_the_cache(server: Any) -> None:
    first = server.post(
        "/completion", prompt=FRANCE, n_predict=4, temperature=0, return_tokens=True, cache_prompt=False
    )
    ids = server.post("/tokenize", content=FRANCE)["tokens"]
    follow_up = server.post("/completion", prompt=[*ids, *first["tokens"], *ids], n_predict=1, temperature=0)
    assert (follow_up["timings"]["cache_n"], follow_up["timings"]["prompt_n"]) == (8, 6)
    again = server.post("/completion", prompt=FRANCE, n_predict=4, temperature=0, return_tokens=True)
    assert (again["timings"]["cache_n"], again["tokens"]) == (4, first["tokens"])


def test_the_end_token_ends_the_answer_and_its_id_is_sent(server: Any) -> None:
    prompt = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    *events, last = server.stream("/completion", prompt=prompt, n_predict=60, temperature=0)
    assert last["stop_type"] == "eos"
    assert (events[-1]["content"], events[-1]["tokens"]) == ("", [2])
    assert last["tokens_predicted"] == len(events)
    ignoring = server.post(
        "/completion", prompt=prompt, n_predict=60, temperature=0, ignore_eos=True, return_tokens=True
    )
    assert ignoring["stop_type"] == "limit"
    assert len(ignoring["tokens"]) == 60
    assert not {0, 2} & set(ignoring["tokens"])


def test_characters_that_several_tokens_share_are_sent_whole(server: Any) -> None:
    body = {"prompt": "🚀" * 7, "temperature": 0, "ignore_eos": True}
    whole = server.post("/completion", **body, n_predict=12, return_tokens=True)
    *events, _ = server.stream("/completion", **body, n_predict=12)
    assert whole["content"] == "🚀🚀🚀🚀"
    assert "".join(event["content"] for event in events) == whole["content"]
    assert sum(event["content"] == "" for event in events) == 8
    assert [event["tokens"][0] for event in events] == whole["tokens"]
    assert server.post("/detokenize", tokens=whole["tokens"])["content"] == whole["content"]


def test_a_character_cut_at_the_end_is_shown_as_such_and_its_ids_stay_exact(server: Any) -> None:
    whole = server.post("/completion", prompt="🚀" * 7, temperature=0, n_predict=12, return_tokens=True)
    for n in (1, 2, 4, 5):
        *events, last = server.stream("/completion", prompt="🚀" * 7, temperature=0, n_predict=n)
        assert [event["tokens"][0] for event in events] == whole["tokens"][:n]
        assert "".join(event["content"] for event in events) == "🚀" * (n // 3) + "\ufffd"
        assert last["invalid_utf8_replaced"] == 1
    assert "invalid_utf8_replaced" not in whole


def test_bytes_that_are_no_text_at_all_do_not_break_the_json(server: Any) -> None:
    stray = server.post("/tokenize", content="🚀")["tokens"][-1]  # the byte 0x80
    answer = server.post(
        "/completion", prompt=FRANCE, n_predict=3, temperature=0, logit_bias=[[stray, 10000]], return_tokens=True
    )
    assert answer["tokens"] == [stray] * 3
    assert (answer["content"], answer["invalid_utf8_replaced"]) == ("\ufffd" * 3, 3)
    assert server.post("/tokenize", content="🚀", with_pieces=True)["tokens"][-1] == {"id": stray, "piece": [0x80]}


# " Paris.\n\nThe United States has a population of ..."
@pytest.mark.parametrize(
    ("stop", "content", "word", "n"),
    [
        ("States has", " Paris.\n\nThe United ", "States has", 8),
        (["zzz", "ed Sta"], " Paris.\n\nThe Unit", "ed Sta", 7),
        (["has", "States has"], " Paris.\n\nThe United ", "States has", 8),
        (["\n\nT"], " Paris.", "\n\nT", 5),
        ([" Paris"], "", " Paris", 1),
        (["is"], " Par", "is", 1),
    ],
)
def test_a_stop_string_across_tokens_ends_the_answer_before_it(
    server: Any, stop: Any, content: str, word: str, n: int
) -> None:
    body = {"prompt": FRANCE, "n_predict": 20, "temperature": 0, "stop": stop}
    whole = server.post("/completion", **body, return_tokens=True)
    assert (whole["content"], whole["stop_type"], whole["stopping_word"], whole["tokens_predicted"]) == (
        content,
        "word",
        word,
        n,
    )
    *events, last = server.stream("/completion", **body)
    assert "".join(event["content"] for event in events) == content
    assert [event["tokens"][0] for event in events] == whole["tokens"]
    assert (last["stop_type"], last["stopping_word"]) == ("word", word)


def test_what_only_looked_like_a_stop_string_is_sent_in_the_end(server: Any) -> None:
    free = server.post("/completion", prompt=FRANCE, n_predict=7, temperature=0)["content"]
    body = {"prompt": FRANCE, "n_predict": 7, "temperature": 0, "stop": ["United States had", "States hat", "\n\n\n"]}
    *events, last = server.stream("/completion", **body)
    assert "".join(event["content"] for event in events) == free
    assert last["stop_type"] == "limit"
    assert events[5]["content"] == " "


def test_equal_seeds_give_equal_tokens_and_others_do_not(server: Any) -> None:
    def ids(seed: int, **more: Any) -> list[int]:
        body = {
            "prompt": "Once upon a time",
            "n_predict": 24,
            "seed": seed,
            "temperature": 1.2,
            "return_tokens": True,
            "ignore_eos": True,
        }
        return server.post("/completion", **{**body, **more})["tokens"]

    assert ids(1) == ids(1)
    assert len({tuple(ids(seed)) for seed in (1, 2, 3)}) == 3
    assert ids(1, top_k=1) == ids(2, top_k=1) == ids(3, temperature=0)
    assert ids(1, top_p=0.0) == ids(2, top_p=0.0)
    assert ids(1, min_p=1.0) == ids(2, min_p=1.0)


def test_a_request_without_a_seed_reports_the_one_it_used(server: Any) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 16, "temperature": 1.2, "return_tokens": True}
    drawn = server.post("/completion", **body)
    seed = drawn["generation_settings"]["seed"]
    assert seed != 0xFFFFFFFF
    assert server.post("/completion", **body, seed=seed)["tokens"] == drawn["tokens"]
    assert server.post("/completion", **body)["generation_settings"]["seed"] != seed


def test_a_repeat_penalty_changes_a_repeating_answer(server: Any) -> None:
    body = {"prompt": "a a a a a a a a", "n_predict": 16, "temperature": 0, "return_tokens": True}
    plain = server.post("/completion", **body)["tokens"]
    assert server.post("/completion", **body, repeat_penalty=1.0)["tokens"] == plain
    assert server.post("/completion", **body, repeat_penalty=2.0)["tokens"] != plain
    assert server.post("/completion", **body, repeat_penalty=2.0, repeat_last_n=0)["tokens"] == plain


def test_logit_bias_forbids_and_favours(server: Any) -> None:
    body = {"prompt": FRANCE, "n_predict": 1, "temperature": 0, "return_tokens": True}
    paris, the = 7042, 260
    assert server.post("/completion", **body)["tokens"] == [paris]
    assert server.post("/completion", **body, logit_bias=[[paris, False]])["tokens"] == [the]
    assert server.post("/completion", **body, logit_bias=[[" Paris", False]])["tokens"] == [the]
    assert server.post("/completion", **body, logit_bias={str(the): 20})["tokens"] == [the]
    shown = server.post("/completion", **body, logit_bias=[[paris, False], [the, 1.5]])["generation_settings"][
        "logit_bias"
    ]
    assert shown == [{"bias": None, "token": paris}, {"bias": 1.5, "token": the}]


def test_prompts_as_text_ids_and_a_mix_are_the_same(server: Any) -> None:
    ids = server.post("/tokenize", content=FRANCE)["tokens"]
    body = {"n_predict": 8, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    prompts = [FRANCE, ids, [FRANCE], [ids], [*ids[:2], " of France is"], ["The capital", *ids[2:]]]
    answers = [server.post("/completion", prompt=prompt, **body) for prompt in prompts]
    assert {tuple(answer["tokens"]) for answer in answers} == {tuple(answers[0]["tokens"])}
    assert {answer["prompt"] for answer in answers} == {FRANCE}
    special = server.post("/completion", prompt="<|im_start|>user\n", n_predict=1)
    assert (special["tokens_evaluated"], special["prompt"]) == (3, "<|im_start|>user\n")


def test_n_predict_0_evaluates_the_prompt_and_generates_nothing(server: Any) -> None:
    answer = server.post("/completion", prompt=FRANCE, n_predict=0, cache_prompt=False)
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"], answer["tokens_cached"]) == (
        "",
        0,
        "limit",
        5,
    )
    assert answer["work"]["n_tokens_evaluated"] == 5
    assert len(server.stream("/completion", prompt=FRANCE, n_predict=0)) == 1


def test_generation_runs_to_the_end_of_the_context(server: Any) -> None:
    ids = [260] * 500
    answer = server.post("/completion", prompt=ids, ignore_eos=True, temperature=0)
    assert (answer["tokens_predicted"], answer["stop_type"], answer["truncated"], answer["tokens_cached"]) == (
        12,
        "limit",
        False,
        511,
    )
    assert server.refused("/completion", prompt=[260] * 512)["type"] == "exceed_context_size_error"


def test_progress_is_reported_for_each_step_of_the_prompt(start_server: Callable[..., Any], model_path: Path) -> None:
    server = start_server("--model", str(model_path), "--ubatch-size", "32", "--ctx-size", "256", "--threads", "1")
    ids = list(range(100, 190))
    server.post("/completion", prompt=ids[:10], n_predict=1)
    events = server.stream("/completion", prompt=ids, n_predict=2, return_progress=True)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [(step["total"], step["cache"], step["processed"]) for step in progress] == [
        (90, 10, 10),
        (90, 10, 42),
        (90, 10, 74),
        (90, 10, 90),
    ]
    assert all(event["tokens"] == [] for event in events if "prompt_progress" in event)
    assert len(events) == 4 + 2 + 1


def test_four_slots_serve_eight_clients_as_one_slot_serves_one(
    start_server: Callable[..., Any], model_path: Path, server: Any, in_parallel: Any
) -> None:
    wide = start_server("--model", str(model_path), "--parallel", "4", "--ctx-size", "256", "--threads", "1")
    body = {"n_predict": 16, "temperature": 0, "cache_prompt": False}
    streams = in_parallel(
        *(lambda prompt=prompt: wide.stream("/completion", prompt=prompt, **body) for prompt in SOME_PROMPTS)
    )
    for (*events, last), prompt in zip(streams, SOME_PROMPTS, strict=True):
        assert len(events) == last["tokens_predicted"] == 16
        alone = server.post("/completion", prompt=prompt, n_predict=16, temperature=0, return_tokens=True, n_probs=2)
        for event, token, chance in zip(events, alone["tokens"], alone["completion_probabilities"], strict=True):
            if event["tokens"] != [token]:
                # A batch of another size may round differently: only a close choice may go the other way.
                best, second = chance["top_logprobs"]
                assert event["tokens"] == [second["id"]]
                assert best["logprob"] - second["logprob"] < NOISE
                break
    assert {last["id_slot"] for *_, last in streams} == {0, 1, 2, 3}


def test_a_client_that_leaves_in_mid_stream_frees_the_slot_for_the_next(server: Any) -> None:
    connection = server.begin("/completion", prompt=FRANCE, n_predict=-1, ignore_eos=True, stream=True)
    data = b""
    while data.count(b"data: ") < 3:
        data += connection.recv(65536)
    connection.close()
    server.wait_for(lambda: server.busy_slots() == 0, seconds=5)
    assert server.post("/completion", prompt=FRANCE, n_predict=2, temperature=0)["content"] == " Paris."


def test_a_slot_survives_in_a_file(start_server: Callable[..., Any], model_path: Path, tmp_path: Path) -> None:
    server = start_server(
        "--model", str(model_path), "--slot-save-path", str(tmp_path), "--ctx-size", "256", "--threads", "1"
    )
    body = {
        "prompt": FRANCE + " Paris. The capital of Italy is",
        "n_predict": 12,
        "temperature": 0,
        "return_tokens": True,
    }
    first = server.post("/completion", **body)
    assert server.post("/slots/0?action=save", filename="france")["n_saved"] == first["tokens_cached"]
    server.post("/slots/0?action=erase")
    server.post("/slots/0?action=restore", filename="france")
    again = server.post("/completion", **body)
    assert again["timings"]["cache_n"] == first["tokens_evaluated"] - 1
    assert again["tokens"] == first["tokens"]
    other = start_server(
        "--model",
        str(model_path),
        "--slot-save-path",
        str(tmp_path),
        "--ctx-size",
        "256",
        "--kv-type",
        "f32",
        "--threads",
        "1",
    )
    assert "unable to restore" in other.refused("/slots/0?action=restore", filename="france")["message"]
    assert other.post("/completion", **body)["tokens_predicted"] == 12
