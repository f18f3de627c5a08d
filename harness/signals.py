"""Interrupts: SIGTERM counts as Ctrl-C, and short stretches of work are finished before either is obeyed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def term_as_interrupt() -> Iterator[None]:
    """Let SIGTERM do what SIGINT does, so that a supervisor's stop is recorded as an interruption, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        # A shell without job control starts what it puts in the background with SIGINT ignored.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Finish the block first; an interrupt that came meanwhile is obeyed at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    previous = [signal.signal(number, remember) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, previous, strict=True):
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
