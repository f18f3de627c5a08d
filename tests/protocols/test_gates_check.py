"""Gates over checks: what an arm must show, what a control must not show, and names that are not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.errors import ProtocolError
from protocols.load import LoadedProtocol
from protocols.measurements import Arm, Block, CampaignMeasurements, CheckObservation
from protocols.results import GateResult
from protocols.verdicts import combine

Make = Callable[..., CampaignMeasurements]
Edit = Callable[..., LoadedProtocol]
Judge = Callable[..., dict[str, GateResult]]

CHECKS = ("limits:", "checks:\n  - {id: twice, kind: determinism, prompt_tokens: 8, steps: 1}\n\nlimits:")
GATES = (
    "gates:\n",
    (
        "gates:\n"
        "  - {id: sound, kind: check, check: twice}\n"
        "  - {id: control, kind: check, check: twice, arm: baseline, expect: FAIL}\n"
    ),
)
ONE, OTHER = Block(1, 2, bytes(8)), Block(1, 2, b"\0\0\x80?" + bytes(4))


def observed(arm: Arm, second: Block) -> CheckObservation:
    blocks = {"first": ONE, "second": second}
    return CheckObservation(check="twice", arm=arm, state="COMPLETE", read_block=lambda name: blocks[name])


@pytest.fixture
def judged(edited: Edit, make_campaign: Make, judge: Judge) -> Callable[..., dict[str, GateResult]]:
    """Judge a campaign whose checks left these observations."""
    protocol = edited(CHECKS, GATES).protocol

    def run(*observations: CheckObservation) -> dict[str, GateResult]:
        return judge(protocol, replace(make_campaign(protocol), checks=observations))

    return run


def test_a_sound_candidate_and_a_control_that_fails_pass(judged: Any) -> None:
    results = judged(observed("candidate", ONE), observed("baseline", OTHER))
    assert (results["sound"].status, results["control"].status) == ("PASS", "PASS")
    assert results["control"].reason.startswith(
        "The control fails as it must: second differs from first in 1 of 1 steps"
    )
    assert (results["control"].inputs["outcome"], results["control"].inputs["expect"]) == ("FAIL", "FAIL")
    assert combine(list(results.values())).status == "PASS"


def test_a_control_that_passes_fails_the_campaign_because_the_check_is_blind(judged: Any) -> None:
    results = judged(observed("candidate", ONE), observed("baseline", ONE))
    assert results["control"].status == "FAIL"
    assert results["control"].reason.startswith("The control must fail, and the check finds nothing: ")
    assert combine(list(results.values())).status == "FAIL"


def test_a_candidate_that_fails_its_check_fails(judged: Any) -> None:
    results = judged(observed("candidate", OTHER), observed("baseline", OTHER))
    assert results["sound"].status == "FAIL"


def test_a_check_that_is_missing_is_not_run_for_sound_arms_and_controls_alike(judged: Any) -> None:
    results = judged()
    assert (results["sound"].status, results["control"].status) == ("NOT_RUN", "NOT_RUN")
    assert combine(list(results.values())).status == "NOT_RUN"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("check: twice}", "check: twise}"), "found the unknown check twise, expected one of twice; write twice"),
        (("  - {id: twice,", "  - {id: twice, kind: determinism, prompt_tokens: 1, steps: 1}\n  - {id: twice,"), "found the id twice 2 times"),
        (("steps: 1}", "steps: 0}"), "checks[0].steps"),
    ],
)  # fmt: skip
def test_a_protocol_with_wrong_checks_is_refused(edited: Edit, change: tuple[str, str], words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        edited(CHECKS, GATES, change)
    assert any(words in line for line in caught.value.lines()), caught.value.lines()


def test_a_check_that_no_gate_judges_is_a_warning(edited: Edit) -> None:
    warnings = [warning.line() for warning in edited(CHECKS).warnings]
    assert any("no gate judges the check twice, so it is not run" in line for line in warnings)
