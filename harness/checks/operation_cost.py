"""Times batches behind a synthetic cache, the judged arm and the other one in turns."""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.check_schema import split_mix
from protocols.checks.operation_cost import LEAST_ROUNDS, OperationCostCheck, estimate_increase


class _Round(NamedTuple):
    """Times of the timed batches of one round, and the hash of the logits of all of them."""

    elapsed_ns: list[int]
    sha256: str


def run_operation_cost(context: CheckContext, check: OperationCostCheck) -> dict[str, JsonValue]:
    """Return times and hashes of each shape by round. `other_ns` is None where the other arm has no library."""
    shapes: list[JsonValue] = []
    with ExitStack() as stack:
        workers = [stack.enter_context(context.worker())]
        if context.prepared.arms[context.other].build is not None:
            workers.append(stack.enter_context(context.worker(context.other)))
        for batch in check.batches:
            rounds = _rounds(context, check, workers, batch)
            own, other = rounds[0], rounds[1] if len(rounds) > 1 else None
            shapes.append(
                {
                    "batch": batch,
                    "own_ns": [[*one.elapsed_ns] for one in own],
                    "own_sha256": [one.sha256 for one in own],
                    "other_ns": None if other is None else [[*one.elapsed_ns] for one in other],
                    "other_sha256": None if other is None else [one.sha256 for one in other],
                }
            )
    return {"shapes": shapes, "clock": "monotonic, around the call in the runner"}


def _rounds(
    context: CheckContext, check: OperationCostCheck, workers: list[EngineWorker], batch: int
) -> list[list[_Round]]:
    """Measure until the interval is narrow enough; who comes first alternates, so that a steady drift cancels."""
    found: list[list[_Round]] = [[] for _ in workers]
    room = check.depth_tokens + (check.samples + 1) * batch
    for worker in workers:
        context.open_session(worker, check, sequences=1, tokens=room)
    for number in range(check.most_rounds):
        order = range(len(workers)) if number % 2 == 0 else reversed(range(len(workers)))
        for place in order:
            found[place].append(_round(check, workers[place], batch, context.vocabulary))
        if number + 1 < LEAST_ROUNDS:
            continue
        if len(workers) == 1:
            break
        own, other = ([one.elapsed_ns for one in rounds] for rounds in found)
        estimate = estimate_increase(own, other)
        if estimate is not None and estimate.half_width_pct <= float(check.precision_pct):
            break
    return found


def _round(check: OperationCostCheck, worker: EngineWorker, batch: int, vocabulary: int) -> _Round:
    """Fill the cache anew, evaluate one batch that is not timed, then the timed ones."""
    worker.remove(sequence=0)
    worker.fill_zero(check.depth_tokens)
    start = split_mix(check.seed)
    ids = [split_mix(start + place) % vocabulary for place in range((check.samples + 1) * batch)]
    digest, elapsed = hashlib.sha256(), []
    for number, (first, end) in enumerate(pairwise(range(0, len(ids) + 1, batch))):
        began_ns = time.monotonic_ns()
        row = worker.decode(ids[first:end], start=check.depth_tokens + first, rows="last")
        if number:
            elapsed.append(time.monotonic_ns() - began_ns)
        digest.update(row.astype("<f4").tobytes())
    return _Round(elapsed, digest.hexdigest())
