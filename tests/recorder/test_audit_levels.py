"""The levels of looks that a lock froze are checked against the protocol's own rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.lock import Lock, locked_looks, parse_lock
from protocols.schema import BlocksSchedule, LossGate, Protocol
from recorder.audit_judgement import _levels_hold
from recorder.measure import protocol_of_source
from recorder.store import Store


@pytest.fixture
def promised(store_root: Path) -> tuple[Lock, Protocol]:
    with Store.open(store_root, read_only=True) as store:
        lock, protocol = store.lock_of("latest"), protocol_of_source(store.protocol_of("latest"))
    gate = LossGate.model_validate(
        {"id": "loss", "kind": "loss", "workload": "tiny", "metric": "prefill_rate", "margin_pct": 2}
    )
    schedule = BlocksSchedule(kind="blocks", blocks=4, looks=(2, 4))
    protocol = protocol.model_copy(update={"schedule": schedule, "gates": (gate,)})
    return lock.model_copy(update={"looks": locked_looks(protocol)}), protocol


def test_the_levels_of_the_rule_hold_and_survive_the_lock(promised: tuple[Lock, Protocol]) -> None:
    lock, protocol = promised
    assert _levels_hold(lock, protocol)
    assert parse_lock(lock.lock_bytes()).levels() == lock.levels()
    assert [look.blocks for look in lock.levels()["loss"]] == [2, 4]


def test_a_level_that_spends_more_than_the_rule_is_found(promised: tuple[Lock, Protocol]) -> None:
    lock, protocol = promised
    raised = tuple(row.model_copy(update={"level": "0.05"}) for row in lock.looks)
    assert not _levels_hold(lock.model_copy(update={"looks": raised}), protocol)
    assert not _levels_hold(lock.model_copy(update={"looks": ()}), protocol)
    assert not _levels_hold(lock.model_copy(update={"looks": lock.looks[:1]}), protocol)


def test_a_lock_without_looks_is_written_as_before_there_were_any(store_root: Path) -> None:
    with Store.open(store_root, read_only=True) as store:
        assert b'"looks"' not in store.lock_of("latest").lock_bytes()
