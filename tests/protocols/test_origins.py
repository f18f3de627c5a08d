"""Token ids are those of one tokenizer: a request that was frozen for another model is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.load import LIBRARY, LoadedProtocol, parse_protocol
from protocols.origins import SUFFIX, holds_ids, origin_bytes, parse_origin

BODY = b'{"prompt":[1,2]}\n'


def with_model(text: str, model: str, folder: Path) -> LoadedProtocol:
    assert "model: {name: smollm2}" in text
    return parse_protocol(text.replace("model: {name: smollm2}", model).encode(), folder / "pair.yaml")


def lines(loaded: LoadedProtocol) -> list[str]:
    return [problem.line() for problem in loaded.warnings]


def test_a_bundled_request_under_another_model_is_a_warning_at_the_key_that_names_it(
    served_pair_text: str, tmp_path: Path
) -> None:
    found = lines(with_model(served_pair_text, "model: {path: ../models/other.gguf}", tmp_path))
    assert len(found) == 2, "the warm-up and the measured request"
    assert (
        "the token ids of requests/cold-512.json were frozen for smollm2, and the model here is other.gguf" in found[1]
    )
    assert found[1].endswith("assay protocol prompt --model ../models/other.gguf")
    assert lines(with_model(served_pair_text, "model: {name: smollm2}", tmp_path)) == []
    assert lines(with_model(served_pair_text, "model: {name: qwen4exp-recall}", tmp_path)) == [], "one tokenizer"


def test_a_request_of_ones_own_names_its_model_in_a_file_beside_it(served_pair_text: str, tmp_path: Path) -> None:
    own = tmp_path / "requests" / "cold-512.json"
    own.parent.mkdir()
    own.write_bytes((LIBRARY.parent / "requests" / "cold-512.json").read_bytes())
    other = "model: {path: other.gguf}"
    assert not any("cold-512" in line for line in lines(with_model(served_pair_text, other, tmp_path))), "an old file"
    beside = own.with_name(own.name + SUFFIX)
    for frozen_for, is_named in (("other.gguf", False), ("third.gguf", True)):
        beside.write_bytes(origin_bytes(own.read_bytes(), frozen_for))
        found = [line for line in lines(with_model(served_pair_text, other, tmp_path)) if "cold-512" in line]
        assert [f"frozen for {frozen_for}," in line for line in found] == [True] * is_named
    own.write_bytes(own.read_bytes() + b"\n")
    assert not any("cold-512" in line for line in lines(with_model(served_pair_text, other, tmp_path))), "it changed"


@given(st.binary(max_size=200))
def test_any_bytes_beside_a_request_say_a_model_or_nothing(content: bytes) -> None:
    assert parse_origin(content, BODY) is None


@pytest.mark.parametrize("value", [[], "x", 1, None, {"model": "m"}, {"request_sha256": "0" * 64, "model": "m"}])
def test_a_file_of_another_request_says_nothing(value: object) -> None:
    assert parse_origin(json.dumps(value).encode(), BODY) is None
    assert parse_origin(origin_bytes(BODY, "m"), BODY) == "m"


@pytest.mark.parametrize(
    ("body", "has_ids"),
    [
        (b'{"prompt":[1,2]}', True),
        (b'{"prompt":[1,"a"]}', False),
        (b'{"prompt":[true]}', False),
        (b'{"prompt":"text"}', False),
        (b'{"prompt":[1.5]}', False),
        (b"{}", False),
        (b"no JSON", False),
    ],
)
def test_a_prompt_is_ids_only_where_every_one_is_a_whole_number(body: bytes, has_ids: bool) -> None:
    assert holds_ids(body) is has_ids


def test_a_bundled_request_of_another_length_is_not_said_to_be_editable(served_pair_text: str, tmp_path: Path) -> None:
    from protocols.errors import ProtocolError

    text = served_pair_text.replace("generated_tokens: 128", "generated_tokens: 64")
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text.encode(), tmp_path / "pair.yaml")
    (line,) = (line for line in caught.value.lines() if "for n_predict" in line)
    assert line.endswith(
        "it is bundled; make your own: assay protocol prompt --model smollm2 --tokens 512 --generated-tokens 64 "
        "--out requests/prompt-512-64.json"
    )
    own = tmp_path / "requests" / "cold-512.json"
    own.parent.mkdir()
    own.write_bytes((LIBRARY.parent / "requests" / "cold-512.json").read_bytes())
    with pytest.raises(ProtocolError) as caught:
        parse_protocol(text.encode(), tmp_path / "pair.yaml")
    assert any(line.endswith('write "n_predict": 64 in it') for line in caught.value.lines())
