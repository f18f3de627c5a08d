"""Rates without a record: how they are read, and how the older screen and the verdict judge them."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import screens
from protocols.decision import LossRule, judge_loss
from protocols.errors import ProtocolError
from protocols.loose_rates import LooseJudgement, judge_rates, parse_rates
from protocols.stats import Calibration, Observation

RULE = LossRule(margin=0.02)
ABBA = "ACCA"


def table(rates: list[float], arms: str) -> str:
    rows = [f"L{place},{arm},{rate!r}" for place, (rate, arm) in enumerate(zip(rates, arms, strict=True))]
    return "load,arm,rate\n" + "\n".join(rows) + "\n"


def judged(rates: list[float], arms: str, **more: Any) -> LooseJudgement:
    return judge_rates(parse_rates(table(rates, arms), "rates.csv"), more.pop("rule", RULE), **more)


def noisy(loads: int, sigma: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [100 * math.exp(source.gauss(0, sigma)) for _ in range(loads)]


EXPECTED = {
    "mtp-regression-fast": ("SCREEN_ONLY", True),
    "long-regression-8192-pp": ("FAIL", False),
    "long-regression-8192-tg": ("SCREEN_ONLY", True),
    "long-regression-65536-tg": ("INCONCLUSIVE", False),
    "long-fast-8192-pp": ("SCREEN_ONLY", True),
    "long-fast-8192-tg": ("SCREEN_ONLY", True),
    "long-fast-65536-pp": ("INCONCLUSIVE", False),
    "confirm8k-pp": ("SCREEN_ONLY", True),
    "confirm8k-tg": ("SCREEN_ONLY", True),
}
"""The new verdict over each list of the real release, and whether its own screen passed it."""


def test_the_real_release_comes_out_with_its_own_screen_and_the_new_verdict(vectors: dict[str, dict[str, Any]]) -> None:
    seen = {}
    for name, row in vectors.items():
        if row["kind"] == "abba":
            judgement = judged([row[label] for label in ("A1", "C1", "C2", "A2")], ABBA)
            assert judgement.screen.pooled_change_pct == pytest.approx(row["pooled"], rel=1e-12)
            assert judgement.screen.mirror_gap_pp == pytest.approx(row["gap"], rel=1e-12)
            (block,) = judgement.screen.blocks
            assert [block.first_change_pct, block.second_change_pct] == pytest.approx(row["mirrors"], rel=1e-12)
        elif row["kind"] == "pair":
            order = row["order"].replace(",", "")
            rates = [row["baseline"] if letter == "A" else row["candidate"] for letter in order]
            judgement = judged(rates, order)
            assert judgement.screen.pooled_change_pct == pytest.approx(row["change"], rel=1e-12)
            assert judgement.screen.mirror_gap_pp is None
        else:
            continue
        assert judgement.screen.passes == (row["verdict"] == "pass"), name
        seen[name] = (judgement.status, judgement.screen.passes)
    assert seen == EXPECTED


def test_the_verdict_is_that_of_the_gates_own_decision() -> None:
    rates = noisy(8, 0.01, 1)
    arms = ABBA + "CAAC"
    seen = [
        Observation(index=n, is_candidate=a == "C", rate=r) for n, (r, a) in enumerate(zip(rates, arms, strict=True))
    ]
    judgement = judged(rates, arms)
    expected = judge_loss(seen, RULE)
    assert judgement.status == expected.decision
    assert judgement.fit == expected.fit


def test_several_blocks_have_one_pooled_change_and_a_gap_each() -> None:
    rates = noisy(12, 0.02, 2)
    judgement = judged(rates, ABBA * 3)
    baseline = [rate for rate, arm in zip(rates, ABBA * 3, strict=True) if arm == "A"]
    candidate = [rate for rate, arm in zip(rates, ABBA * 3, strict=True) if arm == "C"]
    geometric = math.exp(sum(map(math.log, candidate)) / 6 - sum(map(math.log, baseline)) / 6)
    assert judgement.screen.pooled_change_pct == pytest.approx(100 * (geometric - 1), rel=1e-9)
    gaps = [screens.mirror_gap_pp(baseline[2 * n : 2 * n + 2], candidate[2 * n : 2 * n + 2]) for n in range(3)]
    assert [block.mirror_gap_pp for block in judgement.screen.blocks] == gaps
    assert judgement.screen.mirror_gap_pp == max(gaps)


def test_a_gap_of_exactly_the_limit_passes_the_screen_and_a_loss_of_exactly_the_limit_fails_it() -> None:
    at_gap = judged([100.0, 101.5, 98.5, 100.0], ABBA)
    assert at_gap.screen.mirror_gap_pp == pytest.approx(3.0, abs=1e-12)
    assert at_gap.screen.passes
    assert not judged([100.0, 101.5, 98.4999, 100.0], ABBA).screen.passes
    assert not judged([100.0, 98.0, 98.0, 100.0], ABBA).screen.passes
    assert judged([100.0, 98.0001, 98.0001, 100.0], ABBA).screen.passes


@pytest.mark.parametrize("arms", ["ACC", ABBA + "A", ABBA + "AC", ABBA + "CAA", ABBA + "CAAC" + "C"])
def test_half_a_block_gives_no_verdict(arms: str) -> None:
    judgement = judged([100.0 + n / 100 for n in range(len(arms))], arms)
    assert (judgement.status, judgement.fit) == ("INCONCLUSIVE", None)
    assert len(judgement.unfinished) == len(arms) % 4


@pytest.mark.parametrize("arms", ["AC", "CA", "ACAC", "AACC", "ACACAC", "AAACCC"])
def test_an_order_without_blocks_is_judged_as_it_stands(arms: str) -> None:
    judgement = judged([100.0 + n / 100 for n in range(len(arms))], arms)
    assert judgement.unfinished == ()
    assert judgement.fit is not None
    assert judgement.screen.mirror_gap_pp is None


def test_an_order_that_mixes_arm_and_time_is_measured() -> None:
    assert judged([1.0] * 8, ABBA * 2).confounding == pytest.approx(1.0, rel=1e-12)
    assert judged([1.0, 1.01, 1.0, 1.02], "AACC").confounding > 2


def test_known_noise_lets_a_single_block_pass() -> None:
    rates = [100.0, 100.1, 99.9, 100.05]
    assert judged(rates, ABBA).status == "SCREEN_ONLY"
    assert judged(rates, ABBA, calibration=Calibration(sigma=0.003, df=18)).status == "PASS"


@pytest.mark.parametrize(
    ("loss", "status", "is_detected"), [(0.01, "PASS", True), (0.0, "PASS", False), (0.05, "FAIL", False)]
)
def test_a_loss_within_the_margin_is_told_from_none_where_the_verdict_passes(
    loss: float, status: str, is_detected: bool
) -> None:
    arms = ABBA * 4
    rates = [rate * (1 - loss * (arm == "C")) for rate, arm in zip(noisy(16, 0.001, 3), arms, strict=True)]
    found = judged(rates, arms)
    assert (found.status, found.loss_detected) == (status, is_detected)


def test_columns_may_stand_in_any_order_with_others_between_and_burn_in_loads_are_left_out() -> None:
    text = "\ufeffRate; note ;ARM;load\n1.5;x;burn-in;B0\n\n2.0;x;baseline;A1\n3.0;;C;C1\n"
    loads = parse_rates(text, "rates.csv")
    assert [(load.label, load.arm, load.rate) for load in loads] == [("A1", "baseline", 2.0), ("C1", "candidate", 3.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "rates.csv:1: found the columns none, expected load, arm, rate"),
        ("load,rate\nA1,3\n", "the first line lacks arm"),
        ("load,arm,rate\nA1,A,3\nC1,B,3\n", "rates.csv:3: found the arm 'B', expected one of a, baseline, c"),
        ("load,arm,rate\nA1,A,3\nC1,C,0\n", "rates.csv:3: found the rate '0', expected a number above zero"),
        ("load,arm,rate\nA1,A,3\nC1,C,nan\n", "found the rate 'nan'"),
        ("load,arm,rate\nA1,A,3\nC1,C\n", "found the rate ''"),
        ("load,arm,rate\nA1,A,3\nC1,C,3\nA1,A,4\n", "rates.csv:4: found the load A1 again (line 2)"),
        ("load,arm,rate\n,A,3\nC1,C,3\n", "found no load"),
        ("load,arm,rate\nA1,A,3\nA2,A,3\n", "found 2 loads of one arm, expected both"),
    ],
)
def test_each_mistake_is_named_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_rates(text, "rates.csv")
    assert expected in "\n".join(refused.value.lines())


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_text_crashes_the_reader(text: str) -> None:
    for content in (text, "load,arm,rate\n" + text):
        with contextlib.suppress(ProtocolError):
            parse_rates(content, "rates.csv")
