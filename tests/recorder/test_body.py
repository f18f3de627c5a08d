"""The bytes of an answer and the reads that brought them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recorder.body import Body, BodyPiece


@given(st.lists(st.binary(max_size=5), max_size=8))
def test_pieces_come_back_as_they_went_in_empty_ones_aside(parts: list[bytes]) -> None:
    pieces = [BodyPiece(10 * index, part, index) for index, part in enumerate(parts)]
    body = Body.of(pieces)
    assert body.data == b"".join(parts)
    assert [*body.pieces()] == [piece for piece in pieces if piece.data]


def test_the_end_of_each_read_is_counted_in_bytes_of_the_body() -> None:
    body = Body.of([(5, b"abc", 1), (6, b"", 2), (7, b"d", 4)])
    assert (body.ends, body.t_ns, body.read_index) == ([3, 4], [5, 7], [1, 4])
