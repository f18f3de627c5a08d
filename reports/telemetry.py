"""What telemetry says about each load, in one line: coverage first, then means over the time of its requests."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from reports.facts import TelemetryFact
from reports.tables import Span, Tables

NS_PER_S = 1_000_000_000


def telemetry_facts(
    tables: Tables, campaign: str, *, period_ms: int, ticks_per_s: int | None
) -> Mapping[int, TelemetryFact]:
    """Return the telemetry of each sealed load that has samples, by the ledger entry that sealed it."""
    samples, readings, spans = tables.samples(campaign), tables.readings(campaign), tables.request_spans(campaign)
    if samples.empty:
        return {}
    values = _by_load(readings)
    return {
        seq: _fact(frame, values.get(seq), spans.get(seq), period_ms, ticks_per_s)
        for seq, frame in _by_load(samples).items()
    }


def _by_load(frame: pd.DataFrame) -> dict[int, pd.DataFrame]:
    if frame.empty:
        return {}
    return {int(str(seq)): part for seq, part in frame.groupby("entry_seq")}


def _fact(
    samples: pd.DataFrame,
    readings: pd.DataFrame | None,
    span: Span | None,
    period_ms: int,
    ticks_per_s: int | None,
) -> TelemetryFact:
    first, last = int(samples["t_begin_ns"].min()), int(samples["t_end_ns"].max())
    length_s = (last - first) / NS_PER_S
    # The last sample may be up to one period old when the last answer ends: what came after it is nobody's.
    slack = period_ms * 1_000_000
    covers = span is not None and first <= span.first_ns and last + slack >= span.last_ns
    busy, idle, steal = (_gain(readings, f"cpu_{name}_ticks") for name in ("busy", "idle", "steal"))
    user, system = _gain(readings, "proc_utime_ticks"), _gain(readings, "proc_stime_ticks")
    whole = (busy or 0) + (idle or 0) + (steal or 0)
    energy_uj = _gain(readings, "package_energy_uj")
    clock_hz = _mean(readings, "cpu_clock_hz")
    temp_mc = _mean(readings, "cpu_temp_mc")
    return TelemetryFact(
        samples=len(samples),
        missed_ticks=int(samples["missed_ticks"].sum()),
        period_ms=period_ms,
        covers_requests=covers,
        sampler_cpu_pct=100 * float(samples["cpu_ns"].sum()) / NS_PER_S / length_s if length_s > 0 else None,
        host_cpu_busy_pct=100 * busy / whole if busy is not None and whole else None,
        engine_cpu_pct=_share(user, system, ticks_per_s, length_s),
        peak_rss_bytes=_peak(readings, "proc_rss_peak_bytes"),
        cpu_clock_mhz=None if clock_hz is None else clock_hz / 1e6,
        cpu_temp_c=None if temp_mc is None else temp_mc / 1e3,
        energy_j=None if energy_uj is None else energy_uj / 1e6,
    )


def _share(user_ticks: int | None, system_ticks: int | None, ticks_per_s: int | None, length_s: float) -> float | None:
    if user_ticks is None or system_ticks is None or not ticks_per_s or length_s <= 0:
        return None
    return 100 * (user_ticks + system_ticks) / ticks_per_s / length_s


def _series(readings: pd.DataFrame | None, name: str) -> pd.DataFrame | None:
    if readings is None:
        return None
    chosen = readings[readings["name"] == name]
    return None if chosen.empty else chosen


def _gain(readings: pd.DataFrame | None, name: str) -> int | None:
    """Return how far a counter rose, summed over its instances; None where it fell or has one value only."""
    chosen = _series(readings, name)
    if chosen is None:
        return None
    total = 0
    for _, one in chosen.groupby("instance"):
        raw = one["raw"]
        gain = int(raw.iloc[-1]) - int(raw.iloc[0])
        if len(raw) < 2 or gain < 0:
            return None
        total += gain
    return total


def _mean(readings: pd.DataFrame | None, name: str) -> float | None:
    chosen = _series(readings, name)
    return None if chosen is None else float(chosen["raw"].astype("float64").mean())


def _peak(readings: pd.DataFrame | None, name: str) -> int | None:
    chosen = _series(readings, name)
    return None if chosen is None else int(chosen["raw"].max())
