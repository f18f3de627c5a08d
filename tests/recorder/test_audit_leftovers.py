"""What a killed or running recorder may leave, told from what nobody can have left: word by word."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from audit_faults import rechained, replaced_blob

from protocols.canonical import canonical_bytes
from recorder.audit import audit_store
from recorder.audit_context import place_of
from recorder.store import Store


def found(root: Path, level: str = "hashes") -> list[tuple[str, str]]:
    return [(one.place, one.message) for one in audit_store(root, level=level).findings]  # type: ignore[arg-type]


@contextmanager
def held(root: Path) -> Iterator[None]:
    with (root / "store.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def campaign(root: Path) -> str:
    return next((root / "campaigns").iterdir()).name


# --- the ledger ----------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_a_note_and_a_damaged_one_a_finding(store_root: Path):
    path = store_root / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"load')
    result = audit_store(store_root)
    assert (result.findings, result.notes) == ((), ("ledger.jsonl: the last line is torn (13 bytes of entry 22)",))
    path.write_bytes(whole + b"load")
    assert found(store_root) == [("ledger entry 22", "the last line is damaged: an append cannot leave it so")]
    assert [check.state for check in audit_store(store_root).checks] == ["broken"] + ["skipped"] * 19


def test_a_store_begins_with_its_creation(store_root: Path):
    lines = (store_root / "ledger.jsonl").read_bytes().splitlines()
    one = json.loads(lines[1]) | {"seq": 0}
    (store_root / "ledger.jsonl").write_bytes(canonical_bytes(one) + b"\n")
    first = audit_store(store_root, level="structure").findings[0]
    assert (first.place, first.message) == ("ledger entry 0: kind", "another entry comes first")
    assert (first.expected, first.found) == ("store.created", "key.added")


def test_a_store_in_which_nothing_was_recorded_yet_says_so(tmp_path: Path):
    for name in ("ledger.jsonl", "assay.sqlite", "store.lock", "assay.sqlite-wal", "assay.sqlite-shm"):
        (tmp_path / name).touch()
        result = audit_store(tmp_path, level="structure")
        assert (result.findings, result.notes) == ((), ("nothing was recorded yet",))
        assert (result.head, result.is_partial) == (None, True)
    (tmp_path / "assay.sqlite-x").touch()
    assert found(tmp_path) == [("ledger.jsonl", "the ledger holds no entry")]


# --- files that the ledger does not name ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".tmp-1", "a temporary file was not finished"),
        ("keys/.tmp-1", "a temporary file was not finished"),
        ("blobs/sha256/ab/" + "c" * 62, "no ledger entry names this blob"),
        ("imports/x/manifest.json", "a bundle was not imported to its end"),
        ("ledger.torn-1", "no ledger entry names this torn line"),
    ],
)
def test_what_a_killed_recorder_may_leave_is_a_note_where_one_was_killed(store_root: Path, name: str, message: str):
    (store_root / name).parent.mkdir(parents=True, exist_ok=True)
    (store_root / name).write_bytes(b"x")
    assert found(store_root) == [(name, message)]
    (store_root / "store.lock").write_text("killed")
    result = audit_store(store_root, level="hashes")
    assert result.findings == ()
    assert result.notes == ("the last recorder was killed; the next one finishes what it left", f"{name}: {message}")


@pytest.mark.parametrize(
    "name", ["notes.txt", "campaigns/x/lock.json", "blobs/x", "keys/x.pub", "checkpoints/999.note"]
)
def test_what_no_recorder_leaves_is_a_finding_even_where_one_was_killed(store_root: Path, name: str):
    (store_root / "store.lock").write_text("killed")
    (store_root / name).parent.mkdir(parents=True, exist_ok=True)
    (store_root / name).write_bytes(b"x")
    assert found(store_root) == [(name, "the ledger does not name this file")]


@pytest.mark.parametrize("name", ["assay.sqlite", "ledger.jsonl", "store.lock"])
def test_a_folder_in_place_of_a_file_of_the_store_is_named(store_root: Path, name: str):
    (store_root / name).unlink()
    (store_root / name).mkdir()
    if name == "ledger.jsonl":
        assert found(store_root, "structure") == [(name, "the ledger holds no entry")]
    else:
        assert found(store_root, "structure") == [(name, "a folder stands where a file is expected")]


def test_a_copy_that_is_missing_is_a_note_only_where_a_recorder_was_killed(store_root: Path):
    name = f"campaigns/{campaign(store_root)}/report.md"
    (store_root / name).unlink()
    assert found(store_root) == [(name, "the file is missing")]
    (store_root / "store.lock").write_text("killed")
    result = audit_store(store_root, level="hashes")
    assert (result.findings, result.notes[1:]) == ((), (f"{name}: the file is missing",))


def test_the_copy_of_an_older_report_is_a_note_only_where_a_recorder_was_killed(store_root: Path, synthetic):
    path = store_root / "campaigns" / campaign(store_root) / "report.md"
    name, first = path.relative_to(store_root).as_posix(), path.read_bytes()
    for number in range(2):
        with synthetic.open_store(store_root) as store:
            store.campaign_recorder("latest").record_report({"report.md": f"{number}\n".encode()})
    assert found(store_root) == []
    for older in (first, b"0\n"):
        path.write_bytes(older)
        assert found(store_root) == [(name, "the copy is an older version")]
        (store_root / "store.lock").write_text("killed")
        assert found(store_root) == []
        (store_root / "store.lock").write_text("")
    path.write_bytes(b"2\n")
    (store_root / "store.lock").write_text("killed")
    assert found(store_root) == [(name, "the copy is not what was recorded")]


def test_the_spool_of_an_open_load_may_be_there(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root) as store:
        load = store.begin_campaign(**synthetic.lock_parts()).open_load(synthetic.positions()[0])
        load.note("engine.started")
        assert any(path.is_file() for path in (root / "spool").rglob("*"))
        assert found(root) == []
        (root / "spool" / "other").mkdir()
        (root / "spool" / "other" / "x").touch()
        assert found(root) == [("spool/other/x", "no load was opened for this spool file")]
        (root / "spool" / "other" / "x").unlink()
        load.seal(state="COMPLETE", reason=None)


# --- hashes that stand in the ledger beside what they are hashes of ------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "member", "message"),
    [
        ("campaign.locked", "lock_sha256", "not the hash of the lock"),
        ("campaign.locked", "protocol_file_sha256", "not the hash of the protocol"),
        ("key.added", "sha256", "not the hash of the key"),
    ],
)
def test_a_hash_in_an_entry_that_is_not_that_of_the_content_is_found(
    store_root: Path, synthetic, kind: str, member: str, message: str
):
    before: list[str] = []

    def change(_seq: int, found: str, payload: dict) -> dict:
        if found == kind:
            before.append(payload[member])
            payload[member] = "0" * 64
        return payload

    rechained(store_root, change, synthetic.SIGNER)
    (one,) = [one for one in audit_store(store_root, level="hashes").findings if one.check == "copies"]
    assert (one.field, one.message, one.expected, one.found) == (f"payload.{member}", message, before[0], "0" * 64)


@pytest.mark.parametrize("changed", ["name", "sha256", "left out"])
def test_the_files_of_a_report_are_those_of_its_blobs(store_root: Path, synthetic, changed: str):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "report.recorded":
            if changed == "left out":
                payload["files"].pop()
            else:
                payload["files"][0][changed] = "0" * 64
        return payload

    rechained(store_root, change, synthetic.SIGNER)
    (one,) = [one for one in audit_store(store_root, level="hashes").findings if one.check == "copies"]
    assert (one.entry, one.field, one.message) == (20, "payload.files", "not the hashes of the report's files")


def test_a_report_with_another_blob_is_found_though_its_copy_is_that_blob(store_root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "report.recorded":
            replaced_blob(store_root, payload, "report", lambda data: data + b"PASS\n")
        return payload

    rechained(store_root, change, synthetic.SIGNER)
    messages = {one.message for one in audit_store(store_root, level="hashes").findings}
    assert messages == {"not the hashes of the report's files", "the copy is not what was recorded"}


def test_a_recorder_beside_the_audit_excuses_no_missing_blob(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        preflight = next(entry for entry in store.entries() if entry.kind == "preflight.recorded")
    sha256 = str(preflight.blobs()[0]["sha256"])
    name = f"blobs/sha256/{sha256[:2]}/{sha256[2:]}"
    (store_root / name).unlink()
    with held(store_root):
        assert found(store_root) == [(name, f"the blob is missing; {place_of(preflight)} names it")]
