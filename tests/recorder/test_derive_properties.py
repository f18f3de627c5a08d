"""Any split into reads gives the same request, and no bytes ever raise."""

from __future__ import annotations

import json
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recorder.derive import derive_request
from recorder.wire import read_wire

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
native, openai, codes, flag = S.native, S.openai, S.codes, S.flag
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"
MS = 1_000_000

BODY = b"".join(data for _, data in S.good_events())
MESSAGE = S.chunked_head() + b"".join(S.chunk(data) for _, data in S.good_events()) + S.LAST_CHUNK


@given(st.lists(st.integers(0, len(MESSAGE)), max_size=20))
@example(cuts=list(range(len(MESSAGE))))
def test_any_split_into_reads_gives_the_same_request_but_for_its_times(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(MESSAGE)]
    reads = [(1000 + index, MESSAGE[a:b]) for index, (a, b) in enumerate(pairwise(borders))]
    request = derive_request(read_wire(S.record(reads)), "native")
    whole = derive_request(read_wire(S.record([(1000, MESSAGE)])), "native")
    assert (request.token_ids, request.outcome, request.text) == ((11, 12, 13), "ok", "abc")
    assert [(event.role, event.token_ids, event.size_bytes) for event in request.events] == [
        (event.role, event.token_ids, event.size_bytes) for event in whole.events
    ]
    # Each event is stamped with the read that brought its last byte.
    for event, (_, data) in zip(request.events, S.good_events(), strict=True):
        place = MESSAGE.index(data) + len(data)
        read = next(index for index, border in enumerate(borders[1:]) if border >= place)
        assert (event.t_ns, event.read_index) == (1000 + read, read)


JUNK = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([S.chunked_head(), S.head(), S.head(500), S.LAST_CHUNK, S.DONE, *(data for _, data in S.good_events())]),
    st.sampled_from([b"data: ", b"data: " + b"[" * 5000 + b"\n\n", b'data: {"tokens":' + b"9" * 5000 + b"}\n\n"]),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tokens", "stop", "timings", "usage", "error", "index", "message", "__verbose",
                 "generation_settings", "text", "finish_reason", "prompt_ms", "predicted_n", "tool_calls", "work", "token_ids"]
            ),
            inner,
            max_size=4,
        ),
        max_leaves=12,
    ).map(lambda value: f"data: {json.dumps(value)}\n\n".encode()),
)  # fmt: skip


@given(
    st.lists(JUNK, max_size=6),
    st.sampled_from(["native", "openai"]),
    st.booleans(),
    st.sampled_from(["closed", "idle_timeout", "?"]),
)
def test_arbitrary_bytes_never_raise(parts: list[bytes], kind: str, has_head: bool, end: str) -> None:
    reads = [(index, data) for index, data in enumerate([S.head(), *parts] if has_head else parts)]
    request = derive_request(read_wire(S.record(reads, end=(end, 10**6))), kind)
    assert (request.outcome == "ok") == (request.reason_code is None)
    measured = request.measurement(workload="w", repeat=1, is_warmup=False)
    assert all(value is None or value >= 0 for value in (measured.server_prefill_ns, measured.generated_tokens))
    assert request.itl_ns is None or len(request.itl_ns) == max(len(request.token_events) - 1, 0)
    assert request.tpot_ns is None or request.tpot_ns >= 0


def test_the_shortcut_for_plain_tokens_gives_what_the_long_way_gives() -> None:
    """The same stream with an unknown member in each event that forces nothing, and with one that forces the exact path."""
    plain = native(S.good_events())
    events = [(ms, data.replace(b'"id_slot":0', b'"id_slot":0,"prompt_progress":{}')) for ms, data in S.good_events()]
    long = native(events)
    assert [(event.role, event.token_ids, event.text, event.t_ns) for event in long.events] == [
        (event.role, event.token_ids, event.text, event.t_ns) for event in plain.events
    ]
    assert (long.outcome, long.flags) == (plain.outcome, plain.flags)


@pytest.mark.parametrize("kind", ["native", "openai"])
def test_reports_of_a_long_prefill_are_no_tokens(kind: str) -> None:
    """As engine-server writes them, between the head and the first token: rates and gaps are those of the stream without."""
    native_shape = {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": 0, "tokens_predicted": 0}
    shape = native_shape if kind == "native" else {"choices": [], "id": "x", "object": "text_completion"}
    events = S.good_events()
    if kind == "openai":
        texts = [(10, S.text_chunk("a")), (20, S.text_chunk("b"))]
        last = S.text_chunk("", finish="length", timings=S.TIMINGS | {"predicted_n": 2}, usage={"completion_tokens": 2})
        events = [*texts, (30, last), (31, S.DONE)]
    progress = [
        (ms, S.sse(shape | {"timings": {"cache_n": 0, "prompt_n": n, "prompt_ms": float(ms), "predicted_n": 0},
                            "prompt_progress": {"total": 5, "cache": 0, "processed": n, "time_ms": ms}}))
        for ms, n in ((1, 0), (4, 3), (8, 5))
    ]  # fmt: skip
    plain, reported = (derive_request(S.exchange(one), kind) for one in (events, [*progress, *events]))
    assert [event.role for event in reported.events[:3]] == ["progress"] * 3
    assert [(event.t_ns, event.token_ids, event.text) for event in reported.token_events] == [
        (event.t_ns, event.token_ids, event.text) for event in plain.token_events
    ]
    assert (reported.outcome, reported.flags, reported.timings_json) == ("ok", plain.flags, plain.timings_json)
    assert (reported.itl_ns, reported.tpot_ns, reported.ttft_ns) == (plain.itl_ns, plain.tpot_ns, plain.ttft_ns)


@pytest.mark.parametrize("kind", ["native", "openai"])
@pytest.mark.parametrize(
    "place", ['{"error":%s}', '{"stop":true,"timings":%s}', '{"stop":true,"generation_settings":{"a":%s},"x":NaN}']
)
def test_json_that_is_nested_too_deeply_never_raises(kind: str, place: str) -> None:
    for depth in (100, 400, 700, 900, 950, 990, 1100, 100_000):
        data = (place % ("[" * depth + "]" * depth)).encode()
        assert derive_request(S.exchange([(1, b"data: " + data + b"\n\n")]), kind).outcome != "ok"
