"""Exports: what pandas and DuckDB read is what the database says, row by row."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from pyarrow import parquet

from protocols.errors import EvidenceError, HostError, ProtocolError
from recorder.export import FORMATS, export_tables
from recorder.tables import DERIVED


def stored(root: Path, table: str) -> list[tuple[object, ...]]:
    keys = ", ".join(column.name for one in DERIVED if one.name == table for column in one.primary_key.columns)
    connection = sqlite3.connect(root / "assay.sqlite")
    try:
        return connection.execute(f"SELECT * FROM {table} ORDER BY {keys}").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("form", FORMATS)
def test_every_table_is_written_with_all_its_rows(store_root: Path, tmp_path: Path, form: str):
    counts = export_tables(store_root, tmp_path / "out", form=form)
    assert counts == {table.name: len(stored(store_root, table.name)) for table in DERIVED}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{table.name}.{form}" for table in DERIVED}


@pytest.mark.parametrize("table", [table.name for table in DERIVED])
def test_parquet_reads_back_as_it_is_stored(store_root: Path, tmp_path: Path, table: str):
    export_tables(store_root, tmp_path / "out", names=[table])
    found = parquet.read_table(tmp_path / "out" / f"{table}.parquet")
    assert [tuple(row.values()) for row in found.to_pylist()] == stored(store_root, table)
    assert found.schema.metadata[b"assay.table"] == table.encode()


def test_pandas_reads_both_forms_alike(store_root: Path, tmp_path: Path):
    for form in FORMATS:
        export_tables(store_root, tmp_path / form, form=form, names=["request", "token", "timing"])
    for table in ("token", "timing"):
        whole, text = (
            pd.read_parquet(tmp_path / "parquet" / f"{table}.parquet"),
            pd.read_csv(tmp_path / "csv" / f"{table}.csv", dtype={"text": "str"}),
        )
        pd.testing.assert_frame_equal(whole, text, check_dtype=False)
    requests = pd.read_parquet(tmp_path / "parquet" / "request.parquet")
    measured = requests[(requests["workload"] == "tiny") & (requests["is_warmup"] == 0)]
    assert len(measured) == 4
    assert set(measured["generated_tokens"]) == {6}
    assert requests["ttft_ns"].isna().any(), "what is not there is null"


def test_duckdb_answers_questions_over_the_files(store_root: Path, tmp_path: Path):
    duckdb = pytest.importorskip("duckdb", reason="NOT_RUN: duckdb is not installed here")
    export_tables(store_root, tmp_path / "out")
    query = f"""
        SELECT load.arm, count(*), min(request.prompt_tokens_evaluated * 1e9 / request.server_prefill_ns)
        FROM '{tmp_path}/out/load.parquet' AS load
        JOIN '{tmp_path}/out/load_seal.parquet' AS seal USING (load_id)
        JOIN '{tmp_path}/out/request.parquet' AS request ON request.entry_seq = seal.entry_seq
        WHERE request.workload IS NOT NULL AND request.is_warmup = 0
        GROUP BY load.arm ORDER BY load.arm
    """
    assert duckdb.sql(query).fetchall() == [("baseline", 2, 400.0), ("candidate", 2, 400.0)]


def test_bytes_are_hexadecimal_in_csv(store_root: Path, tmp_path: Path):
    export_tables(store_root, tmp_path / "out", form="csv", names=["frozen_request"])
    frame = pd.read_csv(tmp_path / "out" / "frozen_request.csv")
    assert bytes.fromhex(frame["body"][0]) in {row[4] for row in stored(store_root, "frozen_request")}


def test_nothing_is_overwritten_and_wrong_names_are_refused(store_root: Path, tmp_path: Path):
    export_tables(store_root, tmp_path, names=["token"])
    with pytest.raises(HostError, match="exists already"):
        export_tables(store_root, tmp_path, names=["token"])
    with pytest.raises(ProtocolError, match="no table"):
        export_tables(store_root, tmp_path / "x", names=["nonsense"])
    with pytest.raises(EvidenceError, match="missing"):
        export_tables(tmp_path, tmp_path / "x")


def test_a_disk_that_fills_up_leaves_no_table(store_root: Path, tmp_path: Path):
    written: list[str] = []

    def fail_at_the_second(connection: object, table: object, path: Path) -> int:
        written.append(path.name)
        path.write_text("half")
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return 1

    with (
        mock.patch("recorder.export._write_csv", side_effect=fail_at_the_second),
        pytest.raises(HostError, match="No space left") as caught,
    ):
        export_tables(store_root, tmp_path / "out", form="csv")
    assert (caught.value.exit_code, len(written), [*(tmp_path / "out").iterdir()]) == (5, 2, [])
    assert "resume" not in str(caught.value.hint)
