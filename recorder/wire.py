"""The framing of one recorded exchange: request bytes, socket reads with their times, and the end.

A file begins with ``MAGIC``; then come records ``kind u8, t_ns u64, length u32, bytes`` (little endian):

==== =========== =====================================================================
kind name        meaning
==== =========== =====================================================================
1    SENT_BYTES  request bytes as written to the socket (several records are joined)
2    SENT_STAMP  the last request byte was handed to the socket at ``t_ns``; no bytes
3    READ        bytes of one socket read, stamped at ``t_ns`` before anything looked at them
4    END         the exchange ended at ``t_ns``; the bytes hold the reason (one of ``EndReason``)
==== =========== =====================================================================

All times are nanoseconds of the monotonic clock. The file has no checksum of its own: when a load is
sealed, the whole file is hashed as a blob. A process that is killed leaves a file that stops in the
middle of a record; everything before that record is read, and the rest is kept as ``Wire.tail``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

MAGIC: Final = b"ASSAYW1\n"
SENT_BYTES: Final = 1
SENT_STAMP: Final = 2
READ: Final = 3
END: Final = 4

_RECORD: Final = struct.Struct("<BQI")
_MAX_LENGTH: Final = 0xFFFF_FFFF


class EndReason(StrEnum):
    """Why an exchange ended, as the client saw it. Any other text is kept and counts as ERROR."""

    COMPLETE = "complete"
    """The HTTP message was complete."""
    CLOSED = "closed"
    """The server closed the connection."""
    RESET = "reset"
    """The connection broke."""
    TOTAL_TIMEOUT = "total_timeout"
    """The time limit of the whole request passed."""
    IDLE_TIMEOUT = "idle_timeout"
    """The server sent nothing for longer than the idle limit."""
    REFUSED = "refused"
    """No connection could be made."""
    CANCELLED = "cancelled"
    """The runner gave the request up."""
    ERROR = "error"
    """Anything else."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """One socket read: its time (monotonic, ns) and its bytes."""

    t_ns: int
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """One exchange as recorded.

    ``sent_ns`` is None if the request was not fully handed to the socket. ``end_ns`` and ``end_reason``
    are None if recording stopped before the end. ``is_cut`` says that the file does not finish with an
    END record. ``tail`` holds the bytes behind the last whole record. ``problems`` names what breaks the
    framing rules, each with its byte offset; a file that the writer below made has none.
    """

    request: bytes
    sent_ns: int | None
    reads: tuple[Read, ...]
    end_ns: int | None
    end_reason: str | None
    is_cut: bool
    tail: bytes = b""
    problems: tuple[str, ...] = field(default=())


class WireWriter:
    """Writes one exchange: each record in one call of ``write``, which must not keep anything back.

    ``write`` belongs to a file at position 0 that the caller opens and closes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write: Final = write
        write(MAGIC)

    def sent_bytes(self, data: bytes) -> None:
        """Record request bytes (with secrets already replaced)."""
        for start in range(0, len(data), _MAX_LENGTH):
            piece = data[start : start + _MAX_LENGTH]
            self._write(_RECORD.pack(SENT_BYTES, 0, len(piece)) + piece)

    def sent(self, t_ns: int) -> None:
        """Record that the last request byte was handed to the socket at ``t_ns``."""
        self._write(_RECORD.pack(SENT_STAMP, t_ns, 0))

    def read(self, t_ns: int, data: bytes) -> None:
        """Record one socket read."""
        self._write(_RECORD.pack(READ, t_ns, len(data)) + data)

    def end(self, reason: str, t_ns: int) -> None:
        """Record the end of the exchange. Nothing may follow."""
        text = reason.encode("utf-8", "replace")
        self._write(_RECORD.pack(END, t_ns, len(text)) + text)


def read_wire(data: bytes) -> Wire:
    """Read a wire file, whole or cut. Never raises: what breaks the rules is named in ``problems``."""
    if not data.startswith(MAGIC):
        # A file cut inside the magic is a crash, not a forgery; anything else is not a wire file.
        problems = () if MAGIC.startswith(data) else ("byte 0: the magic of a wire file is missing",)
        return Wire(
            request=b"", sent_ns=None, reads=(), end_ns=None, end_reason=None, is_cut=True, tail=data, problems=problems
        )
    return _read_records(data)


def _read_records(data: bytes) -> Wire:
    request: list[bytes] = []
    reads: list[Read] = []
    sent: list[int] = []
    backward: list[str] = []
    end_ns: int | None = None
    end_reason: str | None = None
    unpack, header_bytes, total, keep = _RECORD.unpack_from, _RECORD.size, len(data), reads.append
    offset, newest_ns = len(MAGIC), 0
    while offset + header_bytes <= total and end_reason is None:
        kind, t_ns, length = unpack(data, offset)
        start = offset + header_bytes
        stop = start + length
        if stop > total:
            break
        if kind == READ:
            keep(Read(t_ns, data[start:stop]))
        elif kind == SENT_BYTES:
            request.append(data[start:stop])
            t_ns = newest_ns
        elif kind == SENT_STAMP:
            sent.append(t_ns)
        elif kind == END:
            end_ns, end_reason = t_ns, data[start:stop].decode("utf-8", "replace")
        else:
            break
        if t_ns < newest_ns:
            backward.append(f"byte {offset}: time steps back by {newest_ns - t_ns} ns")
        else:
            newest_ns = t_ns
        offset = stop
    tail = data[offset:]
    return Wire(
        request=b"".join(request),
        sent_ns=sent[0] if sent else None,
        reads=tuple(reads),
        end_ns=end_ns,
        end_reason=end_reason,
        is_cut=end_reason is None,
        tail=tail,
        problems=(*backward, *_problems(len(sent), offset, tail, is_ended=end_reason is not None)),
    )


def _problems(sent_stamps: int, offset: int, tail: bytes, *, is_ended: bool) -> Iterator[str]:
    if sent_stamps > 1:
        yield f"{sent_stamps} sent stamps where one is allowed"
    if tail and is_ended:
        yield f"byte {offset}: {len(tail)} bytes after the end record"
    elif tail and not SENT_BYTES <= tail[0] <= END:
        yield f"byte {offset}: unknown record kind {tail[0]}"
