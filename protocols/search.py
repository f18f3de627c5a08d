"""What a search found: how each case ended, counts, and the findings as a document that can be replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from protocols.canonical import JsonValue, real_text
from protocols.comparators import Comparison, Rows, compare_logits, joined
from protocols.errors import Problem, ProtocolError
from protocols.laws import Case, LawName, Promise
from protocols.paths import read_given
from protocols.problems import schema_problems
from protocols.vocabulary import Part
from protocols.yaml_tree import parse_yaml, plain_value

Status = Literal["holds", "not-applicable", "differs", "fails", "dies"]
FOUND: Final[frozenset[Status]] = frozenset({"differs", "fails", "dies"})
"""`differs`: other logits than promised. `fails`: an error where nothing is unsupported. `dies`: a crash or a hang."""


class Chosen(NamedTuple):
    """A token that was chosen by its logits, and its lead over the next one; none where drafts hide the logits."""

    token: int
    margin: float | None


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one history gave: the logits of its steps, blocks [1, vocabulary]; chosen tokens; the work counters."""

    rows: Sequence[Rows]
    chosen: Sequence[Chosen]
    work: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How one case ended. `comparison` is there where logits were compared; `words` say what else there is to say."""

    status: Status
    promise: Promise
    comparison: Comparison | None = None
    words: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether the law is broken."""
        return self.status in FOUND

    def payload(self) -> dict[str, JsonValue]:
        """Return it for machines."""
        return {
            "status": self.status,
            "promise": self.promise.text(),
            "comparison": None if self.comparison is None else self.comparison.payload(),
            "words": self.words,
        }


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken law: the case that was drawn, the small one that it was shrunk to, and how both end.

    `is_repeatable` says whether the small case ended as the drawn one did, in a process of its own.
    """

    number: int
    drawn: Case
    drawn_judgement: Judgement
    case: Case
    judgement: Judgement
    is_repeatable: bool


@dataclass(kw_only=True)
class Tally:
    """Counts of one law. Only its first failing case becomes a finding: the others are mostly the same defect.

    `largest` is the largest difference of logits among the cases that held where no bytes were promised. `unmet` says
    what was missing where no case was applicable: the law was NOT_RUN.
    """

    tried: int = 0
    applicable: int = 0
    failing: int = 0
    largest: float = 0.0
    unmet: str = ""

    def add(self, judgement: Judgement) -> None:
        """Count one case."""
        self.tried += 1
        self.applicable += judgement.status != "not-applicable"
        self.failing += judgement.is_finding
        if self.applicable:
            self.unmet = ""
        elif not self.unmet:
            self.unmet = judgement.words
        if judgement.status == "holds" and judgement.comparison is not None:
            self.largest = max(self.largest, judgement.comparison.max_abs)


@dataclass(kw_only=True)
class SearchResult:
    """A whole search. `model` and `build` say what was searched, in words."""

    model: str
    build: str
    vocabulary: int
    seed: int
    tallies: dict[LawName, Tally] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def document(self) -> dict[str, JsonValue]:
        """Return everything for machines; `replayed_search` reads it."""
        return {
            "assay_search": 1,
            "model": self.model,
            "build": self.build,
            "vocabulary": self.vocabulary,
            "seed": self.seed,
            "laws": {
                name: {**vars(tally), "largest": real_text(tally.largest)} for name, tally in self.tallies.items()
            },
            "findings": [
                {
                    "number": one.number,
                    "is_repeatable": one.is_repeatable,
                    **one.judgement.payload(),
                    "case": one.case.model_dump(mode="json"),
                    "drawn": one.drawn.model_dump(mode="json"),
                    "drawn_ended": one.drawn_judgement.payload(),
                }
                for one in self.findings
            ],
        }


class _Replayed(Part):
    case: Case
    """The two histories."""
    number: int = 0
    is_repeatable: bool = True
    status: str = ""
    promise: str = ""
    comparison: Mapping[str, Any] | None = None
    words: str = ""
    drawn: Case | None = None
    drawn_ended: Mapping[str, Any] | None = None


class _Document(Part):
    assay_search: Literal[1]
    """Version of the format."""
    findings: Annotated[tuple[_Replayed, ...], Field(strict=False)]
    """What was found."""
    model: str = ""
    build: str = ""
    vocabulary: int = 0
    seed: int = 0
    laws: Mapping[str, Any] = Field(default_factory=dict)


class ReplayedSearch(NamedTuple):
    """What a search wrote: the cases that it found, and the model's file name and vocabulary ("" and 0: not said)."""

    cases: Sequence[Case]
    model: str
    vocabulary: int


def replayed_search(path: Path) -> ReplayedSearch:
    """Return what a document of a search says. ProtocolError names what is wrong in it."""
    try:
        content = read_given(path)
    except OSError as error:
        raise ProtocolError(f"the file cannot be read: {error.strerror}", where=str(path)) from None
    tree = parse_yaml(content, str(path))  # JSON is YAML; this one knows lines
    value = plain_value(tree.root)
    try:
        document = _Document.model_validate(value)
    except ValidationError as error:
        problems = [*tree.problems, *schema_problems(error, tree, _Document)]
        if not (isinstance(value, dict) and "assay_search" in value):
            hint = "`assay search MODEL --out FILE` writes them"
            problems = [Problem(where=f"{path}:1", message="this file holds no findings of `assay search`", hint=hint)]
            problems += schema_problems(error, tree, _Document)
        raise ProtocolError.from_problems(str(path), problems) from None
    return ReplayedSearch([one.case for one in document.findings], document.model, document.vocabulary)


def judged(comparison: Comparison, promise: Promise) -> Judgement:
    """Judge the logits of both histories by what was promised."""
    if promise.is_bytes:
        holds = comparison.is_byte_equal
    else:
        holds = comparison.max_abs <= promise.tolerance and not comparison.nonfinite
    return Judgement(status="holds" if holds else "differs", promise=promise, comparison=comparison)


def judge_played(left: Played, right: Played, promise: Promise) -> Judgement:
    """Judge what both histories gave: first the chosen tokens, then the logits, then the work.

    Where no logits are promised, the work alone.
    """
    judgement = Judgement(status="holds", promise=promise)
    if promise.is_logits:
        judgement = _judge_logits(left, right, promise)
    if promise.is_work and judgement.status == "holds":
        other_work = [f"{name} {left.work[name]} instead of {right.work[name]}" for name in _changed(left, right)]
        if other_work:
            return replace(judgement, status="differs", words="other work: " + ", ".join(other_work))
    return judgement


def _judge_logits(left: Played, right: Played, promise: Promise) -> Judgement:
    for place, (one, other) in enumerate(zip(left.chosen, right.chosen, strict=True)):
        if one.token == other.token:
            continue
        margin = one.margin if other.margin is None else other.margin
        words = f"chosen token {place} is {one.token} instead of {other.token}"
        if margin is None:
            return Judgement(status="differs", promise=promise, words=words)
        words += f" (margin {margin:.3g})"
        # Logits that may differ by the tolerance may change places where they are not further apart than twice of it.
        is_tie = not promise.is_bytes and margin <= 2 * promise.tolerance
        return Judgement(status="not-applicable" if is_tie else "differs", promise=promise, words=words)
    if not left.rows:
        return Judgement(status="holds", promise=promise)
    return judged(compare_logits(joined(left.rows), joined(right.rows)), promise)


def _changed(left: Played, right: Played) -> Sequence[str]:
    return [name for name in right.work if left.work[name] != right.work[name]]
