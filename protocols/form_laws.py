"""Laws of form: the same content, given in another form or computed in another way, must say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from protocols.draws import (
    OWN,
    Abilities,
    Draw,
    Pair,
    changed,
    draw_company,
    draw_others,
    draw_piece,
    draw_prompt,
    draw_settings,
    draw_steps,
    pair,
    text,
)
from protocols.history import Machine, Meaningless
from protocols.operations import (
    Coordinates,
    Cut,
    Drop,
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

_FORMS: Final[tuple[Coordinates, ...]] = get_args(Coordinates)
_SHORTLIST: Final = 64
WIDEST: Final = 8192
"""Most tokens of one ubatch that the engine takes."""
LARGE: Final = 262_144
"""Cells of the context that a real release promises."""


def parts_whole(draw: Draw, abilities: Abilities) -> Pair:
    """Draw an image that is evaluated in parts, others coming and going meanwhile, and the same in one batch, alone."""
    settings = changed(draw_settings(draw, abilities), is_unified=not draw.one_in(4))
    before = [text(0, OWN, draw.length(63))] if draw.one_in(2) else []
    after = [*([text(0, OWN, draw.length(63))] if draw.one_in(2) else []), *draw_steps(draw)]
    image = Image(sequence=0, conversation=OWN, side=2 + draw.below(4))
    todo, parts = len(image.places), list[Operation]()
    while todo:
        cells = 1 + draw.below(todo)
        parts.append(image.model_copy(update={"first": len(image.places) - todo, "cells": cells}))
        todo -= cells
    left, machine = list[Operation](), Machine(settings)
    for one in (*before, *parts, *after):
        left += draw_others(draw, abilities, machine)
        machine.apply(one)
        left.append(one)
    return pair(settings, left, [*before, image, *after])


def shifted_unshifted(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation that begins at another position than 0, and the same from 0 on.

    In single precision: a coarser cache rounds keys after they were rotated to their positions.
    """
    settings = changed(draw_settings(draw, abilities), kv_type="f32")
    operations = [*draw_company(draw, abilities, 3), *draw_prompt(draw, abilities), *draw_steps(draw)]
    positions = draw.pick((1 + draw.below(16), draw.length(), 3000 + draw.below(16)))
    return pair(settings, [Skip(sequence=0, positions=positions), *operations], operations)


def hole_none(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation that leaves positions out between its batches, and the same without: other logits, same work.

    Blocks are made by rank, which a hole does not change.
    """
    prompt, steps = draw_prompt(draw, abilities), draw_steps(draw)
    company = draw_company(draw, abilities, 3)
    behind = draw.below(len(prompt) + len(steps) - 1)
    left: list[Operation] = [*company]
    for place, one in enumerate((*prompt, *steps)):
        left.append(one)
        if place == behind or (place < len(prompt) + len(steps) - 1 and draw.one_in(3)):
            left.append(Skip(sequence=0, positions=draw.pick((1 + draw.below(16), draw.length(), 3000))))
    return pair(draw_settings(draw, abilities), left, [*company, *prompt, *steps])


def wide_narrow(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a text in one ubatch of hundreds of tokens, or of as many as the engine takes, and in ubatches of 512."""
    settings = changed(draw_settings(draw, abilities, sequences=1), ubatch_tokens=512)
    is_widest = abilities.is_small and draw.one_in(4)
    tokens = WIDEST if is_widest else 513 + draw.below(1024)
    operations = [text(0, OWN, tokens), *draw_steps(draw)]
    left, right = pair(settings, operations, operations)
    return History(settings=changed(settings, ubatch_tokens=WIDEST), operations=left.operations), right


def roomy_tight(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation in a session with room for more cells, up to a real release's context, and in one without.

    What is empty is neither read nor worked on.
    """
    settings = draw_settings(draw, abilities, sequences=2)
    operations = [*draw_company(draw, abilities, 1), *draw_prompt(draw, abilities)]
    if draw.one_in(2):
        settings = changed(settings, ubatch_tokens=1024)
        operations.append(text(0, OWN, 513 + draw.below(256)))
    operations += draw_steps(draw)
    left, right = pair(settings, operations, operations)
    spare = draw.pick((draw.length(), 4096, LARGE if abilities.is_small else 4096))
    return History(settings=changed(settings, spare_cells=spare), operations=left.operations), right


def axes_position(draw: Draw, abilities: Abilities) -> Pair:
    """Draw text whose positions are written for each axis, and the same text with one position a token."""
    settings = draw_settings(draw, abilities)
    operations = [*draw_company(draw, abilities, 3), *draw_prompt(draw, abilities), *draw_steps(draw)]
    form = draw.pick(_FORMS[1:])
    return pair(settings, [_written(one, form) for one in operations], operations)


def _written(operation: Operation, form: Coordinates) -> Operation:
    return operation.model_copy(update={"coordinates": form}) if isinstance(operation, Evaluate | Step) else operation


def bucket_rank(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a history in which blocks by position bucket are those by rank, under both policies.

    No position is left out, no cell is shared; an image is alone in its cells.
    """
    settings = draw_settings(draw, abilities, rollback=draw.below(4), sequences=draw.pick((1, 3)))
    machine, operations = Machine(settings), list[Operation]()
    for _ in range(3 + draw.below(6)):
        for one in _grown(draw, abilities, settings):
            try:
                machine.apply(one)
            except Meaningless:
                break
            operations.append(one)
    filled = [place for place, held in enumerate(machine.held) if held] or [0]
    operations += [one for place in filled for one in draw_steps(draw, place)]
    left, right = pair(settings, operations, operations)
    return History(settings=changed(settings, is_bucket=True), operations=left.operations), right


def _grown(draw: Draw, abilities: Abilities, settings: SessionSettings) -> Sequence[Operation]:
    """Return how a sequence goes on under either policy of blocks."""
    sequence, name, kind = draw.below(settings.sequences), draw.pick("AB"), draw.below(8)
    if kind == 0:
        return [Drop(sequence=sequence)]
    if kind == 1:
        return draw_steps(draw, sequence, name)
    if kind == 2 and settings.rollback_tokens:
        wrong = 1 + draw.below(settings.rollback_tokens)
        return [text(sequence, "C", wrong), Cut(sequence=sequence, tokens=wrong)]
    if kind == 3 and settings.sequences > 1:
        runs = (Run(sequence=place, conversation=name, tokens=draw.length(31)) for place in (0, settings.sequences - 1))
        return [Evaluate(runs=tuple(runs))]
    if settings.is_unified and settings.sequences > 1:
        return [text(sequence, name, draw.length())]
    return [draw_piece(draw, abilities, sequence, name)]


def drafts_none(draw: Draw, abilities: Abilities) -> Pair:
    """Draw tokens that are chosen one by one with drafts, in one or two sequences, and the same without drafts."""
    plain = draw_settings(draw, abilities)
    most = 1 + draw.below(6)
    settings = changed(plain, draft_tokens=most, draft_vocabulary=draw.pick((0, 0, _SHORTLIST)))
    left = draw_company(draw, abilities, 3)
    sequences = range(1 + draw.below(2))
    for sequence in sequences:
        left += draw_prompt(draw, abilities, sequence)
    for _ in range(1 + draw.below(2)):
        for sequence in sequences:
            left.append(
                Generate(sequence=sequence, conversation=OWN, tokens=draw.length(31), depth=1 + draw.below(most))
            )
    left += [one for sequence in sequences for one in draw_steps(draw, sequence)]
    right = [one.model_copy(update={"depth": 0}) if isinstance(one, Generate) else one for one in left]
    return History(settings=settings, operations=tuple(left)), History(settings=plain, operations=tuple(right))
