"""Schema life: a store of each past version is opened, goes on, and audits; a database of the future is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Integer, MetaData, create_engine, inspect, text

from protocols.canonical import canonical_bytes
from protocols.errors import EvidenceError
from recorder.audit import audit_store
from recorder.db import Database
from recorder.ledger import encode_entry, parse_entry
from recorder.store import Store, rebuild_database
from recorder.tables import DERIVED, REVISION, SCHEMA_VERSION, metadata

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("store-v*.tar.xz"))


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store as an older Assay left it."""
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old" / "store"


def version_of(root: Path) -> int:
    connection = sqlite3.connect(root / "assay.sqlite")
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def content(root: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(root / "assay.sqlite")
    found = {
        table.name: sorted(connection.execute(f"SELECT * FROM {table.name}").fetchall(), key=repr) for table in DERIVED
    }
    schema = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    connection.close()
    return found | {"schema": sorted(schema), "revision": [(REVISION,)]}


def test_there_is_a_fixture_of_every_past_version():
    assert [path.name for path in FIXTURES] == [f"store-v{number}.tar.xz" for number in range(1, SCHEMA_VERSION)]


def test_an_old_store_is_audited_as_it_is_and_nothing_is_written(old: Path, synthetic):
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    result = audit_store(old, trusted_keys=[synthetic.SIGNER.public()])
    assert (result.findings, result.trust, result.counts["verdicts"]) == ((), "VERIFIED", 1)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_an_old_store_is_migrated_by_its_next_writer_to_what_a_rebuild_gives(old: Path, synthetic):
    ledger = (old / "ledger.jsonl").read_bytes()
    assert version_of(old) < SCHEMA_VERSION
    with synthetic.open_store(old):
        pass
    assert version_of(old) == SCHEMA_VERSION
    assert (old / "ledger.jsonl").read_bytes() == ledger, "a migration never touches the ledger"
    rebuilt = old.parent / "rebuilt"
    shutil.copytree(old, rebuilt)
    rebuild_database(rebuilt)
    assert content(old) == content(rebuilt)
    assert audit_store(old).findings == ()


def test_an_old_store_takes_a_new_campaign_and_what_its_version_did_not_know(old: Path, synthetic):
    synthetic.run_campaign(old, clock=synthetic.StepClock(1_900_000_000_000_000_000))
    with synthetic.open_store(old) as store:
        synthetic.review(store, decision="agrees")
    result = audit_store(old)
    assert (result.findings, result.counts["verdicts"]) == ((), 2)


def test_a_tampered_old_database_is_found_through_its_migration(old: Path):
    connection = sqlite3.connect(old / "assay.sqlite")
    connection.execute("UPDATE token SET token_id = token_id + 1 WHERE ordinal = 0")
    connection.commit()
    connection.close()
    assert any("token" in finding.place for finding in audit_store(old, level="tables").findings)


def test_a_fault_in_a_migration_leaves_the_old_database(old: Path, synthetic):
    before = (old / "assay.sqlite").read_bytes()
    for step in range(1, 30):
        files = synthetic.FaultyFiles(step)
        try:
            with synthetic.open_store(old, files=files):
                break
        except Exception:  # noqa: BLE001 - whatever the fault becomes: what counts is what lies there afterwards
            if version_of(old) != SCHEMA_VERSION:
                assert content_is_old(old, before)
            assert audit_store(old, level="tables").findings == (), step
    assert version_of(old) == SCHEMA_VERSION
    assert audit_store(old).findings == ()


def content_is_old(root: Path, before: bytes) -> bool:
    (root.parent / "before.sqlite").write_bytes(before)
    dumps = []
    for path in (root / "assay.sqlite", root.parent / "before.sqlite"):
        connection = sqlite3.connect(path)
        dumps.append("\n".join(connection.iterdump()))
        connection.close()
    return dumps[0] == dumps[1]


def test_a_database_of_a_newer_assay_is_refused(store_root: Path, synthetic):
    connection = sqlite3.connect(store_root / "assay.sqlite")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(EvidenceError, match="schema version"):
        synthetic.open_store(store_root)


def test_members_that_this_version_does_not_know_survive(store_root: Path, synthetic):
    """A later Assay may add members to payloads: they stay in ledger and rows, and audit."""
    lines = (store_root / "ledger.jsonl").read_bytes().splitlines()
    last = parse_entry(lines[-2], seq=len(lines) - 2)
    assert last.kind == "report.recorded"
    with synthetic.open_store(store_root) as store:
        payload = {"campaign": last.text("campaign"), "later": {"member": [1, "x"]}}
        store.writer.record("campaign.interrupted", payload, lock=last.lock)
    result = audit_store(store_root)
    assert result.findings == ()
    with Store.open(store_root, read_only=True) as store:
        newest = store.entries()[-1]
    assert newest.payload["later"] == {"member": [1, "x"]}
    again = encode_entry(
        **{name: getattr(newest, name) for name in ("seq", "kind", "lock", "prev", "utc_ns", "monotonic_ns", "payload")}
    )
    assert again.line == newest.line
    connection = sqlite3.connect(store_root / "assay.sqlite")
    (kept,) = connection.execute("SELECT payload_json FROM ledger_entry ORDER BY seq DESC LIMIT 1").fetchone()
    assert canonical_bytes({"member": [1, "x"]}).decode() in kept


# --- another database ----------------------------------------------------------------------------------------------


@pytest.fixture
def url() -> str:
    """An empty database of a real PostgreSQL server: see docs/evidence.md."""
    found = os.environ.get("ASSAY_TEST_POSTGRES")
    if not found:
        pytest.skip("NOT_RUN: ASSAY_TEST_POSTGRES names no PostgreSQL server")
    engine = create_engine(found)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return found


def test_a_postgresql_server_holds_the_same_rows(store_root: Path, url: str):
    from recorder.rows import derive_rows

    database = Database.open_url(url)
    with Store.open(store_root, read_only=True) as store:
        for entry in store.entries():
            with database.transaction() as connection:
                database.insert(derive_rows(entry, store.blobs.read), connection)
        assert database.last_seq() == len(store.entries()) - 1
    expected = content(store_root)
    with database.reading() as connection:
        for table in DERIVED:
            rows = [
                tuple(bytes(v) if isinstance(v, memoryview) else v for v in row)
                for row in connection.execute(table.select())
            ]
            assert sorted(rows, key=repr) == expected[table.name], table.name
    database.close()


def first_schema(folder: Path) -> MetaData:
    """The tables of the oldest fixture, with integers of 64 bits."""
    with tarfile.open(FIXTURES[0]) as tar:
        tar.extractall(folder, filter="data")
    schema, engine = MetaData(), create_engine(f"sqlite:///{folder / 'store' / 'assay.sqlite'}")
    schema.reflect(engine)
    engine.dispose()
    for table in schema.tables.values():
        for column in table.columns:
            if isinstance(column.type, Integer):
                column.type = BigInteger()
    return schema


def test_a_postgresql_database_of_the_first_schema_is_migrated(url: str, tmp_path: Path):
    engine, old = create_engine(url), first_schema(tmp_path)
    with engine.begin() as connection:
        old.create_all(connection)
        connection.execute(old.tables["ledger_entry"].insert().values(**FIRST_ENTRY))
        connection.execute(old.tables["telemetry_sample"].insert().values(**FIRST_SAMPLE))
    database = Database.open_url(url)
    with database.reading() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == REVISION
        found = {name: {column["name"] for column in inspect(connection).get_columns(name)} for name in metadata.tables}
        assert found == {name: set(table.columns.keys()) for name, table in metadata.tables.items()}
        assert connection.execute(text("SELECT t_end_ns, is_edge FROM telemetry_sample")).all() == [(4, 0)]
    database.close()
    engine.dispose()


FIRST_ENTRY = {"seq": 0, "kind": "store.created", "prev_sha256": "0" * 64, "sha256": "1" * 64, "utc_ns": 1} | {
    "monotonic_ns": 2**40,
    "payload_json": "{}",
}
FIRST_SAMPLE = dict.fromkeys(("entry_seq", "sample", "tick", "deadline_ns", "t_begin_ns"), 0) | {
    "t_end_ns": 4,
    "cpu_ns": 5,
    "missed_ticks": 0,
}
