"""Times batches behind a synthetic cache, the judged arm and the other one in turns, each time in a fresh process."""

from __future__ import annotations

import hashlib
import time
from itertools import pairwise
from typing import NamedTuple

from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.check_schema import split_mix
from protocols.checks.operation_cost import LEAST_ROUNDS, OperationCostCheck, estimate_increase
from protocols.measurements import Arm


class _Round(NamedTuple):
    """Times of the timed batches of one round, and the hash of the logits of all of them."""

    elapsed_ns: list[int]
    sha256: str


def run_operation_cost(context: CheckContext, check: OperationCostCheck) -> dict[str, JsonValue]:
    """Return times and hashes of each shape by round. `other_ns` is None where the other arm has no library.

    Each round starts both arms anew, one after the other: where a scheduler puts the threads of a process stays with
    that process, so that rounds of one pair of processes would not be independent observations.
    """
    arms = [context.arm, context.other]
    if context.prepared.arms[context.other].build is None:
        arms.pop()
    found: dict[int, list[list[_Round]]] = {batch: [[] for _ in arms] for batch in check.batches}
    wide = list(check.batches)
    for number in range(check.most_rounds if len(arms) > 1 else 1):
        # Who comes first alternates, so that a steady drift cancels.
        for place in range(len(arms)) if number % 2 == 0 else reversed(range(len(arms))):
            for batch, one in _process(context, check, arms[place], wide).items():
                found[batch][place].append(one)
        if number + 1 >= LEAST_ROUNDS:
            wide = [batch for batch in wide if not _is_narrow(check, *found[batch])]
        if not wide:
            break
    shapes: list[JsonValue] = []
    for batch, (own, *others) in found.items():
        other = others[0] if others else None
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


def _is_narrow(check: OperationCostCheck, own: list[_Round], other: list[_Round]) -> bool:
    """Whether the interval of a shape is as narrow as the check wants it."""
    estimate = estimate_increase([one.elapsed_ns for one in own], [one.elapsed_ns for one in other])
    return estimate is not None and estimate.half_width_pct <= float(check.precision_pct)


def _process(context: CheckContext, check: OperationCostCheck, arm: Arm, batches: list[int]) -> dict[int, _Round]:
    """Measure shapes in one fresh process of an arm."""
    room = check.depth_tokens + (check.samples + 1) * max(check.batches)
    with context.worker(arm) as worker:
        context.open_session(worker, check, sequences=1, tokens=room)
        return {batch: _round(check, worker, batch, context.vocabulary) for batch in batches}


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
