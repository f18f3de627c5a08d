"""Checks in process that leave facts: what passes, what each wrong fact is called, and what is no evidence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from protocols.check_rules import judge_check
from protocols.checks.images_in_history import ImagesInHistoryCheck
from protocols.checks.mapping_grid import ALL_SUITES, CASES, MappingGridCheck
from protocols.checks.memory_growth import MemoryGrowthCheck
from protocols.checks.operation_cost import OperationCostCheck, estimate_increase
from protocols.checks.operator_boundaries import OperatorBoundariesCheck
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation

NORM = OperatorBoundariesCheck(kind="operator_boundaries", id="c")
GRID = MappingGridCheck(kind="mapping_grid", id="c")
IMAGES = ImagesInHistoryCheck(kind="images_in_history", id="c", depths=(600, 1200, 2400))
GROWTH = MemoryGrowthCheck(kind="memory_growth", id="c")
COST = OperationCostCheck(kind="operation_cost", id="c", depth_tokens=64, batches=(1,))


def judged(check: Any, facts: dict[str, Any]) -> Any:
    return judge_check(check, CheckObservation(check="c", arm="candidate", state="COMPLETE", facts=facts))


# ---------------------------------------------------------------------- operator boundaries


def norm(*errors: str) -> dict[str, Any]:
    rows = zip(NORM.rows, errors, strict=True)
    return {"sizes": [{"rows": n, "worst_error": error, "elapsed_ns": 1} for n, error in rows]}


def test_errors_within_the_tolerance_pass_and_the_tolerance_is_stated() -> None:
    outcome = judged(NORM, norm("1e-07", "0.000001", "0.0"))
    assert (outcome.status, outcome.inputs["tolerance"]) == ("PASS", "0.000001")


@pytest.mark.parametrize("error", ["0.0000011", "inf", "nan"])
def test_one_error_above_the_tolerance_fails_with_its_rows(error: str) -> None:
    outcome = judged(NORM, norm("1e-07", error, "1e-07"))
    assert (outcome.status, "65,536 rows" in outcome.reason) == ("FAIL", True)
    assert "131,072" not in outcome.reason


def test_other_rows_than_promised_are_no_evidence() -> None:
    facts = norm("0.0", "0.0", "0.0")
    facts["sizes"][2]["rows"] = 7
    with pytest.raises(EvidenceError, match="rows that it promises"):
        judged(NORM, facts)


# ---------------------------------------------------------------------- memory growth


@pytest.mark.parametrize(
    ("after", "status"), [(0, "PASS"), (4096 * 256 + 255, "PASS"), (4097 * 256, "FAIL"), (65_536 * 256, "FAIL")]
)
def test_memory_that_grows_by_more_than_the_limit_a_step_fails(after: int, status: str) -> None:
    outcome = judged(GROWTH, {"before_bytes": 10_000_000, "after_bytes": 10_000_000 + after})
    assert (outcome.status, outcome.inputs["bytes_per_step"]) == (status, after // 256)


def test_memory_that_fell_has_not_grown_and_memory_that_was_not_read_is_no_evidence() -> None:
    assert judged(GROWTH, {"before_bytes": 9, "after_bytes": 1}).status == "PASS"
    with pytest.raises(EvidenceError, match="after_bytes"):
        judged(GROWTH, {"before_bytes": 9})


# ---------------------------------------------------------------------- mapping grid


def mapped() -> dict[str, Any]:
    return {
        "suites": {name: {"cases": 4, "failed": 0, "failures": []} for name in ALL_SUITES},
        "cases": [{"name": f"case {n}", "inputs": {"own_cells": ["a", "a"]}} for n in range(CASES)],
        "control": {"name": "control", "inputs": {"own_cells": ["a", "b"]}},
    }


def test_equal_inputs_and_a_control_that_differs_pass() -> None:
    assert judged(GRID, mapped()).status == "PASS"


def fail_suite(facts: dict[str, Any]) -> None:
    facts["suites"]["reproducer"] |= {"failed": 3, "failures": [{"case": "tails", "problem": "a foreign cell"}]}


def differ(facts: dict[str, Any]) -> None:
    facts["cases"][5]["inputs"]["own_cells"][1] = "b"


def blind(facts: dict[str, Any]) -> None:
    facts["control"]["inputs"]["own_cells"] = ["a", "a"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (fail_suite, "suite reproducer: 3 of 4 cases failed (tails: a foreign cell)"),
        (differ, "inputs differ between the two paths: case 5: own_cells"),
        (blind, "the positive control shows no difference: the comparison is blind"),
    ],
)
def test_a_grid_names_what_went_wrong(change: Callable[[dict[str, Any]], None], words: str) -> None:
    facts = mapped()
    change(facts)
    outcome = judged(GRID, facts)
    assert (outcome.status, words in outcome.reason) == ("FAIL", True), outcome.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["cases"].pop(),
        lambda facts: facts["suites"].pop("prefix"),
        lambda facts: facts["suites"]["prefix"].update(cases=0),
        lambda facts: facts.pop("control"),
        lambda facts: facts["cases"][0].update(inputs={}),
        lambda facts: facts["cases"][0]["inputs"].update(own_cells=["a"]),
    ],
)
def test_a_grid_that_is_not_whole_is_no_evidence(change: Callable[[dict[str, Any]], None]) -> None:
    facts = mapped()
    change(facts)
    with pytest.raises(EvidenceError):
        judged(GRID, facts)


# ---------------------------------------------------------------------- images


def cell(depth: int, has_image: bool) -> dict[str, Any]:
    chunks = [{"rows": 512, "elapsed_ns": 10, "steps": steps, "masked": 0} for steps in (9000, 100)]
    return {
        "depth": depth, "has_image": has_image, "error": None, "expected": [1, 2], "found": [1, 2], "chunks": chunks,
        "compute_bytes": 1000,
    }  # fmt: skip


def seen() -> dict[str, Any]:
    return {"image_sha256": "f" * 64, "cells": [cell(depth, has) for depth in IMAGES.depths for has in (False, True)]}


def test_right_answers_at_flat_cost_pass() -> None:
    outcome = judged(IMAGES, seen())
    assert outcome.status == "PASS", outcome.reason
    assert outcome.inputs["depths"][2]["with"]["last_chunk_steps"] == 100


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (5, {"found": [1, 3]}, "at 2400 tokens with the image the answer is wrong"),
        (5, {"error": "out of memory"}, "at 2400 tokens with the image the request failed (out of memory)"),
        (0, {"error": "out of memory"}, "at 600 tokens without the image the request failed (out of memory)"),
        (3, {"compute_bytes": 2001}, "at 1200 tokens with the image 2001 bytes of compute buffers, 1000 without it"),
        (3, {"chunks": [{"rows": 512, "elapsed_ns": 1, "steps": 201, "masked": 1}]}, "with the image 201 host steps of the last full chunk, 100 without it"),
    ],
)  # fmt: skip
def test_an_image_that_costs_something_is_named(place: int, change: dict[str, Any], words: str) -> None:
    facts = seen()
    facts["cells"][place] |= change
    outcome = judged(IMAGES, facts)
    assert (outcome.status, words in outcome.reason) == ("FAIL", True), outcome.reason


def test_a_cell_without_a_full_chunk_is_no_evidence() -> None:
    facts = seen()
    facts["cells"][3]["chunks"] = [{"rows": 7, "elapsed_ns": 1, "steps": 1, "masked": 0}]
    with pytest.raises(EvidenceError, match="no chunk of 512 rows"):
        judged(IMAGES, facts)


def test_cells_in_another_order_are_no_evidence() -> None:
    facts = seen()
    facts["cells"].reverse()
    with pytest.raises(EvidenceError, match="not one for each"):
        judged(IMAGES, facts)


# ---------------------------------------------------------------------- operation cost


def cost(ratio: float, *, spread: float = 0.0, rounds: int = 6) -> dict[str, Any]:
    own = [[round(1e6 * ratio * (1 + spread * (-1) ** n))] * 3 for n in range(rounds)]
    shape = {
        "batch": 1, "own_ns": own, "other_ns": [[1_000_000] * 3] * rounds, "own_sha256": ["a"] * rounds,
        "other_sha256": ["a"] * rounds,
    }  # fmt: skip
    return {"shapes": [shape]}


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (cost(1.01), "PASS", "batch 1: +1.00 %"),
        (cost(1.03), "FAIL", "costs more than the limit"),
        (cost(1.01, spread=0.05), "INCONCLUSIVE", "This host cannot decide batch 1"),
    ],
)
def test_a_cost_is_judged_by_its_interval(facts: dict[str, Any], status: str, words: str) -> None:
    outcome = judged(COST, facts)
    assert (outcome.status, words in outcome.reason) == (status, True), outcome.reason


@pytest.mark.parametrize("name", ["own_sha256", "other_sha256"])
def test_one_other_logit_in_any_round_or_arm_fails_whatever_the_cost(name: str) -> None:
    facts = copy.deepcopy(cost(0.5))
    facts["shapes"][0][name][3] = "b"
    assert judged(COST, facts).status == "FAIL"


def test_without_the_other_arm_nothing_is_compared() -> None:
    facts = cost(1.0)
    facts["shapes"][0] |= {"other_ns": None, "other_sha256": None}
    assert judged(COST, facts).status == "NOT_RUN"


def test_three_rounds_carry_no_interval() -> None:
    assert estimate_increase([[1]] * 3, [[1]] * 3) is None
    with pytest.raises(EvidenceError, match="fewer than 4"):
        judged(COST, cost(1.0, rounds=3))


def test_the_interval_is_that_of_students_t_over_the_rounds_log_ratios() -> None:
    """Log ratios 0, 0.1, 0.2, 0.3: mean 0.15, sd 0.1291, 3 degrees of freedom, t = 2.3534."""
    found = estimate_increase([[1000], [1105.1709], [1221.4028], [1349.8588]], [[1000]] * 4)
    assert found is not None
    assert found.mean_pct == pytest.approx(16.1834, abs=1e-3)
    assert found.low_pct == pytest.approx(-0.1911, abs=1e-3)
    assert found.high_pct == pytest.approx(35.2440, abs=1e-3)
