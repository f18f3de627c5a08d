"""The audit of the database: exactly what differs is named, with what was expected and what stands there."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

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
