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
