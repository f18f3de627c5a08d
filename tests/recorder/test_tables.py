"""The schema."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from recorder.tables import DERIVED, metadata


def test_every_row_names_the_ledger_entry_that_it_comes_from():
    for table in DERIVED:
        if table.name != "ledger_entry":
            column = table.c.entry_seq
            assert not column.nullable
            assert [key.target_fullname for key in column.foreign_keys] == ["ledger_entry.seq"]


def test_units_stand_in_the_names_of_times_and_sizes():
    for table in DERIVED:
        for column in table.columns:
            assert not column.name.endswith(("_time", "_duration", "_size")), f"{table.name}.{column.name}"


def test_every_table_has_a_key():
    assert [table.name for table in DERIVED if not table.primary_key.columns] == []


def test_the_schema_compiles_for_postgresql_too():
    for table in DERIVED:
        sql = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert "STRICT" not in sql
        assert " INTEGER" not in sql, "nanoseconds need 64 bits"


def test_the_schema_can_be_made():
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
