"""The query in recorder/README.md runs and says what the measurements say."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from recorder.store import Store
from recorder.tables import metadata

README = Path(__file__).parents[2] / "recorder" / "README.md"


def query() -> str:
    found = re.search(r"```sql\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_query_gives_both_rates_of_every_load(store_root: Path):
    store = Store.open(store_root, read_only=True)
    campaign = store.resolve_campaign("latest")
    connection = sqlite3.connect(f"file:{store_root / 'assay.sqlite'}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute(query(), {"campaign": campaign})]
    connection.close()
    assert [(row["label"], row["arm"]) for row in rows] == [
        ("A1", "baseline"),
        ("C1", "candidate"),
        ("C2", "candidate"),
        ("A2", "baseline"),
    ]
    measured = store.measurements(campaign).loads
    for row, load in zip(rows, measured, strict=True):
        one = load.requests[-1]
        assert one.server_prefill_ns
        assert one.server_generation_ns
        assert row["prefill_tok_per_s"] == pytest.approx(16 / (one.server_prefill_ns / 1e9), rel=1e-12)
        assert row["generation_tok_per_s"] == pytest.approx(5 / (one.server_generation_ns / 1e9), rel=1e-12)
        assert row["client_prefill_tok_per_s"] == pytest.approx(400.0, rel=1e-12)
        assert row["client_generation_tok_per_s"] == pytest.approx(200.0, rel=1e-12)


def test_every_table_is_in_the_readme_and_every_named_table_exists():
    text = README.read_text()
    assert [name for name in metadata.tables if f"`{name}`" not in text and f" {name} " not in query()] == []
