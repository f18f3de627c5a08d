"""The framing of recorded exchanges."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from recorder.wire import MAGIC, Read, Wire, WireWriter, read_wire


def written(reads: list[tuple[int, bytes]], request: bytes = b"GET", reason: str = "complete") -> bytes:
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(request)
    writer.sent(5)
    for t_ns, data in reads:
        writer.read(t_ns, data)
    writer.end(reason, 99)
    return file.getvalue()


def test_the_bytes_of_a_small_exchange_are_fixed() -> None:
    assert written([(7, b"ab")]) == (
        b"ASSAYW1\n"
        b"\x01" + bytes(8) + b"\x03\0\0\0GET"
        b"\x02\x05\0\0\0\0\0\0\0\0\0\0\0"
        b"\x03\x07\0\0\0\0\0\0\0\x02\0\0\0ab"
        b"\x04\x63\0\0\0\0\0\0\0\x08\0\0\0complete"
    )


@given(
    request=st.binary(max_size=40),
    reads=st.lists(st.tuples(st.integers(6, 2**63), st.binary(max_size=40)), max_size=8),
    reason=st.text(max_size=10),
)
def test_what_is_written_is_read_back(request: bytes, reads: list[tuple[int, bytes]], reason: str) -> None:
    reads = sorted(reads, key=lambda read: read[0])
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(request[:10])
    writer.sent_bytes(request[10:])
    writer.sent(5)
    for t_ns, data in reads:
        writer.read(t_ns, data)
    writer.end(reason, 2**64 - 1)
    assert read_wire(file.getvalue()) == Wire(
        request=request,
        sent_ns=5,
        reads=tuple(Read(*read) for read in reads),
        end_ns=2**64 - 1,
        end_reason=reason.encode("utf-8", "replace").decode(),
        is_cut=False,
    )


def test_a_file_cut_at_any_byte_keeps_every_whole_record_and_the_rest_as_tail() -> None:
    whole = written([(7, b"abc"), (8, b""), (9, b"defg")])
    offsets = [8, 24, 37, 53, 66, 83]  # behind the magic and each record
    for length in range(len(whole)):
        wire = read_wire(whole[:length])
        assert wire.is_cut
        assert wire.problems == ()
        kept = max((offset for offset in offsets if offset <= length), default=0)
        assert wire.tail == whole[kept:length]
        assert len(wire.reads) == sum(offset <= length for offset in offsets[3:])
        assert wire.end_ns is None


def test_each_record_is_written_whole_before_the_call_returns() -> None:
    calls: list[bytes] = []
    writer = WireWriter(calls.append)
    for count, record in enumerate(
        (
            lambda: writer.sent_bytes(b"x"),
            lambda: writer.sent(1),
            lambda: writer.read(2, b"y"),
            lambda: writer.end("closed", 3),
        ),
        start=2,
    ):
        record()
        assert len(calls) == count
        assert read_wire(b"".join(calls)).tail == b""
    assert read_wire(b"".join(calls)).reads == (Read(2, b"y"),)


def test_a_file_without_the_magic_is_named_and_kept() -> None:
    wire = read_wire(b"not a wire file")
    assert wire.problems == ("byte 0: the magic of a wire file is missing",)
    assert wire.tail == b"not a wire file"
    assert wire.is_cut
    assert read_wire(MAGIC[:3]).problems == ()


def test_bytes_after_the_end_and_unknown_records_are_named() -> None:
    assert read_wire(written([]) + b"more").problems == ("byte 58: 4 bytes after the end record",)
    wire = read_wire(MAGIC + b"\x09" + bytes(20))
    assert wire.problems == ("byte 8: unknown record kind 9",)
    assert len(wire.tail) == 21


def test_a_second_sent_stamp_and_time_that_steps_back_are_named() -> None:
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent(50)
    writer.sent(60)
    writer.read(70, b"a")
    writer.read(65, b"b")
    writer.end("closed", 80)
    wire = read_wire(file.getvalue())
    assert wire.sent_ns == 50
    assert wire.problems == ("byte 48: time steps back by 5 ns", "2 sent stamps where one is allowed")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_and_nothing_is_lost(data: bytes) -> None:
    for content in (data, MAGIC + data):
        wire = read_wire(content)
        assert content.endswith(wire.tail)
        assert all(read.data in content for read in wire.reads)
        assert wire.is_cut == (wire.end_reason is None)
        # Only a file that ends with its end record is whole.
        assert wire.is_cut or wire.tail == b"" or wire.problems
