"""Histories: what each operation means, and which of them mean nothing."""

from __future__ import annotations

import pytest

from protocols.history import (
    Copy,
    Cut,
    Drop,
    Evaluate,
    History,
    Image,
    Meaningless,
    Restore,
    Run,
    Save,
    SessionSettings,
    Step,
    conversations,
    trace,
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
    assert found.starts == ((0,), (0, 2), (2,))
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
    assert found.starts == ((0,), (2,), (5,))
    assert found.most_cells == 2 + 9 + 1
    other = trace(history(text(0, "A", 2), Image(sequence=0, conversation="A", side=2), step(0)))
    assert other.compared[0].cells != found.compared[0].cells


def test_a_batch_is_evaluated_in_ubatches_in_the_order_of_its_rows():
    both = Evaluate(runs=(Run(sequence=0, conversation="A", tokens=3), Run(sequence=1, conversation="B", tokens=2)))
    batches = trace(history(both, step(0), step(1), ubatch_tokens=4)).compared
    assert [*map(tuple, batches[0].batches)] == [((3, 1), 0), ((3, 1), 1), ((3, 1), 2), ((1,), 0)]
    assert [*map(tuple, batches[1].batches)] == [((3, 1), 3), ((1,), 0), ((1,), 0)]


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
    ],
)
def test_an_operation_that_no_session_can_carry_out_is_refused(operations: list[object], words: str):
    with pytest.raises(Meaningless, match=words):
        trace(history(*operations))


def test_the_positions_of_every_text_are_known():
    found = history(text(0, "A", 2), Image(sequence=0, conversation="C", side=4), step(0, "B", 2), step(0))
    assert conversations(found) == {"A": {0, 1, 8}, "B": {6, 7}}
