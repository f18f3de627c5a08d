"""How fast recorded streams are read. Run it with ``pytest tests/bench/bench_sse.py``; nothing here has a time limit.

Each round reads 20,000 events, one a socket read, as llama-server sends them (about 330 bytes with HTTP chunk framing).
``extra_info`` holds microseconds an event and megabytes of wire a second. The line reader is the usual way of clients
(decode, split into lines, ``json.loads``) over the same body, for comparison: it is not held to the standard.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from recorder.derive import derive_request
from recorder.http1 import parse_response
from recorder.sse import read_by_pieces, read_stream
from recorder.stream_events import decode_native
from recorder.wire import WireWriter, read_wire

EVENTS = 1_000


def recording() -> bytes:
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(b"POST /completion HTTP/1.1\r\n\r\n{}")
    writer.sent(0)
    writer.read(1, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for index in range(1, EVENTS + 1):
        event = {
            "index": 0, "content": f" tok{index}", "tokens": [index], "stop": False, "id_slot": 0,
            "tokens_predicted": index, "tokens_evaluated": 512, "pad": "x" * 180,
        }  # fmt: skip
        data = f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
        writer.read(index * 1000, b"%x\r\n%s\r\n" % (len(data), data))
    final = {
        "content": "",
        "tokens": [],
        "stop": True,
        "tokens_predicted": EVENTS,
        "tokens_evaluated": 512,
        "stop_type": "limit",
    }
    data = f"data: {json.dumps(final)}\n\n".encode()
    writer.read((EVENTS + 1) * 1000, b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
    writer.end("complete", (EVENTS + 2) * 1000)
    return file.getvalue()


RECORDING = recording()
WIRE = read_wire(RECORDING)
RESPONSE = parse_response(WIRE.reads)
DATA = read_stream(RESPONSE.body).data
BODY = RESPONSE.body.data


def read_lines_and_json() -> None:
    for line in BODY.decode().split("\n"):
        if line.startswith("data: "):
            json.loads(line[6:])


def derive_everything() -> None:
    assert derive_request(read_wire(RECORDING), "native").outcome == "ok"


CASES: dict[str, Callable[[], object]] = {
    "wire": lambda: read_wire(RECORDING),
    "http": lambda: parse_response(WIRE.reads),
    "sse whole body": lambda: read_stream(RESPONSE.body),
    "sse read by read": lambda: read_by_pieces(RESPONSE.body),
    "json of a token": lambda: [decode_native(data) for data in DATA],
    "wire to measurement": derive_everything,
    "lines and json.loads, body only": read_lines_and_json,
}


@pytest.mark.parametrize("case", CASES)
def test_reading_a_stream(benchmark: BenchmarkFixture, case: str) -> None:
    benchmark.pedantic(CASES[case], rounds=5, warmup_rounds=1)
    if benchmark.stats is not None:
        best_s = benchmark.stats.stats.min
        benchmark.extra_info["us_per_event"] = round(best_s / EVENTS * 1e6, 3)
        benchmark.extra_info["wire_mb_per_s"] = round(len(RECORDING) / best_s / 1e6, 1)
