"""Differences of logits: exact zeros for equal bytes, known figures for known changes, and nothing lost in NaNs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.canonical import canonical_bytes
from protocols.comparators import compare_logits
from protocols.errors import EvidenceError

FINITE = st.floats(-1e4, 1e4, width=32)
BLOCKS = st.integers(1, 5).flatmap(lambda n: arrays(np.float32, (n, 7), elements=FINITE))


def block(*rows: list[float]) -> Any:
    return np.array(rows, dtype=np.float32)


@given(BLOCKS)
def test_equal_blocks_differ_in_nothing(rows: Any):
    found = compare_logits(rows, rows.copy())
    assert found.is_byte_equal
    assert (found.max_abs, found.rms, found.mean_kl, found.max_kl, found.max_ulp) == (0.0, 0.0, 0.0, 0.0, 0)
    assert (found.top1_changes, found.nonfinite, found.first) == (0, 0, None)


@given(BLOCKS, st.data())
def test_a_changed_value_is_found_in_its_row_with_its_size(rows: Any, data: st.DataObject):
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 6))
    changed = rows.copy()
    changed[row, column] = data.draw(FINITE.filter(lambda value: value != rows[row, column]))
    found = compare_logits(rows, changed)
    gap = abs(float(rows[row, column]) - float(changed[row, column]))
    assert (found.differing_rows, found.first.row if found.first else None) == (1, row)
    assert found.max_abs == pytest.approx(gap)
    assert found.rms == pytest.approx(gap / math.sqrt(rows.size))
    assert found.max_kl >= found.mean_kl >= 0


def test_figures_of_a_known_change():
    found = compare_logits(block([0.0, 1.0, 3.0], [5.0, 4.0, 0.0]), block([0.0, 1.0, 3.0], [4.0, 5.0, 0.0]))
    assert (found.rows, found.columns, found.differing_rows, found.top1_changes) == (2, 3, 1, 1)
    assert found.max_abs == 1.0
    assert found.rms == pytest.approx(math.sqrt(2 / 6))
    weights = [math.exp(5), math.exp(4), 1.0]
    p = [weight / sum(weights) for weight in weights]
    expected = p[0] * math.log(p[0] / p[1]) + p[1] * math.log(p[1] / p[0])
    assert found.max_kl == pytest.approx(expected, rel=1e-12)
    assert found.mean_kl == pytest.approx(expected / 2, rel=1e-12)
    assert found.first is not None
    assert (found.first.row, found.first.left_top, found.first.right_top, found.first.margin) == (1, 0, 1, 1.0)


@pytest.mark.parametrize(
    ("left", "right", "ulp"),
    [
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        (0.0, np.finfo(np.float32).smallest_subnormal, 1),
        (-np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).smallest_subnormal, 2),
        (1.0, 2.0, 1 << 23),
    ],
)
def test_ulp_counts_representable_values(left: float, right: float, ulp: int):
    assert compare_logits(block([left, 0.0]), block([float(right), 0.0])).max_ulp == ulp


def test_signs_of_zeros_are_bytes_but_no_distance():
    found = compare_logits(block([0.0, 1.0]), block([-0.0, 1.0]))
    assert not found.is_byte_equal
    assert (found.max_abs, found.max_ulp, found.max_kl) == (0.0, 0, 0.0)


def test_what_is_not_finite_is_counted_and_poisons_no_figure():
    found = compare_logits(block([1.0, float("nan"), 2.0], [1.0, 2.0, 3.0]), block([1.5, 1.0, 2.0], [1.0, 2.0, 3.0]))
    assert (found.nonfinite, found.differing_rows, found.max_abs) == (1, 1, 0.5)
    assert (found.max_kl, found.top1_changes) == (0.0, 0)
    same = block([float("inf"), 0.0])
    assert compare_logits(same, same.copy()).is_byte_equal
    assert compare_logits(same, same.copy()).nonfinite == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.zeros((1, 2), np.float32), np.zeros((2, 1), np.float32)),
        (np.zeros((1, 2), np.float64), np.zeros((1, 2), np.float32)),
        (np.zeros(2, np.float32), np.zeros(2, np.float32)),
        (np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)),
    ],
)
def test_other_arrays_are_refused(left: Any, right: Any):
    with pytest.raises(EvidenceError, match="found"):
        compare_logits(left, right)


def test_long_blocks_are_compared_whole():
    rows = np.random.default_rng(5).normal(size=(200, 11)).astype(np.float32)
    changed = rows.copy()
    changed[150, 3] += 1
    found = compare_logits(rows, changed)
    assert found.first is not None
    assert (found.first.row, found.differing_rows) == (150, 1)


def test_the_payload_is_canonical_and_names_every_figure():
    found = json.loads(canonical_bytes(compare_logits(block([0.5, 1.0]), block([0.25, 1.0])).payload()))
    assert float(found.pop("max_kl")) == float(found.pop("mean_kl")) == pytest.approx(0.0071791891343)
    assert float(found.pop("rms")) == pytest.approx(0.25 / math.sqrt(2))
    assert found == {
        "rows": 1,
        "columns": 2,
        "differing_rows": 1,
        "max_abs": "0.25",
        "max_ulp": 8388608,
        "top1_changes": 0,
        "nonfinite": 0,
        "first_divergence": {"row": 0, "left_top": 1, "right_top": 1, "margin": "0.5"},
    }


def test_rows_without_a_finite_pair_have_no_distance() -> None:
    nan, one = np.full((2, 3), np.nan, np.float32), np.ones((2, 3), np.float32)
    found = compare_logits(nan, one)
    assert (found.differing_rows, found.nonfinite, found.max_abs, found.max_ulp) == (2, 6, 0.0, 0)
    assert (found.rms, found.mean_kl, found.max_kl) == (0.0, 0.0, 0.0)
