"""The audit of the database: exactly what differs is named, with what was expected and what stands there."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from recorder.audit import audit_store
from recorder.audit_context import Finding
from recorder.store import Store
from recorder.tables import DERIVED


def change(root: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(root / "assay.sqlite", isolation_level=None)) as connection:
        for sql in statements:
            connection.execute(sql)


def found(root: Path) -> tuple[Finding, ...]:
    return audit_store(root, level="tables").findings


def entry_of(root: Path, kind: str) -> int:
    with Store.open(root, read_only=True) as store:
        return next(entry.seq for entry in store.entries() if entry.kind == kind)


def n_entries(root: Path) -> int:
    with Store.open(root, read_only=True) as store:
        return len(store.entries())


def test_of_a_changed_row_the_changed_column_alone_is_named(store_root: Path):
    seq = entry_of(store_root, "load.sealed")
    change(store_root, f"UPDATE load_seal SET state = 'PARTIAL' WHERE entry_seq = {seq}")
    (one,) = found(store_root)
    assert (one.check, one.place) == ("rows", f"assay.sqlite: load_seal, entry_seq {seq}, column state")
    assert one.message == f"not what ledger entry {seq} (load.sealed) and its blobs say"
    assert (one.entry, one.expected, one.found) == (seq, "COMPLETE", "PARTIAL")


def test_a_value_in_place_of_none_and_none_in_place_of_a_value_are_shown_as_null(store_root: Path):
    seq = entry_of(store_root, "load.sealed")
    change(
        store_root,
        f"UPDATE load_seal SET reason = 'because' WHERE entry_seq = {seq}",
        f"UPDATE request SET prompt_tokens = NULL WHERE entry_seq = {seq} AND name = 'tiny'",
    )
    shown = {one.place.rpartition(" ")[2]: (one.expected, one.found) for one in found(store_root)}
    assert shown == {"reason": ("NULL", "because"), "prompt_tokens": ("16", "NULL")}


def test_a_row_of_the_entry_that_would_come_next_is_found(store_root: Path):
    n = n_entries(store_root)
    change(store_root, f"INSERT INTO rejudgement VALUES ({n}, 'x', 1)")
    rows = [one for one in found(store_root) if one.check == "rows"]
    assert [(one.place, one.message, one.expected, one.found) for one in rows] == [
        (f"assay.sqlite: rejudgement, entry_seq {n}", "rows of an entry that is not there", "0", "1")
    ]


def test_a_database_without_any_row_lacks_every_entry(store_root: Path):
    change(store_root, *(f"DELETE FROM {table.name}" for table in DERIVED))
    assert [(one.check, one.message, one.expected, one.found) for one in found(store_root)] == [
        ("rows", "the database lacks entries of the ledger", f"{n_entries(store_root)} entries", "0 entries")
    ]


def test_a_row_too_many_and_a_row_too_few_are_named_by_their_keys(store_root: Path):
    seq = entry_of(store_root, "preflight.recorded")
    change(store_root, f"UPDATE preflight_finding SET ordinal = 7 WHERE entry_seq = {seq}")
    assert [(one.place, one.message) for one in found(store_root)] == [
        (
            f"assay.sqlite: preflight_finding, entry_seq {seq}, ordinal 0",
            f"the row is missing (ledger entry {seq} (preflight.recorded))",
        ),
        (
            f"assay.sqlite: preflight_finding, entry_seq {seq}, ordinal 7",
            f"a row that ledger entry {seq} (preflight.recorded) does not give",
        ),
    ]


def test_rows_of_a_table_that_is_compared_as_a_whole_are_named_too(store_root: Path):
    seq = entry_of(store_root, "load.sealed")
    key = f"entry_seq = {seq} AND request = 3 AND ordinal = 3"
    change(store_root, f"UPDATE token SET token_id = token_id + 1 WHERE {key}")
    (one,) = found(store_root)
    assert one.place == f"assay.sqlite: token, entry_seq {seq}, request 3, ordinal 3, column token_id"
    assert (one.expected, one.found) == ("464", "465")


@pytest.mark.parametrize(
    ("sql", "place", "expected", "shown"),
    [
        ("PRAGMA user_version = 9", "user_version", "2", "[9]"),
        ("PRAGMA application_id = 9", "application_id", str(0x41535359), "[9]"),
        ("UPDATE alembic_version SET version_num = '0001'", "alembic_version", "0002", "['0001']"),
    ],
)
def test_a_wrong_version_is_shown_beside_the_right_one(
    store_root: Path, sql: str, place: str, expected: str, shown: str
):
    change(store_root, sql)
    (one,) = found(store_root)
    assert (one.check, one.place, one.message) == ("database", f"assay.sqlite: {place}", "wrong value")
    assert (one.expected, one.found) == (expected, shown)


def test_a_table_that_is_not_ours_is_named_with_its_text_and_no_row_is_compared(store_root: Path):
    seq = entry_of(store_root, "load.sealed")
    change(store_root, "CREATE TABLE further (x)", f"UPDATE load_seal SET state = 'PARTIAL' WHERE entry_seq = {seq}")
    (one,) = found(store_root)
    assert (one.check, one.place, one.message) == ("database", "assay.sqlite: table further", "the schema differs")
    assert (one.expected, one.found) == (None, "CREATE TABLE further (x)")


def test_a_row_of_an_entry_that_is_not_there_breaks_its_key(store_root: Path):
    change(store_root, "INSERT INTO rejudgement VALUES (900, 'x', 1)")
    assert [(one.check, one.place) for one in found(store_root)] == [
        ("database", "assay.sqlite: rejudgement"),
        ("rows", "assay.sqlite: rejudgement, entry_seq 900"),
    ]
    change(store_root, "CREATE TABLE further (x)")
    assert [(one.check, one.place) for one in found(store_root)] == [
        ("database", "assay.sqlite: rejudgement"),
        ("database", "assay.sqlite: table further"),
    ]


def test_a_database_ahead_of_the_ledger_is_found(store_root: Path):
    path = store_root / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    rows = [one for one in found(store_root) if one.check == "rows"]
    assert (rows[0].message, rows[0].expected, rows[0].found) == (
        "the database has entries that the ledger has not",
        "22 entries",
        "21 entries",
    )
    assert (rows[1].place, rows[1].message) == (
        "assay.sqlite: ledger_entry, entry_seq 21",
        "rows of an entry that is not there",
    )
