"""How often each gate fired where there was nothing to find, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.alarms import GateAlarms
from protocols.canonical import JsonValue
from protocols.simulate import upper_limit
from reports import style

HEADS: Final = ("gate", "kind", "fired", "upper 95 % limit", "other answers")


def alarm_rows(alarms: Sequence[GateAlarms]) -> list[tuple[str, ...]]:
    """Return one row a gate, as texts, in the order of HEADS."""
    return [
        (
            one.gate,
            "exact" if one.is_exact else "speed",
            f"{one.fired} of {one.judged}",
            style.percent(100 * upper_limit(one.fired, one.judged)) if one.judged else "-",
            ", ".join(f"{status} {count}" for status, count in sorted(one.statuses.items()) if status != "FAIL"),
        )
        for one in alarms
    ]


def alarm_summary(alarms: Sequence[GateAlarms]) -> str:
    """Return how often gates fired, exact ones and those over rates apart."""
    exact = sum(one.fired for one in alarms if one.is_exact)
    speed = sum(one.fired for one in alarms if not one.is_exact)
    campaigns = alarms[0].campaigns
    return f"{campaigns} campaigns without a fault: exact gates fired {exact} times, gates over rates {speed} times"


def alarm_markdown(alarms: Sequence[GateAlarms]) -> str:
    """Return the table as Markdown with its summary."""
    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    lines += [f"| {' | '.join(cell or '-' for cell in row)} |" for row in alarm_rows(alarms)]
    return "\n".join([*lines, "", f"{alarm_summary(alarms)}.", ""])


def alarm_document(alarms: Sequence[GateAlarms]) -> JsonValue:
    """Return the table for machines."""
    return {
        "summary": alarm_summary(alarms),
        "gates": [
            {
                "gate": one.gate,
                "is_exact": one.is_exact,
                "campaigns": one.campaigns,
                "judged": one.judged,
                "fired": one.fired,
                "is_too_often": one.is_too_often,
                "statuses": dict(sorted(one.statuses.items())),
            }
            for one in alarms
        ],
    }
