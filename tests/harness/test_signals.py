"""Interrupts wait for short stretches of work, and SIGTERM counts as one."""

from __future__ import annotations

import signal

import pytest

from harness.signals import term_as_interrupt, uninterrupted


def test_work_that_must_finish_is_finished_before_the_interrupt_is_obeyed() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            done.append("work")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_is_an_interrupt_inside_a_campaign_and_itself_again_after_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), term_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
