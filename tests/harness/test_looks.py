"""Campaigns with looks, budgets and rules about the host, run for real against the fake engine."""

from __future__ import annotations

import json
from typing import Any

LOOKS = "{kind: blocks, blocks: 4, looks: [2, 4], order: abba, burn_in: true}"


def test_a_campaign_ends_at_the_look_that_decides_it_and_audits(world: Any) -> None:
    path = world.protocol(schedule=LOOKS, gates=world.EXACT_GATES + world.LOSS_GATE, claim="non_inferiority")
    ended = world.run("run", path, "--store", world.store, "--json")
    report = ended.json()
    assert (ended.code, report["verdict"]["status"]) == (0, "PASS"), ended.err
    assert "decided at a look" in ended.err
    states = {load["label"]: load["state"] for load in report["loads"]}
    assert [label for label, state in states.items() if state == "COMPLETE"] == [
        "B0", "A1", "C1", "C2", "A2", "A3", "C3", "C4", "A4",
    ]  # fmt: skip
    assert len([one for one in world.order() if one["event"] == "start"]) == 9
    (look,) = next(gate for gate in report["gates"] if gate["id"] == "generation-loss")["inputs"]["looks"]
    (lock,) = world.store.glob("campaigns/*/lock.json")
    frozen = json.loads(lock.read_text())["looks"]
    assert look["level"] == frozen[0]["level"]
    assert [(row["gate"], row["blocks"]) for row in frozen] == [("generation-loss", 2), ("generation-loss", 4)]
    assert "Loads that a decided look made needless: A5, C5" in " ".join(report["not_measured"])
    assert world.run("audit", "--store", world.store).code == 0


def test_a_budget_of_loads_stops_a_campaign_that_needs_more(world: Any) -> None:
    path = world.protocol(
        candidate=["--fault", "die-after=2", "--fault-start", "1"],
        limits="{load_s: 10, request_s: 10, idle_s: 2, campaign_min: 5, loads: 4}",
    )
    first = world.run("run", path, "--store", world.store)
    assert first.code == 5
    again = world.run("resume", "--store", world.store)
    assert again.code == 5
    assert "the campaign's 4 loads are used up" in again.err
    assert len([one for one in world.order() if one["event"] == "start"]) == 4


def test_rules_about_the_host_are_checked_against_the_recorded_telemetry(world: Any) -> None:
    rule = "validity: [{reading: swap_in_pages, most: 100000000}, {reading: engine_major_faults, most: 100000000}]"
    path = world.protocol(
        schedule=world.BLOCKS, gates=world.EXACT_GATES + world.LOSS_GATE, claim="non_inferiority", extra=rule
    )
    report = world.run("run", path, "--store", world.store, "--json").json()
    inputs = next(gate for gate in report["gates"] if gate["id"] == "generation-loss")["inputs"]
    assert (inputs["invalid_blocks"], inputs["unchecked_readings"]) == ([], [])
    assert world.run("audit", "--store", world.store).code == 0


def test_a_look_that_does_not_fit_into_its_time_is_not_begun(world: Any) -> None:
    """The candidate loses exactly the margin, which neither passes nor fails; 248 further loads do not fit."""
    path = world.protocol(
        candidate=["--rate", "1000"],
        schedule="{kind: blocks, blocks: 64, looks: [2, 64], order: abba, burn_in: true}",
        gates=world.EXACT_GATES + world.LOSS_GATE.replace('"10"', '"50"'),
        claim="non_inferiority",
        limits="{load_s: 10, request_s: 10, idle_s: 2, campaign_min: 5, looks_min: 1}",
    )
    ended = world.run("run", path, "--store", world.store, "--json")
    report = ended.json()
    assert (ended.code, report["verdict"]["status"]) == (3, "INCONCLUSIVE"), ended.err
    assert "not decided yet, and the next look does not fit: 248 loads of up to" in ended.err
    assert len([one for one in world.order() if one["event"] == "start"]) == 9
    loss = next(gate for gate in report["gates"] if gate["id"] == "generation-loss")
    assert (loss["inputs"]["n_candidate"], loss["inputs"]["next_look"]) == (4, 64)
    assert (
        "The next look, after 64 blocks, was not reached: A5 was not run, and 247 more loads are missing."
        in loss["reason"]
    )
    said = json.dumps(report["claims"])
    assert (
        "un it again with more time for looks than 1 min (`limits.looks_min`): this one ended 248 loads before" in said
    )
    assert "Loads that were not run: A5" in " ".join(report["not_measured"])
    assert world.run("audit", "--store", world.store).code == 0
