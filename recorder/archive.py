"""A plain tar stream, written in one form and read strictly: regular files in POSIX ustar headers, and nothing else.

The reader is meant for hostile archives. It knows no links, devices, folders, sparse files, long-name or extended
headers, so none of them can make it write outside, or take memory by a forged length. A name is a relative path of
plain words; the same content always gives the same bytes (no times, no owners).
Source: IEEE Std 1003.1, pax, "ustar Interchange Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from protocols.errors import EvidenceError

BLOCK: Final = 512
LARGEST_BYTES: Final = 8**11 - 1
"""Largest file that the size field of a header can name."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_FIELDS: Final = (100, 8, 8, 8, 12, 12, 8, 1, 100, 6, 2, 32, 32, 8, 8, 155, 12)
_PIECE: Final = 1 << 20
_TAIL_LIMIT: Final = 1 << 20  # empty blocks behind the end: tar programs pad to 10 KiB


class Source(Protocol):
    """What an archive is read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; nothing at the end."""


class Member(NamedTuple):
    """One file of an archive."""

    name: str
    size: int


def is_safe_name(name: str) -> bool:
    """Whether a name is a relative path of plain words: no empty, hidden, ``.`` or ``..`` part, no odd character."""
    return len(name) <= 255 and _NAME.fullmatch(name) is not None


def member_header(member: Member) -> bytes:
    """Return the header block of a file. Raises `EvidenceError` for a name or a size that it cannot hold."""
    prefix, name = _split(member.name)
    if not is_safe_name(member.name) or not 0 <= member.size <= LARGEST_BYTES or len(name) > 100 or len(prefix) > 155:
        raise EvidenceError(f"{member.name!r} with {member.size} bytes cannot stand in an archive")
    fields = [
        name.encode(),
        b"0000644",
        b"0000000",
        b"0000000",
        b"%011o" % member.size,
        b"%011o" % 0,
        b" " * 8,
        b"0",
        b"",
        b"ustar",
        b"00",
        b"",
        b"",
        b"0000000",
        b"0000000",
        prefix.encode(),
        b"",
    ]
    block = b"".join(field.ljust(size, b"\0") for field, size in zip(fields, _FIELDS, strict=True))
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _split(name: str) -> tuple[str, str]:
    """Return prefix and name as a header holds them."""
    if len(name) <= 100:
        return "", name
    cut = name.find("/", len(name) - 101)
    return (name[:cut], name[cut + 1 :]) if cut > 0 else ("", name)


def pack_member(member: Member, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of one file of an archive. Raises `EvidenceError` if the pieces do not have its size."""
    yield member_header(member)
    written = 0
    for piece in pieces:
        written += len(piece)
        yield piece
    if written != member.size:
        raise EvidenceError(f"the file has {written} bytes, expected {member.size}", where=member.name)
    yield bytes(-written % BLOCK)


END: Final = bytes(2 * BLOCK)
"""What stands behind the last file."""


def parse_header(block: bytes) -> Member | None:
    """Read a header block; None for the empty block that ends an archive.

    Raises `EvidenceError` for anything that `member_header` would not have written.
    """
    if not any(block):
        return None
    size_field = block[124:136]
    name = block[:100].rstrip(b"\0")
    prefix = block[345:500].rstrip(b"\0")
    whole = (prefix + b"/" + name if prefix else name).decode("ascii", "replace")
    if not re.fullmatch(rb"[0-7]{11}\0", size_field):
        raise EvidenceError("a header of the archive has no plain size", where=repr(whole))
    kind = {b"0": "file", b"1": "link", b"2": "link", b"3": "device", b"4": "device", b"5": "folder", b"6": "pipe"}
    if (found := kind.get(block[156:157], "special header")) != "file":
        raise EvidenceError(f"the archive holds a {found}; only plain files are taken", where=repr(whole))
    if not is_safe_name(whole):
        raise EvidenceError("the archive holds a name that could leave its folder", where=repr(whole))
    member = Member(whole, int(size_field[:11], 8))
    if member_header(member) != block:
        raise EvidenceError("a header of the archive is not in the one form that is taken", where=repr(whole))
    return member


def read_members(source: Source) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """Yield each file and its bytes in pieces, which must be taken before the next file.

    Raises `EvidenceError` where the archive ends early, goes on behind its end, or holds anything but plain files.
    """
    while True:
        block = _exactly(source, BLOCK)
        member = parse_header(block)
        if member is None:
            break
        left = [member.size]
        yield member, _content(source, member, left)
        if left[0]:
            raise ValueError(f"{member.name} was not read to its end")
        if any(_exactly(source, -member.size % BLOCK)):
            raise EvidenceError("bytes stand between two files of the archive", where=member.name)
    tail = 0
    while piece := source.read(_PIECE):
        tail += len(piece)
        if tail > _TAIL_LIMIT or any(piece):
            raise EvidenceError("the archive goes on behind its end")
    if tail < BLOCK:
        raise EvidenceError("the archive ends early")


def _content(source: Source, member: Member, left: list[int]) -> Iterator[bytes]:
    while left[0]:
        piece = source.read(min(_PIECE, left[0]))
        if not piece:
            raise EvidenceError("the archive ends early", where=member.name)
        left[0] -= len(piece)
        yield piece


def _exactly(source: Source, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = source.read(size - len(found))
        if not piece:
            raise EvidenceError("the archive ends early")
        found += piece
    return found
