"""Request bodies of engine-server: what is refused, with which words, and what is ignored."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "field 'prompt': is required"),
        ({"prompt": None}, "field 'prompt': is required"),
        ({"prompt": ""}, "field 'prompt': must not be empty"),
        ({"prompt": []}, "field 'prompt': must not be empty"),
        ({"prompt": 3}, "field 'prompt': expected a string, token ids or an array of both, got an integer"),
        ({"prompt": ["a", {}]}, "got an object"),
        ({"prompt": ["a", "b"]}, "several prompts in one request are not supported"),
        ({"prompt": [49152]}, "token id 49152 is not in the vocabulary (0 to 49151)"),
        ({"prompt": [-1]}, "token id -1 is not in the vocabulary"),
        ({"prompt": [1.5]}, "token id 1.5 is not in the vocabulary"),
        ({"prompt": [2**70]}, "is not in the vocabulary"),
        ({"n_predict": "x"}, "field 'n_predict': expected an integer, got a string"),
        ({"n_predict": -2}, "field 'n_predict': expected an integer from -1 to 2147483647, got -2"),
        ({"n_predict": 1.5}, "got 1.5"),
        ({"n_predict": 1, "max_tokens": 2}, "say different things"),
        ({"temperature": "hot"}, "field 'temperature': expected a number, got a string"),
        ({"temperature": 1e9}, "from -1.0 to 1000.0, got 1e+09"),
        ({"top_k": True}, "field 'top_k': expected an integer, got a boolean"),
        ({"top_p": 1.1}, "field 'top_p': expected a number from 0.0 to 1.0"),
        ({"min_p": -0.1}, "field 'min_p'"),
        ({"repeat_penalty": 0}, "field 'repeat_penalty'"),
        ({"repeat_last_n": -2}, "field 'repeat_last_n'"),
        ({"seed": 2**32}, "field 'seed'"),
        ({"stop": 5}, "field 'stop': expected a string or an array of strings"),
        ({"stop": [""]}, "must not be empty"),
        ({"stop": ["a"] * 65}, "at most 64 strings"),
        ({"stop": ["a" * 1025]}, "at most 1024 bytes"),
        ({"stream": 1}, "field 'stream': expected a boolean, got an integer"),
        ({"ignore_eos": "yes"}, "field 'ignore_eos'"),
        ({"cache_prompt": 0}, "field 'cache_prompt'"),
        ({"id_slot": 1}, "field 'id_slot': expected an integer from -1 to 0"),
        ({"n_probs": 257}, "field 'n_probs': expected an integer from 0 to 256"),
        ({"logit_bias": [[1]]}, "each entry is [token id or text, bias or false]"),
        ({"logit_bias": [[1, True]]}, "expected a number or false, got a boolean"),
        ({"logit_bias": [[99999, 1]]}, "token id 99999 is not in the vocabulary"),
        ({"logit_bias": {"x": 1}}, "token id x is not in the vocabulary"),
        ({"logit_bias": 1}, "field 'logit_bias'"),
        ({"grammar": "root ::= x"}, "field 'grammar': is not supported"),
        ({"presence_penalty": 0.5}, "field 'presence_penalty': this engine supports only 0"),
        ({"n": 2}, "field 'n': this engine supports only 1"),
        ({"response_format": {"type": "json_object"}}, "field 'response_format'"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(server: Any, body: dict[str, Any], words: str) -> None:
    error = server.refused(
        "/completion", **({"prompt": "a", "n_predict": 1} | body if body and "prompt" not in body else body)
    )
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]


def test_unknown_fields_are_ignored_but_listed(server: Any) -> None:
    neutral = {
        "presence_penalty": 0.0,
        "grammar": "",
        "n": 1,
        "mirostat": 0,
        "response_format": {"type": "text"},
        "seed": None,
        "model": "x",
    }
    answer = server.post("/completion", prompt="a", n_predict=1, fancy=1, other=[2], **neutral)
    assert answer["ignored_fields"] == ["fancy", "other"]
    assert server.stream("/completion", prompt="a", n_predict=1, fancy=1)[-1]["ignored_fields"] == ["fancy"]
    assert server.post("/completion", prompt="a", n_predict=1.0)["ignored_fields"] == []


def test_tokenize_and_detokenize_turn_text_into_ids_and_back(server: Any) -> None:
    text = "naïve <|im_start|>\n\t🚀 日本"
    ids = server.post("/tokenize", content=text)["tokens"]
    assert 1 in ids
    assert server.post("/detokenize", tokens=ids)["content"] == text
    assert 1 not in server.post("/tokenize", content=text, parse_special=False)["tokens"]
    assert server.post("/tokenize", content="")["tokens"] == []
    assert server.post("/tokenize", content="a🚀", with_pieces=True)["tokens"][0] == {"id": 81, "piece": "a"}
    assert server.refused("/tokenize", text="a")["message"] == "field 'content': is required"
    assert server.refused("/detokenize", tokens="a")["code"] == 400
    assert server.refused("/detokenize", tokens=[1, 49152])["code"] == 400
