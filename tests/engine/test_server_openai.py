"""OpenAI's routes of engine-server with a real model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

GOLDEN = json.loads((Path(__file__).parent / "golden" / "llama_server.json").read_text())
HELLO = [{"role": "user", "content": "hi"}]


def missing(theirs: Any, ours: Any, place: str = "") -> set[str]:
    """Places of the golden shape that an answer lacks or has with another type."""
    if isinstance(theirs, dict):
        if not isinstance(ours, dict):
            return {place}
        return set().union(*(missing(item, ours.get(key), f"{place}.{key}") for key, item in theirs.items()))
    if isinstance(theirs, list):
        if not isinstance(ours, list) or (theirs and not ours):
            return {place}
        return missing(theirs[0], ours[0], f"{place}[]") if theirs else set()
    kind = (
        "boolean"
        if isinstance(ours, bool)
        else "number"
        if isinstance(ours, int | float)
        else "string"
        if isinstance(ours, str)
        else "null"
    )
    return set() if theirs == kind else {place}


def chat(server: Any, **body: Any) -> Any:
    return server.post("/v1/chat/completions", **{"messages": HELLO, "max_tokens": 6, "temperature": 0} | body)


def chat_stream(server: Any, **body: Any) -> list[Any]:
    return server.stream("/v1/chat/completions", **{"messages": HELLO, "max_tokens": 6, "temperature": 0} | body)


def test_a_chat_answer_has_the_fields_of_openai_and_llama_server(server: Any) -> None:
    before = int(time.time())
    answer = chat(server, logprobs=True, top_logprobs=2)
    assert missing(GOLDEN["shapes"]["/v1/chat/completions"], answer) == set()
    assert (answer["object"], answer["model"]) == ("chat.completion", "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert before <= answer["created"] <= time.time()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["id"] != chat(server)["id"]
    choice = answer["choices"][0]
    assert (choice["index"], choice["finish_reason"], choice["message"]["role"]) == (0, "length", "assistant")
    assert "".join(part["token"] for part in choice["logprobs"]["content"]) == choice["message"]["content"]
    assert [len(part["top_logprobs"]) for part in choice["logprobs"]["content"]] == [2] * 6
    assert chat(server)["choices"][0]["logprobs"] is None


def test_the_chat_prompt_is_what_apply_template_shows(server: Any) -> None:
    shown = server.post("/apply-template", messages=HELLO)["prompt"]
    assert shown.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    native = server.post("/completion", prompt=shown, n_predict=6, temperature=0, cache_prompt=False)
    answer = chat(server, cache_prompt=False)
    assert answer["choices"][0]["message"]["content"] == native["content"]
    assert (
        answer["usage"]["prompt_tokens"]
        == native["tokens_evaluated"]
        == len(server.post("/tokenize", content=shown)["tokens"])
    )


def test_text_parts_are_joined_and_a_begun_reply_is_continued_as_llama_server_does(server: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "ok"},
    ]
    assert server.post("/apply-template", messages=messages)["prompt"] == GOLDEN["continued_chat"]


def test_usage_counts_prompt_cached_and_generated_tokens(server: Any) -> None:
    fresh = chat(server, cache_prompt=False)["usage"]
    assert fresh["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (fresh["completion_tokens"], fresh["total_tokens"]) == (6, fresh["prompt_tokens"] + 6)
    again = chat(server)
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": fresh["prompt_tokens"] - 1}
    assert again["timings"]["cache_n"] == fresh["prompt_tokens"] - 1
    assert again["work"]["n_tokens_evaluated"] == 1 + 5


def test_a_chat_stream_says_the_role_then_the_text_then_done(server: Any) -> None:
    *chunks, done = chat_stream(server)
    shapes = GOLDEN["shapes"]
    assert done == "[DONE]"
    assert missing(shapes["/v1/chat/completions first chunk"], chunks[0]) == set()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert missing(shapes["/v1/chat/completions token chunk"], chunks[1]) == set()
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1])
    assert text == chat(server)["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert {(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "chat.completion.chunk")
    }
    assert chunks[-1]["timings"]["predicted_n"] == 6
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_ends_with_the_usage_when_asked_for(server: Any) -> None:
    *chunks, last, _ = chat_stream(server, stream_options={"include_usage": True})
    assert missing(GOLDEN["shapes"]["/v1/chat/completions last chunk"], last) == set()
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
    assert "timings" not in chunks[-1]


def test_token_ids_come_with_the_chunks_when_asked_for(server: Any) -> None:
    whole = chat(server, return_tokens=True)
    *chunks, _ = chat_stream(server, return_tokens=True)
    assert [chunk["tokens"][0] for chunk in chunks[1:-1]] == whole["tokens"]
    assert len(whole["tokens"]) == whole["usage"]["completion_tokens"]
    assert "tokens" not in chat(server)
    *texts, _ = server.stream("/v1/completions", prompt="🚀" * 7, max_tokens=6, temperature=0, return_tokens=True)
    assert [chunk["choices"][0]["text"] for chunk in texts] == ["", "", "🚀", "", "", "🚀", ""]
    assert all(len(chunk["tokens"]) == 1 for chunk in texts[:-1])


def test_an_ended_chat_says_stop_and_its_end_token_is_counted(server: Any) -> None:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "Say yes."}]
    answer = chat(server, messages=messages, max_tokens=100, return_tokens=True)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["tokens"][-1] == 2
    assert answer["usage"]["completion_tokens"] == len(answer["tokens"])
    free = chat(server)["choices"][0]["message"]["content"]
    stopped = chat(server, stop=[free[3:7]])["choices"][0]
    assert (stopped["finish_reason"], stopped["message"]["content"]) == ("stop", free[:3])


def test_the_length_has_three_names(server: Any) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        body = {"messages": HELLO, name: 3}
        assert server.post("/v1/chat/completions", **body)["usage"]["completion_tokens"] == 3
    assert (
        "different things"
        in server.refused("/v1/chat/completions", messages=HELLO, max_tokens=3, max_completion_tokens=4)["message"]
    )


def test_text_completions_have_the_fields_of_openai_and_llama_server(server: Any) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = server.post("/v1/completions", **body, logprobs=2)
    assert missing(GOLDEN["shapes"]["/v1/completions"], answer) == set()
    assert (answer["object"], answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (
        "text_completion",
        " Paris.\n\n",
        "length",
    )
    *chunks, done = server.stream("/v1/completions", **body)
    assert done == "[DONE]"
    assert missing(GOLDEN["shapes"]["/v1/completions token chunk"], chunks[0]) == set()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer["choices"][0]["text"]
    by_ids = server.post(
        "/v1/completions", **body | {"prompt": server.post("/tokenize", content=body["prompt"])["tokens"]}
    )
    assert by_ids["choices"][0]["text"] == answer["choices"][0]["text"]


def test_the_chosen_token_alone_is_reported_where_no_alternatives_are_asked_for(server: Any) -> None:
    parts = chat(server, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [part["top_logprobs"] for part in parts] == [[]] * 6
    wide = chat(server, logprobs=True, top_logprobs=5, seed=1, temperature=1.5, max_tokens=12)["choices"][0][
        "logprobs"
    ]["content"]
    for part in wide:
        known = {top["id"]: top["logprob"] for top in part["top_logprobs"]}
        assert part["logprob"] == pytest.approx(known.get(part["id"], part["logprob"]), abs=1e-4)
        assert part["logprob"] <= max(known.values()) + 1e-4


def test_models_lists_the_one_that_is_served(server: Any) -> None:
    models = server.get("/v1/models")
    assert missing({"object": "string", "data": GOLDEN["shapes"]["/v1/models"]["data"]}, models) == {
        f".data[].{name}" for name in ("aliases", "tags", "meta.vocab_type", "meta.ftype")
    }
    (model,) = models["data"]
    assert (model["id"], model["meta"]["n_vocab"], model["meta"]["n_ctx_train"]) == (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        49152,
        8192,
    )
    assert (model["meta"]["n_ctx"], model["meta"]["n_params"]) == (512, 134515008)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": None}, "field 'messages': is required"),
        ({"messages": []}, "field 'messages': must not be empty"),
        ({"messages": "hi"}, "field 'messages': expected an array"),
        ({"messages": ["hi"]}, "field 'messages[0]': expected an object"),
        ({"messages": [{"content": "hi"}]}, "field 'messages[0].role': a string is required"),
        ({"messages": [*HELLO, {"role": "user"}]}, "field 'messages[1].content': is required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "only parts of type text",
        ),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tool calls are not supported"),
        ({"tools": [{"type": "function"}]}, "field 'tools': is not supported"),
        ({"top_logprobs": 2}, "needs logprobs to be true"),
        ({"stream_options": {"include_usage": 1}}, "field 'stream_options.include_usage': expected a boolean"),
        ({"max_tokens": "many"}, "field 'max_tokens': expected an integer"),
    ],
)
def test_a_wrong_chat_field_is_a_400_that_names_it(server: Any, body: dict[str, Any], words: str) -> None:
    error = server.refused("/v1/chat/completions", **{"messages": HELLO, "max_tokens": 1} | body)
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


def test_a_chat_that_does_not_fit_is_refused_whole(server: Any) -> None:
    error = server.refused("/v1/chat/completions", messages=[{"role": "user", "content": "a b c " * 300}])
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"] > 512, error["n_ctx"]) == (True, 512)


def test_ignored_fields_are_listed_where_there_are_any(server: Any) -> None:
    assert chat(server, fancy=1)["ignored_fields"] == ["fancy"]
    assert "ignored_fields" not in chat(server, user="me", model="gpt-4", n=1) or chat(server, user="me")[
        "ignored_fields"
    ] == ["user"]
