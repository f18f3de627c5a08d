"""Shrinking: what is left fails still, is no larger, and is found in a bounded number of tries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.draws import Abilities
from protocols.history import Meaningless
from protocols.laws import LAWS, Case, draw_case, promise
from protocols.operations import Copy, Drop, Evaluate, Image, Restore, Save, SessionSettings, Skip
from protocols.shrinking import shrink, size

RICH = Abilities(takes_images=True, is_byte_exact=True)


def is_case(case: Case) -> bool:
    try:
        promise(case, RICH)
    except Meaningless:
        return False
    return True


def cells_of(case: Case) -> int:
    return promise(case, RICH).cells_each


def kinds(case: Case) -> list[type]:
    return [type(one) for one in case.left.operations]


def test_a_copy_that_fails_from_a_number_of_cells_on_is_left_with_just_these():
    case = next(one for one in (draw_case("copied=single", 1, n, RICH) for n in range(99)) if cells_of(one) > 90)
    small = shrink(case, is_case, lambda one: Copy in kinds(one) and cells_of(one) >= 36)
    assert kinds(small).count(Copy) == 1
    assert cells_of(small) == 36
    assert len(small.left.operations) == 3
    assert len(small.right.operations) == 2
    assert small.left.settings == SessionSettings(sequences=2)


def test_a_left_over_of_another_conversation_is_left_with_one_token_of_each():
    case = next(
        one
        for one in (draw_case("reused=fresh", 2, n, RICH) for n in range(99))
        if Drop in kinds(one) and Image in kinds(one)
    )
    small = shrink(case, is_case, lambda one: Drop in kinds(one))
    assert len(small.left.operations) == 3
    assert Image not in kinds(small)
    assert cells_of(small) == 1
    assert len(small.right.operations) == 1


def test_a_state_that_fails_beside_others_keeps_save_and_restore_only():
    case = next(
        one for one in (draw_case("restored=continued", 4, n, RICH) for n in range(99)) if len(one.left.operations) > 8
    )
    small = shrink(case, is_case, lambda one: {Save, Restore} <= {*kinds(one)} and one.left.settings.kv_type != "f32")
    assert len(small.left.operations) <= 4
    assert small.left.settings.kv_type == "f16" or case.left.settings.kv_type == "f32"


def test_an_image_in_parts_is_left_with_two():
    case = next(
        one
        for one in (draw_case("parts=whole", 1, n, RICH) for n in range(99))
        if Drop in kinds(one) and kinds(one).count(Image) > 4
    )

    def is_between(one: Case) -> bool:
        parts = [at for at, each in enumerate(one.left.operations) if isinstance(each, Image) and each.first]
        return any(kind is Drop for at in parts for kind in kinds(one)[:at])

    small = shrink(case, is_case, is_between)
    assert sorted(kind.__name__ for kind in kinds(small)) == ["Drop", "Evaluate", "Image", "Image", "Step"]
    assert sum(len(one.places) for one in small.left.operations if isinstance(one, Image)) == 4


def test_drafts_and_positions_left_out_become_few():
    case = next(
        one for one in (draw_case("drafts=none", 1, n, RICH) for n in range(99)) if one.left.settings.draft_tokens > 3
    )
    small = shrink(case, is_case, lambda one: any(run.depth > 1 for run in one.left.generations))
    assert [(run.tokens, run.depth) for run in small.left.generations] == [(1, 2)]
    assert (small.left.settings.draft_tokens, small.left.settings.draft_vocabulary) == (2, 0)
    far = draw_case("shifted=unshifted", 1, 0, RICH)
    small = shrink(far, is_case, lambda one: any(isinstance(each, Skip) for each in one.left.operations))
    assert [each.positions for each in small.left.operations if isinstance(each, Skip)] == [1]


@given(
    st.sampled_from(sorted(LAWS)),
    st.integers(min_value=0, max_value=10**6),
    st.sampled_from([Copy, Evaluate, Image, Restore, Drop]),
    st.integers(min_value=1, max_value=60),
)
@settings(max_examples=25, deadline=None)
def test_what_is_left_fails_still_and_the_tries_are_bounded(law: str, number: int, kind: type, least: int):
    case = draw_case(law, 9, number, RICH)

    def fails(one: Case) -> bool:
        tried.append(one)
        return kind in kinds(one) and cells_of(one) >= least

    tried: list[Case] = []
    if not fails(case):
        return
    tried.clear()
    small = shrink(case, is_case, fails, most_tries=60)
    assert len(tried) <= 60
    assert len(set(tried)) == len(tried)
    assert all(is_case(one) for one in tried)
    assert size(small) <= size(case)
    assert fails(small)
    assert len(tried) < 60 or small == case or size(small) < size(case)


def test_a_fixed_point_has_nothing_smaller():
    case = draw_case("beside=alone", 1, 3, RICH)
    small = shrink(case, is_case, lambda one: cells_of(one) >= 5, most_tries=10_000)
    assert shrink(small, is_case, lambda one: cells_of(one) >= 5, most_tries=10_000) == small
    assert cells_of(small) == 5


def test_spare_cells_that_do_not_matter_go_and_others_become_few():
    case = next(
        one for one in (draw_case("roomy=tight", 1, n, RICH) for n in range(99)) if one.left.settings.spare_cells > 99
    )
    assert shrink(case, is_case, lambda _: True).left.settings.spare_cells == 0
    small = shrink(case, is_case, lambda one: one.left.settings.spare_cells >= 40)
    assert 40 <= small.left.settings.spare_cells < 80
