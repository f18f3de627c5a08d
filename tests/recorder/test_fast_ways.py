"""Each fast way of reading a stream, switched off: the answers stay the same, to the last field.

Fast ways: an HTTP message at once, a body of one-line events by one pattern, a typed decode of token events, and runs
of plain token events taken at once.
"""

from __future__ import annotations

import json
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder import http1, sse, stream_events, stream_tally
from recorder.derive import DerivedRequest, derive_request
from recorder.wire import Wire, read_wire

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"


def refuse(_: bytes) -> None:
    raise msgspec.ValidationError


def slowly(wire: Wire, kind: str) -> DerivedRequest:
    with (
        mock.patch.object(http1, "_parse_at_once", return_value=None),
        mock.patch.object(sse, "_plain_stream", return_value=None),
        mock.patch.object(stream_events, "_native", refuse),
        mock.patch.object(stream_events, "_chunk", refuse),
        mock.patch.object(stream_tally.Tally, "_plain_run", return_value=None),
    ):
        return derive_request(wire, kind)


def odd(member: str) -> st.SearchStrategy[dict[str, object]]:
    """Nothing in most cases, else one member with a value that a server may or may not send."""
    values = st.sampled_from(
        [
            None,
            0,
            1,
            2,
            3,
            -1,
            2**31,
            1.0,
            0.0,
            True,
            False,
            "",
            "x",
            [],
            [1],
            [1, "2"],
            [-5],
            {},
            {"a": 1},
            {"message": "m"},
        ]
    )
    return st.just({}) | st.just({}) | values.map(lambda value: {member: value})


NATIVE_MEMBERS = [
    "content",
    "tokens",
    "stop",
    "tokens_predicted",
    "index",
    "error",
    "prompt_progress",
    "timings",
    "zzz",
]
CHUNK_MEMBERS = ["choices", "object", "usage", "timings", "error", "tokens", "__verbose"]
CHOICE_MEMBERS = ["index", "text", "delta", "finish_reason", "token_ids", "tokens", "message"]
DELTA_MEMBERS = ["content", "reasoning_content", "reasoning", "tool_calls", "role"]


@st.composite
def native_bodies(draw: st.DrawFn) -> list[bytes]:
    events, running = [], 0
    for _ in range(draw(st.integers(0, 6))):
        ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=2))
        running += draw(st.sampled_from([len(ids), len(ids), len(ids), 0, 3]))
        event = {"content": draw(st.sampled_from(["a", "", "é\n"])), "tokens": ids, "tokens_predicted": running}
        if draw(st.integers(0, 3)) == 0:
            event |= draw(odd(draw(st.sampled_from(NATIVE_MEMBERS))))
        events.append(json.dumps(event).encode())
    if draw(st.booleans()):
        events.append(S.final(running)[6:-2])
    return events


@st.composite
def openai_bodies(draw: st.DrawFn) -> list[bytes]:
    events = []
    for _ in range(draw(st.integers(0, 6))):
        delta = {"content": draw(st.sampled_from(["a", "", None]))} | draw(odd(draw(st.sampled_from(DELTA_MEMBERS))))
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        if draw(st.booleans()):
            choice = {"index": 0, "text": "b", "finish_reason": None}
        choice |= draw(odd(draw(st.sampled_from(CHOICE_MEMBERS))))
        event = {"object": "chat.completion.chunk", "choices": [choice]} | draw(
            odd(draw(st.sampled_from(CHUNK_MEMBERS)))
        )
        events.append(json.dumps(event).encode())
    if draw(st.booleans()):
        events += [S.chat({}, finish="stop")[6:-2], S.chat(None, usage={"completion_tokens": 3})[6:-2], b"[DONE]"]
    return events


FRAMES = st.sampled_from(
    [b"data: %s\n\n"] * 8 + [b"data: %s\r\n\r\n", b": ping\n\ndata: %s\n\n", b"event: error\ndata: %s\n\n"]
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Wire, str]:
    kind = draw(st.sampled_from(["native", "openai"]))
    frame = draw(FRAMES)
    bodies = draw(native_bodies() if kind == "native" else openai_bodies())
    frames = [(draw(FRAMES) if draw(st.integers(0, 9)) == 0 else frame) % body for body in bodies]
    if draw(st.integers(0, 5)) == 0:
        frames.append(draw(st.sampled_from([b"data: [DONE]", b"data: {}", b"\xff\n\n", b"data: \xff\n\n", b": c"])))
    message = S.chunked_head() + b"".join(map(S.chunk, frames)) + S.LAST_CHUNK
    cuts = draw(
        st.sampled_from([[], [*range(0, len(message), 7)]]) | st.lists(st.integers(0, len(message)), max_size=6)
    )
    borders = [0, *sorted({*cuts, len(S.chunked_head())}), len(message)]
    reads = [(100 * row, message[a:b]) for row, (a, b) in enumerate(pairwise(borders))]
    return read_wire(S.record(reads)), kind


@given(streams(), st.sampled_from([2, 3, 1000]), st.sampled_from([1, 2, 4]))
def test_with_every_fast_way_off_a_request_is_the_same(stream: tuple[Wire, str], run: int, alone: int) -> None:
    wire, kind = stream
    with mock.patch.object(stream_tally, "_RUN", run), mock.patch.object(stream_tally, "_ONE_BY_ONE", alone):
        found = derive_request(wire, kind)
    assert slowly(wire, kind) == found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.wire")), ids=lambda path: path.stem)
def test_captures_of_real_servers_are_read_alike(path: Path) -> None:
    wire = read_wire(path.read_bytes())
    for kind in ("native", "openai"):
        assert slowly(wire, kind) == derive_request(wire, kind)


def test_the_fast_ways_are_taken_by_a_plain_stream() -> None:
    """Else the tests above would compare the slow ways with themselves."""
    wire = S.exchange(S.good_events())
    with (
        mock.patch.object(http1, "parse_by_reads", side_effect=AssertionError),
        mock.patch.object(sse, "_stream_of_frames", side_effect=AssertionError),
    ):
        assert derive_request(wire, "native").token_ids == (11, 12, 13)
    with mock.patch.object(stream_events, "_slow_native", wraps=stream_events._slow_native) as slow:
        derive_request(wire, "native")
    assert slow.call_count == 1, "the final event alone"
    added = stream_tally.Tally.add_decoded
    wire = S.exchange([(number, S.token(number, "a", number)) for number in range(1, 40)] + [(40, S.final(39))])
    with mock.patch.object(stream_tally.Tally, "add_decoded", autospec=True, side_effect=added) as long:
        derive_request(wire, "native")
    assert long.call_count == 5, "the first token and the last four events"
