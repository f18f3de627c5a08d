"""Evaluates one conversation again and again in one process, and reads its memory."""

from __future__ import annotations

from typing import Final

from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.check_schema import split_mix
from protocols.checks.memory_growth import MemoryGrowthCheck
from recorder.telemetry.anonymous_memory import anonymous_bytes

_CONVERSATION_TOKENS: Final = 32


def run_memory_growth(context: CheckContext, check: MemoryGrowthCheck) -> dict[str, JsonValue]:
    """Leave the bytes of the process's own memory before and after the measured evaluations."""
    with context.worker() as worker:
        context.open_session(worker, check, sequences=1, tokens=_CONVERSATION_TOKENS)
        _evaluate(context, check, worker, check.steps // 2)
        before = anonymous_bytes(worker.pid)
        _evaluate(context, check, worker, check.steps)
        return {"before_bytes": before, "after_bytes": anonymous_bytes(worker.pid)}


def _evaluate(context: CheckContext, check: MemoryGrowthCheck, worker: EngineWorker, steps: int) -> None:
    worker.remove(sequence=0)
    for step in range(steps):
        place = step % _CONVERSATION_TOKENS
        if place == 0 and step:
            worker.remove(sequence=0)
        worker.decode([split_mix(check.seed + place) % context.vocabulary], start=place, rows="none")
