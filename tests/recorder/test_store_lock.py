"""The lock of a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from protocols.errors import HostError
from recorder.clock import SystemClock
from recorder.files import Files
from recorder.store_lock import StoreLock, is_held, read_holder


def lock_at(path: Path) -> StoreLock:
    return StoreLock(path, files=Files(), clock=SystemClock())


def test_a_second_writer_is_refused_and_told_who_holds_the_store(tmp_path: Path):
    lock = lock_at(tmp_path / "store.lock")
    assert json.loads(read_holder(lock.path))["pid"] == os.getpid()
    with pytest.raises(HostError) as caught:
        lock_at(tmp_path / "store.lock")
    assert str(os.getpid()) in str(caught.value)
    lock.release(is_clean=True)
    lock_at(tmp_path / "store.lock").release(is_clean=True)


def test_a_lock_released_in_order_leaves_an_empty_file(tmp_path: Path):
    lock = lock_at(tmp_path / "store.lock")
    assert not lock.was_left_open
    lock.release(is_clean=True)
    lock.release(is_clean=True)
    assert read_holder(lock.path) == ""
    assert not lock_at(tmp_path / "store.lock").was_left_open


def test_a_lock_that_was_not_released_in_order_is_noticed(tmp_path: Path):
    lock_at(tmp_path / "store.lock").release(is_clean=False)
    assert lock_at(tmp_path / "store.lock").was_left_open


def test_looking_at_the_lock_neither_takes_nor_makes_it(tmp_path: Path):
    assert not is_held(tmp_path / "store.lock")
    assert list(tmp_path.iterdir()) == []
    lock = lock_at(tmp_path / "store.lock")
    assert is_held(lock.path)
    lock.release(is_clean=True)
    assert not is_held(lock.path)


def test_a_fault_while_the_holder_is_written_gives_the_lock_back(tmp_path: Path, synthetic):
    for fail_at in (1, 2):
        with pytest.raises(HostError):
            StoreLock(tmp_path / "store.lock", files=synthetic.FaultyFiles(fail_at, half=True), clock=SystemClock())
        assert not is_held(tmp_path / "store.lock")
