"""The detection matrix says what was caught, missed and raised for nothing."""

from __future__ import annotations

from protocols.controls import Control, Outcome
from reports.detection import detection_document, detection_markdown, summary

CONTROL = Control(id="x", meaning="a | b", faults=("leak",), protocol="p", gate="memory")


def outcome(control: Control | None, *fired: str) -> Outcome:
    caught = control.gate in fired if control else not fired
    return Outcome(
        protocol="p", control=control, campaign="c", verdict="FAIL", caught=caught, fired=fired, not_run=("cold",)
    )


OUTCOMES = [outcome(None), outcome(None, "tokens"), outcome(CONTROL, "memory", "tokens"), outcome(CONTROL, "tokens")]


def test_the_matrix_has_a_row_for_every_campaign():
    lines = detection_markdown(OUTCOMES).splitlines()
    assert lines[2:6] == [
        "| p | none | nothing | none may fire | no alarm | - | cold |",
        "| p | none | nothing | none may fire | false alarm: tokens | - | cold |",
        "| p | x | a / b | memory | caught | tokens | cold |",
        "| p | x | a / b | memory | missed | tokens | cold |",
    ]
    assert lines[-1] == f"{summary(OUTCOMES)}."


def test_the_summary_counts_misses_and_false_alarms():
    assert summary(OUTCOMES) == "1 of 2 faults caught by the gate that is meant to; 1 false alarms without a fault"


def test_machines_get_the_same_rows():
    document = detection_document(OUTCOMES)
    assert isinstance(document, dict)
    rows = document["rows"]
    assert isinstance(rows, list)
    assert [row["caught"] for row in rows if isinstance(row, dict)] == [True, False, True, False]
