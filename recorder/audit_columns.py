"""Compares the rows of large tables without making one object for each: a piece of each column is joined by SQLite.

A column of numbers or of names is its values with commas between them (no name holds a comma), a column of bytes its
lengths and its bytes one behind the other. With the number of rows, which the caller has compared, that text has one
reading only. Values of another type cannot hide behind an equal text: the tables are STRICT, and the check of the
database has had the whole file checked for that. Whoever gets False compares row by row: only that says what differs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from typing import Final

import msgspec
from sqlalchemy import Connection
from sqlalchemy.types import LargeBinary

from recorder.row_blocks import Block, Column, RowBlocks
from recorder.tables import metadata

PIECE_BYTES: Final = 1_000_000
"""How much of a table is joined at once, about: it bounds the memory, and SQLite's texts must stay under a gigabyte."""
_ROW_BYTES: Final = 64


def hold_columns(connection: Connection, table: str, rows: RowBlocks) -> bool:
    """Whether each of these rows stands in a table of the SQLite database as it is given here.

    Other rows are not looked for. False also where SQLite refuses to join so large a row.
    """
    cursor = connection.connection.cursor()
    try:
        for block in rows.blocks:
            query = _query(table, tuple(block.key), tuple(block.columns))
            for start, stop in _pieces(block):
                cursor.execute(query, (*block.key.values(), start, stop))
                if cursor.fetchall() != [(stop - start, *_joined(block, table, start, stop))]:
                    return False
    except sqlite3.DataError:
        return False
    return True


@cache
def _bytes_columns(table: str) -> frozenset[str]:
    return frozenset(column.name for column in metadata.tables[table].columns if isinstance(column.type, LargeBinary))


@cache
def _query(table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
    joined = []
    for name in columns:
        if name in _bytes_columns(table):
            joined += [f"group_concat(length({name}))", f"group_concat({name}, '')"]
        else:
            joined.append(f"group_concat({name})")
    texts = ", ".join(f"CAST({one} AS BLOB)" for one in joined)
    where = " AND ".join(f"{name} = ?" for name in key)
    rows = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} AND ordinal >= ? AND ordinal < ? ORDER BY ordinal"  # noqa: S608
    return f"SELECT count(*), {texts} FROM ({rows})"  # noqa: S608


def _pieces(block: Block) -> Iterator[tuple[int, int]]:
    """Yield from which row to which a block is compared at once."""
    size = len(block)
    large = sum(len(one) for column in block.columns.values() if _is_bytes(column) for one in column)
    step = max(1, PIECE_BYTES * size // (large + _ROW_BYTES * size))
    for start in range(0, size, step):
        yield start, min(size, start + step)


def _is_bytes(column: Column) -> bool:
    return isinstance(column[0], bytes)


def _joined(block: Block, table: str, start: int, stop: int) -> Iterator[bytes]:
    for name, column in block.columns.items():
        values = column[start:stop]
        if name in _bytes_columns(table):
            yield _numbers([len(one) for one in values])
            yield b"".join(values)
        elif isinstance(values[0], str):
            yield ",".join(values).encode()
        else:
            yield _numbers(list(values))


def _numbers(values: list[int]) -> bytes:
    return msgspec.json.encode(values)[1:-1]
