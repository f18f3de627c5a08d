"""`assay stats`: what it prints, what it exits with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from protocols.decision import LossRule
from protocols.loose_rates import judge_rates, parse_rates

FAST = (
    "load,arm,rate\nA1,A,43.14422474234003\nC1,C,42.944229925558375\nC2,C,42.75367261461691\nA2,A,42.46983271222908\n"
)
QUIET = "load,arm,rate\n" + "".join(
    f"{arm}{n},{arm},{100 + 0.01 * (n % 3) - (5 if arm == 'C' else 0) * slow}\n"
    for slow in (0,)
    for n, arm in enumerate("ACCACAAC")
)


def write(world: Any, text: str) -> Path:
    path = Path(world.root / "rates.csv")
    path.write_text(text)
    return path


def test_the_block_of_the_real_release_shows_both_judgements(world: Any) -> None:
    ended = world.run("stats", write(world, FAST), "--margin", "2", "--json")
    found = ended.json()
    assert ended.code == found["verdict"]["exit_code"] == 3
    assert found["screen"]["pooled_change_pct"] == pytest.approx(0.10079194713958906, rel=1e-12)
    assert found["screen"]["mirror_gap_pp"] == pytest.approx(1.1318824396505, rel=1e-12)
    assert (found["screen"]["passes"], found["verdict"]["status"]) == (True, "SCREEN_ONLY")
    assert found["evidence"] == "numbers without a record"


def test_a_person_reads_what_was_found_how_sure_it_is_and_what_to_do(world: Any) -> None:
    out = " ".join(world.run("stats", write(world, FAST), "--margin", "2").out.replace("│", " ").split())
    for part in (
        "Verdict: SCREEN_ONLY",
        "found: The candidate's rate is 0.10 % higher than the baseline's (estimate)",
        "noise: 0.05 % a load (a guess: one degree of freedom)",
        "legacy screen: pooled change +0.10 %, mirror gap 1.13 points: passes",
        "a true loss of the limit passes it half of the time",
        "next: Measure anew (adding to these until they pass would err more often): 2 blocks of four loads decide",
        "Evidence without a record",
    ):
        assert part in out, part


DRIFTED = "load,arm,rate\nA1,A,16.56\nC1,C,15.9\nC2,C,15.8\nA2,A,15.40\n"
"""A host that falls by 7 % while one block runs, as one did in the loads of a real release."""
LOSING = "load,arm,rate\n" + "".join(
    f"{arm}{n},{arm},{(98.5 if arm == 'C' else 100) + 0.7 * (n * n % 5)}\n" for n, arm in enumerate("ACCACAAC")
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stats-pass.txt", QUIET),
        ("stats-fail.txt", QUIET.replace(",C,100", ",C,90")),
        ("stats-screen.txt", FAST),
        ("stats-drift.txt", DRIFTED),
        ("stats-undecided.txt", LOSING),
    ],
)
def test_what_a_person_reads_about_each_verdict(world: Any, golden: Any, name: str, text: str) -> None:
    golden(name, world.run("stats", write(world, text), "--margin", "2").out.encode())


@pytest.mark.parametrize(
    ("text", "margin", "code"), [(QUIET, "2", 0), (QUIET.replace(",C,100", ",C,90"), "2", 1), (FAST, "0.01", 3)]
)
def test_the_exit_code_is_that_of_the_verdict(world: Any, text: str, margin: str, code: int) -> None:
    assert world.run("stats", write(world, text), "--margin", margin).code == code


def test_a_list_that_cannot_be_judged_is_a_usage_error(world: Any) -> None:
    assert world.run("stats", write(world, "load,arm,rate\nA1,A,x\n"), "--margin", "2").code == 2
    assert world.run("stats", world.root / "absent.csv", "--margin", "2").code == 2
    assert world.run("stats", write(world, FAST), "--margin", "2", "--noise-pct", "1").code == 2
    assert world.run("stats", write(world, FAST), "--margin", "0").code == 2


BLOCK = "load,arm,rate\nA1,A,40\nC1,C,41\nC2,C,40.5\nA2,A,40.2\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BLOCK.replace("41", "1e308"), "found the rate '1e308'"),
        (BLOCK.replace("4", "5e-324,"), "expected 3 as in the first line"),
        (BLOCK.replace("40.5", "40,5"), "found 4 cells, expected 3 as in the first line"),
        (BLOCK.replace("41", "4_1"), "found the rate '4_1'"),
        ("load,arm,rate,rate\nA1,A,40,1\nC1,C,41,1\n", "found the column rate 2 times"),
        (BLOCK.replace("A1", "A" * 140_000), "this is no CSV"),
    ],
)
def test_what_would_be_misread_or_is_no_rate_is_refused_with_its_line(world: Any, text: str, expected: str) -> None:
    ended = world.run("stats", write(world, text), "--margin", "2")
    assert ended.code == 2
    assert expected in " ".join(ended.err.split())
    assert "should not have happened" not in ended.err


def test_rates_that_lie_far_apart_have_a_json_document(world: Any) -> None:
    for order in ("ACCA", "AC", "ACCACAAC", "AACC"):
        rows = [
            f"{n},{arm},{'1e30' if (arm == 'C') == flip else '1e-30'}" for flip in (0, 1) for n, arm in enumerate(order)
        ]
        for half in (rows[: len(order)], rows[len(order) :]):
            text = "load,arm,rate\n" + "\n".join(half) + "\n"
            shown = world.run("stats", write(world, text), "--margin", "2")
            ended = world.run("stats", write(world, text), "--margin", "2", "--json")
            assert ended.code == shown.code != 5, ended.err
            assert ended.json()["verdict"]["exit_code"] == ended.code


def test_a_file_without_an_end_is_refused(world: Any) -> None:
    for words in (("stats", "/dev/zero", "--margin", "2"), ("trend", "--csv", "/dev/zero")):
        ended = world.run(*words)
        assert (ended.code, "it has more than" in ended.err) == (2, True), words


def test_many_blocks_are_judged_in_time_that_grows_with_their_number() -> None:
    loads = parse_rates("load,arm,rate\n" + "".join(f"{n},{'ACCA'[n % 4]},{40 + n % 7}\n" for n in range(20_000)), "x")
    started_s = time.process_time()
    assert len(judge_rates(loads, LossRule(margin=0.02, alpha=0.05)).screen.blocks) == 5_000
    assert time.process_time() - started_s < 10, "each block looks at every load"


def test_a_host_whose_noise_hides_the_margin_is_to_be_made_quiet_before_anything_else(world: Any) -> None:
    rates = (100, 40, 130, 90, 35, 120, 60, 150)
    text = "load,arm,rate\n" + "".join(
        f"{arm}{place},{arm},{rate}\n" for place, (arm, rate) in enumerate(zip("ACCACAAC", rates, strict=True))
    )
    verdict = world.run("stats", write(world, text), "--margin", "10", "--json").json()["verdict"]
    assert verdict["status"] == "INCONCLUSIVE"
    assert verdict["next"].startswith(
        "Make the host quiet first (`assay doctor` names what runs beside it): its loads vary"
    )
    assert "decide with a chance" not in verdict["next"]
