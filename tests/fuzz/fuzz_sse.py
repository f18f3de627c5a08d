"""Fuzzes the way from recorded bytes to a measurement: wire file, HTTP, event stream, JSON, tally.

``python tests/fuzz/fuzz_sse.py -max_total_time=60 tests/fuzz/corpus/sse`` runs it (atheris; libFuzzer's options), and
``make nightly`` does for FUZZ_SECONDS. `check` is what must hold for any input; the corpus goes through it in every
test run. An input is one line of ASCII, then the body:

    KIND SEED     w: a wire file   h: an HTTP answer   n, o: an event stream, native or OpenAI, inside good HTTP
    body          cut into reads at places that SEED decides (0: one read; 1: every byte is a read of its own)
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent.parent))  # fuzz the tree that this file lies in, not an installed copy
if __name__ == "__main__":
    import atheris

    instrumented = atheris.instrument_imports(include=["recorder"])
else:
    instrumented = contextlib.nullcontext()
with instrumented:
    from recorder import sse
    from recorder.body import Body
    from recorder.derive import derive_request
    from recorder.http1 import parse_by_reads, parse_response
    from recorder.wire import Read, Wire, read_wire

RECORDER_TESTS = HERE.parent / "recorder"
STREAMS = runpy.run_path(str(RECORDER_TESTS / "streams.py"))
reference = runpy.run_path(str(RECORDER_TESTS / "whatwg.py"))["reference"]


def cut(body: bytes, seed: int) -> list[bytes]:
    """Cut a body into reads, the same way each time."""
    if seed == 0:
        return [body]
    if seed == 1:
        return [body[place : place + 1] for place in range(len(body))]
    places, state = [0], seed
    while places[-1] < len(body):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        places.append(min(places[-1] + (state >> 16) % (3 * seed) + 1, len(body)))
    return [body[a:b] for a, b in pairwise(places)]


def check(data: bytes) -> None:
    """Assert what must hold for any bytes; see the module."""
    head, _, body = data.partition(b"\n")
    kind, _, number = head.decode("latin-1").partition(" ")
    seed = int(number) if number.isdecimal() and len(number) < 5 else 0
    if kind == "w":
        measured(read_wire(body), "native")
        return
    pieces = [(10 * index, piece, index) for index, piece in enumerate(cut(body, seed))]
    if kind == "h":
        reads = tuple(Read(t_ns, piece) for t_ns, piece, _ in pieces)
        assert parse_response(reads) == parse_by_reads(reads)
        measured(wire_of(reads), "openai")
        return
    check_stream(body, pieces)
    chunks = [STREAMS["chunk"](piece) for _, piece, _ in pieces if piece]
    whole = b"".join([STREAMS["chunked_head"](), *chunks, STREAMS["LAST_CHUNK"]])
    reads = tuple(Read(index, piece) for index, piece in enumerate(cut(whole, seed)))
    assert parse_response(reads).body.data == body
    measured(wire_of(reads), "openai" if kind == "o" else "native")


def check_stream(body: bytes, pieces: list[tuple[int, bytes, int]]) -> None:
    """Compare the readers with the standard, and with each other."""
    stream = sse.read_stream(Body.of(pieces))
    assert stream == sse.read_by_pieces(Body.of(pieces))
    at_once = sse.read_stream(Body.of([(0, body, 0)]))
    assert (stream.data, stream.names, stream.is_cut) == (at_once.data, at_once.names, at_once.is_cut)
    terminated = [(one.data, one.event) for one in stream.events() if one.is_terminated]
    assert terminated == [(found, name) for found, name, _ in reference(body)]


def wire_of(reads: tuple[Read, ...]) -> Wire:
    end_ns = reads[-1].t_ns if reads else 0
    return Wire(request=b"", sent_ns=0, reads=reads, end_ns=end_ns, end_reason="complete", is_cut=False)


def measured(wire: Wire, kind: str) -> None:
    """Derive everything; no number may be impossible, and nothing that was not dispatched may be a token."""
    request = derive_request(wire, kind)
    assert (request.outcome == "ok") == (request.reason_code is None)
    assert request.counts.events == len(request.events)
    assert request.counts.unterminated <= 1
    assert all(not event.token_ids for event in request.events if event.role in {"unterminated", "unparsable", "done"})
    assert request.generated_tokens is None or request.generated_tokens >= 0
    assert request.itl_ns is None or len(request.itl_ns) == max(len(request.token_events) - 1, 0)


if __name__ == "__main__":
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
