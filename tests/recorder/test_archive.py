"""The strict tar stream: what it writes, that other programs read it, and what it refuses."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import EvidenceError
from recorder.archive import BLOCK, END, LARGEST_BYTES, Member, is_safe_name, member_header, pack_member, read_members

WORD = st.text("abcXYZ019._-", min_size=1, max_size=30).filter(lambda text: text[0] not in "._-")
NAME = st.lists(WORD, min_size=1, max_size=4).map("/".join)


def packed(*files: tuple[str, bytes]) -> bytes:
    return b"".join(b"".join(pack_member(Member(name, len(data)), (data,))) for name, data in files) + END


def read(data: bytes) -> list[tuple[str, bytes]]:
    return [(member.name, b"".join(pieces)) for member, pieces in read_members(io.BytesIO(data))]


def with_header(change: Callable[[bytearray], None], *, name: str = "a/b", content: bytes = b"x") -> bytes:
    """An archive of one file whose header was changed, its checksum right again."""
    block = bytearray(member_header(Member(name, len(content))))
    change(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + content + bytes(-len(content) % BLOCK) + END


@given(st.lists(st.tuples(NAME, st.binary(max_size=1500)), max_size=4))
def test_what_is_packed_is_read_back(files: list[tuple[str, bytes]]):
    assert read(packed(*files)) == files


@given(st.binary(max_size=3 * BLOCK))
def test_no_bytes_crash_the_reader(data: bytes):
    try:
        read(data)
    except EvidenceError:
        return
    assert len(data) >= 2 * BLOCK


def test_the_archive_is_plain_tar_for_other_programs():
    long = "campaigns/" + "c" * 90 + "/" + "r" * 99
    files = [("ledger.jsonl", b"{}\n"), ("blobs/sha256/ab/" + "c" * 62, b"y" * 1000), (long, b"")]
    with tarfile.open(fileobj=io.BytesIO(packed(*files))) as tar:
        assert [(one.name, one.size, one.mtime, one.uid) for one in tar] == [(n, len(d), 0, 0) for n, d in files]
    assert read(packed(*files)) == files


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a",
        "a/../b",
        "/a",
        "a//b",
        "a/",
        "./a",
        ".hidden",
        "a/.b",
        "a\\b",
        "a b",
        "a\0b",
        "é",
        "a" * 256,
    ],
)
def test_a_name_that_could_leave_the_folder_is_no_safe_name(name: str):
    assert not is_safe_name(name)
    with pytest.raises(EvidenceError):
        member_header(Member(name, 1))


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", ".ssh", "a\\..\\b"])
def test_an_archive_with_such_a_name_is_refused(name: str):
    def change(block: bytearray) -> None:
        block[0:100] = name.encode().ljust(100, b"\0")

    with pytest.raises(EvidenceError, match="could leave its folder"):
        read(with_header(change))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (b"1", "link"),
        (b"2", "link"),
        (b"3", "device"),
        (b"4", "device"),
        (b"5", "folder"),
        (b"6", "pipe"),
        (b"7", "special"),
        (b"L", "special"),
        (b"K", "special"),
        (b"S", "special"),
        (b"x", "special"),
        (b"g", "special"),
        (b"\0", "special"),
    ],
)
def test_an_archive_with_anything_but_plain_files_is_refused(kind: bytes, word: str):
    def change(block: bytearray) -> None:
        block[156:157] = kind

    with pytest.raises(EvidenceError, match=word):
        read(with_header(change))


def test_archives_of_a_common_tar_program_with_links_and_devices_are_refused():
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            info = tarfile.TarInfo("a")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        with pytest.raises(EvidenceError):
            read(file.getvalue())


def test_an_extended_header_that_claims_gigabytes_takes_no_memory():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "../x"}) as tar:
        tar.addfile(tarfile.TarInfo("a"))
    with pytest.raises(EvidenceError, match="special header"):
        read(file.getvalue())


@pytest.mark.parametrize("size", [b"0000000000 \0", b"\x80" + bytes(11), b"-0000000001\0", b"9999999999\0\0"])
def test_a_size_in_any_other_form_is_refused(size: bytes):
    def change(block: bytearray) -> None:
        block[124:136] = size

    with pytest.raises(EvidenceError):
        read(with_header(change))


def test_a_file_too_large_for_a_header_is_refused():
    with pytest.raises(EvidenceError, match="cannot stand in an archive"):
        member_header(Member("a", LARGEST_BYTES + 1))


def test_every_cut_of_an_archive_is_refused():
    whole = packed(("a", b"x" * 600), ("b", b"y"))
    for length in range(0, len(whole) - 1, 37):
        with pytest.raises(EvidenceError):
            read(whole[:length])


def test_bytes_behind_the_end_or_between_files_are_refused():
    whole = packed(("a", b"x"))
    with pytest.raises(EvidenceError, match="behind its end"):
        read(whole + b"more")
    with pytest.raises(EvidenceError, match="behind its end"):
        read(whole + bytes(2 << 20))
    assert read(whole + bytes(10240)) == [("a", b"x")]
    changed = bytearray(whole)
    changed[BLOCK + 9] = 1
    with pytest.raises(EvidenceError, match="between two files"):
        read(bytes(changed))


def test_a_file_that_is_not_of_its_size_is_refused():
    with pytest.raises(EvidenceError, match="expected 3"):
        b"".join(pack_member(Member("a", 3), (b"xy",)))
