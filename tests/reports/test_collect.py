"""Facts come from the evidence, and a load that the evidence has is never left out."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from protocols.errors import EvidenceError
from reports.collect import collect_facts


def test_facts_agree_with_what_the_gates_recorded(finished: Any) -> None:
    facts = collect_facts(finished.store, "latest")
    gate = next(gate for gate in facts.gates if gate.kind == "loss")
    by_label = {load["label"]: load for load in gate.inputs["loads"]}
    for load in facts.loads:
        assert load.workloads[0].generation_rate == float(by_label[load.label]["rate"])
        assert (load.state, load.workloads[0].generated_tokens, load.workloads[0].prompt_tokens) == ("COMPLETE", 24, 32)
    assert facts.verdict.entry_seq is not None


def test_telemetry_covers_the_requests_and_names_the_engine(finished: Any) -> None:
    for load in collect_facts(finished.store, "latest").loads:
        assert load.telemetry is not None
        assert load.telemetry.covers_requests
        assert load.telemetry.samples >= 1
        assert load.telemetry.peak_rss_bytes is not None
        assert load.telemetry.peak_rss_bytes > 5_000_000


def test_both_arms_of_one_engine_show_no_difference(finished: Any) -> None:
    difference = collect_facts(finished.store, "latest").difference
    assert (difference.changed_files, difference.same_files, difference.settings) == ((), ("fake_engine.py",), ())


def test_a_load_that_the_tables_lack_is_an_error_and_not_a_shorter_report(copy_of_finished: Path) -> None:
    with sqlite3.connect(copy_of_finished / "assay.sqlite") as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DELETE FROM load WHERE label = 'C2'")
    connection.close()
    with pytest.raises(EvidenceError, match=r"loads that the tables lack: .*2-C2"):
        collect_facts(copy_of_finished, "latest")


def test_reading_facts_changes_nothing_in_the_store(finished: Any) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(finished.store.rglob("*"))}
    collect_facts(finished.store, "latest")
    assert {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(finished.store.rglob("*"))
    } == before
