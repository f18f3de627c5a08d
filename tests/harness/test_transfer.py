"""Packing and unpacking builds: the same bytes, by hash, and nothing but what the list promises."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from engine.build import BENCH, LIBRARY, RECEIPT_FORMAT, SERVER, open_build
from harness.transfer import LIST, pack_build, unpack_build
from protocols.errors import AssayError, EngineError, EvidenceError, HostError
from recorder.archive import END, Member, pack_member, read_members
from recorder.store import Store


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A folder that passes for a finished build."""
    folder = tmp_path / "build"
    outputs = {}
    for name in (str(SERVER), str(BENCH), str(LIBRARY), "lib/libggml.so.0"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 100)
        path.chmod(0o755 if name.startswith("bin/") else 0o644)
        outputs[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    receipt = {
        "format": RECEIPT_FORMAT,
        "outcome": "built",
        "layout_salt": 0,
        "faults": [],
        "outputs": outputs,
        "key": "k",
    }
    (folder / "receipt.json").write_text(json.dumps(receipt))
    return folder


def content(folder: Path) -> dict[str, tuple[bytes, bool]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for path in files}


def repacked(archive: Path, target: Path, change: Callable[[list[tuple[str, bytes]]], object]) -> Path:
    with archive.open("rb") as file:
        members = read_members(zstandard.ZstdDecompressor().stream_reader(file))
        files = [(member.name, b"".join(pieces)) for member, pieces in members]
    change(files)
    data = b"".join(b"".join(pack_member(Member(name, len(data)), (data,))) for name, data in files) + END
    target.write_bytes(zstandard.compress(data))
    return target


def test_a_build_comes_out_as_it_went_in(build: Path, tmp_path: Path) -> None:
    packed = pack_build(build, tmp_path / "a.zst")
    made, done = unpack_build(packed.archive, tmp_path / "out")
    assert content(tmp_path / "out") == content(build)
    assert (done.sha256, done.files, made.folder) == (packed.sha256, 5, tmp_path / "out")
    assert pack_build(tmp_path / "out", tmp_path / "b.zst").files == packed.files


def test_the_same_build_gives_the_same_bytes(build: Path, tmp_path: Path) -> None:
    one, other = pack_build(build, tmp_path / "a.zst"), pack_build(build, tmp_path / "b.zst")
    assert one.archive.read_bytes() == other.archive.read_bytes()


def test_nothing_is_overwritten(build: Path, tmp_path: Path) -> None:
    packed = pack_build(build, tmp_path / "a.zst")
    with pytest.raises(HostError, match="exists already"):
        pack_build(build, tmp_path / "a.zst")
    with pytest.raises(EngineError, match="exists already"):
        unpack_build(packed.archive, build)


def test_what_is_no_sound_build_is_not_packed(build: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        pack_build(tmp_path, tmp_path / "a.zst")
    (build / str(LIBRARY)).write_bytes(b"changed")
    with pytest.raises(EngineError, match="differs"):
        pack_build(build, tmp_path / "a.zst")


@pytest.mark.parametrize(
    "change",
    [
        {"layout_salt": None},
        {"layout_salt": "0"},
        {"layout_salt": -1},
        {"layout_salt": 2**53},
        {"faults": None},
        {"faults": "leak"},
        {"faults": [1]},
        {"faults": [""]},
        {"faults": ["x" * 257]},
        {"faults": ["x"] * 65},
        {"outputs": []},
        {"outputs": {"bin/engine-server": 1}},
        {"more": 0.5},
        {"more": "\ud800"},
        {"more": 2**64},
    ],
)
def test_a_receipt_that_no_arm_can_be_locked_by_is_none(build: Path, change: dict[str, Any]) -> None:
    path = build / "receipt.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EngineError, match="this folder is no finished build"):
        open_build(build)


def test_a_receipt_that_cannot_be_read_is_none(build: Path) -> None:
    path = build / "receipt.json"
    for content in (b"[" * 100_000, b"\xff", b"", b"[]", b"null"):
        path.write_bytes(content)
        with pytest.raises(EngineError, match="this folder is no finished build"):
            open_build(build)
    for place in ("/dev/zero", "receipt.json"):  # without an end, and a link to itself
        path.unlink()
        path.symlink_to(place)
        with pytest.raises(EngineError, match="this folder is no finished build"):
            open_build(build)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(EngineError, match="this folder is no finished build"):
        open_build(build)


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.pop(0),
        lambda files: files.pop(),
        lambda files: files.append(("more", b"x")),
        lambda files: files.insert(2, files[1]),
        lambda files: files.reverse(),
        lambda files: files.__setitem__(2, (files[2][0], files[2][1][:-1] + b"~")),
        lambda files: files.__setitem__(0, (LIST, files[0][1].replace(b"lib/libggml.so.0", b"../libggml.so.00"))),
        lambda files: files.__setitem__(0, (LIST, files[0][1].replace(b'"bytes":', b'"bytes":-'))),
        lambda files: files.__setitem__(0, (LIST, b"{}")),
        lambda files: files.__setitem__(0, (LIST, b"[" * 9999)),
    ],
)
def test_an_archive_that_is_not_what_its_list_promises_leaves_nothing(
    build: Path, tmp_path: Path, change: Callable[[Any], object]
) -> None:
    packed = pack_build(build, tmp_path / "a.zst")
    hostile = repacked(packed.archive, tmp_path / "h.zst", change)
    with pytest.raises(EvidenceError):
        unpack_build(hostile, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"build", "a.zst", "h.zst"}


def test_a_list_that_was_changed_together_with_its_file_fails_by_the_builds_own_receipt(
    build: Path, tmp_path: Path
) -> None:
    packed = pack_build(build, tmp_path / "a.zst")

    def change(files: list[tuple[str, bytes]]) -> None:
        name, old = files[1]
        new = old[:-1] + b"~"
        digests = [hashlib.sha256(data).hexdigest().encode() for data in (old, new)]
        files[0] = (LIST, files[0][1].replace(*digests))
        files[1] = (name, new)

    with pytest.raises(EngineError, match="differs from the build's receipt"):
        unpack_build(repacked(packed.archive, tmp_path / "h.zst", change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_any_damaged_archive_is_refused(build: Path, tmp_path: Path) -> None:
    data = pack_build(build, tmp_path / "a.zst").archive.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 25)):
        (tmp_path / "x.zst").write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(AssayError):
            unpack_build(tmp_path / "x.zst", tmp_path / "out")
        (tmp_path / "x.zst").write_bytes(data[:place])
        with pytest.raises(AssayError):
            unpack_build(tmp_path / "x.zst", tmp_path / "out")


def test_a_transfer_leaves_a_receipt_whether_it_succeeds_or_not(world: Any, build: Path) -> None:
    packed = world.run("engine", "pack", build, "--out", "b.zst", "--record", "--store", world.store, "--json").json()
    out = ("--out", "moved", "--record", "--store", world.store)
    assert world.run("engine", "unpack", "b.zst", "--sha256", "0" * 64, *out).code == 6
    assert world.run("engine", "unpack", "b.zst", "--sha256", packed["archive_sha256"], *out).code == 0
    with Store.open(world.store, read_only=True) as store:
        receipts = [entry for entry in store.entries() if entry.kind == "receipt.recorded"]
        details = [json.loads(store.blobs.read(entry.blob("detail"))) for entry in receipts]
    assert [entry.text("receipt") for entry in receipts] == ["transfer"] * 3
    assert [one["action"] for one in details] == ["pack", "unpack", "unpack"]
    assert ["error" in one for one in details] == [False, True, False]
    assert world.run("audit", "--store", world.store).code == 0
