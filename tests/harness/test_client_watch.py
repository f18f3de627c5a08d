"""The client's own error bar: lag, clocks, CPU share."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from harness import client_watch
from harness.client_watch import EVENT, ClientWatch, rank_us, watched
from recorder.db import Database


def watch(work: Any) -> dict[str, int | None]:
    async def run() -> dict[str, int | None]:
        watch = ClientWatch()
        watch.start()
        await work()
        return watch.stop()

    return asyncio.run(run())


def test_a_loop_that_is_blocked_for_a_while_shows_that_lag() -> None:
    async def work() -> None:
        await asyncio.sleep(0.03)
        time.sleep(0.1)
        await asyncio.sleep(0.03)

    found = watch(work)
    assert found["lag_max_us"] is not None
    assert found["lag_max_us"] >= 80_000
    assert found["lag_count"]
    assert found["watched_ns"] >= 160_000_000


def test_a_busy_client_has_a_high_cpu_share_and_a_waiting_one_a_low_one() -> None:
    async def waits() -> None:
        await asyncio.sleep(0.2)

    async def works() -> None:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    busy, idle = watch(works)["cpu_permille"], watch(waits)["cpu_permille"]
    assert idle is not None
    assert busy is not None
    assert idle < busy <= 1010


def test_a_step_of_the_wall_clock_is_seen_with_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns

    async def work() -> None:
        monkeypatch.setattr(client_watch.time, "time_ns", lambda: real() - 3_000_000_000)

    moved = watch(work)["wall_clock_moved_us"]
    assert moved is not None
    assert -3_100_000 < moved < -2_900_000


def test_the_smallest_step_of_the_clock_is_positive() -> None:
    assert client_watch.smallest_step_ns() > 0


def test_ranks_are_rounded_up_so_that_an_error_is_never_made_smaller() -> None:
    assert rank_us([], 0.5) is None
    assert rank_us([1, 1_001, 9_999], 0) == 1
    assert rank_us([1, 1_001, 9_999], 1) == 10
    assert rank_us([*range(0, 100_000, 1000)], 0.99) == 98


def test_the_numbers_are_noted_also_when_a_request_fails() -> None:
    noted: list[str] = []

    async def run() -> None:
        async with watched(lambda event, fields: noted.append(event)):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(run())
    assert noted == [EVENT]


def test_every_load_of_a_campaign_has_them(finished: Any) -> None:
    with Database.open_read_only(finished.store / "assay.sqlite").reading() as connection:
        rows = connection.exec_driver_sql("SELECT fields_json FROM load_event WHERE event = ?", (EVENT,)).fetchall()
    assert len(rows) == 4
    for (text,) in rows:
        fields = json.loads(text)
        assert fields["lag_count"] > 0
        assert fields["lag_median_us"] <= fields["lag_p99_us"] <= fields["lag_max_us"]
        assert fields["clock_step_ns"] > 0
        assert 0 <= fields["cpu_permille"] <= 4000
        assert abs(fields["wall_clock_moved_us"]) < 5_000_000
