"""The table of false alarms, word for word."""

from __future__ import annotations

from collections import Counter

from protocols.alarms import GateAlarms
from reports.alarms import alarm_document, alarm_markdown, alarm_rows

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
        "gate": "loss", "is_exact": False, "campaigns": 50, "judged": 50, "fired": 2, "is_too_often": False,
        "statuses": {"FAIL": 2, "INCONCLUSIVE": 18, "PASS": 30},
    }  # fmt: skip


def test_a_gate_that_was_not_run_counts_as_no_campaign_without_an_alarm() -> None:
    never = GateAlarms(gate="gpu", is_exact=True, statuses=Counter(NOT_RUN=50), campaigns=50)
    half = GateAlarms(gate="loss", is_exact=False, statuses=Counter(NOT_RUN=40, FAIL=2, PASS=8), campaigns=50)
    assert [row[2:4] for row in alarm_rows([never])] == [("0 of 0", "-")]
    assert [row[2] for row in alarm_rows([half])] == ["2 of 10"]
    assert (never.is_too_often, half.is_too_often) == (False, True)
