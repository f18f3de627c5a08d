"""Rows in columns are rows like any other."""

from __future__ import annotations

from recorder.row_blocks import Block, RowBlocks

ONE = Block({"entry_seq": 1, "request": 2}, {"ordinal": range(2), "t_ns": [5, 6]})
OTHER = Block({"entry_seq": 1, "request": 3}, {"ordinal": range(1), "t_ns": [7]})
ROWS = [
    {"entry_seq": 1, "request": 2, "ordinal": 0, "t_ns": 5},
    {"entry_seq": 1, "request": 2, "ordinal": 1, "t_ns": 6},
    {"entry_seq": 1, "request": 3, "ordinal": 0, "t_ns": 7},
]


def test_blocks_give_their_rows_in_order():
    rows = RowBlocks([ONE])
    rows.extend(RowBlocks([OTHER]))
    assert (len(rows), list(rows), rows[2], rows[:2]) == (3, ROWS, ROWS[2], ROWS[:2])
    assert [*rows.tuples(["t_ns", "request"])] == [(5, 2), (6, 2), (7, 3)]


def test_blocks_are_equal_to_the_same_rows():
    assert RowBlocks([ONE, OTHER]) == ROWS
    assert RowBlocks([ONE]) != ROWS
    assert not RowBlocks()
