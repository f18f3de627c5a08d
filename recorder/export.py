"""Tables of a store as Parquet or CSV files, for pandas, DuckDB and spreadsheets.

One file a table, in the order of its keys, with the columns and types of `tables`: integers and flags are 64-bit,
reals are float64, texts UTF-8, bytes binary (hexadecimal in CSV), and what is not there is null (empty in CSV).
Rows are read and written in pieces, so memory does not grow with the store. What is written follows from the database,
and that from the ledger: an export is no evidence.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy import Connection, LargeBinary, Table, Text, select

from protocols.errors import HostError, ProtocolError
from recorder.db import Database
from recorder.files import Files, host_errors
from recorder.store_lock import is_held
from recorder.tables import DERIVED, REVISION

Format = Literal["parquet", "csv"]
FORMATS: Final[tuple[Format, ...]] = ("parquet", "csv")
_PIECE_ROWS: Final = 20_000


def export_tables(root: Path, out: Path, *, form: Format = "parquet", names: Sequence[str] = ()) -> dict[str, int]:
    """Write the tables of a store (all, or those named) into a folder. Returns the number of rows by table.

    Raises `ProtocolError` for a table that does not exist, `HostError` where a file is in the way or by the disk,
    `EvidenceError` where the database cannot be read.
    """
    known = {table.name: table for table in DERIVED}
    if unknown := [name for name in names if name not in known]:
        raise ProtocolError(f"there is no table {unknown[0]}", hint=f"tables: {', '.join(sorted(known))}")
    chosen = [known[name] for name in names] or [*DERIVED]
    targets = {table.name: out / f"{table.name}.{form}" for table in chosen}
    if taken := [path for path in targets.values() if path.exists()]:
        raise HostError("this file exists already", where=str(taken[0]), hint="name an empty folder with --out")
    database = Database.open_read_only(root / "assay.sqlite", is_live=is_held(root / "store.lock"))
    write = _write_parquet if form == "parquet" else _write_csv
    try:
        with database.reading() as connection, host_errors("write the export", out, is_recording=False):
            Files().make_folder(out)
            with tempfile.TemporaryDirectory(prefix=".assay-export-", dir=out) as folder:
                beside = {table.name: Path(folder) / targets[table.name].name for table in chosen}
                counts = {table.name: write(connection, table, beside[table.name]) for table in chosen}
                for name, path in beside.items():  # all of them, or none
                    path.rename(targets[name])
            return counts
    finally:
        database.close()


def _pieces(connection: Connection, table: Table) -> Iterator[list[tuple[Any, ...]]]:
    ordered = select(table).order_by(*table.primary_key.columns)
    for piece in connection.execution_options(yield_per=_PIECE_ROWS).execute(ordered).partitions():
        yield [tuple(row) for row in piece]


def arrow_schema(table: Table) -> pa.Schema:
    """Return the columns of a table as Parquet files have them; the metadata names the schema of the database."""
    fields = [
        pa.field(column.name, _arrow_type(column.type), nullable=bool(column.nullable)) for column in table.columns
    ]
    return pa.schema(fields, metadata={"assay.schema": REVISION, "assay.table": table.name})


def _arrow_type(kind: object) -> pa.DataType:
    if isinstance(kind, Text):
        return pa.string()
    if isinstance(kind, LargeBinary):
        return pa.binary()
    return pa.float64() if "DOUBLE" in str(kind) or "REAL" in str(kind) else pa.int64()


def _write_parquet(connection: Connection, table: Table, path: Path) -> int:
    schema, count = arrow_schema(table), 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _pieces(connection, table):
            columns: Mapping[str, list[Any]] = dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True))
            writer.write_table(pa.table(columns, schema=schema))
            count += len(rows)
    return count


def _write_csv(connection: Connection, table: Table, path: Path) -> int:
    count = 0
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in table.columns])
        for rows in _pieces(connection, table):
            writer.writerows([value.hex() if isinstance(value, bytes) else value for value in row] for row in rows)
            count += len(rows)
    return count
