"""Secrets: what is replaced, what is left alone, and a canary through a whole store."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.audit import audit_store
from recorder.secrets import SecretFilter

CANARY = "c4n4ry-5ecret-Value-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"authorization: Basic {CANARY}",
        f"X-Api-Key: {CANARY}",
        f"Set-Cookie: session={CANARY}; HttpOnly",
        f"--api-key {CANARY}",
        f"--api-key={CANARY}",
        f"--api-key -{CANARY}",
        f"-DAPI_KEY={CANARY}",
        f'["--api-key", "{CANARY}"]',
        f"['--hf-token','{CANARY}']",
        f"--model\0x.gguf\0--api-key\0{CANARY}\0--port\x000",
        f"API_KEY={CANARY}",
        f"export HF_TOKEN='{CANARY}'",
        f"PATH=/bin\0OPENAI_API_KEY={CANARY}\0HOME=/x",
        f'{{"API_KEY": "{CANARY}"}}',
        f'{{"headers":{{"Authorization":"Bearer {CANARY}"}}}}',
        f'{{\\"api_key\\":\\"{CANARY}\\"}}',
        f"api_key: '{CANARY}' password" if False else f'"password":"{CANARY}"',
        f"got a request with Bearer {CANARY}",
        f"GET /v1/models?api_key={CANARY} HTTP/1.1",
        f"http://user:{CANARY}@host/",
        "key sk-abcdefghijklmnop0123456789 used",
        "hf_abcdefghijklmnopqrstuv",
    ],
)
def test_a_secret_in_text_is_replaced(text: str):
    found = SecretFilter().text(text.encode()).decode()
    assert CANARY not in found
    assert "sk-abcdef" not in found
    assert "hf_abcdef" not in found
    assert "[redacted]" in found


@pytest.mark.parametrize(
    "text",
    [
        "llama: BOS token        = 1 '<s>'",
        '{"bos_token":"<s>","eos_token":"</s>","token":"hello","tokens":[1,2]}',
        "--max-tokens 128 --n-predict 5",
        "MAX_TOKENS=128 PARALLEL_SLOTS=2",
        "prompt eval time = 12.5 ms / 512 tokens",
        "http://127.0.0.1:8080/completion",
        "the monkey: banana",
        "cold_key_cache: 3",
        "c++ -DASSAY_FAULT_LOST_TOKEN_EVENT -O2 -c render.cpp",
        '["c++", "-DLOST_TOKEN_EVENT", "-O2"]',
    ],
)
def test_ordinary_text_is_left_alone(text: str):
    assert SecretFilter().text(text.encode()).decode() == text


def test_a_word_behind_a_secret_name_does_not_become_a_known_secret():
    secrets = SecretFilter()
    secrets.text(b"authorization: required")
    assert secrets.text(b"a token is required here") == b"a token is required here"


def test_the_value_of_a_request_header_is_known_from_then_on():
    secrets = SecretFilter()
    request = f"POST /c HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {CANARY}\r\n\r\n{{}}".encode()
    assert secrets.request(request) == b"POST /c HTTP/1.1\r\nHost: h\r\nAuthorization: [redacted]\r\n\r\n{}"
    assert CANARY.encode() not in secrets.text(f"unauthorised key {CANARY}".encode())
    assert secrets.masked(CANARY.encode()) == b"*" * len(CANARY)


def test_a_request_without_secrets_does_not_change():
    request = b"POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    assert SecretFilter().request(request) == request


def test_a_named_value_is_replaced_everywhere():
    secrets = SecretFilter([CANARY])
    assert secrets.text(f"x{CANARY}y".encode()) == b"x[redacted]y"
    assert secrets.value({"a": [CANARY, 5, None, True]}) == {"a": ["[redacted]", 5, None, True]}


def test_values_of_secret_members_and_flags_are_replaced_in_json():
    secrets = SecretFilter()
    found = secrets.value({"argv": ["x", "--api-key", "ab"], "env": {"API_KEY": "cd", "THREADS": "2"}, "n": 1})
    assert found == {"argv": ["x", "--api-key", "[redacted]"], "env": {"API_KEY": "[redacted]", "THREADS": "2"}, "n": 1}


HEAD = (
    f"HTTP/1.1 200 OK\r\nSet-Cookie: session={CANARY}; Path=/\r\nX-Api-Key: {CANARY}x\r\nServer: a\r\n\r\nbody {CANARY}"
)


@given(st.lists(st.integers(1, len(HEAD) - 1), max_size=6))
def test_header_values_are_masked_however_the_reads_are_split(cuts: list[int]):
    secrets, data = SecretFilter(), HEAD.encode()
    edges = [0, *sorted(set(cuts)), len(data)]
    pieces = [data[start:stop] for start, stop in itertools.pairwise(edges)]
    reads = secrets.reads()
    masked = [reads.read(piece) for piece in pieces]
    assert [len(piece) for piece in masked] == [len(piece) for piece in pieces]
    found = b"".join(masked)
    head = found.partition(b"\r\n\r\n")[0]
    assert CANARY[:12].encode() not in head
    assert b"Server: a" in head
    assert b"Set-Cookie: " in head
    assert b"HTTP/1.1 200 OK" in head


@given(st.binary(max_size=300))
def test_the_length_of_a_read_never_changes(data: bytes):
    assert len(SecretFilter([CANARY]).reads().read(data)) == len(data)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_lines_in_pieces_give_the_same_text_as_the_whole(data: bytes, size: int):
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert b"".join(SecretFilter().lines(pieces)) == b"".join(SecretFilter().lines([data]))


def test_planted_secrets_are_nowhere_in_the_store(tmp_path: Path, synthetic):
    """Headers, cookies, argv, environment, logs, notes, receipts, reasons, reads: a search over every byte finds none."""
    root = tmp_path / "store"
    header, cookie, flag, variable, bare, named = (
        f"{word}-{CANARY}" for word in ("hdr", "cke", "flg", "var", "bar", "nam")
    )
    with synthetic.open_store(root, secrets=[named]) as store:
        parts = synthetic.lock_parts()
        campaign = store.begin_campaign(**parts)
        campaign.record_preflight([{"check": "environment", "found": f"API_KEY={variable}"}])
        campaign.record_receipt(
            "build",
            {"argv": ["server", "--api-key", flag], "environment": {"API_KEY": variable}},
            {"build.log": f"export HF_TOKEN={variable}\nAuthorization: Bearer {header}\n".encode()},
        )
        load = campaign.open_load(synthetic.positions()[0])
        load.log_path("engine.log").write_text(
            f"start --api-key {flag}\nAPI_KEY={variable}\nclient sent {header}\nbare {bare} Bearer {bare}\n{named}\n"
        )
        load.note("engine.started", argv=f"server --api-key {flag}", key=named)
        sink = load.exchange(
            name="tiny",
            route="/completion",
            kind="native",
            workload="tiny",
            repeat=0,
            is_warmup=False,
            request=synthetic.http_request(
                "/completion?api_key=" + variable,
                synthetic.REQUESTS["requests/tiny.json"],
                [f"Authorization: Bearer {header}", f"X-Api-Key: {flag}", f"Cookie: a={cookie}"],
            ),
        )
        reads = synthetic.completion_reads()
        split = f"HTTP/1.1 200 OK\r\nSet-Cookie: sid={cookie}; Path=/\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        half = split.index(cookie) + 5
        echo = synthetic.chunk(f": echo {header} {named}\n\n".encode())
        middle = echo.index(b"hdr") + 9
        sink.on_sent(4 * 10**9)
        for piece in (
            split[:half].encode(),
            split[half:].encode(),
            echo[:middle],
            echo[middle:],
            *[data for _, data in reads[1:]],
        ):
            sink.on_read(4 * 10**9 + 5, piece)
        sink.close("complete", 4 * 10**9 + 9)
        load.attach("environ.txt", f"PATH=/bin\0API_KEY={variable}\0".encode())
        load.attach("props.json", json.dumps({"authorization": f"Bearer {header}"}).encode())
        load.seal(state="PARTIAL", reason=f"the server refused --api-key {flag}")
        campaign.record_interruption(f"stopped: {named}")
        campaign.record_report({"report.md": f"# report {header}\n".encode()})
        # The database is folded into one file on closing; look at it while its log is still beside it, too.
        searched = list(_search(root))
    searched += list(_search(root))
    assert len(searched) > 40
    hits = [
        f"{path}: {secret}"
        for path, data in searched
        for secret in (header, cookie, flag, variable, bare, named)
        if secret.encode() in data
    ]
    assert hits == []
    assert audit_store(root).findings == ()
    os.utime(root)


def _search(root: Path):
    for path in root.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()
