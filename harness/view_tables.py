"""The tables of `assay view`."""

from __future__ import annotations

from collections.abc import Sequence

from harness.console import Console, table
from reports.request_view import MEASURES, NOTE, PERCENTILES, Distribution


def show_view(console: Console, campaign_id: str, found: Sequence[Distribution]) -> None:
    """Print the distributions, and above them what they are not."""
    console.show(f"{campaign_id}: what its measured requests took, in ms, by the client's clock", NOTE, "")
    if not found:
        console.show("no measured request was answered")
        return
    columns = ("workload", "measure", "arm", "loads", "requests", "values", "least", *(f"p{p}" for p in PERCENTILES))
    rows = [
        (
            one.workload,
            f"{one.measure.upper()} ({MEASURES[one.measure]})",
            one.arm,
            str(one.loads),
            str(one.requests),
            str(one.count),
            *(f"{value:.2f}" for value in (one.least_ms, *one.percentiles_ms, one.most_ms)),
            None if one.between_loads is None else f"{100 * one.between_loads:.0f} %",
        )
        for one in found
    ]
    console.show(table((*columns, "most", "of the spread between loads"), rows))
