"""The order of steps: no entry without its rows, no copy before its entry, checkpoints when they are due."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from protocols.errors import AssayError, EvidenceError, HostError
from recorder.audit import audit_store
from recorder.files import Files
from recorder.journal import due_checkpoint
from recorder.ledger import FIRST_PREV, encode_entry
from recorder.store import Store


class Log(Files):
    """Writes down what happens in which order."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        self.steps.append("entry" if bytes(data).startswith(b'{"kind"') else "bytes")
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path) -> None:
        kind = next((part for part in ("blobs", "campaigns", "checkpoints", "keys") if part in target.parts), "other")
        self.steps.append(f"{kind} appear")
        super().rename(source, target)

    def commit(self, commit) -> None:
        super().commit(commit)
        self.steps.append("rows")


def test_blobs_come_before_the_entry_rows_after_it_and_copies_last(fast_path: Path, synthetic):
    files = Log()
    with synthetic.open_store(fast_path / "s", files=files) as store:
        files.steps.clear()
        store.begin_campaign(**synthetic.lock_parts())
    steps = [step for step in files.steps if step != "bytes"]
    count = len(synthetic.REQUESTS) + len(synthetic.TEXTS) + 3
    assert steps == [
        *["blobs appear"] * count,
        "entry",
        "rows",
        "campaigns appear",
        "campaigns appear",
        "entry",
        "rows",
        "checkpoints appear",
    ]


def test_an_entry_whose_rows_are_refused_is_not_appended(fast_path: Path, synthetic, monkeypatch: pytest.MonkeyPatch):
    with synthetic.open_store(fast_path / "s") as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        count = len(store.entries())
        with monkeypatch.context() as patch:
            patch.setattr(
                "recorder.journal.derive_rows",
                lambda entry, read: {"store": [{"entry_seq": 999, "store_id": "x", "format": 1, "origin": "x"}]},
            )
            with pytest.raises(AssayError):
                campaign.record_preflight([])
        assert len(store.entries()) == count
        with pytest.raises(EvidenceError, match="earlier step"):
            campaign.record_preflight([])
    with synthetic.open_store(fast_path / "s") as store:
        store.campaign_recorder("latest").record_preflight([])


def test_an_entry_whose_rows_were_not_committed_gets_them_from_the_next_writer(fast_path: Path, synthetic):
    class NoCommit(Files):
        is_broken = False

        def commit(self, commit) -> None:
            if self.is_broken:
                raise OSError(5, "Input/output error (injected)")
            commit()

    root, files = fast_path / "s", NoCommit()
    with synthetic.open_store(root, files=files) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        files.is_broken = True
        with pytest.raises(HostError):
            campaign.record_preflight([{"check": "disk"}])
    entries = Store.open(root, read_only=True).entries()
    assert entries[-1].kind == "preflight.recorded"
    result = audit_store(root)
    assert result.findings == ()
    assert "assay.sqlite: one entry of the ledger is still to come" in result.notes
    with synthetic.open_store(root):
        pass
    connection = sqlite3.connect(root / "assay.sqlite")
    assert connection.execute("SELECT entry_seq FROM preflight_finding").fetchall() == [(entries[-1].seq,)]
    connection.close()


def test_a_checkpoint_is_due_until_one_is_signed():
    def entry(kind: str):
        return encode_entry(seq=0, kind=kind, lock=None, prev=FIRST_PREV, utc_ns=1, monotonic_ns=1, payload={})

    locked, sealed, signed = entry("campaign.locked"), entry("load.sealed"), entry("checkpoint.signed")
    assert due_checkpoint([]) is None
    assert due_checkpoint([locked]) is locked
    assert due_checkpoint([locked, signed]) is None
    assert due_checkpoint([locked, signed, sealed, entry("store.recovered")]) is sealed


def test_the_note_in_the_entry_is_the_note_in_the_file(store_root: Path):
    for one in Store.open(store_root, read_only=True).entries():
        if one.kind == "checkpoint.signed":
            assert (store_root / "checkpoints" / f"{one.seq}.note").read_text() == one.text("note")
