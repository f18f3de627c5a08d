"""The spool: names, sealing, masking across reads."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from recorder.blobs import BlobStore
from recorder.files import Files
from recorder.secrets import SecretFilter
from recorder.spool import checked_name, remove_spool, seal_files, spool_files
from recorder.wire import WireWriter, read_wire


def wire(*pieces: bytes, end: bool = True) -> bytes:
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(b"GET / HTTP/1.1\r\n\r\n")
    writer.sent(1)
    for number, piece in enumerate(pieces):
        writer.read(2 + number, piece)
    if end:
        writer.end("complete", 99)
    return file.getvalue()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool" / "campaign" / "0-A1"
    for name, content in {
        "events.jsonl": b'{"event":"a","fields":{},"t_ns":1}\n{"eve',
        "samples.jsonl": b"",
        "wire/001-a.wire": wire(b"x"),
        "wire/002-b.wire": wire(b"x", end=False)[:-1],
        "log/engine.log": b"half a line",
        "attachment/maps": b"maps",
        "attachment/.tmp-0123": b"unfinished",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def seal(folder: Path, secrets: SecretFilter | None = None, *, is_abandoned: bool = False):
    blobs = BlobStore(folder.parents[2] / "blobs", Files())
    sealed = seal_files(folder, blobs, secrets or SecretFilter(), is_abandoned=is_abandoned)
    return {one.name: one for one in sealed}, blobs


def test_every_file_becomes_a_blob_that_says_whether_it_was_cut(spool: Path):
    sealed, blobs = seal(spool)
    assert {name: (one.role, one.is_partial) for name, one in sealed.items()} == {
        "events.jsonl": ("events", True),
        "samples.jsonl": ("telemetry", False),
        "wire/001-a.wire": ("exchange", False),
        "wire/002-b.wire": ("exchange", True),
        "log/engine.log": ("log", False),
        "attachment/maps": ("attachment", False),
    }
    assert blobs.read(sealed["log/engine.log"].blob.sha256) == b"half a line"
    assert blobs.read(sealed["wire/002-b.wire"].blob.sha256) == (spool / "wire/002-b.wire").read_bytes()
    assert len(spool_files(spool)) == 7, "sealing removes nothing"


def test_the_log_of_an_abandoned_load_counts_as_cut(spool: Path):
    sealed, _ = seal(spool, is_abandoned=True)
    assert sealed["log/engine.log"].is_partial
    assert not sealed["attachment/maps"].is_partial


def test_a_known_secret_across_two_reads_is_masked_and_the_reads_keep_their_length(spool: Path):
    (spool / "wire/001-a.wire").write_bytes(wire(b"key 01234567", b"89abcdef end", b"after"))
    sealed, blobs = seal(spool, SecretFilter(["0123456789abcdef"]))
    found = read_wire(blobs.read(sealed["wire/001-a.wire"].blob.sha256))
    assert [read.data for read in found.reads] == [b"key ********", b"******** end", b"after"]
    assert [read.t_ns for read in found.reads] == [2, 3, 4]
    assert (found.sent_ns, found.end_ns, found.end_reason, found.is_cut) == (1, 99, "complete", False)


def test_removing_a_spool_takes_its_empty_parents_and_nothing_else(spool: Path):
    other = spool.parent / "1-C1"
    other.mkdir()
    root = spool.parents[1]
    remove_spool(spool, root, Files())
    assert not spool.exists()
    assert other.exists()
    remove_spool(other, root, Files())
    assert root.exists()
    assert list(root.iterdir()) == []
    remove_spool(other, root, Files())


@pytest.mark.parametrize("name", ["a", "A-1.b_2", "x" * 128])
def test_a_plain_name_may_be_a_file_name(name: str):
    assert checked_name(name) == name
