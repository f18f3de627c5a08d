"""A finding of a search as text that an issue can carry: what was promised, what came, and every operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from protocols.check_schema import named_tokens
from protocols.history import conversations
from protocols.laws import Case
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
    SessionSettings,
    Skip,
    Step,
)
from protocols.plain_text import one_line
from protocols.search import Finding, Judgement, SearchResult, Tally

HEADS: Final = ("law", "tried", "applicable", "failing", "largest difference that holds", "not run")
_SHOWN_IDS: Final = 256


def tally_rows(result: SearchResult) -> list[tuple[str, ...]]:
    """Return one row a law, in the order of HEADS."""
    return [
        (name, str(one.tried), str(one.applicable), str(one.failing), _largest(one), _not_run(one))
        for name, one in result.tallies.items()
    ]


def _largest(tally: Tally) -> str:
    return f"{tally.largest:.2g}" if tally.applicable else "-"


def _not_run(tally: Tally) -> str:
    return f"NOT_RUN: {tally.unmet}" if tally.unmet else ""


def summary(result: SearchResult) -> str:
    """Return the counts of a search in one line, and the laws that no case was drawn for: of those it says nothing."""
    missing = [name for name, one in result.tallies.items() if not one.tried and not one.unmet]
    untried = f"; never tried: {', '.join(missing)}" if missing else ""
    tallies = result.tallies.values()
    tried, applicable = sum(one.tried for one in tallies), sum(one.applicable for one in tallies)
    return f"{tried} cases tried, {applicable} applicable, {len(result.findings)} findings{untried}"


def judgement_text(judgement: Judgement) -> str:
    """Return what was promised, and what came, in one line."""
    promise = judgement.promise
    promised = "the same bytes" if promise.is_bytes else f"logits within {promise.tolerance:g}"
    if promise.is_work:
        promised = f"{promised} and the same work" if promise.is_logits else "the same work"
    found = judgement.comparison
    words = one_line(judgement.words)  # an engine's own
    if found is None:
        return f"{judgement.status}: {words}" if words else judgement.status
    if words:
        return f"{judgement.status}: promised {promised}; {words}"
    rows = f"{found.differing_rows} of {found.rows} compared rows differ"
    text = f"promised {promised}; {rows}, by up to {found.max_abs:.3g}"
    if found.nonfinite:
        text += f", {found.nonfinite} values are not finite"
    if found.first is not None:
        first = found.first
        # The right history is the one without what must not matter.
        if first.left_top == first.right_top:
            token = f"stays {first.left_top}"
        else:
            token = f"becomes {first.left_top} instead of {first.right_top}"
        text += f"; in row {first.row} the greedy token {token} (margin {first.margin:.3g})"
    return f"{judgement.status}: {text}"


def case_text(case: Case, vocabulary: int) -> str:
    """Return both histories, operation by operation, and the token ids of their texts where they are few."""
    needed: dict[str, set[int]] = {}
    for history in (case.left, case.right):
        for name, positions in conversations(history).items():
            needed.setdefault(name, set()).update(positions)
    lines = [f"law {case.law}", *_history_lines("left", case.left), *_history_lines("right", case.right)]
    for name, positions in sorted(needed.items()):
        ids = named_tokens(case.seed, name, max(positions) + 1, vocabulary)
        shown = [ids[at] for at in sorted(positions)][:_SHOWN_IDS]
        more = f" and {len(positions) - len(shown)} more" if len(positions) > len(shown) else ""
        lines.append(f"ids of {name} at {_ranges(positions)}: {' '.join(map(str, shown))}{more}")
    lines.append(f"seed {case.seed}; an id follows by SplitMix64 from seed, name and position")
    return "\n".join(lines)


def _ranges(positions: Iterable[int]) -> str:
    """Return positions as `0 to 34, 36`."""
    spans: list[list[int]] = []
    for at in sorted(positions):
        if spans and spans[-1][1] + 1 == at:
            spans[-1][1] = at
        else:
            spans.append([at, at])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)


def finding_text(finding: Finding, vocabulary: int) -> str:
    """Return a finding as text."""
    again = ""
    if not finding.is_repeatable:
        first = judgement_text(finding.drawn_judgement)
        again = f"\nin a process of its own it ended differently; the case that was drawn ended with {first}"
    return f"{judgement_text(finding.judgement)}{again}\n{case_text(finding.case, vocabulary)}"


def _history_lines(side: str, history: History) -> list[str]:
    lines = [f"{side}: {_settings_text(history.settings)}"]
    return lines + [f"  {place}. {operation_text(one)}" for place, one in enumerate(history.operations, 1)]


def _settings_text(settings: SessionSettings) -> str:
    kind = "unified" if settings.is_unified else "split"
    rollback = f", rollback of {settings.rollback_tokens} tokens" if settings.rollback_tokens else ""
    drafts = f", up to {settings.draft_tokens} drafts" if settings.draft_tokens else ""
    if settings.draft_vocabulary:
        drafts += f" among the first {settings.draft_vocabulary} ids"
    blocks = ", blocks by position bucket" if settings.is_bucket else ""
    spare = f", {settings.spare_cells} spare cells" if settings.spare_cells else ""
    return (
        f"{settings.sequences} {kind} sequence{'s' * (settings.sequences != 1)}, {settings.kv_type} cache, "
        f"ubatch {settings.ubatch_tokens}{rollback}{drafts}{blocks}{spare}"
    )


def operation_text(operation: Operation) -> str:
    """Return one operation in words."""
    match operation:
        case Evaluate(runs=runs, coordinates=form):
            return f"evaluate {_runs_text(runs)}" + (" in one batch" if len(runs) > 1 else "") + _form_text(form)
        case Step(sequence=sequence, conversation=name, tokens=tokens, coordinates=form):
            one_by_one = f"one by one{_form_text(form)}, and compare the logits"
            return f"evaluate {tokens} of {name} in sequence {sequence}, {one_by_one}"
        case Generate(sequence=sequence, conversation=name, tokens=tokens, depth=depth):
            drafts = f" with up to {depth} drafts at a time" if depth else ""
            chosen = f"choose {tokens} tokens greedily{drafts}, and compare them"
            return f"evaluate 1 of {name} in sequence {sequence}, {chosen}"
        case Image(sequence=sequence, conversation=name, side=side, places=places):
            part = "" if len(places) == side * side else f"the cells {places.start} to {places.stop - 1} of "
            return f"evaluate {part}an image {name} of {side} x {side} in sequence {sequence}"
        case _:
            return _edit_text(operation)


def _edit_text(operation: Skip | Copy | Cut | Drop | Save | Restore) -> str:
    match operation:
        case Skip(sequence=sequence, positions=positions):
            return f"leave out {positions} positions in sequence {sequence}"
        case Copy(source=source, target=target):
            return f"copy sequence {source} to {target}"
        case Cut(sequence=sequence, tokens=tokens):
            return f"remove the last {tokens} of sequence {sequence}"
        case Drop(sequence=sequence):
            return f"remove sequence {sequence}"
        case Save(sequence=sequence, state=state):
            return f"save sequence {sequence} as {state}"
        case Restore(sequence=sequence, state=state):
            return f"restore {state} into sequence {sequence}"


def _form_text(form: Coordinates) -> str:
    return "" if form == "p" else f", positions as [{', '.join(form)}]"


def _runs_text(runs: Sequence[Run]) -> str:
    return ", ".join(f"{run.tokens} of {run.conversation} in sequence {run.sequence}" for run in runs)
