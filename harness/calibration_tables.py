"""What is known about the noise of this host, for a person."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.calibrations import calibrations_in, this_host
from harness.console import Console, table
from protocols.calibration import HostCalibration, misfits
from reports import style


def calibration_row(one: HostCalibration) -> dict[str, Any]:
    """Return a calibration as plain JSON values, with why it does not hold here now (nothing where it does)."""
    change = one.relink_change
    return {
        **one.payload(),
        "noise_pct": 100 * one.sigma,
        "relink_change_pct": None if change is None else 100 * math.expm1(change),
        "relink_error_pct": None if change is None else 100 * one.relink_error,
        "receipt_sha256": one.receipt_sha256,
        "misfits": misfits(one, one.subject, this_host(), datetime.now(UTC)),
    }


def calibration_rows(store_root: Path) -> list[dict[str, Any]]:
    """Return every calibration of a store, oldest first."""
    return [calibration_row(one) for one in calibrations_in(store_root)]


def show_calibrations(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print calibrations: what they say, for what, and whether they hold here."""
    if not rows:
        console.show("nothing is calibrated here: `assay calibrate PROTOCOL` measures the noise of a load")
        return
    console.show(
        table(
            (
                "workload",
                "metric",
                "noise a load",
                "loads",
                "kind",
                "a relink alone",
                "engine",
                "expires",
                "holds here",
            ),
            [
                (
                    f"{one['workload']} ({one['subject']['prompt_tokens']} + {one['subject']['generated_tokens']})",
                    str(one["metric"]),
                    style.percent(one["noise_pct"]),
                    str(one["loads"]),
                    str(one["kind"]),
                    _relink(one),
                    str(one["subject"]["engine"]),
                    str(one["expires_utc"])[:10],
                    "no: " + "; ".join(one["misfits"]) if one["misfits"] else "yes",
                )
                for one in rows
            ],
        ),
        "",
        "`assay plan PROTOCOL` uses what holds; `sigma: calibrated` lets three or four loads decide with it",
    )


def _relink(one: dict[str, Any]) -> str:
    if one["relink_change_pct"] is None:
        return style.ABSENT
    return f"{style.percent(one['relink_change_pct'], signed=True)} (error {style.percent(one['relink_error_pct'])})"
