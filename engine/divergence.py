"""Where two builds first differ: captured tensors of the same step, compared in the order of their computation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.captured import Captured
from protocols.errors import EngineError


class Divergence(NamedTuple):
    """The first tensor that differs by more than was allowed."""

    position: int  # among the captured tensors
    name: str
    ubatch: int
    place: tuple[int, ...]  # of the largest difference, slowest dimension first
    difference: float  # largest absolute one; infinite where only one side is finite


def tensor_sha256(captured: Captured) -> str | None:
    """Return the SHA-256 of a tensor's values, None where it was left out for its size."""
    return None if captured.values is None else hashlib.sha256(captured.values.tobytes()).hexdigest()


def first_divergence(
    baseline: Sequence[Captured], candidate: Sequence[Captured], *, tolerance: float = 0.0
) -> Divergence | None:
    """Return the first tensor whose values differ by more than `tolerance`, None where all agree.

    Integers (chosen experts, selected blocks, table rows) must be equal whatever the tolerance. Raises EngineError
    where the two sides did not capture the same tensors, or a tensor was left out on one side.
    """
    if [entry[:2] for entry in baseline] != [entry[:2] for entry in candidate]:
        raise EngineError("the two builds did not capture the same tensors", hint="capture equal names in equal steps")
    for index, (one, other) in enumerate(zip(baseline, candidate, strict=True)):
        if one.values is None and other.values is None:
            continue
        if one.values is None or other.values is None or one.values.shape != other.values.shape:
            raise EngineError(f"{one.name} has another shape, or was left out on one side", hint="raise the size limit")
        if np.array_equal(one.values, other.values):
            continue
        distance = np.abs(one.values.astype(np.float64) - other.values.astype(np.float64))
        is_same_nan = np.isnan(one.values) & np.isnan(other.values)
        distance = np.where(np.isnan(distance), np.where(is_same_nan, 0.0, np.inf), distance)
        place = np.unravel_index(int(distance.argmax()), distance.shape)
        largest = float(distance[place])
        allowed = tolerance if one.values.dtype.kind == "f" else 0.0
        if largest > allowed:
            return Divergence(index, one.name, one.ubatch, tuple(int(i) for i in place), largest)
    return None
