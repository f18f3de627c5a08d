"""The table of false alarms, word for word."""

from __future__ import annotations

from collections import Counter

from protocols.alarms import GateAlarms
from reports.alarms import alarm_document, alarm_markdown

FOUND = (
    GateAlarms(gate="tokens", is_exact=True, statuses=Counter(PASS=50), campaigns=50),
    GateAlarms(gate="loss", is_exact=False, statuses=Counter(PASS=30, INCONCLUSIVE=18, FAIL=2), campaigns=50),
)


def test_each_gate_has_a_row_with_its_limit() -> None:
    assert alarm_markdown(FOUND).splitlines() == [
        "| gate | kind | fired | upper 95 % limit | other answers |",
        "|---|---|---|---|---|",
        "| tokens | exact | 0 of 50 | 5.82 % | PASS 50 |",
        "| loss | speed | 2 of 50 | 12.06 % | INCONCLUSIVE 18, PASS 30 |",
        "",
        "50 campaigns without a fault: exact gates fired 0 times, gates over rates 2 times.",
    ]


def test_machines_get_the_counts() -> None:
    document = alarm_document(FOUND)
    assert isinstance(document, dict)
    assert document["gates"][1] == {
        "gate": "loss", "is_exact": False, "campaigns": 50, "fired": 2, "is_too_often": False,
        "statuses": {"FAIL": 2, "INCONCLUSIVE": 18, "PASS": 30},
    }  # fmt: skip
