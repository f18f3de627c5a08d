"""Computes the norm of the arm's own library at the numbers of rows that a check names."""

from __future__ import annotations

from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.checks.operator_boundaries import OperatorBoundariesCheck


def run_operator_boundaries(context: CheckContext, check: OperatorBoundariesCheck) -> dict[str, JsonValue]:
    """Return the worst error and the time of each size; the tolerance stands beside them."""
    sizes: list[JsonValue] = []
    with context.worker() as worker:
        for rows in check.rows:
            found = worker.norm_check(rows, width=check.width, on_accelerator=check.on_accelerator)
            sizes.append(
                {
                    "rows": rows,
                    "worst_error": repr(float(found["worst_error"])),
                    "elapsed_ns": int(found["elapsed_ns"]),
                }
            )
    return {"sizes": sizes, "tolerance": str(check.tolerance), "width": check.width}
