"""Two real campaigns on an H200: their bundles still audit, and say what clocks, power and energy did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from recorder.audit import audit_store
from recorder.bundle import opened_evidence
from recorder.db import Database
from recorder.importing import import_bundle
from recorder.keys import parse_verifier_key
from recorder.store import Store

EVIDENCE = Path(__file__).parents[1] / "evidence"
VERDICTS = {"h200-smollm2": "PASS", "h200-qwen4exp": "INCONCLUSIVE"}


def bundle(name: str) -> Path:
    return EVIDENCE / f"{name}.assay.tar.zst"


@pytest.mark.parametrize("name", VERDICTS)
def test_a_campaign_of_a_gpu_audits_from_its_bundle(name: str):
    with opened_evidence(bundle(name)) as folder:
        key = parse_verifier_key(next((folder / "keys").glob("*")).read_text().strip())
        result = audit_store(folder, trusted_keys=(key,))
    assert (result.findings, result.trust, result.is_partial) == ((), "VERIFIED", False)
    assert (result.counts["loads"], result.counts["verdicts"]) == (9, 1)


@pytest.fixture(scope="module", params=VERDICTS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a bundle, and the store that it became."""
    root = tmp_path_factory.mktemp("store")
    with Store.open(root, create=True) as store:
        import_bundle(store, bundle(request.param), trusted_keys=())
    return request.param, next((root / "imports").iterdir())


def rows(root: Path, query: str) -> list[Any]:
    database = Database.open_read_only(root / "assay.sqlite")
    try:
        with database.reading() as connection:
            return [tuple(row) for row in connection.execute(text(query))]
    finally:
        database.close()


def test_the_verdict_is_the_recorded_one(imported: tuple[str, Path]):
    name, root = imported
    assert rows(root, "select status from verdict") == [(VERDICTS[name],)]
    assert rows(root, "select state, count(*) from load_seal group by state") == [("COMPLETE", 9)]


def test_clock_power_energy_and_event_reasons_are_on_record(imported: tuple[str, Path]):
    _, root = imported
    found = dict(
        rows(
            root,
            "select f.name, max(r.raw) from telemetry_reading r join telemetry_field f on f.entry_seq = r.entry_seq"
            " and f.field = r.field where f.source like '%nvml%' or f.source like 'NVML%' group by f.name",
        )
    )
    assert 1_000_000_000 < found["gfx_clock_hz"] <= 1_980_000_000
    assert 75_000_000 < found["board_power_instant_uw"] < 700_000_000
    assert found["power_limit_uw"] == 700_000_000
    assert found["board_energy_uj"] > 0
    assert found["clock_event_bits"] == 0
    assert found["gpu_foreign_process_count"] == 0
    assert 20_000 < found["temp_gpu_mc"] < 60_000


def test_the_energy_counter_never_runs_backwards(imported: tuple[str, Path]):
    _, root = imported
    readings = rows(
        root,
        "select r.entry_seq, r.raw from telemetry_reading r join telemetry_field f on f.entry_seq = r.entry_seq"
        " and f.field = r.field where f.name = 'board_energy_uj' and r.raw is not null order by r.entry_seq, r.sample",
    )
    assert len(readings) >= 18
    assert [raw for _, raw in readings] == sorted(raw for _, raw in readings)
