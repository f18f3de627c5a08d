"""Whatever one changes in a store, the audit finds it and names the place."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pytest
from audit_faults import assert_found, flip, places, restored

from recorder.audit import audit_store
from recorder.blobs import BlobStore
from recorder.files import Files
from recorder.ledger import parse_entry
from recorder.tables import DERIVED

RANDOM = random.Random(20261129)


def test_an_untouched_store_has_no_findings_and_rows_in_every_table(fuller: Path):
    result = audit_store(fuller)
    assert (result.findings, result.is_partial, result.notes) == ((), False, ())
    connection = sqlite3.connect(fuller / "assay.sqlite")
    empty = [t.name for t in DERIVED if not connection.execute(f"SELECT count(*) FROM {t.name}").fetchone()[0]]
    assert empty == []


def test_one_changed_byte_of_the_ledger_is_found_and_the_entry_named(root: Path):
    path = root / "ledger.jsonl"
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    newlines = [starts[3] - 1, starts[-1] - 1]
    last_line = list(range(starts[-2], starts[-1] - 1, 97))
    for place in [*places(len(data), 8), *newlines, *last_line]:
        result = restored(root, path, lambda place=place: flip(path, place))
        seq = max(number for number, start in enumerate(starts) if start <= place)
        assert_found(
            result, f"ledger entry {seq}", f"ledger entry {seq + 1}", f"entry_seq {seq}", f"seq {seq},", "ledger.jsonl"
        )


def test_each_line_of_the_ledger_that_is_removed_repeated_or_swapped_is_found(root: Path):
    path = root / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for seq in [0, 1, 2, len(lines) // 2, len(lines) - 2, len(lines) - 1]:
        for changed in (
            [*lines[:seq], *lines[seq + 1 :]],
            [*lines[: seq + 1], *lines[seq:]],
            [*lines[: seq - 1], lines[seq], lines[seq - 1], *lines[seq + 1 :]]
            if seq
            else [lines[1], lines[0], *lines[2:]],
        ):
            result = restored(root, path, lambda changed=changed: path.write_bytes(b"".join(changed)))
            assert_found(result, "ledger")


def test_a_cut_ledger_is_found(root: Path):
    path = root / "ledger.jsonl"
    size = path.stat().st_size
    for length in (0, 1, size // 3, size - 200, size - 2, size - 1):
        result = restored(root, path, lambda length=length: path.write_bytes(path.read_bytes()[:length]))
        assert_found(result, "ledger")


def test_one_changed_byte_of_a_blob_of_each_role_is_found_and_the_blob_named(root: Path):
    seen: set[str] = set()
    for line in (root / "ledger.jsonl").read_bytes().splitlines():
        for item in json.loads(line)["payload"].get("blobs", []):
            if item["role"] in seen:
                continue
            seen.add(item["role"])
            path = root / "blobs" / "sha256" / item["sha256"][:2] / item["sha256"][2:]
            for place in places(path.stat().st_size, 1):
                result = restored(root, path, lambda path=path, place=place: flip(path, place, 0x20), "hashes")
                assert_found(result, f"blobs/sha256/{item['sha256'][:2]}/{item['sha256'][2:]}")
    assert seen >= {
        "lock",
        "protocol",
        "request",
        "requests",
        "text",
        "detail",
        "exchange",
        "events",
        "telemetry",
        "log",
        "report",
        "reason",
        "orphan",
        "attachment",
    }


def test_two_blobs_that_changed_places_are_found(root: Path):
    first, second = sorted(path for path in (root / "blobs").rglob("*") if path.is_file())[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    result = audit_store(root)
    assert sum(finding.check == "blobs" for finding in result.findings) == 2


def test_missing_and_foreign_blobs_are_found(root: Path):
    path = next(path for path in sorted((root / "blobs").rglob("*")) if path.is_file())
    data = path.read_bytes()
    path.unlink()
    assert_found(audit_store(root, level="structure"), path.relative_to(root).as_posix())
    path.write_bytes(data)
    foreign = BlobStore(root / "blobs" / "sha256", Files()).put(b"foreign")
    assert_found(audit_store(root, level="structure"), foreign.sha256[2:])


@pytest.mark.parametrize(
    "kind", ["lock.json", "protocol.yaml", "report.md", "report.json", ".note", ".pub", "ledger.torn-"]
)
def test_one_changed_byte_of_every_other_kind_of_file_is_found_and_the_file_named(root: Path, kind: str):
    files = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.name.endswith(kind) or path.name.startswith(kind))
    ]
    assert files
    for path in files[:3]:
        for place in places(path.stat().st_size, 1):
            result = restored(root, path, lambda path=path, place=place: flip(path, place), "hashes")
            assert_found(result, path.relative_to(root).as_posix())


@pytest.mark.parametrize("kind", ["lock.json", "protocol.yaml", "report.md", ".note", ".pub", "ledger.torn-"])
def test_every_kind_of_file_that_is_removed_is_named(root: Path, kind: str):
    path = next(
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.name.endswith(kind) or path.name.startswith(kind))
    )
    path.unlink()
    assert_found(audit_store(root, level="structure"), path.relative_to(root).as_posix())


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "campaigns/other/lock.json",
        "checkpoints/999.note",
        "keys/x.pub",
        "spool/x/y",
        "blobs/x",
        "ledger.torn-1",
        ".tmp-1",
    ],
)
def test_a_foreign_file_is_named(root: Path, name: str):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(b"x")
    assert_found(audit_store(root, level="structure"), name)


def test_a_link_in_place_of_a_file_is_found(root: Path):
    path = next((root / "campaigns").rglob("report.md"))
    elsewhere = root.parent / "elsewhere.md"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert_found(audit_store(root, level="structure"), "report.md")


def test_an_old_report_put_back_is_found(root: Path):
    blobs = BlobStore(root / "blobs" / "sha256", Files())
    entries = [parse_entry(line, seq=seq) for seq, line in enumerate((root / "ledger.jsonl").read_bytes().splitlines())]
    older = next(entry for entry in entries if entry.kind == "report.recorded")
    path = next((root / "campaigns").rglob("report.md"))
    path.write_bytes(blobs.read(next(str(item["sha256"]) for item in older.blobs() if item["name"] == "report.md")))
    assert_found(audit_store(root), "report.md")


# --- the database --------------------------------------------------------------------------------------------------


def other_value(value: object) -> object:
    if isinstance(value, int):
        return 1 - value if value in {0, 1} else value + 1
    if isinstance(value, float):
        return value + 1.0
    if isinstance(value, bytes):
        return value + b"x"
    return f"{value or ''}x"


@pytest.mark.parametrize("table", [table.name for table in DERIVED])
def test_one_changed_value_in_any_column_is_found_and_named(full: Path, table: str):
    schema = next(one for one in DERIVED if one.name == table)
    keys = [column.name for column in schema.primary_key.columns]
    # A changed entry_seq takes a row to another entry: that is a row missing here and a row too many there.
    rest = [column.name for column in schema.columns if column.name not in {*keys, "entry_seq"}]
    connection = sqlite3.connect(full / "assay.sqlite", isolation_level=None)
    row = connection.execute(f"SELECT * FROM {table} ORDER BY {', '.join(keys)} LIMIT 1").fetchone()
    values = dict(zip([column.name for column in schema.columns], row, strict=True))
    where = " AND ".join(f"{key} = ?" for key in keys)
    for column in rest:
        new = other_value(values[column])
        if values[column] is None:
            new = 1 if str(schema.c[column].type) in {"INTEGER", "BIGINT", "DOUBLE"} else "x"
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *[values[key] for key in keys]))
    connection.close()
    result = audit_store(full, level="tables")
    named = {finding.place.rpartition(" ")[2] for finding in result.findings if f": {table}, " in finding.place}
    assert set(rest) <= named, result.findings[:5]
    assert any(f": {table}, {keys[0]} {values[keys[0]]}" in finding.place for finding in result.findings)


@pytest.mark.parametrize("table", [table.name for table in DERIVED if table.name != "ledger_entry"])
def test_a_removed_row_and_a_row_too_many_are_found_in_every_table(full: Path, table: str):
    schema = next(one for one in DERIVED if one.name == table)
    keys = [column.name for column in schema.primary_key.columns]
    path = full / "assay.sqlite"
    before = path.read_bytes()
    connection = sqlite3.connect(path, isolation_level=None)
    row = connection.execute(f"SELECT {', '.join(keys)} FROM {table} LIMIT 1").fetchone()
    connection.execute(f"DELETE FROM {table} WHERE " + " AND ".join(f"{key} = ?" for key in keys), row)
    connection.close()
    assert_found(audit_store(full, level="tables"), f"{table}, ")
    path.write_bytes(before)
    connection = sqlite3.connect(path, isolation_level=None)
    whole = list(connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone())
    place = [column.name for column in schema.columns].index(keys[-1])
    whole[place] = (
        4 if keys == ["entry_seq"] else (whole[place] + 1000 if isinstance(whole[place], int) else f"{whole[place]}x")
    )
    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(whole))})", whole)
    connection.close()
    assert_found(audit_store(full, level="tables"), f"{table}, ")


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("DELETE FROM ledger_entry WHERE seq = 3", "ledger_entry"),
        ("CREATE TABLE further (x)", "table further"),
        ("CREATE TRIGGER t AFTER INSERT ON verdict BEGIN DELETE FROM verdict; END", "trigger t"),
        ("DROP TABLE token", "table token"),
        ("PRAGMA user_version = 9", "user_version"),
        ("PRAGMA application_id = 9", "application_id"),
    ],
)
def test_a_changed_schema_is_found(root: Path, sql: str, word: str):
    connection = sqlite3.connect(root / "assay.sqlite", isolation_level=None)
    connection.execute(sql)
    connection.close()
    assert_found(audit_store(root, level="tables"), word)


def test_a_missing_a_damaged_and_an_empty_database_are_found(root: Path):
    path = root / "assay.sqlite"
    for content in (None, b"", b"damaged" * 999, path.read_bytes()[: path.stat().st_size // 2]):
        if content is None:
            result = restored(root, path, path.unlink)
        else:
            result = restored(root, path, lambda content=content: path.write_bytes(content))
        assert_found(result, "database", "assay.sqlite", "malformed")
