"""One campaign: order of loads, attempts, interruption, resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.errors import EvidenceError
from protocols.schedule import Position
from recorder.audit import audit_store
from recorder.store import Store


@pytest.fixture
def begun(fast_path: Path, synthetic):
    root = fast_path / "store"
    with synthetic.open_store(root) as store:
        yield store, store.begin_campaign(**synthetic.lock_parts())


def test_a_place_outside_the_locked_schedule_is_refused(begun, synthetic):
    _, campaign = begun
    first = synthetic.positions()[0]
    for change in ({"label": "A9"}, {"arm": "candidate"}, {"index": 9}, {"block": None}, {"is_burn_in": True}):
        place = Position(**{**first.payload(), **change})
        with pytest.raises(EvidenceError, match="locked schedule"):
            campaign.open_load(place)


def test_one_load_is_open_at_a_time(begun, synthetic):
    _, campaign = begun
    campaign.open_load(synthetic.positions()[0])
    with pytest.raises(EvidenceError, match="still open"):
        campaign.open_load(synthetic.positions()[1])


def test_a_complete_place_is_not_run_again(begun, synthetic):
    _, campaign = begun
    synthetic.run_load(campaign, synthetic.positions()[0])
    assert campaign.completed_positions() == {0}
    with pytest.raises(EvidenceError, match="COMPLETE already"):
        campaign.open_load(synthetic.positions()[0])


@pytest.mark.parametrize("state", ["PARTIAL", "INVALID"])
def test_a_second_attempt_gets_a_number_and_the_first_one_stays(begun, synthetic, state: str):
    store, campaign = begun
    place = synthetic.positions()[0]
    campaign.open_load(place).seal(state=state, reason="the engine died")
    assert campaign.completed_positions() == frozenset()
    synthetic.run_load(campaign, place)
    opened = [entry for entry in store.entries() if entry.kind == "load.opened"]
    assert [entry.number("attempt") for entry in opened] == [1, 2]
    assert [entry.text("load").rpartition("/")[2] for entry in opened] == ["0-A1", "0-A1.2"]
    measured = store.measurements(campaign.campaign_id).loads
    assert [(load.label, load.state, load.reason) for load in measured[:2]] == [
        ("A1", state, "the engine died"),
        ("A1", "COMPLETE", None),
    ]
    assert [load.state for load in measured[2:]] == [None, None, None]


def test_a_state_that_is_none_is_refused(begun, synthetic):
    _, campaign = begun
    load = campaign.open_load(synthetic.positions()[0])
    with pytest.raises(ValueError, match="state"):
        load.seal(state="DONE", reason=None)


def test_a_stopped_campaign_says_so_until_it_is_resumed(fast_path: Path, synthetic):
    root = fast_path / "store"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        synthetic.run_load(campaign, synthetic.positions()[0])
        load = campaign.open_load(synthetic.positions()[1])
        load.seal(state="PARTIAL", reason="interrupted")
        campaign.record_interruption("the user pressed control-C")
    (summary,) = Store.open(root, read_only=True).campaigns()
    assert (summary.is_interrupted, summary.complete_loads, summary.partial_loads) == (True, 1, 1)
    result = audit_store(root)
    assert (result.findings, result.is_partial) == ((), True)
    synthetic.resume_campaign(root)
    (summary,) = Store.open(root, read_only=True).campaigns()
    assert (summary.is_interrupted, summary.complete_loads, summary.partial_loads) == (False, 4, 1)
    result = audit_store(root)
    assert (result.findings, result.is_partial) == ((), False)


def test_a_campaign_with_a_verdict_is_not_resumed_but_takes_reports(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        with pytest.raises(EvidenceError, match="verdict"):
            store.resume_campaign("latest")
        store.campaign_recorder("latest").record_report({"report.md": b"newer\n"})
        name = store.campaigns()[0].campaign_id
    assert (store_root / "campaigns" / name / "report.md").read_bytes() == b"newer\n"
    assert audit_store(store_root).findings == ()


def test_a_report_cannot_take_the_place_of_the_lock(begun):
    _, campaign = begun
    for name in ("lock.json", "protocol.yaml", "../x", ".hidden", "a/b"):
        with pytest.raises(ValueError, match=r"report|file name"):
            campaign.record_report({name: b"x"})


def test_the_lock_can_be_read_as_plain_json(begun):
    _, campaign = begun
    assert campaign.lock["protocol_id"] == "tiny-pair"
    assert [place["label"] for place in campaign.lock["schedule"]] == ["A1", "C1", "C2", "A2"]


def test_a_checkpoint_follows_lock_loads_verdict_and_report(store_root: Path):
    kinds = [entry.kind for entry in Store.open(store_root, read_only=True).entries()]
    for place, kind in enumerate(kinds):
        if kind in {"campaign.locked", "load.sealed", "verdict.recorded", "report.recorded"}:
            assert kinds[place + 1] == "checkpoint.signed"
    assert kinds.count("checkpoint.signed") == 1 + 4 + 1 + 1
