"""Percentiles and shares of a description."""

from __future__ import annotations

import random

import numpy as np
import pytest

from reports.request_view import _between, percentile


def test_percentiles_are_those_of_numpy() -> None:
    source = random.Random(1)
    for count in (1, 2, 3, 10, 101):
        values = sorted(source.random() for _ in range(count))
        for part in (0, 10, 50, 90, 99, 100):
            assert percentile(values, part) == pytest.approx(float(np.percentile(values, part)), rel=1e-12)


def test_the_share_between_loads_is_one_where_loads_alone_differ_and_none_where_nothing_can_be_said() -> None:
    assert _between([[1.0, 1.0], [3.0, 3.0]], [1.0, 1.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert _between([[1.0, 3.0], [1.0, 3.0]], [1.0, 1.0, 3.0, 3.0]) == pytest.approx(0.0)
    assert _between([[1.0, 2.0]], [1.0, 2.0]) is None
    assert _between([[1.0, 1.0], [1.0]], [1.0, 1.0, 1.0]) is None
    assert _between([[1.0], [2.0]], [1.0, 2.0]) is None
