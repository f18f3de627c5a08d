"""The short release, whole: the known defect shows in every control, the candidate passes, and the evidence audits."""

from __future__ import annotations

import os
from typing import Any

import pytest

from engine.cache import cache_folder
from engine.models import make_model

pytestmark = pytest.mark.skipif(
    not os.environ.get("ASSAY_TEST_THOROUGH"), reason="NOT_RUN: it takes minutes; `make nightly` runs it"
)


def test_the_short_release_passes_because_its_controls_fail(world: Any) -> None:
    cache = cache_folder()
    make_model("qwen4exp-recall", cache=cache)
    ended = world.run("run", "release-quick", "--store", world.store, "--json", ASSAY_CACHE=str(cache))
    assert ended.code == 0, ended.err
    gates = {gate["id"]: gate for gate in ended.json()["gates"]}
    controls = [gate for name, gate in gates.items() if name.endswith("-control")]
    assert len(controls) == 4
    assert all(gate["inputs"]["outcome"] == "FAIL" for gate in controls)
    assert {gate["status"] for gate in gates.values()} == {"PASS"}
    report = world.run("report", "--store", world.store).out
    assert "- Was broken, is repaired: mapping, foreign, recall, served." in report
    assert world.run("audit", "--store", world.store).code == 0
