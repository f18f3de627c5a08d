from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import screens

EXACT = 1e-12


def of_kind(vectors: dict[str, dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    found = [row for row in vectors.values() if row["kind"] == kind]
    assert found
    return found


def test_block_vectors_come_out_with_their_verdicts(vectors: dict[str, dict[str, Any]]) -> None:
    for row in of_kind(vectors, "abba"):
        baseline, candidate = [row["A1"], row["A2"]], [row["C1"], row["C2"]]
        change = screens.pooled_change_pct(baseline, candidate)
        gap = screens.mirror_gap_pp(baseline, candidate)
        assert change == pytest.approx(row["pooled"], rel=EXACT)
        assert gap == pytest.approx(row["gap"], rel=EXACT)
        assert screens.mirror_changes_pct(baseline, candidate) == pytest.approx(row["mirrors"], rel=EXACT)
        assert screens.change_pct(row["A1"], row["A2"]) == pytest.approx(row["aa_drift_percent"], rel=EXACT)
        assert screens.change_pct(row["C1"], row["C2"]) == pytest.approx(row["cc_drift_percent"], rel=EXACT)
        passes = screens.is_loss_within(change, row["max_loss"]) and screens.is_gap_within(gap, row["max_gap"])
        assert passes == (row["verdict"] == "pass"), row["id"]


def test_pair_vectors_come_out_with_their_verdicts(vectors: dict[str, dict[str, Any]]) -> None:
    for row in of_kind(vectors, "pair"):
        change = screens.pooled_change_pct([row["baseline"]], [row["candidate"]])
        assert change == pytest.approx(row["change"], rel=EXACT)
        assert screens.is_loss_within(change, row["max_loss"]) == (row["verdict"] == "pass"), row["id"]


def test_median_cost_vectors_come_out_with_their_verdicts(vectors: dict[str, dict[str, Any]]) -> None:
    for row in of_kind(vectors, "median_cost"):
        change = screens.median_change_pct(row["baseline_us"], row["candidate_us"])
        assert change == pytest.approx(row["change"], rel=EXACT)
        assert screens.is_increase_within(change, row["max_increase"]) == (row["verdict"] == "pass"), row["id"]


def test_weighted_mean_and_segment_vectors_come_out(vectors: dict[str, dict[str, Any]]) -> None:
    for row in of_kind(vectors, "weighted_mean"):
        mean = screens.weighted_mean([(part["n"], part["mean"]) for part in row["parts"]])
        assert mean == pytest.approx(row["mean"], rel=EXACT)
        assert sum(part["n"] for part in row["parts"]) == row["n"]
    for row in of_kind(vectors, "segment"):
        change = screens.change_pct(row["baseline_s"], row["candidate_s"])
        assert change == pytest.approx(row["runtime_delta_percent"], rel=EXACT)


def test_every_vector_is_covered(vectors: dict[str, dict[str, Any]]) -> None:
    kinds = {row["kind"] for row in vectors.values()}
    assert kinds == {"abba", "pair", "median_cost", "weighted_mean", "segment"}


@pytest.mark.parametrize("baseline", [1.0, 3.0, 49.0, 100.0, 378.58962885322507, 1e-3])
def test_a_loss_of_exactly_the_limit_fails_the_screen_whatever_the_rounding(baseline: float) -> None:
    assert not screens.is_loss_within(screens.change_pct(baseline, baseline * 0.98), 2.0)
    assert screens.is_loss_within(screens.change_pct(baseline, baseline * 0.980001), 2.0)
    assert not screens.is_increase_within(screens.change_pct(baseline, baseline * 1.02), 2.0)


@pytest.mark.parametrize("baseline", [1.0, 3.0, 49.0, 100.0, 378.58962885322507])
def test_a_gap_of_exactly_the_limit_passes_whatever_the_rounding(baseline: float) -> None:
    gap = screens.mirror_gap_pp([baseline, baseline], [baseline * 1.01, baseline * 0.98])
    assert gap == pytest.approx(3.0, abs=1e-10)
    assert screens.is_gap_within(gap, 3.0)
    assert not screens.is_gap_within(gap + 1e-6, 3.0)


@pytest.mark.parametrize(
    ("baseline", "candidate", "change"),
    [([1, 1, 1], [2, 4, 8], 300), ([10, 10], [5], -50), ([3], [6, 6, 6], 100), ([1, 4, 16], [4, 4, 4], 0)],
)
def test_more_loads_are_pooled_by_their_geometric_means(
    baseline: list[float], candidate: list[float], change: float
) -> None:
    assert screens.pooled_change_pct(baseline, candidate) == pytest.approx(change, abs=1e-12)


def test_pooling_needs_both_arms_and_a_mean_needs_samples() -> None:
    with pytest.raises(ValueError, match="both arms"):
        screens.pooled_change_pct([], [1.0])
    with pytest.raises(ValueError, match="samples"):
        screens.weighted_mean([(0, 1.0)])


rates = st.floats(1e-3, 1e6)


@given(st.lists(rates, min_size=1, max_size=12), st.lists(rates, min_size=1, max_size=12), st.floats(1e-3, 1e3))
def test_the_pooled_change_does_not_depend_on_the_unit(
    baseline: list[float], candidate: list[float], scale: float
) -> None:
    scaled = screens.pooled_change_pct([x * scale for x in baseline], [x * scale for x in candidate])
    assert scaled == pytest.approx(screens.pooled_change_pct(baseline, candidate), rel=1e-9, abs=1e-9)
