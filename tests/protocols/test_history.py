"""Histories: what each operation means, and which of them mean nothing."""

from __future__ import annotations

import pytest

from protocols.history import DRAFTED, GREEDY, Meaningless, conversations, trace
from protocols.operations import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    Generate,
    History,
    Image,
    Restore,
    Run,
    Save,
    SessionSettings,
    Skip,
    Step,
)


def text(sequence: int, conversation: str, tokens: int) -> Evaluate:
    return Evaluate(runs=(Run(sequence=sequence, conversation=conversation, tokens=tokens),))


def step(sequence: int, conversation: str = "A", tokens: int = 1) -> Step:
    return Step(sequence=sequence, conversation=conversation, tokens=tokens)


def history(*operations: object, **settings: object) -> History:
    return History(settings=SessionSettings(**{"sequences": 3, **settings}), operations=operations)


def cells(*operations: object, **settings: object) -> list[tuple[str, int]]:
    """Return conversation and position of the cells at the last compared step."""
    return [(cell.conversation, cell.position) for cell in trace(history(*operations, **settings)).compared[-1].cells]


def test_tokens_follow_each_other_in_their_sequence():
    both = Evaluate(runs=(Run(sequence=1, conversation="B", tokens=2), Run(sequence=0, conversation="A", tokens=1)))
    assert cells(text(0, "A", 2), both, step(0)) == [("A", 0), ("A", 1), ("A", 2), ("A", 3)]
    found = trace(history(text(0, "A", 2), both, step(1, "C", 2)))
    assert [[start.position for start in starts] for starts in found.starts] == [[0], [0, 2], [2]]
    assert [len(one.cells) for one in found.compared] == [3, 4]


def test_a_copy_a_restored_state_and_a_reused_sequence_hold_what_they_should():
    prompt = text(0, "A", 2)
    single = cells(prompt, step(0))
    assert cells(prompt, Copy(source=0, target=2), text(0, "B", 3), step(2)) == single
    assert (
        cells(prompt, Save(sequence=0, state="a"), text(0, "B", 3), Restore(sequence=0, state="a"), step(0)) == single
    )
    assert cells(text(0, "B", 9), Drop(sequence=0), prompt, step(0)) == single
    assert cells(prompt, text(0, "B", 3), Cut(sequence=0, tokens=3), step(0)) == single
    assert cells(prompt, text(0, "B", 3), Cut(sequence=0, tokens=2), step(0)) != single


def test_text_after_an_image_goes_on_behind_its_side_and_the_image_takes_a_cell_for_each_field():
    found = trace(history(text(0, "A", 2), Image(sequence=0, conversation="A", side=3), step(0)))
    assert [starts[0].position for starts in found.starts] == [0, 2, 5]
    assert found.most_cells == 2 + 9 + 1
    other = trace(history(text(0, "A", 2), Image(sequence=0, conversation="A", side=2), step(0)))
    assert other.compared[0].cells != found.compared[0].cells


def test_a_batch_is_evaluated_in_ubatches_in_the_order_of_its_rows():
    both = Evaluate(runs=(Run(sequence=0, conversation="A", tokens=3), Run(sequence=1, conversation="B", tokens=2)))
    batches = trace(history(both, step(0), step(1), ubatch_tokens=4)).compared
    assert [*map(tuple, batches[0].batches)] == [((3, 1), 0), ((3, 1), 1), ((3, 1), 2), ((1,), 0)]
    assert [*map(tuple, batches[1].batches)] == [((3, 1), 3), ((1,), 0), ((1,), 0)]


def test_what_follows_positions_that_are_left_out_stands_so_many_further_and_means_the_same_from_there_on():
    image = Image(sequence=0, conversation="A", side=2)
    operations = (text(0, "A", 2), image, text(0, "A", 1), Cut(sequence=0, tokens=1), step(0))
    plain, shifted = trace(history(*operations)), trace(history(Skip(sequence=0, positions=5), *operations))
    assert [start.cached for starts in shifted.starts for start in starts] == [5, 7, 9, 9, 9]
    assert shifted.compared[0].meaning == plain.compared[0].meaning == plain.compared[0].cells
    assert shifted.compared[0] != plain.compared[0]
    hole = trace(history(text(0, "A", 2), Skip(sequence=0, positions=5), *operations[1:])).compared[0]
    assert [cell.position + cell.skipped for cell in hole.cells] == [0, 1, 7, 7, 7, 7, 9]
    assert hole.meaning != plain.compared[0].meaning


def test_an_image_in_parts_is_the_image():
    def part(first: int, cells: int | None = None, side: int = 3) -> Image:
        return Image(sequence=0, conversation="A", side=side, first=first, cells=cells)

    whole = trace(history(text(0, "A", 2), part(0), step(0))).compared[0]
    others = (text(1, "B", 4), Drop(sequence=1))
    parts = trace(history(text(0, "A", 2), part(0, 4), *others, part(4, 2), part(6), step(0))).compared[0]
    assert parts.cells == whole.cells
    assert [batch.runs for batch in parts.batches] == [(2,)] * 2 + [(4,)] * 4 + [(2,)] * 2 + [(3,)] * 3 + [(1,)]
    for wrong in ((part(0, 4), step(0)), (part(0, 4), part(5)), (part(0, 4), part(4, side=4)), (part(4),)):
        with pytest.raises(Meaningless):
            trace(history(text(0, "A", 2), *wrong))


def test_a_generation_leaves_its_first_token_and_all_it_chose_but_the_last():
    def run(depth: int) -> Generate:
        return Generate(sequence=0, conversation="B", tokens=3, depth=depth)

    plain = trace(history(text(0, "A", 2), run(0), step(0), draft_tokens=2))
    assert [(cell.conversation, cell.position) for cell in plain.compared[0].cells] == [
        ("A", 0),
        ("A", 1),
        ("B", 2),
        (GREEDY, 3),
        (GREEDY, 4),
        ("A", 5),
    ]
    assert [len(one.cells) for one in plain.generated] == [3]
    drafted = trace(history(text(0, "A", 2), run(2), step(0), draft_tokens=2))
    assert drafted.compared[0].cells == plain.compared[0].cells
    assert {batch.row for batch in drafted.compared[0].batches[2:5]} == {DRAFTED}
    with pytest.raises(Meaningless, match="draft"):
        trace(history(text(0, "A", 2), run(2), draft_tokens=1))
    assert conversations(history(text(0, "A", 2), run(0), step(0))) == {"A": {0, 1, 5}, "B": {2}}


@pytest.mark.parametrize(
    ("operations", "is_unified", "agree"),
    [
        ([text(0, "A", 9), text(1, "B", 3)], True, True),
        ([text(0, "A", 9), Copy(source=0, target=1)], False, True),
        ([text(0, "A", 9), Copy(source=0, target=1)], True, False),
        ([text(0, "A", 9), Copy(source=0, target=1), Drop(sequence=0)], True, False),
        ([Image(sequence=0, conversation="A", side=2)], True, True),
        ([Image(sequence=0, conversation="A", side=2), text(1, "B", 3)], False, True),
        ([Image(sequence=0, conversation="A", side=2), text(1, "B", 3)], True, False),
        ([Image(sequence=0, conversation="A", side=2), text(1, "B", 3), Drop(sequence=0)], True, False),
        ([Skip(sequence=0, positions=4), text(0, "A", 3)], False, False),
    ],
)
def test_policies_of_blocks_agree_without_holes_shared_cells_and_images_beside_others(
    operations: list[object], is_unified: bool, agree: bool
):
    assert trace(history(*operations, is_unified=is_unified)).do_policies_agree is agree


def test_the_most_cells_at_any_time_are_counted():
    found = trace(history(text(0, "A", 5), Copy(source=0, target=1), Drop(sequence=0), text(2, "B", 2)))
    assert (found.most_cells, found.most_together) == (5, 10)


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([Copy(source=0, target=1)], "sequence 0 is empty"),
        ([text(0, "A", 1), Copy(source=0, target=0)], "empty target"),
        ([text(0, "A", 1), Cut(sequence=0, tokens=2)], "no more than there are"),
        ([Image(sequence=0, conversation="A", side=1), Cut(sequence=0, tokens=1)], "only tokens"),
        ([Drop(sequence=1)], "sequence 1 is empty"),
        ([Save(sequence=1, state="a")], "sequence 1 is empty"),
        ([Restore(sequence=0, state="a")], "nothing was saved"),
        ([text(3, "A", 1)], "no sequence 3"),
        ([Evaluate(runs=(Run(sequence=0, conversation="A", tokens=1),) * 2)], "one run in a batch"),
        ([text(0, "A", 1), Skip(sequence=0, positions=1), Save(sequence=0, state="a")], "left out"),
        ([text(0, "A", 1), Skip(sequence=1, positions=1), Copy(source=0, target=1)], "empty target"),
        ([text(0, "A", 1), Skip(sequence=0, positions=1), Cut(sequence=0, tokens=1)], "left out"),
    ],
)
def test_an_operation_that_no_session_can_carry_out_is_refused(operations: list[object], words: str):
    with pytest.raises(Meaningless, match=words):
        trace(history(*operations))


def test_the_positions_of_every_text_are_known():
    found = history(text(0, "A", 2), Image(sequence=0, conversation="C", side=4), step(0, "B", 2), step(0))
    assert conversations(found) == {"A": {0, 1, 8}, "B": {6, 7}}
