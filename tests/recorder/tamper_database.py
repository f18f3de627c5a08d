"""Single faults of the database: rows edited, removed and added, the schema changed, a byte flipped."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

from tamper_tree import Change, Files

from recorder.tables import DERIVED


class DatabaseFaults:
    """Makes changes of the database of one pristine store."""

    def __init__(self, pristine: Files, dice: random.Random) -> None:
        self.pristine, self.dice = pristine, dice

    def _table(self) -> tuple[Any, str]:
        connection = self._opened()
        counts = {table: connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0] for table in DERIVED}
        connection.close()
        table = self.dice.choice([table for table, count in counts.items() if count])
        offset = self.dice.randrange(counts[table])
        return table, f"LIMIT 1 OFFSET {offset}"

    def _opened(self) -> sqlite3.Connection:
        """The pristine database in memory; a log of its own, which its header promises, it cannot have there."""
        data = bytearray(self.pristine["assay.sqlite"])
        data[18:20] = b"\x01\x01"
        connection = sqlite3.connect(":memory:")
        connection.deserialize(bytes(data))
        return connection

    def _sql(self, kind: str, word: str, *statements: tuple[str, tuple[Any, ...]]) -> Change:
        def apply(root: Path) -> None:
            connection = sqlite3.connect(root / "assay.sqlite", isolation_level=None)
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for sql, values in statements:
                connection.execute(sql, values)
            connection.close()

        return Change(kind, (word, "assay.sqlite"), apply)

    def _row(self) -> tuple[Any, dict[str, Any], str, tuple[Any, ...]]:
        table, where = self._table()
        connection = self._opened()
        row = connection.execute(f"SELECT * FROM {table.name} {where}").fetchone()
        connection.close()
        values = dict(zip([column.name for column in table.columns], row, strict=True))
        keys = [column.name for column in table.primary_key.columns]
        return table, values, " AND ".join(f"{key} = ?" for key in keys), tuple(values[key] for key in keys)

    def edit_a_row(self) -> Change:
        table, values, where, keys = self._row()
        column = self.dice.choice([name for name in values if name not in {"entry_seq", "seq"}])
        old = values[column]
        new: Any = f"{old or ''}x"
        if isinstance(old, bytes):
            new = old + b"x"
        elif isinstance(old, int | float) or str(table.c[column].type) not in {"TEXT", "BLOB"}:
            new = (old or 0) + 1
        sql = f"UPDATE OR REPLACE {table.name} SET {column} = ? WHERE {where}"
        return self._sql(f"edit row: {table.name}.{column}", table.name, (sql, (new, *keys)))

    def remove_a_row(self) -> Change:
        table, _, where, keys = self._row()
        return self._sql(f"delete row: {table.name}", table.name, (f"DELETE FROM {table.name} WHERE {where}", keys))

    def repeat_a_row(self) -> Change:
        table, values, _, _ = self._row()
        key = [column.name for column in table.primary_key.columns][-1]
        changed = values | {key: values[key] + 1000 if isinstance(values[key], int) else f"{values[key]}x"}
        sql = f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(changed))})"
        return self._sql(f"insert row: {table.name}", table.name, (sql, tuple(changed.values())))

    def change_the_schema(self) -> Change:
        table = self.dice.choice(DERIVED).name
        statements = (
            f"DROP TABLE {table}",
            f"ALTER TABLE {table} ADD COLUMN more TEXT",
            "CREATE TABLE more (x)",
            f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN SELECT 1; END",
            "PRAGMA user_version = 7",
            "PRAGMA application_id = 7",
            "UPDATE alembic_version SET version_num = 'x'",
        )
        sql = self.dice.choice(statements)
        return self._sql(f"schema: {sql}", "assay.sqlite", (sql, ()))

    def flip_database(self) -> Change:
        data = bytearray(self.pristine["assay.sqlite"])
        data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        made = bytes(data)
        return Change("flip: assay.sqlite", ("assay.sqlite",), lambda root: (root / "assay.sqlite").write_bytes(made))
