"""HTTP responses from recorded reads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recorder.http1 import parse_by_reads, parse_response
from recorder.wire import Read

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def parse(*reads: bytes):
    return parse_response([Read(10 * (index + 1), data) for index, data in enumerate(reads)])


def body(response) -> bytes:
    return response.body.data


def test_a_chunked_body_has_the_time_of_each_read() -> None:
    response = parse(CHUNKED + b"3\r\nabc\r\n", b"2\r\nde\r\n3\r", b"\nfgh\r\n0\r\n\r\n")
    assert [tuple(piece) for piece in response.body.pieces()] == [(10, b"abc", 0), (20, b"de", 1), (30, b"fgh", 2)]
    assert (response.status, response.framing, response.is_complete) == (200, "chunked", True)
    assert (response.headers_ns, response.end_ns) == (10, 30)
    assert response.media_type == "text/event-stream"


def test_a_length_delimited_body_ends_by_itself() -> None:
    response = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", b"cde")
    assert body(response) == b"abcde"
    assert (response.framing, response.is_complete, response.end_ns) == ("length", True, 20)


def test_a_body_that_is_shorter_than_its_length_is_not_complete() -> None:
    response = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
    assert not response.is_complete
    assert response.problem is None


def test_without_length_the_body_ends_with_the_connection() -> None:
    response = parse(b"HTTP/1.0 200 OK\r\n\r\nab", b"cd")
    assert body(response) == b"abcd"
    assert (response.framing, response.is_complete) == ("close", False)


def test_interim_responses_are_counted_and_passed_over() -> None:
    response = parse(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz")
    assert response.interim == (100,)
    assert response.headers == (("content-length", "1"),)
    assert (response.status, response.headers_ns, body(response)) == (200, 20, b"z")


def test_headers_split_over_reads_complete_with_the_last_of_them() -> None:
    response = parse(b"HTTP/1.1 204 No", b" Content\r\nA: b\r", b"\n\r\n")
    assert (response.status, response.headers_ns, response.framing) == (204, 30, "none")
    assert response.is_complete


def test_bytes_that_are_no_http_are_a_problem_and_not_an_exception() -> None:
    response = parse(b"nonsense nonsense", b"more")
    assert response.status is None
    assert response.problem is not None
    assert response.extra_bytes == 4


def test_a_broken_chunk_keeps_what_came_before() -> None:
    response = parse(CHUNKED + b"3\r\nabc\r\n", b"zz\r\nde\r\n")
    assert body(response) == b"abc"
    assert response.problem is not None
    assert not response.is_complete


def test_an_unasked_content_coding_is_a_problem() -> None:
    response = parse(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx")
    assert response.problem is not None
    assert "gzip" in response.problem


def test_bytes_behind_the_message_are_counted() -> None:
    response = parse(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 500 NO\r\nContent-Length: 1\r\n\r\n!", b"abc"
    )
    assert (response.status, body(response), response.extra_bytes) == (200, b"x", 3)
    assert response.is_complete


def test_no_reads_are_no_response() -> None:
    response = parse()
    assert (response.status, response.framing, response.is_complete) == (None, "none", False)


MESSAGE = (
    CHUNKED
    + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (b"data: 1\n\n", b"da", b"ta: 2\n\n" * 3))
    + b"0\r\nTrailer: x\r\n\r\n"
)


CHUNK_HEADS = st.sampled_from([b"%x\r\n", b"%x\r\n", b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;ext=1\r\n"])
MESSAGES = st.tuples(
    st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]),
    st.sampled_from([CHUNKED, CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")]),
    st.lists(st.tuples(CHUNK_HEADS, st.binary(min_size=1, max_size=20)), max_size=6).map(
        lambda chunks: b"".join(head % len(data) + data + b"\r\n" for head, data in chunks)
    ),
    st.sampled_from([b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nT: x\r\n\r\n", b"", b"0\r\n\r\nmore", b"zz\r\n"]),
).map(b"".join)


@given(MESSAGES, st.lists(st.integers(0, 300), max_size=10) | st.just(list(range(300))))
def test_reading_at_once_and_read_by_read_are_the_same(message: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(message)) for cut in cuts), len(message)]
    reads = [Read(7 * index, message[a:b]) for index, (a, b) in enumerate(pairwise(borders))]
    assert parse_response(reads) == parse_by_reads(reads)


@given(st.lists(st.integers(0, len(MESSAGE)), max_size=12))
def test_any_split_into_reads_gives_the_same_body_with_the_reads_own_times(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(MESSAGE)]
    reads = [Read(index, MESSAGE[a:b]) for index, (a, b) in enumerate(pairwise(borders))]
    response = parse_response(reads)
    whole = parse_response([Read(0, MESSAGE)])
    assert body(response) == body(whole)
    assert (response.headers, response.is_complete, response.problem) == (whole.headers, True, None)
    assert all(piece.t_ns == piece.read_index for piece in response.body.pieces())
    # The headers are complete with the read that brought their last byte.
    assert borders[response.headers_ns + 1] >= len(CHUNKED) > borders[response.headers_ns]


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_arbitrary_bytes_never_raise(parts: list[bytes], is_answer: bool) -> None:
    parse(*([CHUNKED, *parts] if is_answer else parts))
