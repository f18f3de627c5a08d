"""Plays both histories of a case in fresh sessions, compares their logits, and makes a failing case small."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from engine.build import EngineBuild
from engine.failures import LibraryDiedError, LibraryRefusedError
from engine.images import WITH_IMAGES, made_up_image, place_image
from engine.worker import EngineWorker, Session
from harness.progress import Progress
from protocols.check_schema import named_tokens
from protocols.comparators import Rows, compare_logits, joined
from protocols.errors import ProtocolError
from protocols.history import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    History,
    Image,
    Meaningless,
    Operation,
    Restore,
    Save,
    Step,
    conversations,
    trace,
)
from protocols.laws import Abilities, Case, LawName, Promise, Weights, draw_case, promise
from protocols.search import Finding, Judgement, SearchResult, Tally, judged
from protocols.shrinking import shrink

_TIMEOUT_S: Final = 300.0


class Player:
    """Cases on one build and model, in a worker that is started again where it died. Use as a context manager."""

    def __init__(self, build: EngineBuild, model: Path, *, threads: int = 1, tolerance: float | None = None) -> None:
        """Start a worker. `tolerance` stands in for that of the laws, where they promise no bytes.

        Raises EngineError where library or model cannot be loaded.
        """
        self.build, self.model = build, model
        self._threads, self._tolerance = threads, tolerance
        self._worker = self._start()

    def _start(self) -> EngineWorker:
        worker = EngineWorker(self.build.library, timeout_s=_TIMEOUT_S)
        try:
            info = worker.load(self.model)
        except BaseException:
            worker.close()
            raise
        self.vocabulary, self._width = int(info["n_vocab"]), int(info["n_embd"])
        takes_images = str(info["architecture"]) in WITH_IMAGES
        self.abilities = Abilities(
            takes_images=takes_images, is_byte_exact=takes_images, weights=_weights(info["tensor_types"])
        )
        return worker

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._worker.pid

    def restart(self) -> None:
        """Go on in a process of its own."""
        self._worker.close()
        self._worker = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        self._worker.close()

    def is_case(self, case: Case) -> bool:
        """Whether both histories mean the same."""
        try:
            promise(case, self.abilities)
        except Meaningless:
            return False
        return True

    def judge(self, case: Case) -> Judgement:
        """Play both histories, each in a fresh session. Raises Meaningless where they do not mean the same."""
        promised = promise(case, self.abilities)
        if self._tolerance is not None and not promised.is_bytes:
            promised = replace(promised, tolerance=self._tolerance)
        try:
            left, right = (self._play(case, history, promised) for history in (case.left, case.right))
        except LibraryRefusedError as error:
            return Judgement(
                status="not-applicable" if error.is_unsupported else "fails", promise=promised, words=str(error)
            )
        except LibraryDiedError as error:
            self.restart()
            return Judgement(status="dies", promise=promised, words=str(error))
        return judged(compare_logits(left, right), promised)

    def _play(self, case: Case, history: History, promised: Promise) -> Rows:
        """Return the logits of the compared steps, [steps, vocabulary]."""
        settings = history.settings
        cells = promised.cells_together if settings.is_unified else promised.cells_each
        self._worker.open_session(
            Session(
                context_tokens=cells,
                sequences=settings.sequences,
                ubatch_tokens=settings.ubatch_tokens,
                threads=self._threads,
                kv_type=settings.kv_type,
                is_unified=settings.is_unified,
                rollback_tokens=settings.rollback_tokens,
            )
        )
        play = _Play(self._worker, case.seed, history, vocabulary=self.vocabulary, width=self._width)
        for operation, starts in zip(history.operations, trace(history).starts, strict=True):
            play.carry_out(operation, starts)
        return joined(play.rows)


def _weights(tensor_types: Iterable[str]) -> Weights:
    """Return the coarsest type among those of a model's tensors."""
    kinds = {*tensor_types}
    if kinds <= {"f32"}:
        return "single"
    return "half" if kinds <= {"f32", "f16", "bf16"} else "quantised"


class _Play:
    """One history in an open session."""

    def __init__(self, worker: EngineWorker, seed: int, history: History, *, vocabulary: int, width: int) -> None:
        self.rows: list[Rows] = []
        self._worker, self._seed, self._width = worker, seed, width
        self._states: dict[str, bytes] = {}
        self._ids = {
            name: named_tokens(seed, name, max(at) + 1, vocabulary) for name, at in conversations(history).items()
        }

    def carry_out(self, operation: Operation, starts: Sequence[int]) -> None:
        """Carry one operation out, from the positions that the trace of the history names."""
        match operation:
            case Evaluate() | Step() | Image():
                self._extend(operation, starts)
            case Copy(source=source, target=target):
                self._worker.copy(source, target)
            case Cut(sequence=sequence):
                self._worker.remove(sequence=sequence, start=starts[0])
            case Drop(sequence=sequence):
                self._worker.remove(sequence=sequence)
            case Save(sequence=sequence, state=state):
                self._states[state] = self._worker.save(sequence)
            case Restore(sequence=sequence, state=state):
                self._worker.restore(sequence, self._states[state])

    def _extend(self, operation: Evaluate | Step | Image, starts: Sequence[int]) -> None:
        match operation:
            case Evaluate(runs=(run,)):
                ids = self._ids[run.conversation][starts[0] : starts[0] + run.tokens]
                self._worker.decode(ids, start=starts[0], sequence=run.sequence, rows="none")
            case Evaluate(runs=runs):
                ids, at, owners = list[int](), list[int](), list[int]()
                for run, start in zip(runs, starts, strict=True):
                    ids += self._ids[run.conversation][start : start + run.tokens]
                    at += range(start, start + run.tokens)
                    owners += [run.sequence] * run.tokens
                self._worker.decode_rows(ids, at, sequences=owners, wanted=[False] * len(ids))
            case Step(sequence=sequence, conversation=name, tokens=tokens):
                for place in range(starts[0], starts[0] + tokens):
                    row = self._worker.decode([self._ids[name][place]], start=place, sequence=sequence)
                    self.rows.append(row.copy())
            case Image(sequence=sequence, conversation=name, side=side):
                seed = named_tokens(self._seed, name, starts[0] + 1, 2**32)[starts[0]]
                image = place_image([], made_up_image(side, self._width, seed=seed), start=starts[0])
                wanted = [False] * len(image.tokens)
                self._worker.decode_rows(
                    image.tokens, image.positions, sequences=sequence, embeddings=image.embeddings, wanted=wanted
                )


def search(
    player: Player,
    laws: Sequence[LawName],
    *,
    seed: int,
    cases: int | None,
    seconds: float | None,
    progress: Progress,
) -> SearchResult:
    """Draw cases of the laws in turns until `cases` were tried or `seconds` are over.

    The first failing case of a law is made small and becomes a finding; later ones are counted.
    """
    result = SearchResult(model=player.model.name, build=player.build.name, vocabulary=player.vocabulary, seed=seed)
    result.tallies = {law: Tally() for law in laws}
    deadline = None if seconds is None else time.monotonic() + seconds
    for number in count():
        if number == cases or (deadline is not None and time.monotonic() >= deadline):
            return result
        law = laws[number % len(laws)]
        case, tally = draw_case(law, seed, number // len(laws), player.abilities), result.tallies[law]
        judgement = player.judge(case)
        tally.add(judgement)
        if judgement.is_finding and tally.failing == 1:
            progress.say(f"{law}: case {number // len(laws)} {judgement.status}; making it small")
            result.findings.append(_finding(player, number // len(laws), case, judgement))
    raise AssertionError  # `count` has no end


def replay(player: Player, cases: Sequence[Case], *, source: str) -> SearchResult:
    """Play cases again, as they are; those that fail still are the findings."""
    result = SearchResult(model=player.model.name, build=player.build.name, vocabulary=player.vocabulary, seed=0)
    for number, case in enumerate(cases):
        if not player.is_case(case):
            raise ProtocolError(f"finding {number} has histories that do not mean the same", where=source)
        tally, judgement = result.tallies.setdefault(case.law, Tally()), player.judge(case)
        tally.add(judgement)
        if judgement.is_finding:
            result.findings.append(
                Finding(number=number, drawn=case, case=case, judgement=judgement, is_repeatable=True)
            )
    return result


def _finding(player: Player, number: int, drawn: Case, judgement: Judgement) -> Finding:
    """Make a failing case small, and play it in a process of its own."""
    small = shrink(drawn, player.is_case, lambda case: player.judge(case).status == judgement.status)
    first = player.judge(small)
    player.restart()
    again = player.judge(small)
    is_repeatable = first.status == again.status == judgement.status and first.comparison == again.comparison
    return Finding(number=number, drawn=drawn, case=small, judgement=again, is_repeatable=is_repeatable)
