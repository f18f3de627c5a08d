"""Carries out checks in process: one fresh worker for each check and arm, in which the arm's own library is loaded.

A step that the library refuses, or that ends it, is what the check found: the observation is FAILED and says why. What
the worker mapped is compared with the lock, as for a load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.identity import mapped_files, mapping_problems
from engine.recall_prompts import CODE_TOKENS, KEY_TOKENS, follow_up, recall_prompt
from engine.worker import EngineWorker, Session
from harness.preparation import Prepared
from protocols.canonical import JsonValue
from protocols.check_schema import (
    Check,
    CheckBase,
    DeterminismCheck,
    ForeignContentCheck,
    RecallCheck,
    SequenceCopyCheck,
    StateRoundTripCheck,
    StepsCheck,
    fixture_tokens,
)
from protocols.errors import EngineError
from protocols.gate_schema import CheckGate
from protocols.measurements import ARMS, Arm, Block, CheckObservation

Blocks = dict[str, Block]
OWN: Final = "own"
FOLLOW_UP_TOKENS: Final = 40
OTHER: Final = ("foreign-one", "foreign-other")


def wanted_checks(prepared: Prepared) -> list[tuple[Check, Arm]]:
    """Return each check with each arm that a gate judges, in the order of the protocol."""
    judged = {(gate.check, gate.arm) for gate in prepared.protocol.gates if isinstance(gate, CheckGate)}
    return [(check, arm) for check in prepared.protocol.checks for arm in ARMS if (check.id, arm) in judged]


def carry_out(prepared: Prepared, check: Check, arm: Arm) -> tuple[CheckObservation, Blocks]:
    """Carry out one check of one arm. Engine errors end in the observation."""
    build = prepared.arms[arm].build
    if build is None:
        kind = prepared.protocol.arm(arm).engine.kind
        reason = f"an arm of kind {kind} has no library of its own to load"
        return CheckObservation(check=check.id, arm=arm, state="NOT_RUN", reason=reason), {}
    blocks: Blocks = {}
    try:
        facts = _Runs(prepared, arm, build.library).run(check, blocks)
    except EngineError as error:
        return CheckObservation(check=check.id, arm=arm, state="FAILED", reason=str(error)), {}
    return CheckObservation(check=check.id, arm=arm, state="COMPLETE", facts=facts), blocks


class _Runs:
    """The runs of one check: sessions over the arm's library and model."""

    def __init__(self, prepared: Prepared, arm: Arm, library: Path) -> None:
        self._prepared = prepared
        self._arm = arm
        self._library = library
        self._vocabulary = 0

    def run(self, check: Check, blocks: Blocks) -> dict[str, JsonValue]:
        """Fill `blocks`, and return the facts."""
        facts: dict[str, JsonValue] = {}
        match check:
            case DeterminismCheck():
                for name in ("first", "second"):
                    with self._worker() as worker:
                        blocks[name] = self._solo(worker, check)
            case StateRoundTripCheck():
                with self._worker() as worker:
                    blocks["continued"] = self._solo(worker, check)
                    facts["state_sha256"] = self._round_trip(worker, check, blocks)
            case SequenceCopyCheck():
                with self._worker() as worker:
                    blocks["continued"] = self._solo(worker, check)
                    self._copy(worker, check, blocks)
            case ForeignContentCheck():
                with self._worker() as worker:
                    blocks["solo"] = self._solo(worker, check)
                    for name, other in zip(("beside_one", "beside_other"), OTHER, strict=True):
                        blocks[name] = self._beside(worker, check, other)
            case RecallCheck():
                with self._worker() as worker:
                    facts["replies"] = self._recall(worker, check)
        return facts | {"vocabulary": self._vocabulary}

    @contextmanager
    def _worker(self) -> Iterator[EngineWorker]:
        limits, settings = self._prepared.protocol.limits, self._prepared.protocol.settings_of(self._arm)
        environment = self._prepared.protocol.arm(self._arm).environment
        with EngineWorker(self._library, timeout_s=limits.request_s, environment=environment) as worker:
            info = worker.load(self._prepared.model_path, use_mmap=settings.mmap, gpu_layers=settings.gpu_layers)
            self._vocabulary = int(info["n_vocab"])
            problems = mapping_problems(self._prepared.arms[self._arm].identity.files, mapped_files(worker.pid))
            if problems:
                raise EngineError("the worker does not run what is locked: " + "; ".join(problems))
            yield worker

    def _recall(self, worker: EngineWorker, check: RecallCheck) -> list[JsonValue]:
        """Ask every conversation for its first code, then in turns for the others; return all replies."""
        prompts = [
            recall_prompt(f"{check.id} {number}", distance_tokens=check.distance_tokens, secrets=check.secrets)
            for number in range(check.conversations)
        ]
        turn_tokens = FOLLOW_UP_TOKENS + KEY_TOKENS + CODE_TOKENS
        longest = max(len(prompt.ids) for prompt in prompts) + CODE_TOKENS + check.secrets * turn_tokens
        self._session(worker, check, sequences=check.conversations, tokens=longest)
        evaluated = [0] * check.conversations
        replies: list[JsonValue] = []
        for asked in range(check.secrets):
            for number, prompt in enumerate(prompts):
                reply = self._reply(worker, list(prompt.ids[evaluated[number] :]), evaluated[number], number)
                evaluated[number] = len(prompt.ids) + CODE_TOKENS - 1
                expected: list[JsonValue] = [*prompt.expected_ids]
                found: list[JsonValue] = [*reply]
                replies.append({"conversation": number, "asked": asked, "expected": expected, "found": found})
                if asked + 1 < check.secrets:
                    prompts[number] = follow_up(prompt, tuple(reply), asked=asked + 1, filler_tokens=FOLLOW_UP_TOKENS)
        return replies

    def _reply(self, worker: EngineWorker, tokens: list[int], start: int, sequence: int) -> list[int]:
        """Evaluate tokens and go on greedily for as many tokens as a code has."""
        reply: list[int] = []
        for _ in range(CODE_TOKENS):
            row = worker.decode(tokens, start=start, sequence=sequence, rows="last")[0]
            start += len(tokens)
            tokens = [int(row.argmax())]
            reply += tokens
        return reply

    def _session(self, worker: EngineWorker, check: CheckBase, *, sequences: int, tokens: int) -> None:
        mode = getattr(check, "kv_mode", "split")
        whole = tokens * sequences if mode == "unified" else tokens
        worker.open_session(
            Session(
                context_tokens=whole,
                sequences=sequences,
                ubatch_tokens=check.ubatch_tokens,
                threads=self._prepared.protocol.settings_of(self._arm).threads,
                kv_type=check.kv_type,
                is_unified=mode == "unified",
            )
        )

    def _tokens(self, check: StepsCheck, name: str, count: int) -> list[int]:
        return fixture_tokens(check, name, count, self._vocabulary)

    def _own(self, check: StepsCheck) -> tuple[list[int], list[int]]:
        """Return the conversation's prompt and its teacher-forced steps."""
        ids = self._tokens(check, OWN, check.prompt_tokens + check.steps)
        return ids[: check.prompt_tokens], ids[check.prompt_tokens :]

    def _longest(self, check: StepsCheck) -> int:
        other = check.foreign_tokens if isinstance(check, ForeignContentCheck) else 0
        return max(check.prompt_tokens, other) + check.steps

    def _open(self, worker: EngineWorker, check: StepsCheck) -> None:
        """Open a session of two sequences: the same layout for every run of a check."""
        self._session(worker, check, sequences=2, tokens=self._longest(check))

    def _steps(self, worker: EngineWorker, check: StepsCheck, *, sequence: int = 0) -> Block:
        rows = [
            worker.decode([token], start=check.prompt_tokens + place, sequence=sequence).tobytes()
            for place, token in enumerate(self._own(check)[1])
        ]
        return self._block(rows)

    def _prompt(self, worker: EngineWorker, check: StepsCheck) -> None:
        worker.decode(self._own(check)[0], start=0, rows="none")

    def _solo(self, worker: EngineWorker, check: StepsCheck) -> Block:
        self._open(worker, check)
        self._prompt(worker, check)
        return self._steps(worker, check)

    def _round_trip(self, worker: EngineWorker, check: StateRoundTripCheck, blocks: Blocks) -> dict[str, JsonValue]:
        self._open(worker, check)
        self._prompt(worker, check)
        saved = worker.save(0)
        blocks["after_save"] = self._steps(worker, check)
        worker.remove(sequence=0)
        worker.restore(1, saved)
        again = worker.save(1)
        blocks["restored"] = self._steps(worker, check, sequence=1)
        return {"saved": hashlib.sha256(saved).hexdigest(), "saved_again": hashlib.sha256(again).hexdigest()}

    def _copy(self, worker: EngineWorker, check: SequenceCopyCheck, blocks: Blocks) -> None:
        self._open(worker, check)
        self._prompt(worker, check)
        worker.copy(0, 1)
        blocks["copied"] = self._steps(worker, check, sequence=1)
        blocks["source"] = self._steps(worker, check)

    def _beside(self, worker: EngineWorker, check: ForeignContentCheck, other: str) -> Block:
        """Return the own steps while another conversation, whose content `other` names, goes on between them."""
        ids = self._tokens(check, other, check.foreign_tokens + check.steps)
        self._open(worker, check)
        self._prompt(worker, check)
        worker.decode(ids[: check.foreign_tokens], start=0, sequence=1, rows="none")
        rows: list[bytes] = []
        for place, token in enumerate(self._own(check)[1]):
            step = check.foreign_tokens + place
            worker.decode([ids[step]], start=step, sequence=1, rows="none")
            rows.append(worker.decode([token], start=check.prompt_tokens + place).tobytes())
        return self._block(rows)

    def _block(self, rows: list[bytes]) -> Block:
        return Block(len(rows), self._vocabulary, b"".join(rows))
