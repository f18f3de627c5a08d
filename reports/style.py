"""The one place that rounds: units, signs, digits and dates of every report and of the console.

Evidence and gates keep full precision; only text for people is rounded, and always here. None becomes `ABSENT`.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

ABSENT = "-"
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def rate(tokens_per_second: float | None) -> str:
    """Return a rate with three or four significant digits, in tokens per second."""
    if tokens_per_second is None:
        return ABSENT
    digits = 0 if tokens_per_second >= 1000 else 1 if tokens_per_second >= 100 else 2
    return f"{tokens_per_second:,.{digits}f}"


def milliseconds(duration_ns: int | None) -> str:
    """Return a duration in ms: whole above 100, else one decimal."""
    if duration_ns is None:
        return ABSENT
    value = duration_ns / NS_PER_MS
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def seconds(duration_ns: int | None) -> str:
    """Return a duration in s with one decimal."""
    return ABSENT if duration_ns is None else f"{duration_ns / NS_PER_S:,.1f}"


def percent(value: float | None, *, signed: bool = False) -> str:
    """Return a percentage with two decimals; with `signed` the plus sign is written too."""
    if value is None or not math.isfinite(value):
        return ABSENT
    text = f"{value:+.2f} %" if signed else f"{value:.2f} %"
    return text.replace("-0.00 %", "0.00 %").replace("+0.00 %", "0.00 %")


def whole_percent(value: float | None) -> str:
    """Return a percentage without decimals, for readings that carry no more."""
    return ABSENT if value is None else f"{value:.0f} %"


def chance(value: float) -> str:
    """Return a probability with two decimals."""
    return f"{value:.2f}"


def times(value: int) -> str:
    """Return how often something was seen, in words."""
    return "once" if value == 1 else f"{count(value)} times"


def ratio(value: float) -> str:
    """Return a ratio with four decimals."""
    return f"{value:.4f}"


def decimal_seconds(value_s: float) -> str:
    """Return a duration in s with one decimal and its unit."""
    return f"{value_s:,.1f} s"


def points(value: float | None) -> str:
    """Return a difference of percentages in percentage points."""
    return ABSENT if value is None else f"{value:.2f} points"


def count(value: int | None) -> str:
    """Return an integer with thousands separators."""
    return ABSENT if value is None else f"{value:,}"


def size(bytes_: int | None) -> str:
    """Return a size in the largest binary unit that keeps it above one."""
    if bytes_ is None:
        return ABSENT
    value = float(bytes_)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def megahertz(clock_hz: float | None) -> str:
    """Return a clock in whole MHz."""
    return ABSENT if clock_hz is None else f"{clock_hz / 1e6:,.0f} MHz"


def watts(power_uw: float | None) -> str:
    """Return a power in W with one decimal below 100."""
    if power_uw is None:
        return ABSENT
    value = power_uw / 1e6
    return f"{value:.1f} W" if value < 100 else f"{value:,.0f} W"


def celsius(temperature_mc: float | None) -> str:
    """Return a temperature in whole degrees."""
    return ABSENT if temperature_mc is None else f"{temperature_mc / 1e3:.0f} °C"


def joules(energy_uj: float | None) -> str:
    """Return an energy in J, in mJ below one."""
    if energy_uj is None:
        return ABSENT
    return f"{energy_uj / 1e6:,.1f} J" if abs(energy_uj) >= 1e6 else f"{energy_uj / 1e3:.1f} mJ"


def short_hash(sha256: str | None) -> str:
    """Return the first twelve digits of a hash; reports in JSON carry all of it."""
    return ABSENT if sha256 is None else sha256[:12]


def utc(utc_ns: int | None) -> str:
    """Return a date and time in UTC, to the second."""
    return (
        ABSENT if utc_ns is None else datetime.fromtimestamp(utc_ns // NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )
