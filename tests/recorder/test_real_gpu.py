"""What a real H200 recorded, derived again: the campaign in tests/evidence, and the page that speaks of it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recorder.importing import import_bundle
from recorder.store import Store

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "tests" / "evidence" / "h200-smollm2.assay.tar.zst"
PAGE = ROOT / "docs" / "telemetry.md"

ENERGIES = """
SELECT p.entry_seq, p.request, p.phase, p.method, p.energy_uj, p.bound_uj, p.is_best, p.reason, f.name
FROM phase_energy p JOIN telemetry_field f ON f.entry_seq = p.entry_seq AND f.field = p.field
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    root = tmp_path_factory.mktemp("h200") / "store"
    with Store.open(root, create=True) as store:
        folder = root / import_bundle(store, BUNDLE).folder
    connection = sqlite3.connect(f"file:{folder / 'assay.sqlite'}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    yield connection
    connection.close()


def rows(database: sqlite3.Connection, query: str) -> list[dict[str, Any]]:
    return [dict(row) for row in database.execute(query)]


def test_the_energy_of_a_generation_comes_from_the_counter_with_a_bound_below_a_fifth(database) -> None:
    best = [row for row in rows(database, ENERGIES) if row["is_best"] and row["phase"] == "generation"]
    resolved = [row for row in best if row["energy_uj"] is not None]
    assert len(resolved) >= 20
    assert {(row["method"], row["name"]) for row in resolved} == {("counter", "board_energy_uj")}
    assert all(0 < row["bound_uj"] < row["energy_uj"] / 5 for row in resolved)


def test_a_prefill_of_milliseconds_has_no_energy(database) -> None:
    prefills = [
        row for row in rows(database, ENERGIES) if row["phase"] == "prefill" and row["name"] == "board_energy_uj"
    ]
    assert prefills
    assert {row["energy_uj"] for row in prefills} == {None}
    assert {row["reason"] for row in prefills} <= {"unresolved", "not_spanned"}


def test_counter_and_instantaneous_power_agree_within_their_bounds(database) -> None:
    found: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for row in rows(database, ENERGIES):
        if row["phase"] == "generation" and row["energy_uj"] is not None:
            found.setdefault((row["entry_seq"], row["request"]), {})[row["name"]] = row
    pairs = [
        (one["board_energy_uj"], one["board_power_instant_uw"])
        for one in found.values()
        if len(one) >= 2 and "board_power_instant_uw" in one and "board_energy_uj" in one
    ]
    assert pairs
    apart = [
        abs(counter["energy_uj"] - power["energy_uj"]) - counter["bound_uj"] - power["bound_uj"]
        for counter, power in pairs
    ]
    assert max(apart) <= 0


def test_no_mean_stands_without_eight_samples(database) -> None:
    sensors = rows(database, "SELECT status, n, mean FROM phase_sensor")
    assert {row["status"] for row in sensors} <= {"OK", "INSUFFICIENT", "ABSENT"}
    assert all((row["mean"] is not None) == (row["status"] == "OK") for row in sensors)
    assert all(row["n"] >= 8 for row in sensors if row["status"] == "OK")


def test_the_query_of_the_page_gives_what_the_page_says(database) -> None:
    query = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert query is not None
    found = rows(database, query.group(1))
    assert len(found) >= 20
    assert all(100 < row["mj_a_token"] < 1000 for row in found)


def test_the_cost_of_sampling_is_what_the_page_says(database) -> None:
    costs = [
        100 * row["cpu_ns"] / row["span_ns"]
        for row in rows(
            database,
            "SELECT sum(cpu_ns) AS cpu_ns, max(t_end_ns) - min(t_begin_ns) AS span_ns FROM telemetry_sample GROUP BY entry_seq",
        )
    ]
    assert f"{min(costs):.1f} to {max(costs):.1f} %" in PAGE.read_text()
