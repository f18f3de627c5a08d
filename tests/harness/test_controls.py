"""A reduced detection matrix over the real engine: faults of a server, each caught by its gate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.cache import cache_folder


@pytest.mark.timeout(900)
def test_known_faults_of_a_server_are_caught_and_nothing_is_without_one(world: Any):
    out = world.root / "detection.md"
    names = ["split-utf8", "doubled-token-event", "swapped-library"]
    command = ["controls", "run", *names, "--store", world.store, "--out", out, "--json"]
    ended = world.run(*command, ASSAY_CACHE=str(cache_folder()))
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["rows"]
    assert [(row["control"], row["caught"]) for row in rows] == [(None, True), *((name, True) for name in names)]
    assert "3 of 3 faults caught" in out.read_text()


def test_an_unknown_control_is_refused_with_the_nearest_name(world: Any):
    ended = world.run("controls", "run", "split-utf", "--store", world.store)
    assert ended.code == 2
    assert "split-utf8" in ended.err


@pytest.mark.timeout(900)
def test_over_two_right_builds_no_exact_gate_fires(world: Any):
    out = world.root / "alarms.md"
    command = ["controls", "alarms", "control-served", "--campaigns", 1, "--store", world.store, "--out", out, "--json"]
    ended = world.run(*command, ASSAY_CACHE=str(cache_folder()))
    assert ended.code == 0, ended.err
    gates = json.loads(ended.out)["gates"]
    assert {gate["gate"]: gate["fired"] for gate in gates if gate["is_exact"]} == dict.fromkeys(
        (gate["gate"] for gate in gates if gate["is_exact"]), 0
    )
    assert "1 campaigns without a fault: exact gates fired 0 times" in out.read_text()
    assert "control-served.fault-free" in world.run("list", "--store", world.store).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["alarms", "release-quik"], "write release-quick"),
        (["alarms", "release-quick", "--out", "nowhere/alarms.md"], "mkdir -p nowhere"),
        (["run", "split-utf8", "--out", "nowhere/detection.md"], "mkdir -p nowhere"),
    ],
)
def test_what_cannot_be_run_or_written_is_said_before_the_first_campaign(world: Any, arguments: list[str], words: str):
    ended = world.run("controls", *arguments, "--store", world.store)
    assert ended.code == 2
    assert words in ended.err
    assert not world.store.exists()
