from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from protocols.checks.smoke import SmokeCheck
from protocols.load import LoadedProtocol
from protocols.request_checks import check_requests, parse_body

NAME = "requests/cold-512.json"


@pytest.fixture
def messages(served_pair: LoadedProtocol) -> Callable[..., list[str]]:
    """Check served-pair with a changed body of its measured request; None as a value removes the key."""

    def check(body: bytes | None = None, **changes: Any) -> list[str]:
        if body is None:
            members = {**json.loads(served_pair.requests[NAME]), **changes}
            body = json.dumps({key: value for key, value in members.items() if value is not None}).encode()
        requests = {**served_pair.requests, NAME: body}
        findings = list(check_requests(served_pair.protocol, requests))
        assert all(finding.path == ("workloads", 0, "request") for finding in findings)
        return [("warning: " if finding.is_warning else "") + finding.message for finding in findings]

    return check


def test_the_bundled_body_is_sound(messages: Callable[..., list[str]]) -> None:
    assert messages() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stream": False}, f"{NAME} does not ask for a stream, without which no time can be taken"),
        ({"stream": None}, f"{NAME} does not ask for a stream, without which no time can be taken"),
        ({"n_predict": 64}, f"{NAME} has 64 for n_predict, and generated_tokens is 128"),
        ({"n_predict": None}, f"{NAME} has nothing for n_predict, and generated_tokens is 128"),
        ({"prompt": [1, 2, 3]}, f"{NAME} has a prompt of 3 ids, and prompt_tokens is 512"),
        ({"return_tokens": None}, f"{NAME} does not ask for token ids, which an exact_tokens gate compares"),
        (
            {"temperature": 0.7},
            f"warning: {NAME} does not set temperature to 0: equal token ids then depend on equal random numbers",
        ),
        (
            {"ignore_eos": None},
            f"warning: {NAME} does not set ignore_eos: an early end fails the stated number of generated tokens",
        ),
    ],
)
def test_a_body_that_contradicts_the_protocol_is_named(
    messages: Callable[..., list[str]], changes: dict[str, Any], message: str
) -> None:
    assert messages(**changes) == [message]


def test_a_prompt_of_text_is_counted_by_the_engine_not_here(messages: Callable[..., list[str]]) -> None:
    assert messages(prompt="some text") == []
    assert messages(prompt=[1, "mixed"]) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(messages: Callable[..., list[str]], body: bytes) -> None:
    found = messages(body=body)
    assert len(found) == 1
    assert found[0].startswith(f"{NAME} is not readable: ")
    with pytest.raises(ValueError, match=r"."):
        parse_body(body)


@pytest.mark.parametrize(
    ("workloads", "prompt", "message"),
    [
        (["cold-512"], "a text", None),
        ([], "a text", None),
        (["cold-512"], [1, "mixed"], "found cold-512, which posts neither a text nor a list of ids to /completion"),
        ([], [[1], [2]], "found no workload that posts a text or token ids to /completion, so there is nothing to ask"),
        (["cold-512"], [], "found cold-512, which posts neither a text nor a list of ids to /completion"),
    ],
)
def test_a_smoke_of_what_cannot_be_asked_again_is_refused_where_it_is_named(
    served_pair: LoadedProtocol, workloads: list[str], prompt: object, message: str | None
) -> None:
    check = SmokeCheck(kind="smoke", id="c", workloads=tuple(workloads))
    protocol = served_pair.protocol.model_copy(update={"checks": (check,)})
    body = json.dumps({**json.loads(served_pair.requests[NAME]), "prompt": prompt}).encode()
    found = [
        finding
        for finding in check_requests(protocol, {**served_pair.requests, NAME: body})
        if finding.path[0] == "checks"
    ]
    assert [finding.message for finding in found] == ([] if message is None else [message])
    assert {finding.path for finding in found} <= {("checks", 0), ("checks", 0, "workloads", 0)}
