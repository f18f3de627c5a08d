"""How fast recorded streams are read: from the bytes of a wire file to the measurement, as ``audit --recompute`` does it.

``python tests/bench/bench_sse.py [--rounds 400]`` prints a table; `make bench` runs it. Each stream has 1,000 events; the
best round counts, because whatever else the host does can only make a round slower. MB are those of the event stream
itself, without HTTP and wire framing. The line reader is the usual way of clients (decode, split into lines,
``json.loads``) over the same body, for comparison: it is not held to the standard, and yields no measurement.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import time
from collections.abc import Callable

from recorder.http1 import parse_by_reads, parse_response
from recorder.load_files import Exchange
from recorder.request_rows import read_exchange
from recorder.sse import read_by_pieces, read_stream
from recorder.stream_events import decode_native
from recorder.wire import WireWriter, read_wire

EVENTS = 1_000
PING = b": ping\n\n"


def native(index: int, *, pad: int) -> bytes:
    event = {
        "index": 0, "content": f" tok{index}", "tokens": [index], "stop": False, "id_slot": 0,
        "tokens_predicted": index, "tokens_evaluated": 512,
    }  # fmt: skip
    return compact(event | ({"pad": "x" * pad} if pad else {}))


def native_final() -> bytes:
    final = {"content": "", "tokens": [], "stop": True, "tokens_predicted": EVENTS, "tokens_evaluated": 512}
    return compact(final | {"stop_type": "limit"})


def chat(index: int) -> bytes:
    choice = {"finish_reason": None, "index": 0, "delta": {"content": f" tok{index}"}}
    return compact({"choices": [choice], **chat_members()})


def chat_final() -> bytes:
    return compact({"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}], **chat_members()})


def chat_members() -> dict[str, object]:
    return {
        "created": 1_764_400_000, "id": "chatcmpl-" + "a" * 32, "model": "smollm2-135m-instruct-q4_1.gguf",
        "system_fingerprint": "b11434-abcdef0", "object": "chat.completion.chunk",
    }  # fmt: skip


def compact(value: object) -> bytes:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def recording(events: list[bytes], *, events_a_read: int = 1) -> bytes:
    """The wire file of an answer: each event a chunk, so many chunks a read."""
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(b"POST /completion HTTP/1.1\r\n\r\n{}")
    writer.sent(0)
    writer.read(1, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunks = [b"%x\r\n%s\r\n" % (len(data), data) for data in events]
    chunks[-1] += b"0\r\n\r\n"
    for first in range(0, len(chunks), events_a_read):
        writer.read((first + 1) * 1000, b"".join(chunks[first : first + events_a_read]))
    writer.end("complete", (len(chunks) + 2) * 1000)
    return file.getvalue()


LONG = [*(native(index, pad=180) for index in range(1, EVENTS + 1)), native_final()]
SHORT = [*(native(index, pad=0) for index in range(1, EVENTS + 1)), native_final()]
CHAT = [*(chat(index) for index in range(1, EVENTS + 1)), chat_final(), b"data: [DONE]\n\n"]
RECORDINGS: dict[str, tuple[str, bytes]] = {
    "native, long events": ("native", recording(LONG)),
    "native, short events": ("native", recording(SHORT)),
    "native, long, 8 events a read": ("native", recording(LONG, events_a_read=8)),
    "native, long, with pings": ("native", recording([*LONG[:500], PING, *LONG[500:]])),
    "native, long, CR LF": ("native", recording([data.replace(b"\n", b"\r\n") for data in LONG])),
    "chat": ("openai", recording(CHAT)),
}


def measure_all(content: bytes, kind: str) -> None:
    exchange = Exchange(
        number=1, name="x", file="x", route="/", kind=kind, workload="w", repeat=1, is_warmup=False
    )  # fmt: skip
    assert read_exchange(exchange, content).measurement().outcome == "ok"


def stages() -> dict[str, Callable[[], object]]:
    content = RECORDINGS["native, long events"][1]
    wire = read_wire(content)
    body = parse_response(wire.reads).body
    data = read_stream(body).data

    def lines_and_json() -> None:
        for line in body.data.decode().split("\n"):
            if line.startswith("data: "):
                json.loads(line[6:])

    return {
        "  wire file to reads": lambda: read_wire(content),
        "  reads to body": lambda: parse_response(wire.reads),
        "  reads to body, slow way": lambda: parse_by_reads(wire.reads),
        "  body to events": lambda: read_stream(body),
        "  body to events, slow way": lambda: read_by_pieces(body),
        "  typed JSON": lambda: [decode_native(one) for one in data],
        "lines and json.loads, body only": lines_and_json,
    }


def best_s(case: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        case()
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=400)
    rounds = options.parse_args().rounds
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, best of {rounds}")
    print(f"{'from wire file to measurement':34}{'bytes/event':>12}{'us/event':>10}{'events/s':>11}{'MB/s':>8}")
    body_bytes = sum(map(len, LONG))
    for name, (kind, content) in RECORDINGS.items():
        size = len(parse_response(read_wire(content).reads).body.data)
        show(name, size, best_s(lambda kind=kind, content=content: measure_all(content, kind), rounds))
    for name, case in stages().items():
        show(name, body_bytes, best_s(case, rounds))


def show(name: str, body_bytes: int, best: float) -> None:
    each = best / EVENTS
    print(f"{name:34}{body_bytes / EVENTS:12.0f}{each * 1e6:10.2f}{1 / each:11,.0f}{body_bytes / best / 1e6:8.1f}")


if __name__ == "__main__":
    main()
