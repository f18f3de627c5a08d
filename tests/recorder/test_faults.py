"""A fault at every step: each open, write, fsync, rename, commit and removal fails in turn.

Afterwards the store is old or new: the audit calls it partial and sound, the next run recovers it and goes on, and
then nothing is left over. `ASSAY_TEST_THOROUGH=1` takes every step; else every fourth, another one in each shard.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from protocols.errors import HostError
from recorder.audit import audit_store
from recorder.store import Store

SHARDS = 4
STRIDE = 1 if os.environ.get("ASSAY_TEST_THOROUGH") else 4


def record(root: Path, files, synthetic) -> None:
    with synthetic.open_store(root, files=files) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.record_preflight([])
        synthetic.run_load(campaign, synthetic.positions()[0])
        campaign.record_interruption("stopped")


def go_on(root: Path, synthetic) -> None:
    """Resume with one further load, as a runner would."""
    with synthetic.open_store(root, clock=synthetic.StepClock(1_800_000_100_000_000_000)) as store:
        campaign = (
            store.resume_campaign("latest") if store.campaigns() else store.begin_campaign(**synthetic.lock_parts())
        )
        campaign.seal_abandoned()
        place = next(one for one in synthetic.positions() if one.index not in campaign.completed_positions())
        synthetic.run_load(campaign, place)


def check(root: Path, synthetic) -> None:
    if root.is_dir():
        result = audit_store(root)
        assert (result.findings, result.is_partial) == ((), True)
    go_on(root, synthetic)
    result = audit_store(root)
    assert result.findings == ()
    assert len(result.notes) == 1, f"only the missing verdict is left: {result.notes}"
    (summary,) = Store.open(root, read_only=True).campaigns()
    assert summary.complete_loads >= 1
    assert summary.open_loads == 0


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_failure_at_any_step_leaves_old_or_new(fast_path: Path, synthetic, shard: int):
    counter = synthetic.FaultyFiles(0)
    record(fast_path / "whole", counter, synthetic)
    assert counter.steps > 200
    for fail_at in range(1 + shard, counter.steps + 1, SHARDS * STRIDE):
        root = fast_path / str(fail_at)
        with pytest.raises(HostError):
            record(root, synthetic.FaultyFiles(fail_at, half=fail_at % 3 == 0), synthetic)
        check(root, synthetic)
        shutil.rmtree(root)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_failure_at_any_step_of_a_recovery_leaves_something_to_recover(fast_path: Path, synthetic, shard: int):
    """The recorder dies in the middle of a seal, and the one that recovers dies, too, at each of its steps."""
    counter = synthetic.FaultyFiles(0)
    record(fast_path / "whole", counter, synthetic)
    broken = fast_path / "broken"
    with pytest.raises(HostError):
        record(broken, synthetic.FaultyFiles(counter.steps // 2, half=True), synthetic)
    with (broken / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"kind":"load.s')
    for fail_at in range(1 + shard, 10_000, SHARDS):
        root = fast_path / str(fail_at)
        shutil.copytree(broken, root)
        try:
            with synthetic.open_store(root, files=synthetic.FaultyFiles(fail_at, half=fail_at % 2 == 0)) as store:
                store.resume_campaign("latest").seal_abandoned()
        except HostError:
            if fail_at % STRIDE == 0 or STRIDE == 1:
                check(root, synthetic)
        else:
            check(root, synthetic)
            break
        shutil.rmtree(root)
    assert fail_at > 20


def test_a_full_disk_at_any_write_says_what_to_do(fast_path: Path, synthetic):
    counter = synthetic.FaultyFiles(0)
    record(fast_path / "whole", counter, synthetic)
    for fail_at in range(2, counter.steps, 37):
        full = OSError(28, "No space left on device")
        with pytest.raises(HostError, match=r"No space left|cannot be used") as caught:
            record(fast_path / str(fail_at), synthetic.FaultyFiles(fail_at, full), synthetic)
        assert "free space" in str(caught.value.hint)


def test_a_clock_that_steps_back_changes_times_and_nothing_else(fast_path: Path, synthetic):
    root = fast_path / "s"
    with synthetic.open_store(root, clock=synthetic.StepClock(1_900_000_000_000_000_000)) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.open_load(synthetic.positions()[0])
    synthetic.resume_campaign(root, clock=synthetic.StepClock(1_000_000_000_000_000_000))
    result = audit_store(root)
    assert (result.findings, result.is_partial) == ((), False)
