"""Clocks."""

from __future__ import annotations

from recorder.clock import SystemClock, compact_utc


def test_the_monotonic_clock_never_steps_back():
    clock = SystemClock()
    stamps = [clock.monotonic_ns() for _ in range(100)]
    assert stamps == sorted(stamps)


def test_utc_is_nanoseconds_since_1970():
    assert SystemClock().utc_ns() > 1_700_000_000 * 10**9


def test_a_time_becomes_a_text_that_may_stand_in_a_file_name():
    assert compact_utc(0) == "19700101T000000Z"
    assert compact_utc(1_000_000_000 * 10**9 + 999_999_999) == "20010909T014640Z"
