"""The audit of what stands where a store or one of its files should be: another folder, a pipe, a folder, a link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from audit_faults import flip

from recorder.audit import audit_store
from recorder.store import Store


def places(root: Path, **pinned: str) -> list[tuple[str, str]]:
    return [(finding.place, finding.message) for finding in audit_store(root, **pinned).findings]


def test_a_folder_that_is_no_store_never_passes(tmp_path: Path):
    assert places(tmp_path) == [(".", "there is no store here")]
    (tmp_path / "notes.txt").write_text("hello")
    assert places(tmp_path) == [(".", "there is no store here")]


def test_a_store_without_an_entry_passes_only_where_nobody_expects_one(tmp_path: Path):
    (tmp_path / "ledger.jsonl").touch()
    assert places(tmp_path) == []
    assert places(tmp_path, head=f"70:{'d' * 64}") == [("ledger.jsonl", "the ledger holds no entry")]
    (tmp_path / "x").mkdir()
    assert places(tmp_path) == [("ledger.jsonl", "the ledger holds no entry")]


def test_a_pipe_in_place_of_any_file_is_named_and_never_waited_for(store_root: Path):
    assert audit_store(store_root).findings == ()
    for victim in [path for path in store_root.rglob("*") if path.is_file()]:
        name, content = victim.relative_to(store_root).as_posix(), victim.read_bytes()
        victim.unlink()
        os.mkfifo(victim)
        assert any(name in place for place, _ in places(store_root)), name
        victim.unlink()
        victim.write_bytes(content)


def test_a_folder_in_place_of_the_lock_is_named(store_root: Path):
    (store_root / "store.lock").unlink(missing_ok=True)
    (store_root / "store.lock").mkdir()
    assert audit_store(store_root).findings


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("campaigns/{}/report.md", "the copy is not what was recorded"),
        ("campaigns/{}/extra.md", "the ledger does not name this file"),
        ("spool/nobody/wire.bin", "no load was opened for this spool file"),
    ],
)
def test_a_held_lock_excuses_no_forgery(store_root: Path, name: str, message: str):
    """Whoever can write in a store can also hold its lock."""
    name = name.format(next((store_root / "campaigns").iterdir()).name)
    (store_root / name).parent.mkdir(parents=True, exist_ok=True)
    (store_root / name).write_text("PASS\n")
    with (store_root / "store.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert places(store_root) == [(name, message)]


def test_a_broken_blob_of_one_entry_hides_no_wrong_copy_of_a_later_one(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        preflight = next(entry for entry in store.entries() if entry.kind == "preflight.recorded")
    sha256 = str(preflight.blobs()[0]["sha256"])
    blob = f"blobs/sha256/{sha256[:2]}/{sha256[2:]}"
    report = next((store_root / "campaigns").rglob("report.md")).relative_to(store_root).as_posix()
    flip(store_root / blob, 0)
    flip(store_root / report, 0)
    findings = audit_store(store_root, level="hashes").findings
    assert [(one.check, one.place) for one in findings] == [("blobs", blob), ("copies", report)]


def test_a_held_lock_makes_a_note_of_what_nobody_names_yet(store_root: Path):
    stray = store_root / "blobs" / "sha256" / "ab" / ("c" * 62)
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("x")
    with (store_root / "store.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = audit_store(store_root)
    assert result.is_sound
    assert f"blobs/sha256/ab/{'c' * 62}: no ledger entry names this blob" in result.notes
