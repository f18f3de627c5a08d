"""The figures of a campaign: clock, power and temperature over time with loads, arms and phases; tokens over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from protocols.measurements import Arm
from recorder.store import Store
from reports.collect import open_tables
from reports.svg import Band, Line, Panel, chart
from reports.tables import Row, Tables

MACHINE_FIGURE: Final = "machine.svg"
TOKENS_FIGURE: Final = "tokens.svg"
ARM_COLOURS: Final[Mapping[Arm, str]] = {"baseline": "#1f77b4", "candidate": "#d95f02"}
PHASE_COLOURS: Final = {"prefill": "#7570b3", "generation": "#1b9e77"}
NS_PER_S: Final = 1_000_000_000
GAP_NS: Final = 3 * NS_PER_S
"""Longer than any slow field's spacing: such a gap is between two loads, or it was not measured."""

_PANELS: Final = (
    ("clock, MHz", (("gfx_clock_hz", "GPU"), ("smu_gfx_clock_hz", "GPU, SMU"), ("cpu_clock_hz", "CPU")), 1e-6),
    (
        "power, W",
        (
            ("board_power_instant_uw", "board"),
            ("socket_power_uw", "socket"),
            ("smu_socket_power_uw", "socket, SMU"),
            ("smu_gfx_power_uw", "GPU, SMU"),
        ),
        1e-6,
    ),
    (
        "temperature, degrees C",
        (("temp_gpu_mc", "GPU"), ("temp_edge_mc", "GPU edge"), ("smu_temp_gfx_mc", "GPU, SMU"), ("cpu_temp_mc", "CPU")),
        1e-3,
    ),
)
"""Panels: title, fields with their words, and the factor from the field's unit to the title's."""
_LINE_COLOURS: Final = ("#222222", "#b2182b", "#2166ac", "#8c510a")
_FALLBACK: Final = (
    ("CPU cores in use by the engine", "proc_run_ns"),
    ("memory of the engine, MiB", "proc_rss_bytes"),
)
"""What is drawn where a host shows neither clock nor power nor temperature."""

_LOADS: Final = """
SELECT l.label, l.arm, l.is_burn_in, s.entry_seq FROM load l JOIN load_seal s ON s.load_id = l.load_id
WHERE l.campaign_id = :campaign ORDER BY s.entry_seq
"""
_POINTS: Final = """
SELECT v.entry_seq, (t.t_begin_ns + t.t_end_ns) / 2 AS t_ns, f.name, f.instance, v.raw
FROM telemetry_reading v
JOIN telemetry_sample t ON t.entry_seq = v.entry_seq AND t.sample = v.sample
JOIN telemetry_field f ON f.entry_seq = v.entry_seq AND f.field = v.field
JOIN load_seal s ON s.entry_seq = v.entry_seq
WHERE s.campaign_id = :campaign AND v.raw IS NOT NULL AND f.name = :name
ORDER BY f.instance, t_ns
"""
_REQUESTS: Final = """
SELECT r.entry_seq, r.request, r.workload, r.is_warmup, r.sent_ns, r.first_token_ns, r.last_token_ns
FROM request r JOIN load_seal s ON s.entry_seq = r.entry_seq
WHERE s.campaign_id = :campaign AND r.workload IS NOT NULL AND r.sent_ns IS NOT NULL ORDER BY r.entry_seq, r.request
"""
_TOKENS: Final = """
SELECT k.entry_seq, k.request, k.t_ns, count(*) AS tokens
FROM token k JOIN load_seal s ON s.entry_seq = k.entry_seq
WHERE s.campaign_id = :campaign GROUP BY k.entry_seq, k.request, k.t_ns ORDER BY k.entry_seq, k.request, k.t_ns
"""


class _Point(NamedTuple):
    t_ns: int
    raw: int


def campaign_figures(root: Path, campaign: str) -> dict[str, bytes]:
    """Return the figures of a campaign by file name; none for one without a sealed load."""
    with Store.open(root, read_only=True) as store, open_tables(root) as tables:
        campaign_id = store.resolve_campaign(campaign)
        loads = tables.rows(_LOADS, campaign=campaign_id)
        requests = tables.rows(_REQUESTS, campaign=campaign_id)
        if not loads or not requests:
            return {}
        return {
            MACHINE_FIGURE: _machine(tables, campaign_id, loads, requests).encode(),
            TOKENS_FIGURE: _tokens(tables, campaign_id, loads, requests).encode(),
        }


def _machine(tables: Tables, campaign: str, loads: Sequence[Row], requests: Sequence[Row]) -> str:
    origin_ns = min(int(row["sent_ns"]) for row in requests)
    panels = [
        Panel(title=title, lines=tuple(_lines(tables, campaign, fields, factor, origin_ns)))
        for title, fields, factor in _PANELS
    ]
    drawn = [panel for panel in panels if panel.lines]
    if not drawn:
        drawn = [Panel(title=title, lines=_fallback(tables, campaign, name, origin_ns)) for title, name in _FALLBACK]
    bands = (*_arm_bands(loads, requests, origin_ns), *_phase_bands(requests, origin_ns))
    title = "The machine while it served. Blue: baseline, orange: candidate; violet: prefill, green: generation"
    return chart(title, "seconds since the first request", drawn, bands)


def _lines(
    tables: Tables, campaign: str, fields: Sequence[tuple[str, str]], factor: float, origin_ns: int
) -> Iterator[Line]:
    for (name, words), colour in zip(fields, _LINE_COLOURS, strict=False):
        by_instance = _points(tables, campaign, name)
        # Many CPUs become one line, the fastest and hottest of them; each GPU has its own.
        if name.startswith("cpu_") and by_instance:
            by_instance = {"": _highest(by_instance)}
        for instance, points in by_instance.items():
            title = f"{words} {instance}" if len(by_instance) > 1 else words
            yield Line(title=title, colour=colour, points=_curve(points, factor, origin_ns))


def _fallback(tables: Tables, campaign: str, name: str, origin_ns: int) -> tuple[Line, ...]:
    points = [point for one in _points(tables, campaign, name).values() for point in one]
    if name.endswith("_bytes"):
        return (Line(title="", colour=_LINE_COLOURS[0], points=_curve(points, 1 / (1 << 20), origin_ns)),)
    cores: list[tuple[float, float] | None] = []
    for before, after in pairwise(points):
        if 0 < after.t_ns - before.t_ns <= GAP_NS and after.raw >= before.raw:
            x = ((before.t_ns + after.t_ns) / 2 - origin_ns) / NS_PER_S
            cores.append((x, (after.raw - before.raw) / (after.t_ns - before.t_ns)))
        else:
            cores.append(None)
    return (Line(title="", colour=_LINE_COLOURS[0], points=cores),)


def _points(tables: Tables, campaign: str, name: str) -> dict[str, list[_Point]]:
    found: dict[str, list[_Point]] = {}
    for row in tables.rows(_POINTS, campaign=campaign, name=name):
        found.setdefault(str(row["instance"]), []).append(_Point(int(row["t_ns"]), int(row["raw"])))
    return found


def _highest(by_instance: Mapping[str, Sequence[_Point]]) -> list[_Point]:
    top: dict[int, int] = {}
    for points in by_instance.values():
        for point in points:
            top[point.t_ns] = max(point.raw, top.get(point.t_ns, point.raw))
    return [_Point(t_ns, raw) for t_ns, raw in sorted(top.items())]


def _curve(points: Sequence[_Point], factor: float, origin_ns: int) -> list[tuple[float, float] | None]:
    """Return a line's points in seconds, broken where a gap lies."""
    curve: list[tuple[float, float] | None] = []
    last_ns: int | None = None
    for point in points:
        if last_ns is not None and point.t_ns - last_ns > GAP_NS:
            curve.append(None)
        curve.append(((point.t_ns - origin_ns) / NS_PER_S, point.raw * factor))
        last_ns = point.t_ns
    return curve


def _arm_bands(loads: Sequence[Row], requests: Sequence[Row], origin_ns: int) -> Iterator[Band]:
    for load in loads:
        own = [row for row in requests if row["entry_seq"] == load["entry_seq"]]
        ends = [int(row["last_token_ns"]) for row in own if row["last_token_ns"] is not None]
        if ends:
            yield Band(
                start=(min(int(row["sent_ns"]) for row in own) - origin_ns) / NS_PER_S,
                end=(max(ends) - origin_ns) / NS_PER_S,
                colour=ARM_COLOURS[load["arm"]],
                opacity=0.06 if load["is_burn_in"] else 0.16,
                label=f"({load['label']})" if load["is_burn_in"] else load["label"],
            )


def _phase_bands(requests: Sequence[Row], origin_ns: int) -> Iterator[Band]:
    for row in requests:
        if row["is_warmup"]:
            continue
        edges = [row["sent_ns"], row["first_token_ns"], row["last_token_ns"]]
        for phase, (start, end) in zip(PHASE_COLOURS, pairwise(edges), strict=True):
            if start is not None and end is not None:
                x = ((int(edge) - origin_ns) / NS_PER_S for edge in (start, end))
                yield Band(start=next(x), end=next(x), colour=PHASE_COLOURS[phase], opacity=0.14)


def _tokens(tables: Tables, campaign: str, loads: Sequence[Row], requests: Sequence[Row]) -> str:
    """Draw the tokens of each measured request from the moment it was sent; one panel a workload."""
    load_of = {int(row["entry_seq"]): row for row in loads if not row["is_burn_in"]}
    counts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in tables.rows(_TOKENS, campaign=campaign):
        key = (int(row["entry_seq"]), int(row["request"]))
        counts.setdefault(key, []).append((int(row["t_ns"]), int(row["tokens"])))
    panels: dict[str, list[Line]] = {}
    for row in requests:
        seq, request = int(row["entry_seq"]), int(row["request"])
        if row["is_warmup"] or seq not in load_of:
            continue
        total = 0
        points: list[tuple[float, float] | None] = []
        for t_ns, tokens in counts.get((seq, request), []):
            total += tokens
            points.append(((t_ns - int(row["sent_ns"])) / NS_PER_S, float(total)))
        line = Line(title=load_of[seq]["label"], colour=ARM_COLOURS[load_of[seq]["arm"]], points=points)
        panels.setdefault(str(row["workload"]), []).append(line)
    drawn = [Panel(title=f"tokens, {name}", lines=tuple(lines)) for name, lines in panels.items()]
    return chart("Tokens over time. Blue: baseline, orange: candidate", "seconds since the request was sent", drawn)
