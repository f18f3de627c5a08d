"""`assay trend`: the campaigns of one question in the order in which they were locked, or a list of changes.

A question is what must not change for two campaigns to be comparable: baseline, model, request, settings, host, metric.
The candidate is not part of it: it is what the series is about.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.calibrations import find, recorded
from harness.console import Console, table
from protocols.canonical import canonical_bytes, sha256_hex
from protocols.errors import EvidenceError, Problem, ProtocolError
from protocols.lock import Lock
from protocols.paths import read_given
from protocols.schema import LossGate, Protocol
from protocols.trend import Point, Trend, aa_band, find_trend
from recorder.measure import protocol_of_source
from recorder.store import Store
from reports import style

COLUMNS: Final = ("name", "change_pct", "error_pct")
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LEAST_PCT: Final = 1e-9
_MOST_PCT: Final = 1e9
_MOST_DF: Final = 10**9
_MANY_DF: Final = 1000
"""Degrees of freedom of an error that a list states as known."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric of one question over its campaigns. `question` is a hash, None for a list without a record."""

    title: str
    question: str | None
    trend: Trend


def question_of(lock: Lock, protocol: Protocol, gate: LossGate) -> str:
    """Return the hash of what two campaigns must share to stand in one series."""
    workload = protocol.workload(gate.workload)
    baseline = lock.arms["baseline"]
    value = {
        "baseline": {"kind": baseline.kind, "files": {file.name: file.sha256 for file in baseline.files}},
        "baseline_settings": dict(baseline.settings),
        "candidate_settings": dict(lock.arms["candidate"].settings),
        "model": lock.model_sha256(),
        "request": lock.requests[workload.request],
        "repeats": workload.repeats,
        "metric": gate.metric,
        "host": {name: lock.host.get(name) for name in ("cpu_model", "cpu_logical_count", "machine")},
    }
    return sha256_hex(canonical_bytes(value))


def store_series(root: Path, campaign: str) -> list[Series]:
    """Return the series of each loss gate of a campaign: every campaign of the store with the same question.

    EvidenceError where the campaign computed no loss.
    """
    with Store.open(root, read_only=True) as store:
        campaign_id = store.resolve_campaign(campaign)
        protocol = protocol_of_source(store.protocol_of(campaign_id))
        lock, known = store.lock_of(campaign_id), recorded(store)
        every = list(_losses(store))
        found: list[Series] = []
        for gate in protocol.gates:
            if not isinstance(gate, LossGate):
                continue
            question = question_of(lock, protocol, gate)
            points = [point for asked, point in every if asked == question]
            if not points:
                continue
            calibration = find(protocol, gate.workload, gate.metric, known).calibration
            loads = points[-1].df + 3
            band = None if calibration is None else aa_band(calibration.sigma, calibration.df, math.sqrt(4 / loads))
            relink = 0.0 if calibration is None else calibration.relink_least
            title = f"{gate.metric.replace('_', ' ')} of {gate.workload}"
            found.append(Series(title=title, question=question, trend=find_trend(points, band=band, relink=relink)))
    if not found:
        raise EvidenceError(f"campaign {campaign_id} computed no loss, so it stands in no series")
    return found


def _losses(store: Store) -> Iterator[tuple[str, Point]]:
    """Yield question and point of every loss with an own noise that the verdicts of a store recorded, oldest first."""
    for summary in store.campaigns():
        verdict = store.verdict_of(summary.campaign_id)
        if verdict is None:
            continue
        protocol = protocol_of_source(store.protocol_of(summary.campaign_id))
        lock = store.lock_of(summary.campaign_id)
        gates = {gate.id: gate for gate in protocol.gates if isinstance(gate, LossGate)}
        for result in verdict[0]:
            gate, inputs = gates.get(str(result["id"])), result["inputs"]
            if gate is None or not isinstance(inputs, dict) or not inputs.get("standard_error_pct"):
                continue
            yield (
                question_of(lock, protocol, gate),
                Point(
                    name=summary.campaign_id,
                    change=float(inputs["beta"]),
                    error=float(inputs["standard_error_pct"]) / 100,
                    df=int(inputs["df"]),
                ),
            )


def list_series(path: Path) -> list[Series]:
    """Return the series of a CSV file with the columns name, change_pct, error_pct and, if known, df.

    ProtocolError with every line that is wrong.
    """
    try:
        rows = list(csv.DictReader(read_given(path).decode("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ProtocolError(f"the file cannot be read: {error}", where=str(path)) from error
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise ProtocolError(f"the columns {', '.join(missing)} are missing, or there is no row", where=f"{path}:1")
    points, problems = [], []
    for line, row in enumerate(rows, start=2):
        point = _point(row)
        if point is None:
            message = "found no change above -100 % with an error above 0 %, each with a decimal point where it has one"
            problems.append(Problem(where=f"{path}:{line}", message=message))
        else:
            points.append(point)
    if problems:
        raise ProtocolError.from_problems(str(path), problems)
    return [Series(title=path.name, question=None, trend=find_trend(points))]


def _point(row: dict[str, str]) -> Point | None:
    """Return one row of a list as a point, or None where it holds no sound numbers."""
    cells = [row["change_pct"], row["error_pct"], row.get("df") or str(_MANY_DF)]
    if None in row or not all(cell is not None and _NUMBER.fullmatch(cell.strip()) for cell in cells):
        return None  # a cell more than columns may be the rest of a number that was cut at its comma
    change_pct, error_pct, df = float(cells[0]), float(cells[1]), float(cells[2])
    if not (_LEAST_PCT - 100 <= change_pct <= _MOST_PCT and _LEAST_PCT <= error_pct <= _MOST_PCT):
        return None
    if not (1 <= df <= _MOST_DF and df.is_integer()):  # a range would be searched number by number for a real one
        return None
    return Point(name=row["name"], change=math.log1p(change_pct / 100), error=error_pct / 100, df=int(df))


def series_document(series: list[Series]) -> list[dict[str, Any]]:
    """Return series as plain JSON values: changes in percent."""
    return [
        {
            "title": one.title,
            "question": one.question,
            "band_pct": None if one.trend.band is None else _percent(one.trend.band),
            "points": [
                {
                    "name": point.name,
                    "change_pct": _percent(point.change),
                    "error_pct": 100 * error,
                    "level_pct": _percent(level),
                    "is_outside_band": one.trend.is_outside(place),
                }
                for place, (point, error, level) in enumerate(
                    zip(one.trend.points, one.trend.errors, one.trend.levels, strict=True)
                )
            ],
            "changes": [
                {
                    "from": one.trend.points[change.at - 1].name,
                    "to": one.trend.points[change.at].name,
                    "before_pct": _percent(change.before),
                    "after_pct": _percent(change.after),
                    "p": change.p,
                }
                for change in one.trend.changes
            ],
        }
        for one in series
    ]


def _percent(log_change: float) -> float:
    return 100 * math.expm1(log_change)


def show_series(console: Console, series: list[Series]) -> None:
    """Print each series: where it changed in words, then campaign by campaign."""
    for one in json.loads(json.dumps(series_document(series))):
        console.show(f"{one['title']}: candidate against the same baseline, {len(one['points'])} campaigns")
        for change in one["changes"]:
            p = f"p = {change['p']:.3g}" if change["p"] else "p under 0.0001"
            console.show(
                f"changed between {change['from']} and {change['to']}: from {_signed(change['before_pct'])} to "
                f"{_signed(change['after_pct'])} ({p}, every place looked at)"
            )
        if not one["changes"]:
            console.show("no change point: the series is as steady as its noise lets one see")
        band = one["band_pct"]
        console.show(
            f"A/A band: within {style.percent(band)} an engine against itself stays 95 times in 100"
            if band is not None
            else "A/A band: not known, `assay calibrate` gives it",
            table(
                ("campaign", "change", "error", "level", "A/A band"),
                [
                    (
                        point["name"],
                        _signed(point["change_pct"]),
                        style.percent(point["error_pct"]),
                        _signed(point["level_pct"]),
                        None if band is None else "outside" if point["is_outside_band"] else "inside",
                    )
                    for point in one["points"]
                ],
            ),
            "",
        )


def _signed(value: float) -> str:
    return style.percent(value, signed=True)
