"""The norm at the numbers of rows where device grids end, against double precision."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from protocols.canonical import JsonValue, decimal_text, real_text
from protocols.checks.base import CheckBase, CheckOutcome, field, real, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.vocabulary import PlainDecimal

Rows = Annotated[int, Field(ge=1, le=1 << 24)]


class OperatorBoundariesCheck(CheckBase):
    """The norm of the graphs is right for every row, also past the largest grid of a device."""

    kind: Literal["operator_boundaries"]
    """The check."""
    rows: Annotated[tuple[Rows, ...], Field(strict=False, min_length=1, max_length=16)] = (65_535, 65_536, 131_072)
    """Numbers of rows that are computed."""
    width: int = Field(default=128, ge=1, le=65_536)
    """Elements of a row."""
    tolerance: PlainDecimal = Decimal("0.000001")
    """Largest absolute error against double precision that passes; it stands in the receipt."""
    on_accelerator: bool = False
    """Whether the first accelerator computes, or the CPU."""


def judge_operator_boundaries(check: OperatorBoundariesCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where every row's error is finite and within the tolerance."""
    sizes = rows_of(observation.facts, "sizes", len(check.rows))
    if [field(size, "rows", int) for size in sizes] != list(check.rows):
        raise EvidenceError("the check did not compute the rows that it promises")
    errors = {size["rows"]: real(size, "worst_error") for size in sizes}
    limit = float(check.tolerance)
    wrong = {rows: error for rows, error in errors.items() if not error <= limit}
    inputs: dict[str, JsonValue] = {
        "tolerance": decimal_text(check.tolerance),
        "worst_errors": {str(rows): _error_text(error) for rows, error in errors.items()},
    }
    if not wrong:
        worst = max(errors.values())
        sizes_ = f"{_listed(errors)} rows of {check.width}"
        reason = f"The norm is within {worst:.3g} of double precision at {sizes_} (tolerance {limit:g})."
        return CheckOutcome("PASS", reason, inputs)
    reason = f"The norm is wrong at {_listed(wrong)} rows: by {max(wrong.values()):.3g} (tolerance {limit:g})."
    return CheckOutcome("FAIL", reason, inputs)


def _error_text(error: float) -> str:
    return real_text(error) if math.isfinite(error) else "infinite"


def _listed(rows: dict[int, float]) -> str:
    return ", ".join(f"{one:,}" for one in rows)
