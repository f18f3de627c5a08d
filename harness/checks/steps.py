"""Checks over the logits of teacher-forced steps: determinism, states, copies, and conversations beside each other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from engine.images import place_image
from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from protocols.canonical import JsonValue
from protocols.check_schema import (
    DeterminismCheck,
    ForeignContentCheck,
    RollbackCheck,
    SequenceCopyCheck,
    SequenceReuseCheck,
    StateRoundTripCheck,
    StepsCheck,
    fixture_tokens,
)
from protocols.measurements import Block

OWN: Final = "own"
OTHER: Final = ("foreign-one", "foreign-other")


def run_determinism(context: CheckContext, check: DeterminismCheck) -> dict[str, JsonValue]:
    """Leave the blocks `first` and `second`."""
    for name in ("first", "second"):
        with context.worker() as worker:
            context.blocks[name] = _Steps(context, check, worker).solo()
    return {}


def run_state_round_trip(context: CheckContext, check: StateRoundTripCheck) -> dict[str, JsonValue]:
    """Leave the blocks `continued`, `after_save` and `restored`, and the hashes of both states."""
    with context.worker() as worker:
        steps = _Steps(context, check, worker)
        context.blocks["continued"] = steps.solo()
        steps.begin()
        saved = worker.save(0)
        context.blocks["after_save"] = steps.steps()
        worker.remove(sequence=0)
        worker.restore(1, saved)
        again = worker.save(1)
        context.blocks["restored"] = steps.steps(sequence=1)
    hashes: dict[str, JsonValue] = {
        "saved": hashlib.sha256(saved).hexdigest(),
        "saved_again": hashlib.sha256(again).hexdigest(),
    }
    return {"state_sha256": hashes}


def run_sequence_copy(context: CheckContext, check: SequenceCopyCheck) -> dict[str, JsonValue]:
    """Leave the blocks `continued`, `copied` and `source`."""
    with context.worker() as worker:
        steps = _Steps(context, check, worker)
        context.blocks["continued"] = steps.solo()
        steps.begin()
        worker.copy(0, 1)
        context.blocks["copied"] = steps.steps(sequence=1)
        context.blocks["source"] = steps.steps()
    return {}


def run_sequence_reuse(context: CheckContext, check: SequenceReuseCheck) -> dict[str, JsonValue]:
    """Leave the blocks `fresh` and `reused`."""
    with context.worker() as worker:
        steps = _Steps(context, check, worker)
        context.blocks["fresh"] = steps.solo()
        steps.open()
        before = fixture_tokens(check, OTHER[0], check.prompt_tokens + check.steps, context.vocabulary)
        worker.decode(before, start=0, rows="none")
        worker.remove(sequence=0)
        steps.evaluate_prompt()
        context.blocks["reused"] = steps.steps()
    return {}


def run_rollback(context: CheckContext, check: RollbackCheck) -> dict[str, JsonValue]:
    """Leave the blocks `continued` and `rolled_back`."""
    with context.worker() as worker:
        steps = _Steps(context, check, worker)
        context.blocks["continued"] = steps.solo()
        steps.begin()
        rejected = fixture_tokens(check, OTHER[0], check.rejected_tokens * check.steps, context.vocabulary)
        context.blocks["rolled_back"] = steps.steps(rejected=rejected, n_each=check.rejected_tokens)
    return {}


def run_foreign_content(context: CheckContext, check: ForeignContentCheck) -> dict[str, JsonValue]:
    """Leave the blocks `solo`, `beside_one` and `beside_other`."""
    with context.worker() as worker:
        steps = _Steps(context, check, worker)
        context.blocks["solo"] = steps.solo()
        for name, other in zip(("beside_one", "beside_other"), OTHER, strict=True):
            context.blocks[name] = steps.beside(check, other)
    return {}


class _Steps:
    """One conversation of a check in a worker: its prompt, and its teacher-forced steps."""

    def __init__(self, context: CheckContext, check: StepsCheck, worker: EngineWorker) -> None:
        self._context = context
        self._check = check
        self._worker = worker
        self._image_side = check.image_side if isinstance(check, StateRoundTripCheck) else 0
        ids = fixture_tokens(check, OWN, check.prompt_tokens + check.steps, context.vocabulary)
        self._prompt, self._forced = ids[: check.prompt_tokens], ids[check.prompt_tokens :]

    def begin(self) -> None:
        """Open a session and evaluate the prompt in it."""
        self.open()
        self.evaluate_prompt()

    def open(self) -> None:
        """Open a session of two sequences, the same layout for every run of a check."""
        check = self._check
        other = check.foreign_tokens if isinstance(check, ForeignContentCheck) else 0
        rejected = check.rejected_tokens if isinstance(check, RollbackCheck) else 0
        other = max(other, rejected * check.steps)
        longest = max(check.prompt_tokens, other) + check.steps + self._image_side**2 + rejected
        mode = getattr(check, "kv_mode", "split")
        self._context.open_session(
            self._worker, check, sequences=2, tokens=longest, mode=mode, rollback_tokens=rejected
        )

    def evaluate_prompt(self) -> None:
        """Evaluate the prompt in sequence 0."""
        check = self._check
        if not self._image_side:
            self._worker.decode(self._prompt, start=0, rows="none")
            return
        image = self._context.made_up_image(self._image_side, seed=check.seed)
        half = len(self._prompt) // 2
        place_image(self._prompt[:half], image, self._prompt[half:]).evaluate(self._worker)

    def steps(self, *, sequence: int = 0, rejected: Sequence[int] = (), n_each: int = 0) -> Block:
        """Evaluate the forced tokens one by one; the logits of each.

        Before each, `n_each` of the rejected tokens are evaluated in one batch and taken back; another conversation
        then goes on by as many, so that it comes into the cells that are free again.
        """
        start, rows = self._check.prompt_tokens + self._image_side, list[bytes]()
        for place, token in enumerate(self._forced):
            if n_each:
                wrong = list(rejected[place * n_each : (place + 1) * n_each])
                self._worker.decode(wrong, start=start + place, sequence=sequence, rows="none")
                self._worker.remove(sequence=sequence, start=start + place)
                self._worker.decode(wrong, start=place * n_each, sequence=sequence + 1, rows="none")
            rows.append(self._worker.decode([token], start=start + place, sequence=sequence).tobytes())
        return self._block(rows)

    def solo(self) -> Block:
        """Return the steps of a conversation that is alone."""
        self.begin()
        return self.steps()

    def beside(self, check: ForeignContentCheck, other: str) -> Block:
        """Return the own steps while another conversation, whose content `other` names, goes on between them."""
        ids = fixture_tokens(check, other, check.foreign_tokens + check.steps, self._context.vocabulary)
        self.begin()
        self._worker.decode(ids[: check.foreign_tokens], start=0, sequence=1, rows="none")
        rows: list[bytes] = []
        for place, token in enumerate(self._forced):
            step = check.foreign_tokens + place
            self._worker.decode([ids[step]], start=step, sequence=1, rows="none")
            rows.append(self._worker.decode([token], start=check.prompt_tokens + place).tobytes())
        return self._block(rows)

    def _block(self, rows: list[bytes]) -> Block:
        return Block(len(rows), self._context.vocabulary, b"".join(rows))
