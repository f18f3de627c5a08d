"""Builds recorded exchanges for tests: events in, a Wire out that went through the real writer and reader."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

from recorder.derive import DerivedRequest, derive_request
from recorder.wire import Wire, WireWriter, read_wire

REQUEST = b'POST /completion HTTP/1.1\r\nHost: h\r\n\r\n{"n_predict":3}'
MS = 1_000_000


def head(status: int = 200, content_type: str | None = "text/event-stream", *extra: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *extra]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunked_head(status: int = 200, content_type: str = "text/event-stream") -> bytes:
    return head(status, content_type, "Transfer-Encoding: chunked")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def record(
    reads: Iterable[tuple[int, bytes]],
    *,
    sent_ns: int | None = 0,
    end: tuple[str, int] | None = ("complete", 10**12),
    request: bytes = REQUEST,
) -> bytes:
    """The file of an exchange with these reads (ns, bytes)."""
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(request)
    if sent_ns is not None:
        writer.sent(sent_ns)
    for t_ns, data in reads:
        writer.read(t_ns, data)
    if end is not None:
        writer.end(*end)
    return file.getvalue()


def exchange(
    events: Iterable[tuple[int, bytes]], *, ends: bool = True, end: str = "complete", **options: object
) -> Wire:
    """A chunked event stream: headers at 1 ms, each (ms, bytes) as one chunk in one read, then the last chunk."""
    reads = [(1 * MS, chunked_head())]
    reads += [(ms * MS, chunk(data)) for ms, data in events]
    last = reads[-1][0]
    if ends:
        reads.append((last, LAST_CHUNK))
    return read_wire(record(reads, end=(end, last + MS), **options))  # type: ignore[arg-type]


def sse(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def token(token_id: int, content: str, running: int, **more: object) -> bytes:
    event = {
        "index": 0,
        "content": content,
        "tokens": [token_id],
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": running,
        "tokens_evaluated": 5,
    }
    return sse(event | more)


TIMINGS = {"cache_n": 0, "prompt_n": 5, "prompt_ms": 10.0, "predicted_n": 3, "predicted_ms": 20.0}


def final(generated: int = 3, **more: object) -> bytes:
    event = {
        "index": 0,
        "content": "",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "m",
        "tokens_predicted": generated,
        "tokens_evaluated": 5,
        "generation_settings": {"temperature": 0.0},
        "stop_type": "limit",
        "timings": TIMINGS | {"predicted_n": generated},
    }
    return sse(event | more)


def good_events() -> list[tuple[int, bytes]]:
    """Three tokens at 10, 20 and 30 ms and the final event at 31 ms."""
    return [(10, token(11, "a", 1)), (20, token(12, "b", 2)), (30, token(13, "c", 3)), (31, final())]


def chat(delta: dict[str, object] | None, *, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return sse({"id": "x", "object": "chat.completion.chunk", "choices": choices} | more)


def text_chunk(text: str, *, finish: str | None = None, **more: object) -> bytes:
    return sse(
        {"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}
        | more
    )


DONE = b"data: [DONE]\n\n"


def native(events, **options) -> DerivedRequest:
    return derive_request(exchange(events, **options), "native")


def openai(events, **options) -> DerivedRequest:
    return derive_request(exchange(events, **options), "openai")


def codes(request: DerivedRequest) -> set[str]:
    return {flag.code for flag in request.flags}


def flag(request: DerivedRequest, code: str) -> tuple[int | None, int | None]:
    return next((one.expected, one.found) for one in request.flags if one.code == code)
