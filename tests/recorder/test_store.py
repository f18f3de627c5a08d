"""A store: campaigns in, evidence out; one writer; the database from ledger and blobs."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from unittest import mock

import pytest

from protocols.canonical import sha256_hex
from protocols.errors import EvidenceError, HostError, ProtocolError, UsageError
from recorder.audit import audit_store
from recorder.campaign_state import read_campaigns
from recorder.store import Store, rebuild_database


def rows(root: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{root / 'assay.sqlite'}?mode=ro", uri=True)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


def test_a_whole_campaign_is_recorded_judged_and_reported(store_root: Path):
    store = Store.open(store_root, read_only=True)
    (found,) = store.campaigns()
    assert (found.protocol_id, found.places, found.complete_loads) == ("tiny-pair", 4, 4)
    assert (found.partial_loads, found.open_loads, found.is_interrupted) == (0, 0, False)
    assert (found.verdict, found.exit_code) == ("SCREEN_ONLY", 3)
    folder = store_root / "campaigns" / found.campaign_id
    assert sorted(path.name for path in folder.iterdir()) == ["lock.json", "protocol.yaml", "report.json", "report.md"]
    assert sha256_hex((folder / "lock.json").read_bytes()) == found.lock_sha256


def test_every_entry_of_a_campaign_carries_the_hash_of_its_lock(store_root: Path):
    store = Store.open(store_root, read_only=True)
    lock_sha256 = store.campaigns()[0].lock_sha256
    for entry in store.entries():
        assert entry.lock == (lock_sha256 if "campaign" in entry.payload else None)


def test_the_ledger_holds_no_free_text(store_root: Path):
    text = (store_root / "ledger.jsonl").read_text()
    for free in ("bench-host", "tiny.gguf", "governor", "cmake", "w71093", "engine: ready", "pooled", "/proc"):
        assert free not in text


def test_what_was_frozen_can_be_read_back(store_root: Path, synthetic):
    store = Store.open(store_root, read_only=True)
    assert store.protocol_of("latest") == synthetic.PROTOCOL
    assert store.requests_of("latest") == synthetic.REQUESTS
    assert store.texts_of("latest") == synthetic.TEXTS
    assert store.lock_of("latest").requests.keys() == synthetic.REQUESTS.keys()


def test_measurements_are_derived_from_the_bytes(store_root: Path, synthetic):
    measured = Store.open(store_root, read_only=True).measurements("latest")
    assert [load.label for load in measured.loads] == ["A1", "C1", "C2", "A2"]
    for load in measured.loads:
        assert load.state == "COMPLETE"
        warm, one = load.requests
        assert (warm.is_warmup, one.is_warmup) == (True, False)
        assert one.token_ids == synthetic.IDS
        assert one.outcome == "ok"
        assert (one.server_prefill_ns, one.server_generation_ns) == (40_000_000, 25_000_000)
        assert (one.client_prefill_ns, one.client_generation_ns) == (40_000_000, 25_000_000)
        assert one.work == {"n_graphs": 7, "n_flops": 123456789, "n_tokens_evaluated": 21}


def test_a_campaign_is_found_by_latest_or_the_beginning_of_its_name(store_root: Path):
    store = Store.open(store_root, read_only=True)
    name = store.campaigns()[0].campaign_id
    assert store.resolve_campaign("latest") == name
    assert store.resolve_campaign(name) == name
    assert store.resolve_campaign(name[:12]) == name
    with pytest.raises(UsageError, match="no campaign"):
        store.resolve_campaign("other")


def test_the_name_of_a_campaign_is_protocol_time_and_random(store_root: Path):
    name = Store.open(store_root, read_only=True).campaigns()[0].campaign_id
    assert name.startswith("tiny-pair-20270115T080000Z-")
    assert len(name.rpartition("-")[2]) == 6


def test_the_database_alone_says_what_happened(store_root: Path, synthetic):
    def one(sql: str) -> object:
        return rows(store_root, sql)[0][0]

    assert one("SELECT count(*) FROM load_seal WHERE state = 'COMPLETE'") == 4
    assert rows(store_root, "SELECT DISTINCT props_json FROM props") == [('{"total_slots": 1, "bos_token": "<s>"}',)]
    ids = rows(
        store_root,
        "SELECT token_id FROM token JOIN request USING (entry_seq, request) WHERE name = 'tiny' ORDER BY entry_seq, token.ordinal",
    )
    assert [value for (value,) in ids] == [*synthetic.IDS] * 4
    settings = json.loads(str(one("SELECT settings_json FROM request WHERE name = 'tiny' LIMIT 1")))
    assert settings == {"temperature": 0.0, "seed": 1, "n_predict": 6}
    assert one("SELECT count(*) FROM socket_read JOIN request USING (entry_seq, request) WHERE name = 'tiny'") == 4 * 9
    joined = b"".join(
        data  # type: ignore[misc]
        for (data,) in rows(
            store_root,
            "SELECT data FROM socket_read WHERE entry_seq = (SELECT min(entry_seq) FROM load_seal) AND request = 3 ORDER BY ordinal",
        )
    )
    assert joined == b"".join(data for _, data in synthetic.completion_reads())
    assert rows(store_root, "SELECT DISTINCT value FROM timing WHERE name = 'predicted_ms' AND value > 0") == [(25.0,)]
    assert one("SELECT value FROM work_counter WHERE name = 'n_flops' LIMIT 1") == 123456789
    memory = rows(
        store_root,
        "SELECT raw, status FROM telemetry_reading JOIN telemetry_field USING (entry_seq, field) WHERE name = 'rss_bytes' ORDER BY entry_seq, sample LIMIT 3",
    )
    assert memory == [(100_000_000, "ok"), (100_000_001, "ok"), (100_000_002, "ok")]
    absent = rows(
        store_root,
        "SELECT DISTINCT raw, status FROM telemetry_reading JOIN telemetry_field USING (entry_seq, field) WHERE name = 'gpu_power_uw'",
    )
    assert absent == [(None, "unsupported")], "absence is NULL with a reason, never zero"
    assert rows(store_root, "SELECT gate_id, status FROM gate_result ORDER BY ordinal") == [
        ("complete", "PASS"),
        ("tokens", "PASS"),
        ("work", "PASS"),
        ("counters", "PASS"),
        ("loss", "SCREEN_ONLY"),
        ("mirror", "PASS"),
    ]
    assert one("SELECT status FROM verdict") == "SCREEN_ONLY"
    assert one("SELECT content FROM campaign_text WHERE name = 'host.name'") == b"bench-host"
    assert (
        one("SELECT body FROM frozen_request WHERE reference = 'requests/tiny.json'")
        == synthetic.REQUESTS["requests/tiny.json"]
    )
    assert one("SELECT build_id FROM identity_file WHERE owner = 'baseline' LIMIT 1") == "ab" * 20


def test_the_second_writer_is_refused_and_a_reader_is_not(store_root: Path, synthetic):
    with synthetic.open_store(store_root):
        with pytest.raises(HostError, match="another recorder"):
            synthetic.open_store(store_root)
        assert len(Store.open(store_root, read_only=True).campaigns()) == 1


def test_a_store_open_for_reading_takes_nothing(store_root: Path, synthetic):
    store = Store.open(store_root, read_only=True)
    with pytest.raises(HostError, match="reading only"):
        store.begin_campaign(**synthetic.lock_parts())


def test_there_must_be_a_store_to_open(tmp_path: Path):
    for read_only in (True, False):
        with pytest.raises(UsageError, match="no store"):
            Store.open(tmp_path / "none", read_only=read_only)
    assert list(tmp_path.iterdir()) == []


def test_a_store_holds_several_campaigns(store_root: Path, synthetic):
    second = synthetic.run_campaign(store_root, clock=synthetic.StepClock(1_900_000_000_000_000_000))
    store = Store.open(store_root, read_only=True)
    assert len(store.campaigns()) == 2
    assert store.resolve_campaign("latest") == second
    with pytest.raises(UsageError, match="can mean 2"):
        store.resolve_campaign("tiny")
    assert audit_store(store_root).findings == ()


@pytest.mark.parametrize("what", ["requests", "texts"])
def test_a_lock_that_does_not_fit_what_comes_with_it_is_refused(tmp_path: Path, synthetic, what: str):
    for change in ("missing", "more", "other"):
        parts = synthetic.lock_parts()
        given = dict(parts[what])
        name = next(iter(given))
        if change == "missing":
            del given[name]
        elif change == "more":
            given["further"] = b"0123456789abcdef further"
        else:
            given[name] += b"x"
        with synthetic.open_store(tmp_path / "s") as store:
            with pytest.raises(EvidenceError, match="lock"):
                store.begin_campaign(**{**parts, what: given})
            assert store.campaigns() == []


def test_a_lock_that_is_no_canonical_lock_is_refused(tmp_path: Path, synthetic):
    parts = synthetic.lock_parts()
    with synthetic.open_store(tmp_path / "s") as store:
        for lock in (b"{}", parts["lock"] + b" ", b"\xff"):
            with pytest.raises(EvidenceError):
                store.begin_campaign(**{**parts, "lock": lock})


def test_a_protocol_with_a_secret_is_refused(tmp_path: Path, synthetic):
    parts = synthetic.lock_parts()
    source = parts["protocol"] + b"# --api-key 0123456789abcdef\n"
    with synthetic.open_store(tmp_path / "s") as store, pytest.raises(ProtocolError, match="secret"):
        store.begin_campaign(**{**parts, "protocol": source})


def test_the_database_can_be_made_anew_and_is_the_same(store_root: Path):
    def dump() -> dict[str, list[tuple[object, ...]]]:
        names = [name for (name,) in rows(store_root, "SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {str(name): sorted(rows(store_root, f"SELECT * FROM {name}"), key=repr) for name in names}

    before = dump()
    (store_root / "assay.sqlite").write_bytes(b"damaged")
    assert rebuild_database(store_root) == len((store_root / "ledger.jsonl").read_bytes().splitlines())
    assert dump() == before
    assert audit_store(store_root).findings == ()


def test_a_missing_database_is_made_anew_by_the_next_writer(store_root: Path, synthetic):
    (store_root / "assay.sqlite").unlink()
    with synthetic.open_store(store_root):
        pass
    assert audit_store(store_root).findings == ()


def test_a_ledger_that_lost_entries_is_not_written_to(store_root: Path, synthetic):
    path = store_root / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(EvidenceError, match="the ledger ends at"):
        synthetic.open_store(store_root)


def test_another_key_is_added_beside_the_first(store_root: Path, synthetic):
    from recorder.keys import Signer

    other = Signer(name="tester", seed=bytes(32))
    with Store.open(store_root, signer=other) as store:
        store.campaign_recorder("latest").record_report({"report.md": b"second look\n"})
    assert len(list((store_root / "keys").iterdir())) == 2
    result = audit_store(store_root, trusted_keys=[other.public()])
    assert (result.findings, result.trust) == ((), "VERIFIED")


def test_a_locked_database_stops_the_recorder_with_a_hint_and_nothing_is_lost(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    with synthetic.open_store(root, busy_ms=50) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        entries = len(store.entries())
        other = sqlite3.connect(root / "assay.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HostError, match="locked") as caught:
            campaign.open_load(synthetic.positions()[0])
        assert "resume" in str(caught.value.hint)
        assert len(store.entries()) == entries, "no entry without its rows"
        other.close()
    synthetic.resume_campaign(root)
    assert audit_store(root).findings == ()


def test_a_store_from_another_folder_is_the_same_store(store_root: Path, tmp_path: Path):
    moved = tmp_path / "moved to" / "another place"
    shutil.copytree(store_root, moved)
    assert audit_store(moved).findings == ()
    assert str(store_root).encode() not in (moved / "ledger.jsonl").read_bytes()


def test_the_entries_are_sorted_once_however_often_campaigns_are_asked_for(store_root: Path):
    """A series over n campaigns sorted all entries 3 n times."""
    with mock.patch("recorder.store.read_campaigns", side_effect=read_campaigns) as reading:
        with Store.open(store_root, read_only=True) as store:
            for _ in range(20):
                (found,) = store.campaigns()
                store.lock_of(found.campaign_id)
                store.protocol_of(store.resolve_campaign("latest"))
                store.verdict_of(found.campaign_id)
        assert reading.call_count == 1
        with Store.open(store_root) as store:
            before = store.campaigns()[0]
            store.campaign_recorder(before.campaign_id).record_interruption("asked for")
            assert (before.is_interrupted, store.campaigns()[0].is_interrupted) == (False, True)
        assert reading.call_count == 3
