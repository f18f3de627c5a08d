"""Server-sent events by the WHATWG rules, from bytes that are split anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.sse import Event, EventStreamReader, is_done, read_stream


def events_of(*parts: bytes) -> list[Event]:
    reader = EventStreamReader()
    events = [event for index, part in enumerate(parts) for event in reader.feed(index, part, index)]
    cut = reader.close()
    return events if cut is None else [*events, cut]


def data_of(*parts: bytes) -> list[bytes]:
    return [event.data for event in events_of(*parts)]


def reference(body: bytes) -> list[tuple[bytes, str, int]]:
    """The standard, followed to the letter over the whole body: (data, name, place of the byte that dispatched it)."""
    place = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    found: list[tuple[bytes, str, int]] = []
    data, name = b"", b""
    while place < len(body):
        stop = place
        while stop < len(body) and body[stop] not in b"\r\n":
            stop += 1
        if stop == len(body):
            break
        line, end = body[place:stop], stop
        place = stop + (2 if body[stop : stop + 2] == b"\r\n" else 1)
        if not line:
            if data:
                found.append((data[:-1], name.decode("utf-8", "replace") or "message", end))
            data, name = b"", b""
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data += value + b"\n"
            elif field == b"event":
                name = value
    return found


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
    assert read_stream([(0, b"\xef\xbb\xbfdata: a\n\n", 0)]).events == [Event(0, b"a")]


def test_comments_are_counted_and_dispatch_nothing() -> None:
    stream = read_stream([(0, b": ping\n\n:\n\ndata: a\n: in between\ndata: b\n\n", 0)])
    assert [event.data for event in stream.events] == [b"a\nb"]
    assert stream.comments == 3


def test_one_blank_after_the_colon_is_dropped_and_no_more() -> None:
    assert data_of(b"data:a\n\ndata: a\n\ndata:  a\n\ndata:\ta\n\n") == [b"a", b"a", b" a", b"\ta"]
    assert data_of(b"data:  a\ndata:   b\n\n") == [b" a\n  b"]


def test_a_field_without_colon_has_an_empty_value() -> None:
    assert data_of(b"data\n\ndata\ndata\n\n") == [b"", b"\n"]
    assert data_of(b"event\nid\nretry\n\n") == []


def test_unknown_fields_are_counted_and_kept() -> None:
    stream = read_stream([(4, b'error: {"code":500}\n\nDATA: a\n\ndata : b\n\nid: 7\nretry: x\n\n', 2)])
    assert stream.events == []
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
    for data, name, place in reference(body):
        piece = next(index for index, border in enumerate(borders[1:]) if border > place)
        expected.append(Event(100 + piece, data, name, read_index=piece))
    reader = EventStreamReader()
    fed = [event for piece in pieces for event in reader.feed(*piece)]
    assert fed == expected
    cut = reader.close()
    # The fast reading of a whole body is the same, counts included.
    stream = read_stream(pieces)
    assert [event for event in stream.events if event.is_terminated] == expected
    assert [(event.data, event.event) for event in stream.events if not event.is_terminated] == (
        [] if cut is None else [(cut.data, cut.event)]
    )
    assert (stream.comments, stream.ignored, stream.bare_frames, stream.kept_lines) == (
        reader.comments,
        reader.ignored,
        reader.bare_frames,
        reader.kept_lines,
    )


def test_many_small_reads_of_one_large_event_cost_linear_time() -> None:
    reader = EventStreamReader()
    for index in range(50_000):
        assert reader.feed(index, b"data: y\n" if index % 2 else b"data: x" + b"z" * 100 + b"\n", index) == []
    (event,) = reader.feed(50_000, b"\n", 50_000)
    assert len(event.data) == 25_000 * (101 + 1 + 2) - 1
