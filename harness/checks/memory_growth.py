"""Evaluates one conversation again and again in one process, and reads its memory."""

from __future__ import annotations

from typing import Final

import psutil

from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.check_schema import split_mix
from protocols.checks.memory_growth import MemoryGrowthCheck
from protocols.errors import EngineError

_CONVERSATION_TOKENS: Final = 32


def run_memory_growth(context: CheckContext, check: MemoryGrowthCheck) -> dict[str, JsonValue]:
    """Leave the bytes of the process's own memory before and after the measured evaluations."""
    with context.worker() as worker:
        context.open_session(worker, check, sequences=1, tokens=_CONVERSATION_TOKENS)
        _evaluate(context, check, worker, check.steps // 2)
        before = _own_bytes(worker)
        _evaluate(context, check, worker, check.steps)
        return {"before_bytes": before, "after_bytes": _own_bytes(worker)}


def _evaluate(context: CheckContext, check: MemoryGrowthCheck, worker: EngineWorker, steps: int) -> None:
    worker.remove(sequence=0)
    for step in range(steps):
        place = step % _CONVERSATION_TOKENS
        if place == 0 and step:
            worker.remove(sequence=0)
        worker.decode([split_mix(check.seed + place) % context.vocabulary], start=place, rows="none")


def _own_bytes(worker: EngineWorker) -> int:
    """Pages that only this process has and that no file holds: those of a mapped model come and go with the host."""
    try:
        maps = psutil.Process(worker.pid).memory_maps(grouped=False)
        return sum(int(one.private_dirty) + int(one.swap) for one in maps)
    except psutil.Error as error:
        raise EngineError(f"the memory of the worker cannot be read: {error}") from None
