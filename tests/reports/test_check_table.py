"""The table of checks says at once what was broken, what is repaired, and what was not tested."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from protocols.checks.mapping_grid import MappingGridCheck
from protocols.checks.requirements import RequirementsCheck
from reports.check_table import check_rows, check_summary, requirement_rows
from reports.facts import GateFact
from reports.steps import next_step


def gate(arm: str, outcome: str, expect: str = "PASS") -> GateFact:
    inputs = {"check": "c", "arm": arm, "expect": expect, "outcome": outcome}
    return GateFact(
        id=arm, kind="check", status="PASS", required=True, reason="", threshold=None, margin=None, inputs=inputs
    )


def facts_of(*gates: GateFact) -> Any:
    protocol = SimpleNamespace(checks=(MappingGridCheck(kind="mapping_grid", id="c"),))
    return SimpleNamespace(gates=gates, protocol=protocol)


@pytest.mark.parametrize(
    ("gates", "baseline", "so"),
    [
        ((gate("baseline", "FAIL", "FAIL"), gate("candidate", "PASS")), "FAIL, as it must", "was broken, is repaired"),
        ((gate("baseline", "FAIL"), gate("candidate", "PASS")), "FAIL", "was broken, is repaired"),
        ((gate("baseline", "FAIL", "FAIL"), gate("candidate", "FAIL")), "FAIL, as it must", "was broken, still is"),
        ((gate("baseline", "PASS"), gate("candidate", "FAIL")), "PASS", "broken in the candidate"),
        ((gate("baseline", "PASS"), gate("candidate", "PASS")), "PASS", "sound"),
        ((gate("candidate", "PASS"),), "not asked", "sound"),
        ((gate("baseline", "PASS", "FAIL"), gate("candidate", "PASS")), "PASS", "the check is blind: the baseline's known fault does not show"),
        ((gate("baseline", "PASS"), gate("candidate", "NOT_RUN")), "PASS", "not tested"),
        ((gate("baseline", "FAIL"),), "FAIL", "not tested"),
        ((gate("candidate", "INCONCLUSIVE"),), "not asked", "not decided"),
        ((), "not asked", "not tested"),
    ],
)  # fmt: skip
def test_what_follows_from_both_arms(gates: tuple[GateFact, ...], baseline: str, so: str) -> None:
    (row,) = check_rows(facts_of(*gates))
    assert (row.check, row.baseline, row.so) == ("c", baseline, so)
    assert row.promise.startswith("The guarded path hands the graphs the bytes")
    assert check_summary([row]) == (f"{so[0].upper()}{so[1:]}: c.",)


def test_the_summary_begins_with_what_changed() -> None:
    rows = [
        *check_rows(facts_of(gate("candidate", "PASS"))),
        *check_rows(facts_of(gate("baseline", "FAIL", "FAIL"), gate("candidate", "PASS"))),
    ]
    assert check_summary(rows) == ("Was broken, is repaired: c.", "Sound: c.")


def test_every_requirement_has_a_row_of_its_own_with_what_each_arm_showed() -> None:
    check = RequirementsCheck.model_validate(
        {
            "kind": "requirements",
            "id": "c",
            "requirements": [
                {"id": "suites", "run": ["./suites", "--all"], "limit_s": 1},
                {"id": "corpus", "run": ["x"], "limit_s": 1, "meaning": "the corpus reads as it did"},
            ],
        }
    )
    left = [{"status": "FAIL"}, {"status": "PASS"}]
    right = [{"status": "PASS"}, {"status": "NOT_RUN"}]
    gates = (
        replace(gate("baseline", "FAIL"), inputs={**gate("baseline", "FAIL").inputs, "requirements": left}),
        replace(gate("candidate", "NOT_RUN"), inputs={**gate("candidate", "NOT_RUN").inputs, "requirements": right}),
    )
    facts: Any = SimpleNamespace(gates=gates, protocol=SimpleNamespace(checks=(check,)))
    assert requirement_rows(facts) == (
        ("c: suites", "./suites --all", "FAIL", "PASS", "was broken, is repaired"),
        ("c: corpus", "the corpus reads as it did", "PASS", "NOT_RUN", "not tested"),
    )
    whole: Any = SimpleNamespace(gates=(gate("candidate", "FAIL"),), protocol=SimpleNamespace(checks=(check,)))
    assert {(row.baseline, row.candidate) for row in requirement_rows(whole)} == {("not asked", "FAIL")}


def test_a_check_that_this_host_cannot_decide_says_what_would() -> None:
    one = gate("candidate", "INCONCLUSIVE")
    found = next_step(replace(one, status="INCONCLUSIVE"), SimpleNamespace(is_recorded=True))  # type: ignore[arg-type]
    assert found == "Run the check again on a quiet host, or allow it more rounds."
