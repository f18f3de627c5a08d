"""Blobs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import EvidenceError, HostError
from recorder.blobs import SALT_BYTES, BlobStore, salted
from recorder.files import Files


def blobs_at(root: Path, files: Files | None = None) -> BlobStore:
    return BlobStore(root / "blobs" / "sha256", files or Files())


def test_a_blob_is_salt_and_content_named_by_the_hash_of_both(tmp_path: Path):
    blobs = blobs_at(tmp_path)
    found = blobs.put(b"content")
    data = blobs.path_of(found.sha256).read_bytes()
    assert data[SALT_BYTES:] == b"content"
    assert hashlib.sha256(data).hexdigest() == found.sha256
    assert found.content_bytes == 7
    assert blobs.path_of(found.sha256) == tmp_path / "blobs" / "sha256" / found.sha256[:2] / found.sha256[2:]


def test_one_content_put_twice_has_two_names(tmp_path: Path):
    blobs = blobs_at(tmp_path)
    assert blobs.put(b"x").sha256 != blobs.put(b"x").sha256


def test_a_text_can_be_promised_by_hash_before_it_is_stored(tmp_path: Path):
    data = salted(b"host name")
    found = blobs_at(tmp_path).put_salted(data)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert blobs_at(tmp_path).read(found.sha256) == b"host name"
    with pytest.raises(EvidenceError):
        blobs_at(tmp_path).put_salted(b"short")


@given(st.binary(max_size=2000))
def test_content_comes_back(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    root = tmp_path_factory.mktemp("b")
    blobs = blobs_at(root)
    (root / "source").write_bytes(content)
    for found in (blobs.put(content), blobs.put_file(root / "source"), blobs.put_pieces([content[:5], content[5:]])):
        assert blobs.read(found.sha256) == content
        assert blobs.digest(found.sha256) == found


def test_every_flipped_bit_of_a_blob_is_noticed_on_reading(tmp_path: Path):
    blobs = blobs_at(tmp_path)
    path = blobs.path_of(blobs.put(b"evidence").sha256)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(EvidenceError, match="hash"):
            blobs.read(path.parent.name + path.name)


def test_a_missing_blob_is_named(tmp_path: Path):
    with pytest.raises(EvidenceError, match="missing") as caught:
        blobs_at(tmp_path).read("ab" * 32)
    assert str(caught.value.where).endswith("ab" * 31)
    assert blobs_at(tmp_path).digest("ab" * 32) is None


@pytest.mark.parametrize("name", ["", "ab", "../../etc/passwd", "AB" * 32, "zz" * 32])
def test_only_a_hash_can_name_a_blob(tmp_path: Path, name: str):
    with pytest.raises(EvidenceError):
        blobs_at(tmp_path).path_of(name)


def test_a_put_that_fails_anywhere_leaves_no_blob_that_does_not_hold(tmp_path: Path, synthetic):
    fail_at = 0
    while True:
        fail_at += 1
        blobs = blobs_at(tmp_path / str(fail_at), synthetic.FaultyFiles(fail_at, half=True))
        try:
            blobs.put(b"content of a blob")
        except HostError:
            assert blobs.has_unfinished
            for name in blobs.names():
                assert blobs.read(name) == b"content of a blob"
        else:
            break
    assert fail_at > 7
    assert not blobs.has_unfinished


def test_names_and_strays_share_out_everything_that_lies_there(tmp_path: Path):
    blobs = blobs_at(tmp_path)
    names = sorted(blobs.put(bytes([number])).sha256 for number in range(5))
    for stray in (".tmp-1", "ab/short", "note.txt"):
        (blobs.root / stray).parent.mkdir(exist_ok=True)
        (blobs.root / stray).write_bytes(b"x")
    assert list(blobs.names()) == names
    assert [path.relative_to(blobs.root).as_posix() for path in blobs.strays()] == [".tmp-1", "ab/short", "note.txt"]
