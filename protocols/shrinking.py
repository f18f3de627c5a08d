"""Makes a failing case small: fewer operations, then fewer tokens, then plainer settings, as long as it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Final

from protocols.laws import Case
from protocols.operations import (
    Copy,
    Cut,
    Evaluate,
    Generate,
    History,
    Image,
    Operation,
    Run,
    SessionSettings,
    Skip,
    Step,
)

MOST_TRIES: Final = 400
"""Cases that are played at most to make one small."""
_KV_RANK: Final = {"f32": 0, "f16": 1, "q8_0": 2}


def size(case: Case) -> tuple[int, ...]:
    """Return what shrinking makes smaller, compared from the left: operations, runs, images, tokens, settings."""
    operations = [*case.left.operations, *case.right.operations]
    both = (case.left.settings, case.right.settings)
    return (
        len(operations),
        sum(len(one.runs) if isinstance(one, Evaluate) else 1 for one in operations),
        sum(isinstance(one, Image) for one in operations),
        sum(map(_tokens, operations)),
        sum(one.depth for one in operations if isinstance(one, Generate)),
        sum(one.first for one in operations if isinstance(one, Image)),
        sum(_KV_RANK[one.kv_type] for one in both),
        sum(one.rollback_tokens + one.draft_tokens + one.draft_vocabulary for one in both),
        sum(one.sequences for one in both),
        sum(one.ubatch_tokens != SessionSettings().ubatch_tokens for one in both),
        sum(one.spare_cells for one in both),
        sum(one.is_unified + one.is_bucket for one in both),
        *(number for one in operations for number in _numbers(one)),
    )


def shrink(
    case: Case, is_case: Callable[[Case], bool], fails: Callable[[Case], bool], *, most_tries: int = MOST_TRIES
) -> Case:
    """Return a smaller case that fails, at a fixed point or after `most_tries` calls of `fails`.

    `is_case` is cheap and says whether a pair means anything. Ends in any case: each accepted case is smaller in the
    order of `size`, which has no endless descent.
    """
    seen, tries = {case}, 0
    while True:
        for one in _candidates(case):
            if one in seen or size(one) >= size(case) or not is_case(one):
                continue
            if tries == most_tries:
                return case
            seen.add(one)
            tries += 1
            if fails(one):
                case = one
                break
        else:
            return case


def _candidates(case: Case) -> Iterator[Case]:
    """Yield changed cases, the boldest first."""
    yield from _without_sequences(case)
    yield from _without_spans(case)
    yield from _without_pairs(case)
    yield from _merged(case)
    yield from _without_images(case)
    yield from _shorter(case)
    yield from _shallower(case)
    yield from _parted(case)
    yield from _plainer(case)


def _with(case: Case, left: Sequence[Operation] | None = None, right: Sequence[Operation] | None = None) -> Case:
    def history(side: History, operations: Sequence[Operation] | None) -> History:
        return side if operations is None else side.model_copy(update={"operations": tuple(operations)})

    return case.model_copy(update={"left": history(case.left, left), "right": history(case.right, right)})


def _without_sequences(case: Case) -> Iterator[Case]:
    for sequence in range(max(case.left.settings.sequences, case.right.settings.sequences)):
        yield _with(case, _without(case.left.operations, sequence), _without(case.right.operations, sequence))


def _without(operations: Sequence[Operation], sequence: int) -> list[Operation]:
    """Return what is left when nothing happens in a sequence."""
    kept: list[Operation] = []
    for one in operations:
        if isinstance(one, Evaluate):
            runs = tuple(run for run in one.runs if run.sequence != sequence)
            kept += [Evaluate(runs=runs)] if runs else []
        elif sequence not in ((one.source, one.target) if isinstance(one, Copy) else (one.sequence,)):
            kept.append(one)
    return kept


def _without_spans(case: Case) -> Iterator[Case]:
    """Yield cases without some neighbouring operations of one side."""
    left, right = case.left.operations, case.right.operations
    for length in (8, 4, 3, 2, 1):
        for start in range(max(0, len(left) - length + 1)):
            yield _with(case, left=[*left[:start], *left[start + length :]])
        for start in range(max(0, len(right) - length + 1)):
            yield _with(case, right=[*right[:start], *right[start + length :]])


def _without_pairs(case: Case) -> Iterator[Case]:
    """Yield cases without one operation of each side."""
    left, right = case.left.operations, case.right.operations
    for i, j in product(range(len(left)), range(len(right))):
        yield _with(case, [*left[:i], *left[i + 1 :]], [*right[:j], *right[j + 1 :]])


def _without_images(case: Case) -> Iterator[Case]:
    """Yield cases with text in the place of all images, or of one on one side or on both: a token, or as many cells."""
    left, right = case.left.operations, case.right.operations
    for is_short in (True, False):
        texts = [[_as_text(one, is_short=is_short) for one in side] for side in (left, right)]
        yield _with(case, *texts)
        lefts, rights = (
            [side, *([*side[:at], text[at], *side[at + 1 :]] for at, one in enumerate(side) if isinstance(one, Image))]
            for side, text in zip((left, right), texts, strict=True)
        )
        for one, other in product(lefts, rights):
            yield _with(case, one, other)


def _as_text(operation: Operation, *, is_short: bool) -> Operation:
    if not isinstance(operation, Image):
        return operation
    tokens = 1 if is_short else len(operation.places)
    return Evaluate(runs=(Run(sequence=operation.sequence, conversation=operation.conversation, tokens=tokens),))


def _merged(case: Case) -> Iterator[Case]:
    """Yield cases in which two batches that follow each other in a text or image, on one side or on both, are one."""
    lefts, rights = [*_merges(case.left.operations)], [*_merges(case.right.operations)]
    for left, right in product(lefts, rights):
        yield _with(case, left, right)
    for left in lefts:
        yield _with(case, left=left)
    for right in rights:
        yield _with(case, right=right)


def _merges(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    for (at, first), (then, second) in combinations(enumerate(operations), 2):
        if isinstance(first, Image) and isinstance(second, Image) and _same_image(first, second):
            whole = first.model_copy(update={"cells": len(first.places) + len(second.places)})
            between = operations[at + 1 : then]
            yield [*operations[:at], whole, *between, *operations[then + 1 :]]
            yield [*operations[:at], *between, whole, *operations[then + 1 :]]
        elif then == at + 1 and isinstance(first, Evaluate) and isinstance(second, Evaluate):
            if len(first.runs) > 1 or len(second.runs) > 1 or not _same_text(first.runs[0], second.runs[0]):
                continue
            run = first.runs[0].model_copy(update={"tokens": first.runs[0].tokens + second.runs[0].tokens})
            yield [*operations[:at], first.model_copy(update={"runs": (run,)}), *operations[then + 1 :]]


def _parted(case: Case) -> Iterator[Case]:
    """Yield cases in which an image is parted earlier."""
    for left in _earlier(case.left.operations):
        yield _with(case, left=left)
    for right in _earlier(case.right.operations):
        yield _with(case, right=right)


def _earlier(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    for (at, first), (then, second) in combinations(enumerate(operations), 2):
        if not (isinstance(first, Image) and isinstance(second, Image) and _same_image(first, second)):
            continue
        cells = len(first.places)
        for fewer in sorted({1, cells // 2} - {0, cells}):
            rest = {"first": first.first + fewer, "cells": len(second.places) + cells - fewer}
            changed = {at: first.model_copy(update={"cells": fewer}), then: second.model_copy(update=rest)}
            yield [changed.get(place, one) for place, one in enumerate(operations)]


def _same_image(one: Image, other: Image) -> bool:
    here, there = (one.sequence, one.conversation, one.side), (other.sequence, other.conversation, other.side)
    return here == there and other.first == one.places.stop


def _same_text(one: Run, other: Run) -> bool:
    return (one.sequence, one.conversation) == (other.sequence, other.conversation)


def _shorter(case: Case) -> Iterator[Case]:
    """Yield cases with fewer tokens: in one operation, in one of each side, or in all that are alike."""
    left, right = case.left.operations, case.right.operations
    operations = [*left, *right]
    for length in sorted({_tokens(one) for one in operations if _tokens(one) > 1}, reverse=True):
        for less in dict.fromkeys((length - 1, length // 2, length // 4, length // 8, 8, 4, 2, 1)):
            if not 0 < less < length:
                continue
            alike = [_less(one, less) if _tokens(one) == length else one for one in operations]
            yield _with(case, alike[: len(left)], alike[len(left) :])
            lefts, rights = [*_lessened(left, less)], [*_lessened(right, less)]
            for one in lefts:
                yield _with(case, left=one)
            for one in rights:
                yield _with(case, right=one)
            for one, other in product(lefts, rights):
                yield _with(case, one, other)
            for one, other in product(lefts, lefts):
                both = [b if b != c else a for a, b, c in zip(one, other, left, strict=True)]
                yield _with(case, left=both)


def _shallower(case: Case) -> Iterator[Case]:
    """Yield cases in which fewer tokens are drafted at a time."""
    for depth in range(6):
        yield _with(case, *(_at_most(side, depth) for side in (case.left.operations, case.right.operations)))


def _at_most(operations: Sequence[Operation], depth: int) -> list[Operation]:
    return [
        one.model_copy(update={"depth": min(one.depth, depth)}) if isinstance(one, Generate) else one
        for one in operations
    ]


def _lessened(operations: Sequence[Operation], less: int) -> Iterator[list[Operation]]:
    for at, one in enumerate(operations):
        if _tokens(one) > less:
            yield [*operations[:at], _less(one, less), *operations[at + 1 :]]


def _tokens(operation: Operation) -> int:
    """Return the tokens of an operation: of its longest run, of a step or cut, left out; the side of an image."""
    match operation:
        case Evaluate(runs=runs):
            return max(run.tokens for run in runs)
        case Step(tokens=tokens) | Cut(tokens=tokens) | Generate(tokens=tokens) | Skip(positions=tokens):
            return tokens
        case Image(side=side):
            return side
        case _:
            return 0


def _less(operation: Operation, less: int) -> Operation:
    """Return the operation with `less` fewer tokens, one at least."""
    match operation:
        case Evaluate(runs=runs):
            longest = max(run.tokens for run in runs)
            shorter = tuple(
                run.model_copy(update={"tokens": max(1, run.tokens - less)}) if run.tokens == longest else run
                for run in runs
            )
            return operation.model_copy(update={"runs": shorter})
        case Step(tokens=tokens) | Cut(tokens=tokens) | Generate(tokens=tokens):
            return operation.model_copy(update={"tokens": max(1, tokens - less)})
        case Skip(positions=positions):
            return operation.model_copy(update={"positions": max(1, positions - less)})
        case Image(side=side, cells=cells):
            smaller = operation.model_copy(update={"side": max(1, side - less)})
            # A part of an image stays what is left of it.
            return smaller if cells is None else smaller.model_copy(update={"cells": max(1, len(smaller.places))})
        case _:
            return operation


def _plainer(case: Case) -> Iterator[Case]:
    """Yield cases with plainer settings, of both sides or of one, and with lower numbers of sequences."""
    plain = SessionSettings()
    changes: list[dict[str, object]] = [
        {"kv_type": plain.kv_type},
        {"kv_type": "f16"},
        {"rollback_tokens": 0},
        {"ubatch_tokens": plain.ubatch_tokens},
        {"is_unified": False},
        {"is_bucket": False},
        {"draft_vocabulary": 0},
    ]
    most = max(case.left.settings.sequences, case.right.settings.sequences)
    spare = max(case.left.settings.spare_cells, case.right.settings.spare_cells)
    changes += [{"spare_cells": count} for count in dict.fromkeys((0, 1, spare // 2)) if count < spare]
    changes += [{"draft_tokens": count} for count in range(6)]
    changes += [{"sequences": count} for count in range(1, most)]
    rollback = max(case.left.settings.rollback_tokens, case.right.settings.rollback_tokens)
    changes += [{"rollback_tokens": count} for count in range(1, rollback)]
    for change in changes:
        left = case.left.model_copy(update={"settings": case.left.settings.model_copy(update=change)})
        right = case.right.model_copy(update={"settings": case.right.settings.model_copy(update=change)})
        yield case.model_copy(update={"left": left, "right": right})
        yield case.model_copy(update={"left": left})
        yield case.model_copy(update={"right": right})
    for high in range(1, most):
        for low in range(high):
            lefts = [_renumbered(one, high, low) for one in case.left.operations]
            rights = [_renumbered(one, high, low) for one in case.right.operations]
            yield _with(case, lefts, rights)
            yield _with(case, left=lefts)
            yield _with(case, right=rights)


def _renumbered(operation: Operation, high: int, low: int) -> Operation:
    """Return the operation with two sequences swapped."""
    swap = {high: low, low: high}

    def swapped(sequence: int) -> int:
        return swap.get(sequence, sequence)

    match operation:
        case Evaluate(runs=runs):
            new = (run.model_copy(update={"sequence": swapped(run.sequence)}) for run in runs)
            return Evaluate(runs=tuple(new))
        case Copy(source=source, target=target):
            return Copy(source=swapped(source), target=swapped(target))
        case _:
            return operation.model_copy(update={"sequence": swapped(operation.sequence)})


def _numbers(operation: Operation) -> tuple[int, ...]:
    """Return the numbers of the sequences in an operation: lower ones count as plainer."""
    match operation:
        case Evaluate(runs=runs):
            return tuple(run.sequence for run in runs)
        case Copy(source=source, target=target):
            return (source, target)
        case _:
            return (operation.sequence,)
