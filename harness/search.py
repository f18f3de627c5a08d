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
from protocols.comparators import Rows, top_of
from protocols.draws import Abilities, Weights
from protocols.errors import ProtocolError
from protocols.history import Meaningless, Start, conversations, trace
from protocols.laws import Case, LawName, Promise, draw_case, promise, unmet_need
from protocols.operations import (
    Coordinates,
    Copy,
    Cut,
    Drop,
    Evaluate,
    Generate,
    History,
    Image,
    Operation,
    Restore,
    Run,
    Save,
    Skip,
    Step,
)
from protocols.search import Chosen, Finding, Judgement, Played, SearchResult, Tally, judge_played
from protocols.shrinking import shrink

_TIMEOUT_S: Final = 300.0
_SMALL_PARAMETERS: Final = 10_000_000
"""Up to here 8,192 tokens take seconds on one core."""


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
            takes_images=takes_images,
            is_byte_exact=takes_images,
            weights=_weights(info["tensor_types"]),
            is_small=int(info["n_params"]) <= _SMALL_PARAMETERS,
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
        return judge_played(left, right, promised)

    def _play(self, case: Case, history: History, promised: Promise) -> Played:
        """Return what a history gives in a fresh session."""
        settings = history.settings
        cells = promised.cells_together if settings.is_unified else promised.cells_each
        cells += settings.spare_cells
        self._worker.open_session(
            Session(
                context_tokens=cells,
                sequences=settings.sequences,
                ubatch_tokens=settings.ubatch_tokens,
                threads=self._threads,
                kv_type=settings.kv_type,
                is_unified=settings.is_unified,
                rollback_tokens=settings.rollback_tokens,
                is_bucket=settings.is_bucket,
                draft_tokens=settings.draft_tokens,
                draft_vocabulary=settings.draft_vocabulary,
            )
        )
        play = _Play(self._worker, case.seed, history, vocabulary=self.vocabulary, width=self._width)
        for operation, starts in zip(history.operations, trace(history).starts, strict=True):
            play.carry_out(operation, starts)
        return Played(rows=play.rows, chosen=play.chosen, work=self._worker.work())


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
        self.chosen: list[Chosen] = []
        self._worker, self._seed, self._width = worker, seed, width
        self._states: dict[str, bytes] = {}
        self._ids = {
            name: named_tokens(seed, name, max(at) + 1, vocabulary) for name, at in conversations(history).items()
        }

    def carry_out(self, operation: Operation, starts: Sequence[Start]) -> None:
        """Carry one operation out, from where the trace of the history says."""
        match operation:
            case Evaluate(runs=runs, coordinates=form):
                self._evaluate(runs, starts, form)
            case Step(coordinates=form):
                for place in range(operation.tokens):
                    start = starts[0]._replace(position=starts[0].position + place)
                    self.rows.append(self._row(operation, start, form))
            case Generate():
                self._generate(operation, starts[0])
            case Image():
                self._show(operation, starts[0])
            case Skip():
                pass  # the starts of what follows say it
            case _:
                self._edit(operation, starts)

    def _edit(self, operation: Copy | Cut | Drop | Save | Restore, starts: Sequence[Start]) -> None:
        match operation:
            case Copy(source=source, target=target):
                self._worker.copy(source, target)
            case Cut(sequence=sequence):
                self._worker.remove(sequence=sequence, start=starts[0].cached)
            case Drop(sequence=sequence):
                self._worker.remove(sequence=sequence)
            case Save(sequence=sequence, state=state):
                self._states[state] = self._worker.save(sequence)
            case Restore(sequence=sequence, state=state):
                self._worker.restore(sequence, self._states[state])

    def _evaluate(self, runs: Sequence[Run], starts: Sequence[Start], form: Coordinates) -> None:
        ids, at, owners = list[int](), list[int](), list[int]()
        for run, start in zip(runs, starts, strict=True):
            ids += self._ids[run.conversation][start.position : start.position + run.tokens]
            at += range(start.cached, start.cached + run.tokens)
            owners += [run.sequence] * run.tokens
        if len(runs) == 1 and form == "p":
            self._worker.decode(ids, start=at[0], sequence=owners[0], rows="none")
        else:
            self._worker.decode_rows(ids, _written(at, form), sequences=owners, wanted=[False] * len(ids))

    def _row(self, operation: Step | Generate, start: Start, form: Coordinates = "p") -> Rows:
        """Evaluate one token of the conversation; its logits, [1, vocabulary]."""
        ids, sequence = [self._ids[operation.conversation][start.position]], operation.sequence
        if form == "p":
            return self._worker.decode(ids, start=start.cached, sequence=sequence).copy()
        return self._worker.decode_rows(ids, _written([start.cached], form), sequences=sequence).copy()

    def _generate(self, operation: Generate, start: Start) -> None:
        sequence, left = operation.sequence, operation.tokens
        if not operation.depth:
            row = self._row(operation, start)
            for place in range(left):
                best, margin = top_of(row[0])
                self.chosen.append(Chosen(best, margin))
                if place + 1 < left:
                    row = self._worker.decode([best], start=start.cached + place + 1, sequence=sequence)
            return
        last = self._ids[operation.conversation][start.position]
        while left:
            found = self._worker.draft_round(last, left=left, depth=operation.depth, sequence=sequence)
            self.chosen += [Chosen(token, None) for token in found.tokens]
            left, last = left - len(found.tokens), found.tokens[-1]

    def _show(self, image: Image, start: Start) -> None:
        seed = named_tokens(self._seed, image.conversation, start.position + 1, 2**32)[start.position]
        placed = place_image([], made_up_image(image.side, self._width, seed=seed), start=start.cached)
        part, embeddings = slice(image.places.start, image.places.stop), placed.embeddings
        self._worker.decode_rows(
            placed.tokens[part],
            placed.positions[:, part],
            sequences=image.sequence,
            embeddings=None if embeddings is None else embeddings[part],
            wanted=[False] * len(image.places),
        )


def _written(positions: Sequence[int], form: Coordinates) -> list[list[int]]:
    """Return positions of text as axes, [axes][rows]."""
    return [[*positions] if axis == "p" else [0] * len(positions) for axis in form]


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

    The first failing case of a law is made small and becomes a finding; later ones are counted. A law that the model
    cannot be tried on gets no case, and its tally says why.
    """
    result = SearchResult(model=player.model.name, build=player.build.name, vocabulary=player.vocabulary, seed=seed)
    result.tallies = {law: Tally() for law in laws}
    for law, tally in result.tallies.items():
        tally.unmet = unmet_need(law, player.abilities) or ""
    able = [law for law in laws if not result.tallies[law].unmet]
    deadline = None if seconds is None else time.monotonic() + seconds
    for number in count():
        if not able or number == cases or (deadline is not None and time.monotonic() >= deadline):
            return result
        law = able[number % len(able)]
        case, tally = draw_case(law, seed, number // len(able), player.abilities), result.tallies[law]
        judgement = player.judge(case)
        tally.add(judgement)
        if judgement.is_finding and tally.failing == 1:
            progress.say(f"{law}: case {number // len(able)} {judgement.status}; making it small")
            result.findings.append(_finding(player, number // len(able), case, judgement))
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
                Finding(
                    number=number,
                    drawn=case,
                    drawn_judgement=judgement,
                    case=case,
                    judgement=judgement,
                    is_repeatable=True,
                )
            )
    return result


def _finding(player: Player, number: int, drawn: Case, judgement: Judgement) -> Finding:
    """Make a failing case small, and play it in a process of its own."""
    small = shrink(drawn, player.is_case, lambda case: player.judge(case).status == judgement.status)
    first = player.judge(small)
    player.restart()
    again = player.judge(small)
    is_repeatable = first.status == again.status == judgement.status and first.comparison == again.comparison
    return Finding(
        number=number,
        drawn=drawn,
        drawn_judgement=judgement,
        case=small,
        judgement=again,
        is_repeatable=is_repeatable,
    )
