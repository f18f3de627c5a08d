"""Server-sent events by the WHATWG rules, from bytes that are split anywhere."""

from __future__ import annotations

import runpy
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.body import Body
from recorder.sse import Event, EventStreamReader, Stream, is_done, read_by_pieces
from recorder.sse import read_stream as read_body

W = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("whatwg.py"))))


def read_stream(pieces: list[tuple[int, bytes, int]]) -> Stream:
    """Read pieces in both ways, which must agree in everything."""
    body = Body.of(pieces)
    stream = read_body(body)
    assert stream == read_by_pieces(body)
    return stream


def events_of(*parts: bytes) -> list[Event]:
    return read_stream([(index, part, index) for index, part in enumerate(parts)]).events()


def data_of(*parts: bytes) -> list[bytes]:
    return [event.data for event in events_of(*parts)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_all_three_line_ends_are_read(end: bytes) -> None:
    body = end.join([b"event: x", b"data: one", b"data: two", b"", b"data:three", b"", b""])
    assert [(event.event, event.data) for event in events_of(body)] == [("x", b"one\ntwo"), ("message", b"three")]


def test_line_ends_may_be_mixed() -> None:
    assert data_of(b"data: a\r\n\ndata: b\r\rdata: c\n\r\n") == [b"a", b"b", b"c"]


def test_a_byte_order_mark_is_dropped_once_even_when_split() -> None:
    assert data_of(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]
    assert data_of(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [b"a"]
    assert data_of(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n") == []
    assert data_of(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [b"a"]


def test_comments_are_counted_and_dispatch_nothing() -> None:
    stream = read_stream([(0, b": ping\n\n:\n\ndata: a\n: in between\ndata: b\n\n", 0)])
    assert stream.data == [b"a\nb"]
    assert stream.comments == 3


def test_one_blank_after_the_colon_is_dropped_and_no_more() -> None:
    assert data_of(b"data:a\n\ndata: a\n\ndata:  a\n\ndata:\ta\n\n") == [b"a", b"a", b" a", b"\ta"]
    assert data_of(b"data:  a\ndata:   b\n\n") == [b" a\n  b"]


def test_a_field_without_colon_has_an_empty_value() -> None:
    assert data_of(b"data\n\ndata\ndata\n\n") == [b"", b"\n"]
    assert data_of(b"event\nid\nretry\n\n") == []


def test_unknown_fields_are_counted_and_kept() -> None:
    stream = read_stream([(4, b'error: {"code":500}\n\nDATA: a\n\ndata : b\n\nid: 7\nretry: x\n\n', 2)])
    assert stream.data == []
    assert stream.ignored == 3
    assert stream.kept_lines[0] == (4, b'error: {"code":500}', 2)


def test_ignored_lines_are_kept_up_to_a_hundred() -> None:
    stream = read_stream([(0, b"x: y\n" * 250 + b"\n", 0)])
    assert (stream.ignored, len(stream.kept_lines)) == (250, 100)


def test_an_event_over_many_reads_has_the_time_of_the_read_that_completes_it() -> None:
    assert events_of(b"da", b"ta: 1\n", b"\nda", b"ta: 2\n\ndata: 3", b"\n\n") == [
        Event(2, b"1", read_index=2),
        Event(3, b"2", read_index=3),
        Event(4, b"3", read_index=4),
    ]


def test_a_carriage_return_completes_at_once_and_its_line_feed_adds_nothing() -> None:
    assert events_of(b"data: 1\r\n\r", b"\n", b"data: 2\r\r", b"\ndata: 3\n\n") == [
        Event(0, b"1"),
        Event(2, b"2", read_index=2),
        Event(3, b"3", read_index=3),
    ]


def test_a_line_end_split_over_reads_is_one_line_end() -> None:
    assert data_of(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [b"1\n2"]


def test_a_character_split_over_reads_stays_whole() -> None:
    smile = "😀".encode()
    parts = [b"data: " + smile[:1], smile[1:3], smile[3:] + b"\n\n"]
    assert data_of(*parts) == [smile]


def test_an_event_without_its_blank_line_is_kept_and_marked() -> None:
    for tail in (b"data: x\n", b"data: x"):
        events = events_of(b"data: a\n\n", tail)
        assert events == [Event(0, b"a"), Event(1, b"x", is_terminated=False, read_index=1)]
    assert events_of(b"data: a\n\n: bye") == [Event(0, b"a")]


@pytest.mark.parametrize("text", [b"[DONE]", b" [DONE]", b"[DONE] ", b"[DONE]\r", b"\t[DONE]\n"])
def test_done_is_known_with_white_space_around_it(text: bytes) -> None:
    assert is_done(text)


@pytest.mark.parametrize("text", [b"", b"DONE", b"[done]", b"[DONE][DONE]", b'"[DONE]"'])
def test_other_texts_are_not_done(text: bytes) -> None:
    assert not is_done(text)


LINES = st.sampled_from(
    [
        b"data: 1",
        b"data:  2",
        b"data:",
        b"data",
        b": c",
        b"event: e",
        b"id: 1",
        b"",
        b"",
        b"x: y",
        b"\xef\xbb\xbfdata: q",
        "data: é".encode(),
    ]
)
BODIES = st.one_of(
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=14).map(
        lambda rows: b"".join(line + end for line, end in rows)
    ),
    st.lists(LINES, max_size=14).map(b"\n".join),
    st.binary(max_size=60),
)


@given(BODIES, st.lists(st.integers(0, 200), max_size=10) | st.just(list(range(200))), st.booleans())
def test_any_split_into_reads_gives_the_events_of_the_standard_at_the_reads_that_complete_them(
    body: bytes, cuts: list[int], has_mark: bool
) -> None:
    body = (b"\xef\xbb\xbf" if has_mark else b"") + body
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [(100 + index, body[a:b], index) for index, (a, b) in enumerate(pairwise(borders))]
    expected = []
    for data, name, place in W.reference(body):
        piece = next(index for index, border in enumerate(borders[1:]) if border > place)
        expected.append(Event(100 + piece, data, name, read_index=piece))
    stream = read_stream(pieces)
    whole = stream.events()
    assert [event for event in whole if event.is_terminated] == expected
    assert len(whole) - len(expected) == stream.is_cut
    # One piece or many: nothing but the times may differ.
    at_once = read_stream([(0, body, 0)])
    assert (stream.data, stream.names, stream.is_cut) == (at_once.data, at_once.names, at_once.is_cut)
    assert (stream.comments, stream.ignored, stream.bare_frames) == (
        at_once.comments,
        at_once.ignored,
        at_once.bare_frames,
    )


PLAIN = st.lists(
    st.sampled_from([b"", b"1", b"data: 1", b"\x0b\x0c\x85", "\u2028é".encode(), b": c", b"x" * 40]), max_size=8
)
EXTRA = st.sampled_from(
    [b"", b"", b"", b": ping\n\n", b"\n", b"data: cut", b"data: cut\n", b"event: e\ndata: 1\n\n", b"\r"]
)


@given(
    EXTRA,
    PLAIN,
    EXTRA,
    PLAIN,
    EXTRA,
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 300), max_size=12),
)
def test_plain_events_with_one_odd_thing_between_them_are_read_alike_in_all_ways(
    before: bytes, first: list[bytes], between: bytes, second: list[bytes], after: bytes, end: bytes, cuts: list[int]
) -> None:
    frames = [b"".join(b"data: %s%s%s" % (data, end, end) for data in part) for part in (first, second)]
    body = before + frames[0] + between + frames[1] + after
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    stream = read_stream([(index * 3, body[a:b], index) for index, (a, b) in enumerate(pairwise(borders))])
    assert len(stream.data) - stream.is_cut == len(W.reference(body))


def test_many_small_reads_of_one_large_event_cost_linear_time() -> None:
    reader = EventStreamReader()
    for index in range(50_000):
        reader.feed(index, b"data: y\n" if index % 2 else b"data: x" + b"z" * 100 + b"\n", index)
        assert reader.stream.data == []
    reader.feed(50_000, b"\n", 50_000)
    (data,) = reader.stream.data
    assert len(data) == 25_000 * (101 + 1 + 2) - 1


def test_a_long_line_full_of_field_names_costs_linear_time() -> None:
    """A pattern that could begin anywhere would look through the rest of the line at each of them."""
    body = b"data: " * 200_000
    for end in (b"", b"\n\n", b"\r\n\r\n"):
        started = time.process_time()
        assert len(read_body(Body.of([(0, body + end, 0)])).data) == 1
        assert time.process_time() - started < 2
