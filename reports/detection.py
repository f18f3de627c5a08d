"""The detection matrix: every control with the gate that is there to catch it, and what fired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.canonical import JsonValue
from protocols.controls import Outcome

HEADS: Final = ("protocol", "control", "what is wrong", "gate meant", "result", "also fired", "not run")


def detection_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return one row a campaign, as texts, in the order of HEADS."""
    rows: list[tuple[str, ...]] = []
    for one in outcomes:
        control = one.control
        if control is None:
            fired = ", ".join(one.fired)
            result, also = ("no alarm", fired) if one.caught else (f"false alarm: {fired}", "")
            cells = ("none", "nothing", "none may fire", result, also)
        else:
            also = ", ".join(gate for gate in one.fired if gate != control.gate)
            cells = (control.id, control.meaning, control.gate, "caught" if one.caught else "missed", also)
        rows.append((one.protocol, *cells, ", ".join(one.not_run)))
    return rows


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many controls were caught, missed, and how many protocols without a fault raised an alarm."""
    faults = [one for one in outcomes if one.control is not None]
    alarms = sum(not one.caught for one in outcomes if one.control is None)
    caught = sum(one.caught for one in faults)
    return (
        f"{caught} of {len(faults)} faults caught by the gate that is meant to; {alarms} false alarms without a fault"
    )


def detection_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the matrix as a Markdown table with its summary."""
    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    lines += [f"| {' | '.join(cell.replace('|', '/') or '-' for cell in row)} |" for row in detection_rows(outcomes)]
    return "\n".join([*lines, "", f"{summary(outcomes)}.", ""])


def detection_document(outcomes: Sequence[Outcome]) -> JsonValue:
    """Return the matrix for machines."""
    return {
        "summary": summary(outcomes),
        "rows": [
            {
                "protocol": one.protocol,
                "control": None if one.control is None else one.control.id,
                "gate": None if one.control is None else one.control.gate,
                "caught": one.caught,
                "fired": list(one.fired),
                "not_run": list(one.not_run),
                "verdict": one.verdict,
                "campaign": one.campaign,
            }
            for one in outcomes
        ],
    }
