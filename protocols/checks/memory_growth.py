"""Memory of a process that evaluates the same conversation again and again: it must not grow."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocols.canonical import JsonValue
from protocols.checks.base import CheckOutcome, SessionCheck, field
from protocols.measurements import CheckObservation


class MemoryGrowthCheck(SessionCheck):
    """One conversation is evaluated, emptied and evaluated again; after a warm-up the process holds what it held.

    What counts is anonymous memory, swapped out or not: pages of a mapped model come and go with the host.
    """

    kind: Literal["memory_growth"]
    """The check."""
    steps: int = Field(default=256, ge=32, le=1_000_000)
    """Measured evaluations of one token, after half as many that are not."""
    most_bytes_per_step: int = Field(default=4096, ge=0, le=2**40)
    """Most growth of an evaluation, in bytes."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of the token ids."""


def judge_memory_growth(check: MemoryGrowthCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where memory grew by no more than the limit an evaluation; memory that fell has not grown."""
    before, after = (field(dict(observation.facts), name, int) for name in ("before_bytes", "after_bytes"))
    each = max(after - before, 0) // check.steps
    inputs: dict[str, JsonValue] = {
        "before_bytes": before, "after_bytes": after, "steps": check.steps, "bytes_per_step": each,
    }  # fmt: skip
    what = f"{each:,} bytes an evaluation over {check.steps} evaluations, at most {check.most_bytes_per_step:,}"
    if each > check.most_bytes_per_step:
        return CheckOutcome("FAIL", f"The process grows by {what}.", inputs)
    return CheckOutcome("PASS", f"The process grows by {what}.", inputs)
