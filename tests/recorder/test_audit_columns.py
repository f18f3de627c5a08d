"""Rows compared by column: whatever is changed in a table is seen, however the values look when they are joined."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text

from recorder import audit_columns
from recorder.audit_columns import hold_columns
from recorder.row_blocks import Block, RowBlocks
from recorder.tables import metadata

KEY = {"entry_seq": 3, "request": 2}
NUMBERS = st.sampled_from([0, 1, 11, 111, -1, 2**63 - 1])
BYTES = st.sampled_from([b"", b"a", b"aa", b",", b"\x00", b"\x00a", b"\xff", b"a\x00"])
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from(["token", "final", "done"]), BYTES), min_size=1, max_size=7)


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.connect() as opened:
        metadata.create_all(opened)
        yield opened
    engine.dispose()


def events(rows: list[tuple[int, int, str, bytes]]) -> RowBlocks:
    t_ns, read_ordinal, kind, data = (list(column) for column in zip(*rows, strict=True))
    columns = {"ordinal": range(len(rows)), "t_ns": t_ns, "read_ordinal": read_ordinal, "kind": kind, "data": data}
    return RowBlocks([Block(KEY, columns)])


def store(connection: Connection, rows: RowBlocks) -> None:
    names = [column.name for column in metadata.tables["sse_event"].columns]
    connection.exec_driver_sql("DELETE FROM sse_event")
    marks = ", ".join("?" * len(names))
    connection.exec_driver_sql(f"INSERT INTO sse_event VALUES ({marks})", [*rows.tuples(names)])


def holds(connection: Connection, rows: RowBlocks) -> bool:
    """As the audit asks: the number of rows first, then the columns."""
    count = connection.scalar(text("SELECT count(*) FROM sse_event"))
    return count == len(rows) and hold_columns(connection, "sse_event", rows)


@given(ROWS, ROWS, st.sampled_from([1, 100, 1_000_000]))
def test_rows_hold_exactly_if_they_are_those_that_are_stored(connection, expected, stored, piece_bytes):
    store(connection, events(stored))
    with mock.patch.object(audit_columns, "PIECE_BYTES", piece_bytes):
        assert holds(connection, events(expected)) == (expected == stored)
        assert holds(connection, events(stored))


@given(ROWS, st.data())
def test_one_value_that_differs_is_seen(connection, rows, data):
    store(connection, events(rows))
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, 3))
    other = data.draw({0: NUMBERS, 1: NUMBERS, 2: st.sampled_from(["token", "tok,en", ""]), 3: BYTES}[column])
    changed = [[*one] for one in rows]
    changed[row][column] = other
    name = ("t_ns", "read_ordinal", "kind", "data")[column]
    connection.exec_driver_sql(f"UPDATE sse_event SET {name} = ? WHERE ordinal = ?", (other, row))
    assert holds(connection, events(rows)) == (changed == [[*one] for one in rows])


@given(ROWS)
def test_rows_of_another_request_entry_or_place_are_not_these(connection, rows):
    for column, value in (("request", 9), ("entry_seq", 9), ("ordinal", 99)):
        store(connection, events(rows))
        assert holds(connection, events(rows))
        connection.exec_driver_sql(f"UPDATE sse_event SET {column} = ? WHERE ordinal = 0", (value,))
        assert not holds(connection, events(rows))


def test_a_row_that_sqlite_cannot_join_is_left_to_the_comparison_of_rows(connection):
    rows = events([(1, 2, "token", b"x" * 2000)])
    store(connection, rows)
    assert holds(connection, rows)
    raw = connection.connection.driver_connection
    limit = raw.setlimit(0, 1500)  # SQLITE_LIMIT_LENGTH
    try:
        assert not hold_columns(connection, "sse_event", rows)
    finally:
        raw.setlimit(0, limit)
