"""The layer under every change of the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from protocols.errors import HostError
from recorder.files import AppendFile, Files, host_errors, read_chunks


def test_what_is_appended_is_with_the_kernel_when_the_call_returns(tmp_path: Path):
    file = AppendFile(tmp_path / "a", Files())
    file.write(b"one")
    assert (tmp_path / "a").read_bytes() == b"one"
    file.write(b"two")
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:3]))
    descriptor = Files().open_append(tmp_path / "a")
    Files().write(descriptor, b"0123456789")
    os.close(descriptor)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_replaced_file_is_old_or_new_at_every_fault(tmp_path: Path, synthetic):
    path = tmp_path / "a"
    fail_at = 0
    while True:
        path.write_bytes(b"old")
        fail_at += 1
        files = synthetic.FaultyFiles(fail_at, half=True)
        try:
            files.replace_file(path, b"new content")
        except OSError:
            assert path.read_bytes() in {b"old", b"new content"}
        else:
            break
    assert fail_at == 8, "every step (folder, open, write, fsync, close, rename, fsync of the folder) failed once"
    assert path.read_bytes() == b"new content"


@pytest.mark.parametrize(
    ("number", "word"), [(errno.ENOSPC, "free space"), (errno.EACCES, "permissions"), (errno.EIO, "kernel log")]
)
def test_errors_of_the_disk_say_what_to_do(number: int, word: str):
    with pytest.raises(HostError) as caught, host_errors("store a blob", "/store"):
        raise OSError(number, os.strerror(number))
    assert word in str(caught.value.hint)
    assert caught.value.where == "/store"


def test_a_file_is_read_in_pieces(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(bytes(3 << 20) + b"end")
    pieces = list(read_chunks(path))
    assert len(pieces) > 1
    assert b"".join(pieces) == path.read_bytes()


@pytest.mark.parametrize("step", ["write", "fsync", "close", "rename"])
def test_a_file_that_could_not_be_replaced_leaves_nothing_beside_it(tmp_path: Path, step: str):
    (tmp_path / "a").write_bytes(b"old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(Files, step, side_effect=full), pytest.raises(OSError, match="No space"):
        Files().replace_file(tmp_path / "a", b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"old")]
