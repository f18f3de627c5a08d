"""`assay calibrate` and `assay plan`: A/A loads run for real against the fake engine, kept, and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ONE_BLOCK = "{kind: blocks, blocks: 1, order: abba, seed: 7, burn_in: true}"


def write(world: Any, **more: Any) -> Path:
    values = {
        "schedule": ONE_BLOCK,
        "gates": world.EXACT_GATES + world.LOSS_GATE,
        "claim": "non_inferiority",
        "extra": "sigma: calibrated",
    } | more
    return Path(world.protocol(**values))


def test_a_claim_on_noise_that_nobody_calibrated_is_refused_before_anything_starts(world: Any) -> None:
    path = write(world)
    planned = world.run("plan", path, "--store", world.store)
    assert planned.code == 2
    assert "refused: gate generation-loss rests on calibrated noise" in planned.out
    ended = world.run("run", path, "--store", world.store)
    assert ended.code == 2
    assert "this host has no calibration that holds" in ended.err
    assert "assay calibrate fake-pair.yaml" in ended.err
    assert world.order() == []


def test_aa_loads_calibrate_a_host_and_one_block_then_qualifies(world: Any) -> None:
    path = write(world)
    ended = world.run("calibrate", path, "--store", world.store, "--json")
    assert ended.code == 0, ended.err
    rows = {row["metric"]: row for row in ended.json()}
    assert set(rows) == {"prefill_rate", "generation_rate"}
    row = rows["generation_rate"]
    assert (row["loads"], row["df"], row["kind"], row["misfits"]) == (12, 10, "A/A", [])
    assert row["host"]["kernel"]
    starts = [one for one in world.order() if one["event"] == "start"]
    assert len(starts) == 13
    assert {one["arm"] for one in starts} == {"baseline"}, "both arms are the baseline's engine"

    planned = world.run("plan", path, "--store", world.store, "--json")
    assert planned.code == 0, planned.err
    assert planned.json()["estimated_s"] > 0, "the A/A loads say how long a load takes"
    assert planned.json()["noise"]["generation-loss"]["source"] == "calibrated"
    assert planned.json()["can_qualify"]

    report = world.run("run", path, "--store", world.store, "--json").json()
    loss = next(gate for gate in report["gates"] if gate["id"] == "generation-loss")
    assert (report["verdict"]["status"], loss["inputs"]["sigma_source"]) == ("PASS", "calibrated")
    (lock,) = world.store.glob("campaigns/fake-pair-2*/lock.json")
    (locked,) = json.loads(lock.read_text())["calibrations"]
    assert locked["receipt_sha256"] == row["receipt_sha256"]
    assert world.run("audit", "--store", world.store).code == 0

    listed = world.run("calibrate", "--store", world.store)
    assert "cold (32 + 24)" in listed.out
    longer = write(world, name="other", limits="{load_s: 10, request_s: 10, idle_s: 2, campaign_min: 5}")
    longer.write_text(longer.read_text().replace("threads: 1", "threads: 2"))
    other = world.run("plan", longer, "--store", world.store)
    assert other.code == 2
    assert "the calibration here does not hold: settings was" in other.out


def test_only_a_complete_aa_campaign_makes_a_calibration(finished: Any, copy_of_finished: Path) -> None:
    refused = finished.run("calibrate", "--from", "latest", "--store", copy_of_finished)
    assert refused.code == 6
    assert "compares two engines, which is no A/A" in refused.err


def test_an_engine_that_is_no_build_of_ours_cannot_be_relinked(world: Any) -> None:
    ended = world.run("calibrate", write(world), "--relink", "--store", world.store)
    assert ended.code == 2
    assert "cannot be relinked" in ended.err
    assert world.run("calibrate", write(world), "--loads", "13", "--store", world.store).code == 2


def test_without_a_calibration_there_is_nothing_to_list(world: Any) -> None:
    assert "nothing is calibrated here" in world.run("calibrate", "--store", world.store).out


def test_a_plan_names_the_cheapest_design_and_refuses_a_claim_that_is_hopeless(world: Any) -> None:
    fine = world.run("plan", "served-pair", "--store", world.store, "--noise-pct", "4", "--json")
    assert (fine.code, fine.json()["refused"]) == (0, None)
    assert fine.json()["cheapest"]["blocks"] == 2
    wanted = world.run("plan", "served-pair", "--store", world.store, "--noise-pct", "4", "--power", "0.99", "--json")
    assert wanted.json()["cheapest"]["blocks"] > 2
    hopeless = world.run("plan", "served-pair", "--store", world.store, "--noise-pct", "14")
    assert hopeless.code == 2
    assert "refused: gate prefill-loss passes a candidate without any loss with a chance of 0." in hopeless.out
    assert "cheapest: " in hopeless.out
    guess = world.run("plan", "served-pair", "--store", world.store)
    assert guess.code == 0
    assert "next: `assay calibrate` measures this host's noise" in guess.out


def test_a_screen_is_never_refused(world: Any) -> None:
    assert world.run("plan", world.protocol(), "--store", world.store).code == 0


def test_looks_are_planned_with_the_loads_that_they_save(world: Any) -> None:
    schedule = "{kind: blocks, blocks: 6, looks: [2, 3, 6], order: coin, seed: 1, burn_in: true}"
    path = write(world, schedule=schedule, extra="")
    made = world.run("plan", path, "--store", world.store, "--noise-pct", "4", "--json").json()
    (gate,) = made["gates"]
    assert made["looks"] == [2, 3, 6]
    assert 8 <= gate["expected_loads"] < 16
    none, *_, four = gate["chances"]
    assert none["p_pass"] > 0.99
    assert four["p_pass"] < none["p_pass"]
    assert sum(four[f"p_{name}"] for name in ("pass", "fail", "screen_only", "inconclusive")) == pytest.approx(1)
