"""Images as served to tests: embeddings among the parts of a prompt, at 2-D positions, without a vision tower."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen_data import Image, opened, tiny_model

from engine.worker import EngineWorker

ROUTE = "/test/image-completion"
SIDES = {"height": 6, "width": 5}


@pytest.fixture(scope="module")
def start(start_server: Callable[..., Any]) -> Callable[..., Any]:
    """Start the server of a tiny model in single precision, with the route."""

    def begin(name: str, *flags: str) -> Any:
        exact = ("--kv-type", "f32", "--no-flash-attention", "--threads", "1", "--ctx-size", "512", "--test-images")
        return start_server("--model", str(tiny_model(name)), *exact, *flags)

    return begin


def part(image: Image, **changes: Any) -> dict[str, Any]:
    rows = base64.b64encode(image.embeddings.astype("<f4").tobytes()).decode()
    return {"image": {**SIDES, "embeddings": rows, **changes}}


def prompt(image: Image) -> list[Any]:
    return [*image.ids[: image.first], part(image), *image.ids[image.end :]]


@pytest.mark.parametrize("ubatch", [512, 7])
@pytest.mark.parametrize("name", ["tiny-a", "tiny-b", "tiny-c"])
def test_the_logits_after_an_image_are_those_of_an_independent_implementation(
    start: Any, name: str, ubatch: int
) -> None:
    image = Image(name)
    # The reference has the text go on at P + max(height, width).
    assert image.at[0, image.end] == image.at[0, image.first] + max(SIDES.values())
    server = start(name, "--ubatch-size", str(ubatch))
    answer = server.post(ROUTE, prompt=prompt(image), n_predict=1, temperature=0, n_probs=20)
    logits = image.logits[-1].astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    found = answer["completion_probabilities"][0]["top_logprobs"]
    assert [one["logprob"] for one in found] == pytest.approx([expected[one["id"]] for one in found], abs=1e-3)
    assert found[0]["id"] == int(logits.argmax())
    assert answer["timings"]["prompt_n"] == answer["tokens_evaluated"] == len(image.ids)


@pytest.mark.parametrize("drafts", ["0", "4"])
def test_generation_goes_on_after_the_rows_and_columns_of_the_image(
    start: Any, tiny_b: EngineWorker, drafts: str
) -> None:
    image = Image("tiny-b")
    opened(tiny_b)
    image.decode_all(tiny_b)
    at, needed = int(image.at[0, -1]) + 1, [int(image.logits[-1].argmax())]
    while len(needed) < 24:
        needed.append(int(tiny_b.decode([needed[-1]], start=at + len(needed) - 1)[-1].argmax()))
    server = start("tiny-b", "--drafts", drafts)
    body = {"n_predict": 24, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    answer = server.post(ROUTE, prompt=prompt(image), **body)
    assert answer["tokens"] == needed
    assert (answer["timings"]["draft_n_accepted"] > 0) == (drafts != "0")
    events = server.stream(ROUTE, prompt=prompt(image), **body)
    assert list(itertools.chain(*(event["tokens"] for event in events))) == needed
    # An image is evaluated again each time; the text before it is no prefix of a prompt without it.
    assert events[-1]["timings"]["cache_n"] == 0
    text = server.post("/completion", prompt=[*image.ids[: image.first], 3, 4], n_predict=1)
    assert text["timings"]["cache_n"] == 0


def test_two_slots_see_their_own_images(start: Any, in_parallel: Any) -> None:
    image = Image("tiny-a")
    server = start("tiny-a", "--parallel", "2", "--kv-unified")
    other = Image("tiny-a")
    other.embeddings = -other.embeddings
    body = {"n_predict": 8, "temperature": 0, "return_tokens": True, "ignore_eos": True, "n_probs": 1}
    alone = [server.post(ROUTE, prompt=prompt(one), **body) for one in (image, other)]
    assert alone[0]["completion_probabilities"] != alone[1]["completion_probabilities"]
    together = in_parallel(*(lambda one=one: server.post(ROUTE, prompt=prompt(one), **body) for one in (image, other)))
    assert [one["tokens"] for one in together] == [one["tokens"] for one in alone]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"height": 0}, "prompt.image.height': an integer from 1 to 1024"),
        ({"width": "5"}, "prompt.image.width': an integer"),
        ({"width": 4}, "bytes are needed (height, width and 64 numbers a row)"),
        ({"embeddings": 3}, "a string is needed"),
        ({"embeddings": "AAA"}, "is no base64"),
        ({"embeddings": "AA-A"}, "is no base64"),
        ({"embeddings": "A==="}, "is no base64"),
        ({"embeddings": base64.b64encode(np.full(6 * 5 * 64, np.nan, "<f4").tobytes()).decode()}, "not finite"),
    ],
)
def test_an_image_that_cannot_be_meant_is_refused(start: Any, changes: dict[str, Any], words: str) -> None:
    image = Image("tiny-a")
    server = start("tiny-a")
    error = server.refused(ROUTE, prompt=[1, part(image, **changes), 2])
    assert error["code"] == 400
    assert words in error["message"]


def test_a_prompt_must_have_parts_and_end_with_text(start: Any) -> None:
    image = Image("tiny-a")
    server = start("tiny-a")
    for wrong in ("text", [], [part(image)], [1, {"picture": 1}]):
        assert server.refused(ROUTE, prompt=wrong)["type"] == "invalid_request_error"
    assert server.refused("/completion", prompt=[1, part(image), 2])["type"] == "invalid_request_error"
    assert server.refused(ROUTE, prompt=[1, *[part(image)] * 18, 2])["type"] == "exceed_context_size_error"


def test_a_slot_with_an_image_is_not_saved(start: Any, tmp_path: Path) -> None:
    server = start("tiny-a", "--slot-save-path", str(tmp_path))
    server.post(ROUTE, prompt=prompt(Image("tiny-a")), n_predict=1)
    assert "holds an image" in server.refused("/slots/0?action=save", filename="a")["message"]


def test_the_route_exists_only_on_request_and_only_on_this_host(
    start_server: Callable[..., Any], start_scripted: Any, scripted_folder: Path
) -> None:
    off = start_server("--model", str(tiny_model("tiny-a")), "--threads", "1", "--ctx-size", "64")
    assert "`--test-images`" in off.refused(ROUTE, prompt=[1])["message"]
    model = str(scripted_folder / "model")
    dense = start_scripted("--model", model, "--test-images")
    assert dense.refused(ROUTE, prompt=[1])["code"] == 501
    open_host = start_scripted("--model", model, "--test-images", "--host", "0.0.0.0", ready=False)
    assert open_host.process.wait(10) == 2
    assert "use --host 127.0.0.1, not 0.0.0.0" in open_host.log.read_text()
