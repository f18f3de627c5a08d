"""OpenAI's own Python client against the bundled server, as a user of an existing program would point it there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.arms import resolve_arm
from engine.build import installed_build
from engine.models import fetched_model
from engine.process import EngineProcess
from protocols.errors import EngineError
from protocols.schema import Arm, BundledEngine, Settings

openai = pytest.importorskip("openai", reason="NOT_RUN: the openai client is not installed; `make clients` installs it")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    try:
        model, build = fetched_model("smollm2"), installed_build()
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    folder = tmp_path_factory.mktemp("server")
    spec = Arm(engine=BundledEngine(kind="bundled"))
    arm = resolve_arm(spec, Settings(context_tokens=512, slots=2), model, build, base=folder)
    with EngineProcess.start(
        arm.argv, env=arm.environment, stdout_log=folder / "stdout.log", stderr_log=folder / "stderr.log"
    ) as engine:
        host, port = engine.wait_ready(60)
        yield openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model_name(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_the_server_lists_its_model(model_name: str) -> None:
    assert model_name


def test_a_chat_is_answered(client: openai.OpenAI, model_name: str) -> None:
    answer = client.chat.completions.create(
        model=model_name,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=24,
        temperature=0,
    )
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 24


def test_a_streamed_chat_says_the_same_as_a_whole_one(client: openai.OpenAI, model_name: str) -> None:
    question = [{"role": "user", "content": "Name three colours."}]
    whole = client.chat.completions.create(model=model_name, messages=question, max_tokens=32, temperature=0)
    text, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        model=model_name,
        messages=question,
        max_tokens=32,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_completion_stops_at_its_stop_text(client: openai.OpenAI, model_name: str) -> None:
    answer = client.completions.create(
        model=model_name, prompt="one two three four", max_tokens=32, temperature=0, stop=["\n"]
    )
    assert "\n" not in answer.choices[0].text


def test_a_wrong_request_is_the_clients_own_error(client: openai.OpenAI, model_name: str) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model_name, prompt="x " * 2000, max_tokens=4)
