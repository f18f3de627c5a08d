from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.results import GateResult
from protocols.verdicts import EXIT_CODES, combine, worst_exit_code

STATUSES = ["PASS", "FAIL", "INCONCLUSIVE", "NOT_RUN", "NOT_COMPARABLE", "SCREEN_ONLY"]


def result(status: Any, *, required: bool = True, kind: str = "loss", name: str = "g", **inputs: Any) -> GateResult:
    return GateResult(id=name, kind=kind, status=status, required=required, reason=f"{name} said so.", inputs=inputs)


@pytest.mark.parametrize(
    ("statuses", "verdict", "exit_code"),
    [
        (["PASS", "PASS"], "PASS", 0),
        (["PASS", "SCREEN_ONLY"], "SCREEN_ONLY", 3),
        (["SCREEN_ONLY", "INCONCLUSIVE"], "INCONCLUSIVE", 3),
        (["INCONCLUSIVE", "NOT_RUN"], "NOT_RUN", 3),
        (["NOT_RUN", "NOT_COMPARABLE"], "NOT_COMPARABLE", 4),
        (["NOT_COMPARABLE", "FAIL"], "FAIL", 1),
        (["INCONCLUSIVE", "FAIL", "PASS"], "FAIL", 1),
    ],
)
def test_the_worst_required_gate_makes_the_verdict(statuses: list[str], verdict: str, exit_code: int) -> None:
    found = combine([result(status, name=f"g{place}") for place, status in enumerate(statuses)])
    assert (found.status, found.exit_code) == (verdict, exit_code)


def test_a_gate_that_is_not_required_never_changes_the_verdict() -> None:
    for status in STATUSES:
        assert combine([result("PASS"), result(status, required=False, name="extra")]).status == "PASS"


def test_nothing_required_is_nothing_promised() -> None:
    assert combine([]).status == "NOT_RUN"
    assert combine([result("PASS", required=False)]).status == "NOT_RUN"


def test_an_invalid_load_makes_the_verdict_invalid_unless_a_required_gate_fails() -> None:
    incomplete = result("INCONCLUSIVE", kind="completeness", name="complete", invalid_loads=["C2"])
    found = combine([incomplete, result("INCONCLUSIVE", name="loss")])
    assert (found.status, found.exit_code) == ("INVALID", 4)
    assert "C2" in found.reason
    assert combine([incomplete, result("FAIL", name="tokens")]).status == "FAIL"


def test_a_pass_with_a_detected_loss_says_so() -> None:
    found = combine([result("PASS", name="tokens"), result("PASS", name="loss", loss_detected=True)])
    assert (found.status, found.loss_detected) == ("PASS", True)
    assert "a loss smaller than the margin was detected in loss" in found.reason
    assert not combine([result("PASS")]).loss_detected


def test_the_reason_names_the_gates_and_repeats_what_they_say() -> None:
    found = combine([result("FAIL", name="tokens"), result("FAIL", name="work")])
    assert found.reason == "Failed: tokens and work. tokens: tokens said so. work: work said so."
    assert found.payload()["status"] == "FAIL"


def test_every_verdict_has_the_documented_exit_code() -> None:
    assert EXIT_CODES == {
        "PASS": 0,
        "FAIL": 1,
        "INCONCLUSIVE": 3,
        "SCREEN_ONLY": 3,
        "NOT_RUN": 3,
        "INVALID": 4,
        "NOT_COMPARABLE": 4,
    }


def test_when_several_exit_codes_hold_the_documented_order_decides() -> None:
    order = [6, 5, 4, 1, 3, 0]
    for place, code in enumerate(order):
        assert worst_exit_code(order[place:]) == code
    assert worst_exit_code([130, 6]) == 130
    assert worst_exit_code([]) == 0


@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.booleans()), max_size=8))
def test_pass_means_that_every_required_gate_passed(rows: list[tuple[str, bool]]) -> None:
    found = combine([result(status, required=required) for status, required in rows])
    required = [status for status, is_required in rows if is_required]
    assert (found.status == "PASS") == (bool(required) and set(required) == {"PASS"})
    assert (found.status == "FAIL") == ("FAIL" in required)


@given(st.permutations(STATUSES))
def test_the_order_of_gates_does_not_matter(order: list[str]) -> None:
    rows = [result(status, name=status.lower()) for status in order]
    assert combine(rows).status == combine(sorted(rows, key=lambda row: row.id)).status
