"""Which arms never started: their engine or its arguments are wrong, and another try changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

ENDED_AT_START: Final = "the engine ended before it was ready"
"""How the reason of a load begins whose engine ended by itself at its start."""
ADVICE: Final = "correct the engine or its arguments, then run again: a resumed campaign would start what was locked"


class LoadEnding(NamedTuple):
    """How one load ended, in the order in which loads were opened; `state` is None while it is open."""

    arm: str
    state: str | None
    reason: str | None


def arms_that_do_not_start(endings: Iterable[LoadEnding]) -> tuple[str, ...]:
    """Return the arms, sorted, whose newest load ended at its start and that have no COMPLETE load."""
    newest: dict[str, LoadEnding] = {}
    complete: set[str] = set()
    for ending in endings:
        newest[ending.arm] = ending
        if ending.state == "COMPLETE":
            complete.add(ending.arm)
    failed = {arm for arm, one in newest.items() if one.state == "PARTIAL" and ENDED_AT_START in (one.reason or "")}
    return tuple(sorted(failed - complete))
