"""Protocols whose arms are endpoints: what they need not state, what they must, and what a person is told before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocols.errors import ProtocolError
from protocols.load import LoadedProtocol, load_protocol
from protocols.schema import ModelReference

BODY = {
    "model": "m", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 8,
    "temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": True,
}  # fmt: skip
COMPLETE = "  - {id: complete, kind: completeness}\n"
URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002")


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Load a protocol over two endpoints, with changes."""

    def make(
        *,
        urls: tuple[str, str] = URLS,
        models: tuple[str, str] = ("m", "m"),
        model: str = "",
        gates: str = COMPLETE,
        baseline: str | None = None,
        **body: Any,
    ) -> LoadedProtocol:
        members = {key: value for key, value in {**BODY, **body}.items() if value is not None}
        (tmp_path / "chat.json").write_text(json.dumps(members))
        arms = [f"{{kind: openai, url: '{url}', model: {name}}}" for url, name in zip(urls, models, strict=True)]
        path = tmp_path / "p.yaml"
        path.write_text(
            f"assay: 1\nid: p\ntitle: t\nclaim: screen\npurpose: p\n{model}settings: {{context_tokens: 512}}\narms:\n"
            f"  baseline: {{engine: {baseline or arms[0]}}}\n  candidate: {{engine: {arms[1]}}}\n"
            "schedule: {kind: explicit, order: [A1, C1], burn_in: false}\nworkloads:\n"
            "  - {id: chat, route: /v1/chat/completions, request: chat.json, prompt_tokens: 36, generated_tokens: 8}\n"
            f"gates:\n{gates}"
        )
        return load_protocol(path)

    return make


def warnings(loaded: LoadedProtocol) -> list[str]:
    return [problem.line().partition(".yaml:")[2] for problem in loaded.warnings]


def refusals(load: Any, **changes: Any) -> list[str]:
    with pytest.raises(ProtocolError) as caught:
        load(**changes)
    return [line.partition(".yaml:")[2] for line in caught.value.lines()]


def test_two_endpoints_need_no_model_file_and_leave_none_in_the_hashed_form(load: Any) -> None:
    loaded = load()
    assert warnings(loaded) == []
    assert loaded.protocol.model == ModelReference()
    assert "model" not in json.loads(loaded.protocol.canonical())
    stated = load(model="model: {name: smollm2}\n")
    assert json.loads(stated.protocol.canonical())["model"]["name"] == "smollm2"


def test_an_engine_that_is_started_needs_a_model_and_so_do_companions(load: Any) -> None:
    (found,) = refusals(load, baseline="{kind: llama-server, path: server}")
    assert "model: found neither name nor path, expected exactly one of them: the baseline is started with it" in found
    (found,) = refusals(load, model="model: {draft: {path: d.gguf}}\n")
    assert "model: found neither name nor path" in found


@pytest.mark.parametrize("other", ["http://127.0.0.1:8001", "http://127.0.0.1:8001/", "http://LOCALHOST:8001"])
def test_one_address_twice_is_called_an_a_a(load: Any, other: str) -> None:
    (warning,) = warnings(load(urls=(URLS[0], other)))
    assert (
        "arms.candidate.engine.url: both arms are one address: this compares an endpoint with itself (A/A)" in warning
    )


def test_two_addresses_are_no_a_a(load: Any) -> None:
    for other in ("http://127.0.0.1:8002", "http://127.0.0.2:8001", "https://127.0.0.1:8001"):
        assert warnings(load(urls=(URLS[0], other))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"urls": (URLS[0], URLS[1] + "/v2")}, "arms.candidate.engine.url: the address has the path /v2"),
        ({"urls": (URLS[0], "http://h:99999")}, "arms.candidate.engine.url: found the address http://h:99999"),
        ({"models": ("m", "other")}, "arms.candidate.engine.model: found the models m and other"),
    ],
)
def test_what_only_a_run_would_have_refused_is_refused_by_the_check(
    load: Any, changes: dict[str, Any], words: str
) -> None:
    (found,) = refusals(load, **changes)
    assert words in found


@pytest.mark.parametrize(("model", "names"), [(None, "no model"), ("n", "the model 'n'"), (7, "the model 7")])
def test_a_body_that_does_not_name_the_endpoints_model_is_refused_by_the_check(
    tmp_path: Path, load: Any, model: object, names: str
) -> None:
    load()
    body = {key: value for key, value in {**BODY, "model": model}.items() if value is not None}
    (tmp_path / "chat.json").write_text(json.dumps(body))
    with pytest.raises(ProtocolError) as caught:
        load_protocol(tmp_path / "p.yaml")
    (found,) = caught.value.lines()
    assert f"workloads[0].request: chat.json names {names}, and the baseline is asked for 'm'" in found
    assert 'write "model": "m" into it' in found


COLD = "  - {id: cold, kind: cold_cache, workload: chat, cached_tokens: 12}\n"
PREFILL = '  - {id: fast, kind: screen_loss, workload: chat, metric: prefill_rate, max_loss_pct: "9"}\n'


@pytest.mark.parametrize(
    ("gates", "cache_prompt", "words"),
    [
        (COMPLETE, False, None),
        (COMPLETE, None, "the prefill rate that the report shows may be that of a few tokens"),
        (COMPLETE, True, "the prefill rate that the report shows may be that of a few tokens"),
        (COMPLETE + PREFILL, None, "the prefill rate that gate fast judges may be that of a few tokens"),
        (COMPLETE + COLD, None, None),
        (
            COMPLETE + COLD.replace("12", "0"),
            None,
            "chat.json allows cached prompts, and a cold_cache gate states none",
        ),
    ],
)
def test_a_body_that_lets_its_prompt_come_from_the_cache_is_named(
    load: Any, gates: str, cache_prompt: bool | None, words: str | None
) -> None:
    found = [line for line in warnings(load(gates=gates, cache_prompt=cache_prompt)) if "cached prompts" in line]
    assert len(found) == (words is not None)
    assert not found or str(words) in found[0]
