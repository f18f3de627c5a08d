"""The audit of what stands where a store or one of its files should be: another folder, a pipe, a folder, a link."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from audit_faults import flip, rechained

from recorder.audit import audit_store
from recorder.audit_context import place_of
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


def ledger_lines(root: Path) -> list[bytes]:
    return (root / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def test_the_first_line_of_the_ledger_that_cannot_be_read_ends_the_audit(store_root: Path):
    lines = ledger_lines(store_root)
    lines[3], lines[5] = b"{}\n", b"{}\n"
    (store_root / "ledger.jsonl").write_bytes(b"".join(lines))
    result = audit_store(store_root)
    assert [(one.check, one.entry) for one in result.findings] == [("entries", 3)]
    assert [check.label for check in result.checks if check.state != "skipped"] == ["entries"]
    assert (result.counts["entries"], (result.head or "").partition(":")[0]) == (3, "3")


def test_a_member_that_an_entry_lacks_is_named_by_entry_and_member(store_root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "preflight.recorded":
            del payload["count"]
        return payload

    rechained(store_root, change, synthetic.SIGNER)
    (one,) = audit_store(store_root).findings
    assert (one.place, one.field) == ("ledger entry 4 (preflight.recorded): payload.count", "payload.count")
    assert one.message.startswith("payload.count is no int")


@pytest.mark.parametrize(("member", "value"), [("sha256", "a" * 63), ("bytes", "7"), ("is_partial", 0), ("role", None)])
def test_a_member_of_a_blob_that_has_another_form_is_named(store_root: Path, synthetic, member: str, value: object):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "preflight.recorded":
            payload["blobs"][0][member] = value
        return payload

    rechained(store_root, change, synthetic.SIGNER)
    (one,) = audit_store(store_root).findings
    assert (one.check, one.entry, one.field) == ("entries", 4, f"payload.blobs[0].{member}")


def test_a_size_that_is_not_that_of_the_blob_is_found_even_with_the_key(store_root: Path, synthetic):
    sizes: list[int] = []

    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "preflight.recorded":
            sizes.append(payload["blobs"][0]["bytes"])
            payload["blobs"][0]["bytes"] += 1
        return payload

    rechained(store_root, change, synthetic.SIGNER)
    (one,) = audit_store(store_root, level="hashes").findings
    assert (one.check, one.entry, one.message) == ("blobs", 4, "wrong size")
    assert (one.expected, one.found) == (str(sizes[0] + 1), str(sizes[0]))


def test_of_a_missing_blob_the_entry_is_named(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        preflight = next(entry for entry in store.entries() if entry.kind == "preflight.recorded")
    sha256 = str(preflight.blobs()[0]["sha256"])
    (store_root / "blobs" / "sha256" / sha256[:2] / sha256[2:]).unlink()
    assert places(store_root)[0] == (
        f"blobs/sha256/{sha256[:2]}/{sha256[2:]}",
        f"the blob is missing; {place_of(preflight)} names it",
    )


def test_a_link_in_place_of_a_folder_is_found(store_root: Path):
    folder = next((store_root / "campaigns").iterdir())
    folder.rename(store_root.parent / "elsewhere")
    folder.symlink_to(store_root.parent / "elsewhere")
    name = folder.relative_to(store_root).as_posix()
    found = audit_store(store_root, level="structure").findings
    assert (found[0].place, found[0].message) == (name, "a link stands where a file is expected")
    assert {one.place for one in found[1:]} == {
        f"{name}/{file}" for file in ("lock.json", "protocol.yaml", "report.json", "report.md")
    }


def test_the_spool_of_a_sealed_load_must_be_gone(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        load = next(entry.text("load") for entry in store.entries() if entry.kind == "load.sealed")
    name = f"spool/{load}/wire.bin"
    (store_root / name).parent.mkdir(parents=True)
    (store_root / name).write_bytes(b"x")
    assert places(store_root) == [(name, "the spool of a sealed load was not removed")]


def test_a_held_lock_makes_a_note_of_what_nobody_names_yet(store_root: Path):
    stray = store_root / "blobs" / "sha256" / "ab" / ("c" * 62)
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("x")
    with (store_root / "store.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = audit_store(store_root)
    assert result.is_sound
    assert f"blobs/sha256/ab/{'c' * 62}: no ledger entry names this blob" in result.notes
