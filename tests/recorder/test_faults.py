"""A fault at every step: each open, write, fsync, rename, commit, close and removal fails in turn, or kills the process.

Afterwards the store is old or new: the audit calls it sound, the next run recovers it and goes on, and then nothing is
left over. What is recorded has every kind of step: a lock, a preflight, a receipt, a load with exchanges, samples, a log
and an attachment, an interruption, a verdict, a report. `ASSAY_TEST_THOROUGH=1` (`make nightly`) takes every step; else
every 32nd, another one in each shard.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from protocols.errors import HostError
from recorder.audit import audit_store
from recorder.db import Database
from recorder.files import Files
from recorder.store import Store

SHARDS = 4
STRIDE = 1 if os.environ.get("ASSAY_TEST_THOROUGH") else 32
LATER = 1_800_000_100_000_000_000


def record(root: Path, synthetic: Any, files: Any = None, *, clock: Any = None, busy_ms: int = 5000) -> None:
    # The same salts in every run: the first byte of a blob's hash decides whether its folder is made, which is a step.
    with mock.patch("os.urandom", random.Random(7).randbytes):
        with synthetic.open_store(root, files=files, clock=clock, busy_ms=busy_ms) as store:
            campaign = store.begin_campaign(**synthetic.lock_parts())
            campaign.record_preflight([])
            campaign.record_receipt("build", {"seconds": 3}, {"build.log": b"ok\n"})
            synthetic.run_load(campaign, synthetic.positions()[0])
            campaign.record_interruption("stopped")
        with synthetic.open_store(root, files=files, clock=clock, busy_ms=busy_ms) as store:
            synthetic.judge(store, store.resume_campaign("latest"))


def steps_of(root: Path, synthetic: Any) -> int:
    counter = synthetic.FaultyFiles(0)
    record(root, synthetic, counter)
    return int(counter.steps)


def chosen(steps: int, shard: int) -> Iterator[int]:
    return iter(range(1 + shard * STRIDE, steps + 1, SHARDS * STRIDE))


def check(root: Path, synthetic: Any) -> None:
    """The store is sound as it lies there; the next run goes on, and leaves nothing over."""
    if root.is_dir():
        assert audit_store(root).findings == ()
    synthetic.resume_campaign(root, clock=synthetic.StepClock(LATER))
    result = audit_store(root)
    assert (result.findings, result.is_partial) == ((), False)
    (summary,) = Store.open(root, read_only=True).campaigns()
    assert summary.verdict is not None
    assert (summary.complete_loads >= 1, summary.open_loads) == (True, 0)
    assert not list(root.rglob(".tmp-*"))
    assert not (root / "spool").exists() or not any((root / "spool").iterdir())


def test_every_change_of_the_disk_is_a_step(synthetic: Any) -> None:
    """Else a loop over all steps would leave some out."""
    made_of_others = {"replace_file"}
    public = {name for name, value in vars(Files).items() if callable(value) and not name.startswith("_")}
    assert public - made_of_others <= vars(synthetic.FaultyFiles).keys()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_failure_at_any_step_leaves_old_or_new(fast_path: Path, synthetic: Any, shard: int):
    steps = steps_of(fast_path / "whole", synthetic)
    assert steps > 300
    for fail_at in chosen(steps, shard):
        root = fast_path / str(fail_at)
        with pytest.raises(HostError):
            record(root, synthetic, synthetic.FaultyFiles(fail_at, half=fail_at % 3 == 0))
        check(root, synthetic)
        shutil.rmtree(root)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_kill_at_any_step_leaves_old_or_new(fast_path: Path, synthetic: Any, shard: int):
    steps = steps_of(fast_path / "whole", synthetic)
    for fail_at in chosen(steps, shard):
        root = fast_path / str(fail_at)
        assert end_of_child(
            lambda root=root, fail_at=fail_at: record(root, synthetic, synthetic.KillingFiles(fail_at))
        ) == (-signal.SIGKILL)
        check(root, synthetic)
        shutil.rmtree(root)


def error_of(work: Callable[[], None]) -> Exception | None:
    """Run work and return what it raises."""
    try:
        work()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def end_of_child(work: Callable[[], None]) -> int:
    """Run work in a fork of this process and return its exit code, minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_failure_or_a_kill_at_any_step_of_a_recovery_leaves_something_to_recover(
    fast_path: Path, synthetic: Any, shard: int
):
    """The recorder dies in the middle of a seal, and the one that recovers dies, too, at each of its steps."""
    steps = steps_of(fast_path / "whole", synthetic)
    broken = fast_path / "broken"
    with pytest.raises(HostError):
        record(broken, synthetic, synthetic.FaultyFiles(steps // 2, half=True))
    with (broken / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"kind":"load.s')

    def recover(root: Path, files: Any) -> None:
        with mock.patch("os.urandom", random.Random(8).randbytes), synthetic.open_store(root, files=files) as store:
            store.resume_campaign("latest").seal_abandoned()

    counter = synthetic.FaultyFiles(0)
    shutil.copytree(broken, fast_path / "counted")
    recover(fast_path / "counted", counter)
    assert counter.steps > 20
    for fail_at in chosen(counter.steps, shard):
        for is_killed in (False, True):
            root = fast_path / f"{fail_at}-{is_killed}"
            shutil.copytree(broken, root)
            if is_killed:
                code = end_of_child(lambda root=root, fail_at=fail_at: recover(root, synthetic.KillingFiles(fail_at)))
                assert code == -signal.SIGKILL
            else:
                with pytest.raises(HostError):
                    recover(root, synthetic.FaultyFiles(fail_at, half=fail_at % 2 == 0))
            check(root, synthetic)
            shutil.rmtree(root)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_disk_that_is_full_from_any_step_on_says_what_to_do_and_loses_nothing(
    fast_path: Path, synthetic: Any, shard: int
):
    steps = steps_of(fast_path / "whole", synthetic)
    for fail_at in chosen(steps, shard):
        root, disk = fast_path / str(fail_at), synthetic.FullDisk(fail_at)
        error = error_of(lambda root=root, disk=disk: record(root, synthetic, disk))
        if error is None:
            assert disk.steps < fail_at + 20, "only steps that need no room were left"
        else:
            assert isinstance(error, HostError)
            assert "free space" in str(error.hint)
        check(root, synthetic)
        shutil.rmtree(root)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_database_that_is_locked_from_any_step_on_stops_the_recorder_and_loses_nothing(
    fast_path: Path, synthetic: Any, shard: int
):
    steps = steps_of(fast_path / "whole", synthetic)
    for fail_at in chosen(steps, shard):
        root = fast_path / str(fail_at)
        others: list[sqlite3.Connection] = []

        def lock(root: Path = root, others: list[sqlite3.Connection] = others) -> None:
            if (root / "assay.sqlite").is_file():
                other = sqlite3.connect(root / "assay.sqlite", isolation_level=None, timeout=0)
                others.append(other)
                other.execute("BEGIN IMMEDIATE")

        files = synthetic.HookedFiles(fail_at, lock)
        error = error_of(lambda root=root, files=files: record(root, synthetic, files, busy_ms=20))
        if isinstance(error, sqlite3.OperationalError):
            assert not others[-1].in_transaction, "inside the recorder's own transaction the other one is refused"
        elif error is not None:
            assert isinstance(error, HostError)
            assert "locked" in str(error)
            assert "close it" in str(error.hint)
        for other in others:
            other.close()
        check(root, synthetic)
        shutil.rmtree(root)


@pytest.mark.parametrize("step_ns", [-3_600_000_000_000, -1, 3_600_000_000_000])
def test_a_wall_clock_that_steps_at_any_look_changes_times_and_nothing_else(
    fast_path: Path, synthetic: Any, step_ns: int
):
    class Stepping(synthetic.StepClock):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.looks, self.at = 0, at

        def utc_ns(self) -> int:
            self.looks += 1
            if self.looks == self.at:
                self.now_ns += step_ns
            return int(super().utc_ns())

    counter = Stepping(0)
    record(fast_path / "whole", synthetic, clock=counter)
    assert counter.looks > 15
    for at in range(1, counter.looks + 1, 1 if STRIDE == 1 else 5):
        root = fast_path / str(at)
        record(root, synthetic, clock=Stepping(at))
        result = audit_store(root)
        assert (result.findings, result.is_partial) == ((), False)
        shutil.rmtree(root)


def test_a_reboot_between_two_runs_sets_the_monotonic_clock_back_and_nothing_is_lost(fast_path: Path, synthetic: Any):
    root = fast_path / "s"
    first = synthetic.StepClock(1_900_000_000_000_000_000)
    first.mono_ns = 10**15
    with synthetic.open_store(root, clock=first) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.open_load(synthetic.positions()[0])
    synthetic.resume_campaign(root, clock=synthetic.StepClock(1_000_000_000_000_000_000))
    result = audit_store(root)
    assert (result.findings, result.is_partial) == ((), False)


def test_readers_that_never_let_go_do_not_hold_the_recorder_up_for_an_instant(fast_path: Path, synthetic: Any):
    """With no time to wait at all, any reader in the way would be an error."""
    root, stop, audits = fast_path / "s", threading.Event(), []
    record(root, synthetic)
    with synthetic.open_store(root, clock=synthetic.StepClock(LATER), busy_ms=0) as store:
        held = [Database.open_read_only(root / "assay.sqlite", is_live=True) for _ in range(3)]

        def audit() -> None:
            while not stop.is_set():
                audits.append(audit_store(root).findings)

        auditor = threading.Thread(target=audit)
        auditor.start()
        try:
            with held[0].reading() as one, held[1].reading() as two:
                seen = [
                    connection.exec_driver_sql("SELECT count(*) FROM ledger_entry").scalar()
                    for connection in (one, two)
                ]
                campaign = store.begin_campaign(**synthetic.lock_parts())
                synthetic.run_load(campaign, synthetic.positions()[0])
                synthetic.judge(store, campaign)
                again = [
                    connection.exec_driver_sql("SELECT count(*) FROM ledger_entry").scalar()
                    for connection in (one, two)
                ]
                assert again == seen, "a reader sees one state for as long as it likes"
            with held[2].reading() as third:
                assert third.exec_driver_sql("SELECT count(*) FROM ledger_entry").scalar() > seen[0]
        finally:
            stop.set()
            auditor.join()
        for reader in held:
            reader.close()
    assert audits
    assert set(audits) == {()}
