"""Importing: a bundle of another store is kept whole, sealed by this ledger, and never trusted unseen."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from protocols.errors import EvidenceError, HostError
from recorder.audit import audit_store
from recorder.bundle import unpack_bundle, write_bundle
from recorder.importing import import_bundle
from recorder.imports import import_folders
from recorder.redaction import parse_rule
from recorder.store import Store
from recorder.tables import DERIVED

STRIDE = 1 if os.environ.get("ASSAY_TEST_THOROUGH") else 5


@pytest.fixture
def foreign(tmp_path: Path, synthetic) -> Path:
    return synthetic.foreign_bundle(tmp_path)


def taken(root: Path, archive: Path, synthetic) -> Path:
    with synthetic.open_store(root) as store:
        return root / import_bundle(store, archive).folder


def test_nothing_is_lost_on_the_way_into_another_store(store_root: Path, foreign: Path, tmp_path: Path, synthetic):
    folder = taken(store_root, foreign, synthetic)
    unpack_bundle(foreign, tmp_path / "u")
    for path in (path for path in (tmp_path / "u").rglob("*") if path.is_file()):
        assert (folder / path.relative_to(tmp_path / "u")).read_bytes() == path.read_bytes()
    assert write_bundle(folder, tmp_path / "again.zst").path.read_bytes() == foreign.read_bytes()
    origin = audit_store(tmp_path / "foreign-store")
    assert audit_store(folder).counts["verdicts"] == origin.counts["verdicts"] == 1


def test_an_imported_bundle_is_a_store_for_every_reader(store_root: Path, foreign: Path, tmp_path: Path, synthetic):
    folder = taken(store_root, foreign, synthetic)
    tables = [sqlite3.connect(place / "assay.sqlite") for place in (folder, tmp_path / "foreign-store")]
    for table in DERIVED:
        rows = [sorted(map(repr, one.execute(f"SELECT * FROM {table.name}"))) for one in tables]
        assert rows[0] == rows[1]
    with Store.open(folder, read_only=True) as store:
        assert [one.verdict for one in store.campaigns()] == ["SCREEN_ONLY"]


def test_the_audit_of_the_store_covers_what_it_imported(store_root: Path, foreign: Path, synthetic):
    folder = taken(store_root, foreign, synthetic)
    assert audit_store(store_root).findings == ()
    assert audit_store(store_root).counts["imports"] == 1
    path = next(path for path in sorted((folder / "blobs").rglob("*")) if path.is_file())
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    findings = audit_store(store_root).findings
    assert {finding.check for finding in findings} == {"imports"}
    assert any(path.name in finding.place for finding in findings)
    shutil.rmtree(folder)
    assert [finding.message for finding in audit_store(store_root).findings] == [
        "the bundle that ledger entry 22 imported is missing"
    ]


def test_another_bundle_in_the_place_of_an_imported_one_is_found(
    store_root: Path, foreign: Path, tmp_path: Path, synthetic
):
    folder = taken(store_root, foreign, synthetic)
    shutil.rmtree(folder)
    other = write_bundle(tmp_path / "foreign-store", tmp_path / "r.zst", rules=[parse_rule("log")])
    unpack_bundle(other.path, folder)
    assert any("not the manifest that was imported" in one.message for one in audit_store(store_root).findings)


def test_the_same_bundle_is_imported_once(store_root: Path, foreign: Path, synthetic):
    taken(store_root, foreign, synthetic)
    before = (store_root / "ledger.jsonl").read_bytes()
    with synthetic.open_store(store_root) as store:
        again = import_bundle(store, foreign)
    assert again.was_here
    assert (store_root / "ledger.jsonl").read_bytes() == before


def test_a_redacted_and_a_whole_bundle_of_one_store_stand_beside_each_other(
    store_root: Path, foreign: Path, tmp_path: Path, synthetic
):
    whole = taken(store_root, foreign, synthetic)
    made = write_bundle(tmp_path / "foreign-store", tmp_path / "r.zst", rules=[parse_rule("log")])
    redacted = taken(store_root, made.path, synthetic)
    assert redacted != whole
    assert not (redacted / "assay.sqlite").exists()
    result = audit_store(store_root)
    assert result.findings == ()
    with Store.open(store_root, read_only=True) as store:
        assert len(import_folders(store.entries())) == 2


def test_a_bundle_of_a_store_with_imports_holds_them(store_root: Path, foreign: Path, tmp_path: Path, synthetic):
    taken(store_root, foreign, synthetic)
    made = write_bundle(store_root, tmp_path / "both.zst")
    result = audit_store(made.path)
    assert (result.findings, result.counts["imports"]) == ((), 1)
    redacted = write_bundle(store_root, tmp_path / "red.zst", rules=[parse_rule("log")])
    result = audit_store(redacted.path)
    assert result.findings == ()
    assert not [name for name in result.counts if name == "x"]
    unpack_bundle(redacted.path, tmp_path / "u")
    assert not (tmp_path / "u" / "imports").exists()


def test_a_bundle_that_does_not_hold_leaves_no_trace(store_root: Path, tmp_path: Path, synthetic):
    root = tmp_path / "other"
    synthetic.run_campaign(root, clock=synthetic.StepClock(1_700_000_000_000_000_000))
    made = write_bundle(root, tmp_path / "b.zst")
    unpack_bundle(made.path, tmp_path / "u")
    lines = (tmp_path / "u" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "u" / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    forged = write_bundle(tmp_path / "u", tmp_path / "forged.zst")  # a ledger that was cut is whole by itself
    changed = bytearray(forged.path.read_bytes())
    changed[len(changed) // 2] ^= 1
    forged.path.write_bytes(changed)
    before = {path: path.stat().st_mtime_ns for path in store_root.rglob("*") if path.name != "store.lock"}
    with synthetic.open_store(store_root) as store, pytest.raises(EvidenceError):
        import_bundle(store, forged.path)
    assert not (store_root / "imports").exists()
    assert {path for path in store_root.rglob("*") if path.name != "store.lock"} == before.keys()
    assert audit_store(store_root).findings == ()


def test_the_bundle_of_a_store_is_not_imported_into_itself(store_root: Path, tmp_path: Path, synthetic):
    made = write_bundle(store_root, tmp_path / "own.zst")
    with synthetic.open_store(store_root) as store, pytest.raises(EvidenceError, match="this very store"):
        import_bundle(store, made.path)


def test_what_is_no_bundle_is_refused(store_root: Path, tmp_path: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        with pytest.raises(EvidenceError):
            import_bundle(store, tmp_path)
        with pytest.raises((EvidenceError, HostError)):
            import_bundle(store, tmp_path / "none")


def test_every_fault_on_the_way_leaves_a_store_that_is_mended_by_the_next_writer(
    store_root: Path, foreign: Path, fast_path: Path, synthetic
):
    step, stride = 1 - STRIDE, STRIDE
    while True:
        step += stride
        root = fast_path / f"s{step}"
        shutil.copytree(store_root, root)
        files = synthetic.FaultyFiles(step)
        try:
            with synthetic.open_store(root, files=files) as store:
                import_bundle(store, foreign, level="hashes")
        except (HostError, OSError):
            assert audit_store(root, level="chain").findings == (), step
            with synthetic.open_store(root) as store:
                if not import_folders(store.entries()):
                    import_bundle(store, foreign, level="hashes")
        assert audit_store(root).findings == (), step
        assert audit_store(root).counts["imports"] == 1
        shutil.rmtree(root)
        if files.steps < step:
            break
    assert step > 15


def test_a_killed_import_is_removed_and_put_on_record(store_root: Path, foreign: Path, synthetic):
    unpack_bundle(foreign, store_root / "imports" / "half")
    assert {finding.check for finding in audit_store(store_root, level="structure").findings} == {"files"}
    (store_root / "store.lock").write_text("killed")
    assert audit_store(store_root).findings == ()
    with synthetic.open_store(store_root) as store:
        assert store.entries()[-1].kind == "store.recovered"
        assert store.entries()[-1].number("temporary_count") == 1
    assert not (store_root / "imports").exists()
    assert audit_store(store_root).findings == ()


def test_a_ledger_that_names_a_folder_outside_is_refused(synthetic):
    from recorder.ledger import encode_entry

    payload = {"name": "../x", "store": "assay/x", "entries": 1, "root": "0" * 64, "manifest_sha256": "0" * 64}
    entry = encode_entry(
        seq=0, kind="bundle.imported", lock=None, prev="0" * 64, utc_ns=0, monotonic_ns=0, payload=payload
    )
    with pytest.raises(EvidenceError, match="leave the store"):
        import_folders([entry])


def test_two_imports_of_one_folder_are_refused(synthetic):
    from recorder.ledger import encode_entry

    payload = {"name": "x", "store": "assay/x", "entries": 1, "root": "0" * 64, "manifest_sha256": "0" * 64}
    entries = [
        encode_entry(
            seq=seq, kind="bundle.imported", lock=None, prev="0" * 64, utc_ns=0, monotonic_ns=0, payload=payload
        )
        for seq in range(2)
    ]
    assert len(import_folders(entries[:1])) == 1
    with pytest.raises(EvidenceError, match="names an earlier import"):
        import_folders(entries)
