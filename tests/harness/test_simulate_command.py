"""`assay simulate`: what it prints about a design."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_bundled_protocol_is_simulated_as_it_stands(world: Any) -> None:
    found = world.run(
        "simulate", "served-pair", "--campaigns", "200", "--noise-pct", "4", "--host", "quiet", "--json"
    ).json()
    assert found["design"] == "served-pair, gate prefill-loss"
    assert (found["blocks"], found["rule"]["margin"], found["burn_in"]) == (4, 0.1, True)
    none, margin, twice = found["cells"]
    assert (none["true_loss"], margin["true_loss"], twice["true_loss"]) == (0.0, 0.1, 0.2)
    assert none["passed"] > 170
    assert margin["passed"] < 25
    assert twice["failed"] > 180
    assert none["noise"] == 0.04


def test_looks_end_campaigns_early(world: Any) -> None:
    arguments = ("simulate", "--blocks", "4", "--looks", "2,4", "--campaigns", "100", "--host", "quiet", "--json")
    cells = world.run(*arguments).json()["cells"]
    assert 8 <= cells[0]["loads"] < 10
    assert cells[1]["loads"] > 14


def test_what_a_person_reads_of_a_simulation(world: Any, golden: Any) -> None:
    arguments = ("--campaigns", "1000", "--host", "noisy", "--host", "drift of 2 %")
    golden("simulate.txt", world.run("simulate", *arguments).out.encode())


def test_a_person_reads_what_may_go_wrong_and_what_would_help(world: Any) -> None:
    out = world.run("simulate", "--campaigns", "200", "--host", "step of 3 %").out
    assert "A loss of exactly the margin passes, and fails, with a chance of at most" in out
    assert "next: more blocks, looks that may add some, or a quieter host" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--looks", "2,3"),
        ("--looks", "x"),
        ("--looks", "1,2"),
        ("--host", "mars"),
        ("--campaigns", "5"),
        ("--blocks", "1"),
    ],
)
def test_designs_that_cannot_be_are_refused(world: Any, arguments: tuple[str, ...]) -> None:
    assert world.run("simulate", *arguments).code == 2
