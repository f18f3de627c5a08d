"""Laws of conversations: what happens to a sequence, or beside it, must not change what it says."""

from __future__ import annotations

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
    moved,
    pair,
    text,
)
from protocols.history import Machine, Meaningless
from protocols.operations import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    History,
    Operation,
    Restore,
    Run,
    Save,
    SessionSettings,
    Step,
)


def _free_operation(draw: Draw, abilities: Abilities, settings: SessionSettings) -> Operation:
    """Return any operation; the machine says whether it makes sense."""
    sequence, other = draw.below(settings.sequences), draw.below(settings.sequences)
    state = draw.pick("ab")
    kind = draw.below(12)
    if kind < 5:
        return draw_piece(draw, abilities, sequence, draw.pick("ABC"))
    if kind == 5:
        runs = [Run(sequence=one, conversation=draw.pick("ABC"), tokens=draw.length(63)) for one in (sequence, other)]
        return Evaluate(runs=tuple(runs))
    edits: tuple[Operation, ...] = (
        Copy(source=sequence, target=other),
        Cut(sequence=sequence, tokens=1 + draw.below(max(1, settings.rollback_tokens))),
        Drop(sequence=sequence),
        Save(sequence=sequence, state=state),
        Restore(sequence=sequence, state=state),
        Step(sequence=sequence, conversation=OWN, tokens=1 + draw.below(3)),
    )
    return edits[kind - 6]


def split_unified(draw: Draw, abilities: Abilities) -> Pair:
    """Draw any history in split caches, and the same in a unified one."""
    settings = changed(draw_settings(draw, abilities, rollback=draw.below(4)), is_unified=False)
    machine, operations = Machine(settings), list[Operation]()
    for _ in range(4 + draw.below(8)):
        one = _free_operation(draw, abilities, settings)
        if isinstance(one, Cut) and not (operations and isinstance(operations[-1], Evaluate)):
            continue  # a recurrent state goes back over what was evaluated just now
        try:
            machine.apply(one)
        except Meaningless:
            continue
        operations.append(one)
    filled = [place for place, held in enumerate(machine.held) if held] or [0]
    operations += [one for place in filled for one in draw_steps(draw, place)]
    left, right = pair(settings, operations, operations)
    return left, History(settings=changed(settings, is_unified=True), operations=right.operations)


def chunked_whole(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a text in batches of any size, and in one."""
    settings = draw_settings(draw, abilities)
    total, steps, company = max(draw.length(), draw.length()), draw_steps(draw), draw_company(draw, abilities, 3)
    left, todo = [*company], total
    while todo:
        part = draw.length(todo)
        left.append(text(0, OWN, part))
        todo -= part
    one, other = pair(settings, [*left, *steps], [*company, text(0, OWN, total), *steps])
    return one, History(settings=changed(settings, ubatch_tokens=512), operations=other.operations)


def restored_continued(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation that is saved, and restored into any sequence, and one that just goes on."""
    prompt, steps, company = draw_prompt(draw, abilities), draw_steps(draw), draw_company(draw, abilities, 3)
    target = draw.below(3)
    left = [*company, *prompt, Save(sequence=0, state="a")]
    if draw.one_in(2):
        left.append(Drop(sequence=0))
    if draw.one_in(2):
        left.append(draw_piece(draw, abilities, draw.below(3), "B"))
    left += [Restore(sequence=target, state="a"), *moved(steps, target)]
    return pair(draw_settings(draw, abilities), left, [*company, *prompt, *steps])


def copied_single(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a prompt that is copied to sequences that go on differently, and the same prompt evaluated in each."""
    prompt, company, copies = draw_prompt(draw, abilities), draw_company(draw, abilities, 3), 1 + draw.below(2)
    left = [*company, *prompt, *(Copy(source=0, target=place) for place in range(1, copies + 1))]
    right = [*company, *(one for place in range(copies + 1) for one in moved(prompt, place))]
    steps = [one for place in range(copies + 1) for one in draw_steps(draw, place, "ABC"[place])]
    if draw.one_in(2):
        left.insert(-1 if draw.one_in(2) else len(left), draw_piece(draw, abilities, copies + 1, "D"))
    return pair(draw_settings(draw, abilities, sequences=5), [*left, *steps], [*right, *steps])


def reused_fresh(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation in a sequence that held another one, evaluated again or from a cache, and a fresh one."""
    prompt, steps, company = draw_prompt(draw, abilities), draw_steps(draw), draw_company(draw, abilities, 3)
    before = [draw_piece(draw, abilities, 0, "B") for _ in range(1 + draw.below(2))]
    if draw.one_in(3):
        cached = [*moved(prompt, 1), Save(sequence=1, state="a"), *([Drop(sequence=1)] if draw.one_in(2) else [])]
        left = [*cached, *before, Restore(sequence=0, state="a")]
    else:
        left = [*before, Drop(sequence=0), *prompt]
    return pair(draw_settings(draw, abilities), [*company, *left, *steps], [*company, *prompt, *steps])


def rolled_back_never(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation from which wrong tokens are taken back, another one going on meanwhile, and one without."""
    wrong = 1 + draw.below(4)
    operations = [*draw_prompt(draw, abilities), *draw_steps(draw)]
    left: list[Operation] = []
    for one in operations:
        left.append(one)
        if one is not operations[-1] and draw.below(3):
            left += [text(0, "B", wrong), Cut(sequence=0, tokens=wrong)]
            left += [text(1, "C", draw.length(15))] if draw.one_in(2) else []
    return pair(draw_settings(draw, abilities, rollback=wrong), left, operations)


def beside_alone(draw: Draw, abilities: Abilities) -> Pair:
    """Draw a conversation between whose batches others come and go, and one that is alone."""
    operations = [*draw_prompt(draw, abilities), *draw_steps(draw)]
    settings = draw_settings(draw, abilities)
    left, machine = list[Operation](), Machine(settings)
    for one in operations:
        left += draw_others(draw, abilities, machine)
        if isinstance(one, Evaluate) and draw.one_in(4):
            one = Evaluate(runs=(Run(sequence=1, conversation="B", tokens=draw.length(31)), *one.runs))
        machine.apply(one)
        left.append(one)
    return pair(settings, left, operations)
