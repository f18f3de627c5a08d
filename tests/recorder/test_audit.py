"""The audit of stores that were not tampered with: whole, partial, read-only, live, and what it says about trust."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from protocols.errors import HostError, UsageError
from recorder import audit as audit_module
from recorder.audit import LEVELS, audit_store
from recorder.audit_context import Audit, place_of
from recorder.bundle import unpack_bundle, write_bundle
from recorder.key_ring import trusted_keys
from recorder.keys import Signer, load_signer
from recorder.manifest import read_manifest
from recorder.store import Store
from recorder.tables import DERIVED


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_whole_store_has_no_findings_and_is_not_partial(store_root: Path):
    result = audit_store(store_root)
    assert result.findings == ()
    assert not result.is_partial
    assert result.is_sound
    assert [check.state for check in result.checks] == ["held"] * 20
    assert result.counts["loads"] == 4
    assert result.counts["requests"] == 12
    assert result.counts["gates"] == 6
    assert result.counts["verdicts"] == 1
    assert result.counts["rows"] > 400


def test_each_check_says_how_many_things_it_looked_at(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        kinds, lock = [entry.kind for entry in store.entries()], store.lock_of("latest").lock_bytes()
    files = [path.relative_to(store_root).parts for path in store_root.rglob("*") if path.is_file()]
    with contextlib.closing(sqlite3.connect(store_root / "assay.sqlite")) as connection:
        n_objects = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        counts = [connection.execute(f"SELECT count(*) FROM {one.name}").fetchone()[0] for one in DERIVED]
    result = audit_store(store_root, head=audit_store(store_root).head, against=lock)
    assert {check.label: check.items for check in result.checks} == {
        **dict.fromkeys(("entries", "chain", "locks"), len(kinds)),
        "checkpoints": kinds.count("checkpoint.signed"),
        "head": 1,
        "files": len(files),
        "order": 1 + 4,  # a campaign and its loads
        "blobs": sum(parts[0] == "blobs" for parts in files),
        "copies": sum(parts[0] in {"campaigns", "checkpoints", "keys"} for parts in files),
        "database": 3 + 1 + n_objects,  # pragmas, the revision, tables and indices
        "rows": sum(counts),
        "promises": 10,
        "requests": 12,
        "gates": 6,
        "verdict": 1,
        "against": 1,
        **dict.fromkeys(("manifest", "reviews", "imports", "telemetry"), 0),
    }


def test_reviews_imports_and_a_manifest_are_counted_too(full: Path, tmp_path: Path):
    result = audit_store(full)
    items = {check.label: check.items for check in result.checks}
    assert (items["reviews"], items["imports"], result.counts["imports"]) == (1, 1, 1)
    unpack_bundle(write_bundle(full, tmp_path / "b.zst").path, tmp_path / "u")
    manifest = read_manifest(tmp_path / "u")
    assert manifest is not None
    items = {check.label: check.items for check in audit_store(tmp_path / "u").checks}
    assert items["manifest"] == 3 + len(manifest.files), "store, entries and root, and each file"


def test_a_ledger_without_any_entry_leaves_every_other_check_out(store_root: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(store_root, copy)
    (copy / "ledger.jsonl").write_bytes(b"")
    result = audit_store(copy)
    assert [check.state for check in result.checks] == ["broken"] + ["skipped"] * 19
    assert [finding.check for finding in result.findings] == ["entries"]
    assert result.checks[0].items == 1


def test_a_finding_names_entry_and_member_and_shows_no_more_than_300_characters(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        entry = next(one for one in store.entries() if one.kind == "campaign.locked")
    named = f"ledger entry {entry.seq} (campaign.locked)"
    assert (place_of(entry), place_of(entry, "prev")) == (named, f"{named}: prev")
    with Audit(store_root, campaign=None, trusted_keys=(), head=None) as audit:
        audit.find(place_of(entry, "prev"), message="m", expected="a" * 300, found="b" * 301)
        audit.find(store_root / "ledger.jsonl", message="m", found=7)
    first, second = audit.findings
    assert (first.entry, first.file, first.field) == (entry.seq, "ledger.jsonl", "prev")
    assert (first.expected, first.found) == ("a" * 300, "b" * 300 + "... (301 characters)")
    assert (second.expected, second.found, audit.items) == (None, "7", 2)


def test_every_check_is_in_the_numbered_list_of_the_module():
    text = audit_module.__doc__ or ""
    listed = [*(check[:3] for check in audit_module._CHECKS), audit_module._IMPORTS, audit_module._TELEMETRY[:3]]
    for number, label, level in listed:
        assert f"{number:2d}. ``{label}``" in text
        assert level in LEVELS
    numbers = [number for number, *_ in listed]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_signed_checkpoint_follows_the_lock_each_load_and_the_verdict_at_once(store_root: Path):
    with Store.open(store_root, read_only=True) as store:
        kinds = [entry.kind for entry in store.entries()]
    marked = [
        place for place, kind in enumerate(kinds) if kind in {"campaign.locked", "load.sealed", "verdict.recorded"}
    ]
    assert len(marked) == 6
    assert {kinds[place + 1] for place in marked} == {"checkpoint.signed"}


def test_levels_include_each_other(store_root: Path):
    sizes = []
    for level in LEVELS:
        result = audit_store(store_root, level=level)
        assert result.findings == ()
        sizes.append({check.label for check in result.checks if check.state == "held"})
    assert all(smaller < larger for smaller, larger in itertools.pairwise(sizes))
    assert "blobs" in sizes[1]
    assert "chain" in sizes[2]
    assert "rows" in sizes[3]
    assert "verdict" in sizes[4]


def test_an_audit_changes_nothing(store_root: Path):
    before = tree(store_root)
    audit_store(store_root)
    assert tree(store_root) == before


def test_a_read_only_copy_can_be_audited(store_root: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(store_root, copy)
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = tree(copy)
        assert audit_store(copy).findings == ()
        assert tree(copy) == before
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)


def test_a_store_that_is_being_written_can_be_audited(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        synthetic.run_load(campaign, synthetic.positions()[0])
        load = campaign.open_load(synthetic.positions()[1])
        load.note("engine.started")
        result = audit_store(root)
        assert (result.findings, result.is_partial) == ((), True)
        assert "a recorder has the store open" in result.notes
        load.seal(state="COMPLETE", reason=None)


def test_a_recorder_and_audits_run_beside_each_other(fast_path: Path, synthetic):
    """Neither blocks the other, and no audit takes the recorder's progress for tampering."""
    root = fast_path / "s"
    done = threading.Event()

    def record() -> None:
        with synthetic.open_store(root) as store:
            campaign = store.begin_campaign(**synthetic.lock_parts())
            for place in synthetic.positions():
                synthetic.run_load(campaign, place)
            synthetic.judge(store, campaign)
            for number in range(20):
                campaign.record_report({"report.md": f"{number}\n".encode()})
        done.set()

    thread = threading.Thread(target=record)
    thread.start()
    results = []
    while not done.is_set():
        if (root / "ledger.jsonl").is_file():
            results.append(audit_store(root))
    thread.join()
    assert len(results) > 3
    assert [finding for result in results for finding in result.findings] == []
    assert audit_store(root).notes == ()


def test_a_store_that_this_user_may_not_read_is_not_called_broken(store_root: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(HostError, match="cannot be read"):
        audit_store(store_root)


def test_a_partial_store_is_sound_and_says_what_is_missing(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        name = campaign.campaign_id
        campaign.open_load(synthetic.positions()[0])
    result = audit_store(root)
    assert (result.findings, result.is_partial) == ((), True)
    assert set(result.notes) == {f"{name}/0-A1 was opened and not sealed", f"{name} has no verdict yet"}


def test_the_newest_checkpoint_must_be_of_a_trusted_key(store_root: Path, synthetic):
    assert audit_store(store_root).trust == "SELF_CONSISTENT"
    assert audit_store(store_root, trusted_keys=[synthetic.SIGNER.public()]).trust == "VERIFIED"
    stranger = Signer(name="tester", seed=bytes(32)).public()
    result = audit_store(store_root, trusted_keys=[stranger])
    assert result.trust == "SELF_CONSISTENT"
    assert result.findings == ()
    assert any("no trusted key" in point for point in result.open_points)


def test_the_own_key_is_trusted_without_further_ado(fast_path: Path, synthetic):
    root = fast_path / "s"
    with Store.open(root, create=True, clock=synthetic.StepClock()) as store:
        store.begin_campaign(**synthetic.lock_parts())
    assert load_signer().public().raw in {key.raw for key in trusted_keys()}
    assert audit_store(root, trusted_keys=trusted_keys()).trust == "VERIFIED"


def test_a_pinned_head_holds_as_the_store_grows(store_root: Path, synthetic):
    head = audit_store(store_root).head
    assert head is not None
    synthetic.run_campaign(store_root, clock=synthetic.StepClock(1_900_000_000_000_000_000))
    result = audit_store(store_root, head=head)
    assert result.findings == ()
    assert not any("pinned head" in point for point in result.open_points)
    assert result.head != head


def test_a_store_that_was_rolled_back_passes_without_a_head_and_fails_with_it(store_root: Path, synthetic):
    older = store_root.parent / "older"
    shutil.copytree(store_root, older)
    synthetic.run_campaign(store_root, clock=synthetic.StepClock(1_900_000_000_000_000_000))
    head = audit_store(store_root).head
    result = audit_store(older, trusted_keys=[synthetic.SIGNER.public()])
    assert (result.findings, result.trust) == ((), "VERIFIED")
    assert any("older copy" in point for point in result.open_points)
    result = audit_store(older, trusted_keys=[synthetic.SIGNER.public()], head=head)
    assert [finding.check for finding in result.findings] == ["head"]
    assert result.trust == "SELF_CONSISTENT"


@pytest.mark.parametrize("head", ["", "5", "05:" + "a" * 64, "5:" + "A" * 64, "x:" + "a" * 64])
def test_a_head_that_is_none_is_refused(store_root: Path, head: str):
    with pytest.raises(UsageError, match="head"):
        audit_store(store_root, head=head)


def test_one_campaign_of_several_can_be_chosen(store_root: Path, synthetic):
    name = synthetic.run_campaign(store_root, clock=synthetic.StepClock(1_900_000_000_000_000_000))
    assert audit_store(store_root).counts["verdicts"] == 2
    assert audit_store(store_root, campaign=name).counts["verdicts"] == 1
    assert audit_store(store_root, campaign="latest").findings == ()
    with pytest.raises(UsageError, match="no campaign"):
        audit_store(store_root, campaign="typo")


def test_where_there_is_no_store_the_audit_says_so(tmp_path: Path):
    with pytest.raises(UsageError, match="no store"):
        audit_store(tmp_path / "none")


def test_the_database_may_be_one_entry_behind_and_no_more(store_root: Path):
    connection = sqlite3.connect(store_root / "assay.sqlite")
    newest = connection.execute("SELECT max(seq) FROM ledger_entry").fetchone()[0]
    for behind, expected in ((1, 0), (2, 1)):
        for table in (one.name for one in DERIVED):
            column = "seq" if table == "ledger_entry" else "entry_seq"
            connection.execute(f"DELETE FROM {table} WHERE {column} > ?", (newest - behind,))
        connection.commit()
        result = audit_store(store_root)
        assert len(result.findings) == expected
        assert result.is_partial or expected
    connection.close()


def test_a_recorded_real_may_differ_in_its_last_digits_and_a_status_may_not():
    from recorder.audit_judgement import differences

    base = {"status": "PASS", "inputs": {"loss": "0.1", "n": 4}, "reason": "0.10 %"}

    def changed(**inputs: object) -> list[str]:
        other = {**base, "inputs": {**base["inputs"], **inputs}, "reason": "0.11 %"}  # type: ignore[dict-item]
        return [path for path, _, _ in differences(base, other)]

    assert changed(loss="0.10000000000000002") == []
    assert changed(loss="0.1000000000001") == []
    assert changed(loss="0.100000000001") == [".inputs.loss"]
    assert changed(loss="x") == [".inputs.loss"]
    assert changed(n=5) == [".inputs.n"]
    assert changed(n=True) == [".inputs.n"]
    assert changed(more=1) == [".inputs.more"]
    assert [path for path, _, _ in differences(base, {**base, "reason": "0.11 %"})] == [".reason"]
    assert [path for path, _, _ in differences(base, {**base, "status": "FAIL"})] == [".status"]
