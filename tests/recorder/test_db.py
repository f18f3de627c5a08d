"""The database: durability settings, errors with hints, reading without a trace."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from protocols.errors import EvidenceError, HostError
from recorder.db import Database
from recorder.tables import APPLICATION_ID, SCHEMA_VERSION

ENTRY = {
    "seq": 0,
    "kind": "store.created",
    "lock_sha256": None,
    "prev_sha256": "0" * 64,
    "sha256": "1" * 64,
    "utc_ns": 1,
    "monotonic_ns": 1,
    "payload_json": "{}",
}


def filled(path: Path) -> Database:
    database = Database.open(path)
    with database.transaction() as connection:
        database.insert({"ledger_entry": [ENTRY]}, connection)
    return database


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_new_database_is_durable_strict_and_marked_as_ours(tmp_path: Path):
    database = Database.open(tmp_path / "a.sqlite")
    with database.reading() as connection:
        found = {
            name: connection.scalar(text(f"PRAGMA {name}"))
            for name in ("application_id", "user_version", "journal_mode", "synchronous", "foreign_keys")
        }
        strict = connection.execute(text("SELECT name FROM pragma_table_list WHERE type = 'table' AND strict = 0"))
        assert [name for (name,) in strict if not name.startswith(("sqlite_", "alembic_"))] == []
    assert found == {
        "application_id": APPLICATION_ID,
        "user_version": SCHEMA_VERSION,
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
    }


def test_rows_come_back_after_reopening(tmp_path: Path):
    filled(tmp_path / "a.sqlite").close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"], "closing folds the log into the file"
    assert Database.open(tmp_path / "a.sqlite").last_seq() == 0


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path):
    database = Database.open(tmp_path / "a.sqlite")

    def fail() -> None:
        with database.transaction() as connection:
            database.insert({"ledger_entry": [ENTRY]}, connection)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert database.last_seq() == -1


def test_a_row_that_refers_to_no_entry_is_refused(tmp_path: Path):
    database = Database.open(tmp_path / "a.sqlite")
    row = {"entry_seq": 7, "store_id": "x", "format": 1, "origin": "y"}
    with pytest.raises(EvidenceError, match="refuses a row"), database.transaction() as connection:
        database.insert({"store": [row]}, connection)


def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path):
    database = Database.open(tmp_path / "a.sqlite")
    with pytest.raises(EvidenceError), database.transaction() as connection:
        connection.execute(text("INSERT INTO ledger_entry VALUES ('x','k',NULL,'p','s',1,1,'{}')"))


def test_a_locked_database_is_named_with_what_to_do(tmp_path: Path):
    filled(tmp_path / "a.sqlite").close()
    database = Database.open(tmp_path / "a.sqlite", busy_ms=50)
    other = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(HostError, match="locked") as caught, database.transaction():
        pass
    assert "close it" in str(caught.value.hint)
    other.close()
    with database.transaction():
        pass


def test_a_reader_does_not_block_the_writer(tmp_path: Path):
    database = filled(tmp_path / "a.sqlite")
    reader = Database.open_read_only(tmp_path / "a.sqlite", is_live=True)
    with reader.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM ledger_entry")) == 1
        with database.transaction() as writing:
            database.insert({"ledger_entry": [ENTRY | {"seq": 1}]}, writing)
        assert connection.scalar(text("SELECT count(*) FROM ledger_entry")) == 1, "a reader sees one state"
    assert reader.last_seq() == 1


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path):
    database = filled(tmp_path / "a.sqlite")
    with database.engine.connect() as connection:
        pages = connection.scalar(text("PRAGMA page_count"))
        connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    rows = [ENTRY | {"seq": seq, "payload_json": "x" * 4000} for seq in range(1, 50)]
    with pytest.raises(HostError, match="full") as caught, database.transaction() as connection:
        database.insert({"ledger_entry": rows}, connection)
    assert "free space" in str(caught.value.hint)
    assert database.last_seq() == 0


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be looked at" * 10, b"SQLite format 3\x00junk" * 300]
)
def test_a_damaged_file_is_evidence_of_nothing_and_says_so(tmp_path: Path, content: bytes):
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(EvidenceError, match="damaged") as caught:
        Database.open(tmp_path / "a.sqlite")
    assert "rebuilt" in str(caught.value.hint)


def test_another_programs_database_and_another_version_are_refused(tmp_path: Path):
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(EvidenceError, match="another program"):
        Database.open(tmp_path / "other.sqlite")
    filled(tmp_path / "a.sqlite").close()
    newer = sqlite3.connect(tmp_path / "a.sqlite")
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    with pytest.raises(EvidenceError, match="schema version"):
        Database.open(tmp_path / "a.sqlite")


@pytest.mark.parametrize("name", ["plain.sqlite", "with space.sqlite", "per%cent?and#hash.sqlite"])
def test_reading_leaves_the_folder_as_it_is(tmp_path: Path, name: str):
    filled(tmp_path / name).close()
    before = tree(tmp_path)
    database = Database.open_read_only(tmp_path / name)
    assert database.last_seq() == 0
    with pytest.raises(HostError), database.reading() as connection:
        connection.execute(text("DELETE FROM ledger_entry"))
    database.close()
    assert tree(tmp_path) == before


def test_a_log_left_by_a_crash_is_read_without_touching_it(tmp_path: Path):
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    database = filled(tmp_path / "a.sqlite")
    for suffix in ("", "-wal"):
        shutil.copyfile(tmp_path / f"a.sqlite{suffix}", crashed / f"a.sqlite{suffix}")
    database.close()
    before = tree(crashed)
    assert len(before["a.sqlite-wal"]) > 0
    found = Database.open_read_only(crashed / "a.sqlite")
    assert found.last_seq() == 0
    found.close()
    assert tree(crashed) == before


def test_a_missing_database_is_named(tmp_path: Path):
    with pytest.raises(EvidenceError, match="missing"):
        Database.open_read_only(tmp_path / "a.sqlite")


def test_any_sqlalchemy_url_can_hold_the_rows(tmp_path: Path):
    database = Database.open_url(f"sqlite:///{tmp_path / 'url.sqlite'}")
    with database.transaction() as connection:
        database.insert({"ledger_entry": [ENTRY]}, connection)
    assert database.last_seq() == 0
