"""What the next writer does with what a killed one left."""

from __future__ import annotations

from pathlib import Path

from recorder.audit import audit_store
from recorder.blobs import BlobStore
from recorder.files import Files
from recorder.ledger import Entry
from recorder.store import Store


def reopened(root: Path, synthetic) -> tuple[Entry, ...]:
    with synthetic.open_store(root) as store:
        return store.entries()


def killed(root: Path) -> None:
    (root / "store.lock").write_text('{"pid":1}')


def test_leftovers_are_put_on_record_in_one_entry(store_root: Path, synthetic):
    killed(store_root)
    orphan = BlobStore(store_root / "blobs" / "sha256", Files()).put(b"stored, then killed")
    (store_root / "blobs" / "sha256" / ".tmp-1").write_bytes(b"x")
    (store_root / "campaigns" / ".tmp-2").write_bytes(b"x")
    with (store_root / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"kind":"campaign.in')
    before = audit_store(store_root)
    assert (before.findings, before.is_partial) == ((), True)
    entry = reopened(store_root, synthetic)[-1]
    assert entry.kind == "store.recovered"
    assert (entry.number("torn_count"), entry.number("temporary_count")) == (1, 2)
    assert [item["sha256"] for item in entry.blobs()] == [orphan.sha256]
    torn = entry.payload["torn"]
    assert isinstance(torn, list)
    assert isinstance(torn[0], dict)
    assert (store_root / str(torn[0]["file"])).read_bytes() == b'{"kind":"campaign.in'
    after = audit_store(store_root)
    assert (after.findings, after.is_partial) == ((), False)
    assert list(store_root.rglob(".tmp-*")) == []


def test_a_store_with_nothing_left_over_gets_no_entry(store_root: Path, synthetic):
    count = len(Store.open(store_root, read_only=True).entries())
    killed(store_root)
    assert len(reopened(store_root, synthetic)) == count
    assert audit_store(store_root).notes == ()


def test_missing_and_older_copies_are_written_again(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        name = store.campaigns()[0].campaign_id
        older = (store_root / "campaigns" / name / "report.md").read_bytes()
        store.campaign_recorder("latest").record_report({"report.md": b"newer\n"})
    killed(store_root)
    (store_root / "campaigns" / name / "report.md").write_bytes(older)
    gone = [
        store_root / "campaigns" / name / "lock.json",
        *(store_root / "keys").iterdir(),
        *(store_root / "checkpoints").iterdir(),
    ]
    contents = {path: path.read_bytes() for path in gone}
    for path in gone:
        path.unlink()
    assert audit_store(store_root).findings == ()
    reopened(store_root, synthetic)
    assert (store_root / "campaigns" / name / "report.md").read_bytes() == b"newer\n"
    assert {path: path.read_bytes() for path in gone} == contents
    assert audit_store(store_root).notes == ()


def test_a_changed_copy_is_left_for_the_audit_to_name(store_root: Path, synthetic):
    killed(store_root)
    path = next((store_root / "campaigns").rglob("report.md"))
    path.write_bytes(b"forged")
    reopened(store_root, synthetic)
    assert path.read_bytes() == b"forged"
    assert [finding.place for finding in audit_store(store_root).findings] == [path.relative_to(store_root).as_posix()]


def test_the_spool_of_an_open_load_becomes_partial_evidence(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root) as store:
        load = store.begin_campaign(**synthetic.lock_parts()).open_load(synthetic.positions()[0])
        sink = load.exchange(
            name="tiny",
            route="/completion",
            kind="native",
            workload="tiny",
            repeat=0,
            is_warmup=False,
            request=synthetic.http_request("/completion", synthetic.REQUESTS["requests/tiny.json"]),
        )
        sink.on_sent(10)
        for offset, data in synthetic.completion_reads()[:4]:
            sink.on_read(10 + offset, data)
        load.log_path("engine.log").write_bytes(b"engine: re")
    with synthetic.open_store(root) as store:
        campaign = store.resume_campaign("latest")
        assert campaign.seal_abandoned() == [load.load_id]
        assert campaign.seal_abandoned() == []
        first = store.measurements(campaign.campaign_id).loads[0]
    assert (first.state, first.reason) == ("PARTIAL", "the recorder was killed before this load ended")
    sealed = next(entry for entry in Store.open(root, read_only=True).entries() if entry.kind == "load.sealed")
    assert sealed.payload["is_abandoned"] is True
    partial = {item["name"] for item in sealed.blobs() if item["is_partial"]}
    assert partial == {"wire/001-tiny.wire", "log/engine.log"}
    assert audit_store(root).findings == ()


def test_the_spool_of_a_sealed_load_is_removed_only_if_all_of_it_was_sealed(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        synthetic.run_load(campaign, synthetic.positions()[0])
        load_id = next(entry.text("load") for entry in store.entries() if entry.kind == "load.sealed")
    folder = root / "spool" / load_id
    for extra in (False, True):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.jsonl").write_bytes(b"left over")
        if extra:
            (folder / "unsealed").write_bytes(b"nobody kept this")
        killed(root)
        reopened(root, synthetic)
        assert folder.exists() is extra
    assert any("spool" in finding.place for finding in audit_store(root).findings)
