"""Checks of the database: whole, of this schema, and row by row what ledger and blobs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import Column, Connection, Table, create_engine, func, select, text

from protocols.errors import AssayError
from recorder.audit_columns import hold_columns
from recorder.audit_context import Audit, LeftOutError, place_of
from recorder.ledger import Entry
from recorder.row_blocks import RowBlocks
from recorder.rows import derive_rows, read_exchanges
from recorder.tables import APPLICATION_ID, DERIVED, REVISION, SCHEMA_VERSION, metadata, revision


def check_database(audit: Audit) -> None:
    """(10) The database file is whole and has exactly this schema."""
    with audit.open_database().reading() as connection:
        pragmas = (("application_id", APPLICATION_ID), ("user_version", SCHEMA_VERSION), ("integrity_check", "ok"))
        for pragma, expected in pragmas:
            audit.items += 1
            found = [row[0] for row in connection.execute(text(f"PRAGMA {pragma}"))]
            if found != [expected]:
                audit.find(f"assay.sqlite: {pragma}", message="wrong value", expected=expected, found=found[:3])
        expected_schema, found_schema = _expected_schema(), _schema(connection)
        audit.has_schema = expected_schema == found_schema
        for table in _dangling(audit, connection):
            audit.find(f"assay.sqlite: {table}", message="a row refers to a ledger entry that is not there")
        if revision.name in {name.removeprefix("table ") for name in found_schema}:
            audit.items += 1
            found = [row[0] for row in connection.execute(text(f"SELECT * FROM {revision.name}"))]  # noqa: S608
            if found != [REVISION]:
                audit.find(f"assay.sqlite: {revision.name}", message="wrong value", expected=REVISION, found=found[:3])
    for name in sorted(expected_schema.keys() | found_schema.keys()):
        audit.items += 1
        if expected_schema.get(name) != found_schema.get(name):
            audit.find(
                f"assay.sqlite: {name}",
                message="the schema differs",
                expected=expected_schema.get(name),
                found=found_schema.get(name),
            )


def _dangling(audit: Audit, connection: Connection) -> list[str]:
    """Return the table of each row that refers to no entry; once a table where the schema is ours.

    Each key of our tables is that of its entry, so that it is enough to count by entry: SQLite looks up every row.
    """
    if not audit.has_schema:
        return [str(row[0]) for row in connection.execute(text("PRAGMA foreign_key_check"))]
    counts = _counts(audit, connection)
    return [table.name for table in DERIVED if counts[table.name].keys() - counts["ledger_entry"].keys()]


def _schema(connection: Connection) -> dict[str, str]:
    rows = connection.execute(text("SELECT type, name, sql FROM sqlite_master"))
    return {f"{kind} {name}": str(sql) for kind, name, sql in rows}


@cache
def _expected_schema() -> dict[str, str]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        schema = _schema(connection)
    engine.dispose()
    return schema


def check_rows(audit: Audit) -> None:
    """(11) Each row equals the one derived again; there are no others; at most one entry is still to come."""
    if not audit.has_schema:
        return  # rows of another schema cannot be compared; check 10 says what differs
    with audit.open_database().reading() as connection:
        newest = connection.scalar(select(func.max(metadata.tables["ledger_entry"].c.seq)))
        newest = -1 if newest is None else int(newest)
        covered = _covered(audit, newest)
        counts = _counts(audit, connection)
        for table, by_seq in counts.items():
            last = min(newest + 1, len(audit.entries_by_now())) if audit.is_live else covered
            for seq in sorted(seq for seq in by_seq if not 0 <= seq < last):
                place = f"assay.sqlite: {table}, entry_seq {seq}"
                audit.find(place, message="rows of an entry that is not there", expected=0, found=by_seq[seq])
        for entry in audit.entries[:covered]:
            _check_entry(audit, connection, entry, counts)
    audit.counts["rows"] = sum(sum(by_seq.values()) for by_seq in counts.values())


def _covered(audit: Audit, newest: int) -> int:
    """Return how many entries can be compared, and say so if the database does not end where the ledger does."""
    covered = newest + 1
    total = len(audit.entries)
    missing = total - covered
    if missing < 0:
        if covered > len(audit.entries_by_now()):
            message = "the database has entries that the ledger has not"
            audit.find("ledger.jsonl", message=message, expected=f"{covered} entries", found=f"{total} entries")
        return total
    if missing == 1:
        audit.notes.append("assay.sqlite: one entry of the ledger is still to come")
    elif missing:
        message = "the database lacks entries of the ledger"
        audit.find("assay.sqlite", message=message, expected=f"{total} entries", found=f"{covered} entries")
    return covered


def _seq_column(table: Table) -> Column[Any]:
    return table.c.seq if table.name == "ledger_entry" else table.c.entry_seq


def _counts(audit: Audit, connection: Connection) -> dict[str, dict[int, int]]:
    """Return how many rows each table has of each entry. A recorder beside us may add some between two checks."""

    def count(table: Table) -> dict[int, int]:
        column = _seq_column(table).name
        rows = connection.exec_driver_sql(f"SELECT {column}, count(*) FROM {table.name} GROUP BY {column}")  # noqa: S608
        return {int(seq): int(found) for seq, found in rows}

    def count_all() -> dict[str, dict[int, int]]:
        return {table.name: count(table) for table in DERIVED}

    return count_all() if audit.is_live else audit.once(("row counts",), count_all)


def _check_entry(audit: Audit, connection: Connection, entry: Entry, counts: Mapping[str, Mapping[int, int]]) -> None:
    try:
        exchanges = [*read_exchanges(entry, audit.read_blob)] if entry.kind == "load.sealed" else []
        expected = derive_rows(entry, audit.read_blob, exchanges)
        if exchanges:
            audit.facts.take(entry, exchanges)
    except LeftOutError:
        audit.open_points.append(f"{place_of(entry)}: its rows cannot be derived without what was left out")
        return
    except (AssayError, KeyError, TypeError, ValueError) as error:
        audit.find(place_of(entry), message=f"its rows cannot be derived: {error}")
        return
    for table in DERIVED:
        rows, count = expected.get(table.name, []), counts[table.name].get(entry.seq, 0)
        audit.items += len(rows)
        if isinstance(rows, RowBlocks) and len(rows) == count and hold_columns(connection, table.name, rows):
            continue
        if rows or count:
            _compare(audit, table, entry, rows, _stored(connection, table, entry.seq))


def _stored(connection: Connection, table: Table, seq: int) -> list[tuple[Any, ...]]:
    # SQLAlchemy would compile each statement for this one connection, and wrap each row: that costs more than all else.
    names = ", ".join(column.name for column in table.columns)
    order = ", ".join(column.name for column in table.primary_key.columns)
    query = f"SELECT {names} FROM {table.name} WHERE {_seq_column(table).name} = ? ORDER BY {order}"  # noqa: S608
    cursor = connection.connection.cursor()
    return cast("list[tuple[Any, ...]]", cursor.execute(query, (seq,)).fetchall())


def _compare(
    audit: Audit, table: Table, entry: Entry, expected: Sequence[Mapping[str, Any]], found: Sequence[tuple[Any, ...]]
) -> None:
    names = [column.name for column in table.columns]
    # Rows are derived in the order of their keys. Values of another type cannot hide behind an equal one: the tables
    # are STRICT, and check 10 had the whole file checked for that.
    if list(map(itemgetter(*names), expected)) == found:
        return
    keys = [names.index(column.name) for column in table.primary_key.columns]
    stored = {tuple(row[place] for place in keys): row for row in found}
    for row in expected:
        wanted = tuple(row[name] for name in names)
        other = stored.pop(tuple(wanted[place] for place in keys), None)
        if other is None:
            place = _key_text(table, names, wanted)
            audit.find(place, message=f"the row is missing ({place_of(entry)})")
        elif wanted != other or [type(value) for value in wanted] != [type(value) for value in other]:
            _name_columns(audit, table, entry, wanted, other)
    for other in stored.values():
        audit.find(_key_text(table, names, other), message=f"a row that {place_of(entry)} does not give")


def _name_columns(audit: Audit, table: Table, entry: Entry, wanted: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    names = [column.name for column in table.columns]
    place = _key_text(table, names, wanted)
    for name, expected, found in zip(names, wanted, other, strict=True):
        if expected != found or type(expected) is not type(found):
            audit.find(
                f"{place}, column {name}",
                message=f"not what {place_of(entry)} and its blobs say",
                expected="NULL" if expected is None else expected,
                found="NULL" if found is None else found,
            )


def _key_text(table: Table, names: Sequence[str], row: tuple[Any, ...]) -> str:
    parts = (f"{column.name} {row[names.index(column.name)]}" for column in table.primary_key.columns)
    return f"assay.sqlite: {table.name}, {', '.join(parts)}"
