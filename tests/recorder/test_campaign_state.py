"""Reading the ledger by campaign."""

from __future__ import annotations

import pytest

from protocols.errors import EvidenceError, UsageError
from recorder.campaign_state import read_campaigns, resolve_campaign
from recorder.ledger import FIRST_PREV, encode_entry

PLACE = {"index": 0, "label": "A1", "arm": "baseline", "block": None, "is_burn_in": False}


def entry(kind: str, seq: int = 0, **payload):
    return encode_entry(
        seq=seq,
        kind=kind,
        lock="ab" * 32,
        prev=FIRST_PREV,
        utc_ns=1,
        monotonic_ns=1,
        payload={"campaign": "c", **payload},
    )


LOCKED = entry("campaign.locked")
OPENED = entry("load.opened", load="c/0-A1", position=PLACE, attempt=1)
SEALED = entry("load.sealed", load="c/0-A1", state="COMPLETE")


def test_loads_are_open_until_they_are_sealed():
    state = read_campaigns([LOCKED, OPENED])["c"]
    assert [load.load_id for load in state.open_loads()] == ["c/0-A1"]
    assert state.completed_positions() == frozenset()
    state = read_campaigns([LOCKED, OPENED, SEALED])["c"]
    assert state.open_loads() == []
    assert state.completed_positions() == {0}
    assert state.attempts(0) == 1


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([OPENED], "never locked"),
        ([LOCKED, LOCKED], "locked twice"),
        ([LOCKED, OPENED, OPENED], "opened twice"),
        ([LOCKED, SEALED], "was not open"),
        ([LOCKED, OPENED, SEALED, SEALED], "was not open"),
        ([LOCKED, OPENED, entry("load.sealed", load="c/0-A1", state="DONE")], "state"),
        ([LOCKED, entry("load.opened", load="c/0-A1", position=5, attempt=1)], "position"),
    ],
)
def test_an_order_that_cannot_be_is_refused(entries, word: str):
    with pytest.raises(EvidenceError, match=word):
        read_campaigns(entries)


def test_a_whole_protocol_id_means_that_protocol_alone():
    names = (
        "release-general-only-20261130T164002Z-5296ed",
        "release-20261130T164002Z-0a1b2c",
        "release-full-20261130T164832Z-a25990",
    )
    campaigns = {name: read_campaigns([LOCKED])["c"] for name in names}
    assert resolve_campaign(campaigns, "release") == names[1]
    assert resolve_campaign(campaigns, "release-f") == names[2]
    with pytest.raises(UsageError, match="can mean 3"):
        resolve_campaign(campaigns, "releas")
    again = campaigns | {"release-20261130T174002Z-0a1b2d": campaigns[names[1]]}
    with pytest.raises(
        UsageError, match="can mean 2 campaigns: release-20261130T164002Z-0a1b2c, release-20261130T174002Z-0a1b2d"
    ):
        resolve_campaign(again, "release")


def test_names_are_resolved_only_where_they_mean_one_campaign():
    campaigns = {name: read_campaigns([LOCKED])["c"] for name in ("pair-1-a", "pair-1-b", "solo")}
    assert resolve_campaign(campaigns, "latest") == "solo"
    assert resolve_campaign(campaigns, "so") == "solo"
    assert resolve_campaign(campaigns, "pair-1-a") == "pair-1-a"
    with pytest.raises(UsageError, match="can mean 2"):
        resolve_campaign(campaigns, "pair")
    with pytest.raises(UsageError, match="no campaign"):
        resolve_campaign({}, "latest")
