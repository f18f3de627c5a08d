"""JUnit and CTRF: what CI shows of each status, and that nothing but a PASS looks like one."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from reports.ci_formats import render_ctrf, render_junit
from reports.facts import Facts, GateFact


def with_gate(facts: Facts, **changes: object) -> Facts:
    first = replace(facts.gates[0], **changes)  # type: ignore[arg-type]
    return replace(facts, gates=(first, *facts.gates[1:]))


def junit(facts: Facts) -> dict[str, list[str]]:
    suite = ET.fromstring(render_junit(facts))[0]
    return {str(case.get("name")): [child.tag for child in case] for case in suite.iter("testcase")}


def ctrf(facts: Facts) -> dict[str, str]:
    return {test["name"]: test["status"] for test in json.loads(render_ctrf(facts))["results"]["tests"]}


@pytest.mark.parametrize(
    ("status", "required", "tag", "word"),
    [
        ("PASS", True, [], "passed"),
        ("FAIL", True, ["failure"], "failed"),
        ("NOT_COMPARABLE", True, ["error"], "failed"),
        ("INCONCLUSIVE", True, ["skipped"], "other"),
        ("NOT_RUN", True, ["skipped"], "other"),
        ("SCREEN_ONLY", True, ["skipped"], "other"),
        ("FAIL", False, ["skipped"], "other"),
        ("PASS", False, [], "passed"),
    ],
)
def test_each_status_of_a_gate_has_one_look(passed: Facts, status: str, required: bool, tag: list[str], word: str):
    facts = with_gate(passed, status=status, required=required)
    name = facts.gates[0].id
    assert junit(facts)[name] == tag
    assert ctrf(facts)[name] == word


@pytest.mark.parametrize(
    ("status", "tag"), [("PASS", []), ("FAIL", ["failure"]), ("INVALID", ["error"]), ("INCONCLUSIVE", ["skipped"])]
)
def test_the_verdict_is_a_test_of_its_own(passed: Facts, status: str, tag: list[str]):
    facts = replace(passed, verdict=replace(passed.verdict, status=status))
    assert junit(facts)["verdict"] == tag


def test_a_verdict_that_is_not_recorded_is_no_pass(passed: Facts):
    facts = replace(passed, verdict=replace(passed.verdict, entry_seq=None))
    assert junit(facts)["verdict"] == ["skipped"]
    assert ctrf(facts)["verdict"] == "other"


def test_the_counts_are_those_of_the_tests(passed: Facts):
    facts = with_gate(passed, status="FAIL")
    suite = ET.fromstring(render_junit(facts))[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        str(len(facts.gates) + 1),
        "1",
        "0",
        "0",
    ]
    summary = json.loads(render_ctrf(facts))["results"]["summary"]
    assert summary["tests"] == summary["passed"] + summary["failed"] + summary["other"] == len(facts.gates) + 1
    assert summary["stop"] > summary["start"] == facts.locked_utc_ns // 1_000_000


def test_reasons_cannot_break_the_file(passed: Facts):
    facts = with_gate(passed, status="FAIL", reason="<&>\"'\x00\x1b]]> \U0001f600")
    message = ET.fromstring(render_junit(facts))[0].find("testcase/failure")
    assert message is not None
    assert message.get("message") == "FAIL: <&>\"'\\x00\\x1b]]> \U0001f600"
    assert json.loads(render_ctrf(facts))["results"]["tests"][0]["message"] == facts.gates[0].reason
    assert isinstance(facts.gates[0], GateFact)
