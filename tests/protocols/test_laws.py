"""Laws: every drawn pair means the same, follows from its seed, and survives JSON."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.draws import Abilities, Draw
from protocols.history import Meaningless
from protocols.laws import LAWS, ROUNDING, TOLERANCE, Case, draw_case, promise, unmet_need
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
    SessionSettings,
    Skip,
    Step,
)

RICH = Abilities(takes_images=True, is_byte_exact=True)
PLAIN = Abilities(takes_images=False, is_byte_exact=False)
drawn = st.builds(
    draw_case,
    st.sampled_from(sorted(LAWS)),
    st.integers(min_value=0, max_value=2**64 - 1),
    st.integers(min_value=0, max_value=10**6),
    st.sampled_from([RICH, PLAIN]),
)


@given(drawn)
@settings(max_examples=200, deadline=None)
def test_a_drawn_case_means_the_same_on_both_sides_and_comes_back_from_json(case: Case):
    assert promise(case, RICH).cells_each > 0
    assert Case.model_validate_json(case.model_dump_json()) == case


@given(
    st.sampled_from(sorted(LAWS)), st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=0, max_value=99)
)
@settings(max_examples=50, deadline=None)
def test_a_case_follows_from_law_seed_and_number(law: str, seed: int, number: int):
    case = draw_case(law, seed, number, RICH)
    assert case == draw_case(law, seed, number, RICH)
    assert len({draw_case(law, seed, other, RICH) for other in range(10)}) > 5


def test_the_cases_of_a_seed_are_the_same_on_every_host():
    cases = [draw_case(law, 1, number, RICH).model_dump(mode="json") for law in LAWS for number in range(5)]
    found = hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()
    assert found.startswith("698ca14ffc8f")


def test_numbers_are_the_outputs_of_splitmix64():
    draw = Draw(0)
    assert [draw.below(2**64) for _ in range(2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    lengths = [draw.length(100) for _ in range(2000)]
    assert (min(lengths), max(lengths)) == (1, 100)


@pytest.mark.parametrize(
    ("law", "kind"),
    [
        ("copied=single", Copy),
        ("restored=continued", Restore),
        ("rolled-back=never", Cut),
        ("shifted=unshifted", Skip),
        ("hole=none", Skip),
    ],
)
def test_the_left_history_has_what_must_not_matter(law: str, kind: type):
    cases = [draw_case(law, 3, number, RICH) for number in range(20)]
    with_it = [case for case in cases if any(isinstance(one, kind) for one in case.left.operations)]
    assert len(with_it) > 12
    assert not any(isinstance(one, kind) for case in cases for one in case.right.operations)


def test_every_law_reaches_beyond_the_budget_of_sparse_attention_and_into_every_setting():
    for law in LAWS:
        cases = [draw_case(law, 5, number, RICH) for number in range(60)]
        assert sum(promise(case, RICH).cells_each > 70 for case in cases) > 15, law
        kinds = {"f32"} if law == "shifted=unshifted" else {"f32", "f16", "q8_0"}
        assert {case.left.settings.kv_type for case in cases} == kinds
        assert {case.right.settings.is_unified for case in cases} >= {True}, law


def test_the_left_history_has_the_other_form_or_way():
    def sides(law: str) -> list[tuple[History, History]]:
        return [(case.left, case.right) for case in (draw_case(law, 3, number, RICH) for number in range(20))]

    for left, right in sides("axes=position"):
        (form,) = {one.coordinates for one in left.operations if isinstance(one, Evaluate | Step)}
        assert form != "p"
        assert {one.coordinates for one in right.operations if isinstance(one, Evaluate | Step)} == {"p"}
    for left, right in sides("drafts=none"):
        assert all(1 <= one.depth <= left.settings.draft_tokens for one in left.generations)
        assert {one.depth for one in right.generations} == {right.settings.draft_tokens} == {0}
    assert {left.settings.draft_vocabulary > 0 for left, _ in sides("drafts=none")} == {True, False}
    for left, right in sides("bucket=rank"):
        assert (left.settings.is_bucket, right.settings.is_bucket) == (True, False)
        assert left.operations == right.operations
    images = [one for left, _ in sides("parts=whole") for one in left.operations if isinstance(one, Image)]
    assert sum(one.first > 0 for one in images) > 12
    with_images = [left for left, _ in sides("bucket=rank") if any(isinstance(one, Image) for one in left.operations)]
    assert len(with_images) > 2


def test_wide_ubatches_and_spare_cells_are_as_large_as_a_small_model_can_bear():
    small = Abilities(takes_images=True, is_byte_exact=True, is_small=True)
    for abilities, most_tokens, most_spare in ((RICH, 1536, 4096), (small, 8192, 262_144)):
        wide = [draw_case("wide=narrow", 3, number, abilities) for number in range(20)]
        assert {(one.left.settings.ubatch_tokens, one.right.settings.ubatch_tokens) for one in wide} == {(8192, 512)}
        tokens = [one.left.operations[0].runs[0].tokens for one in wide]  # type: ignore[union-attr]
        assert 512 < min(tokens) <= 1536
        assert max(tokens) <= most_tokens
        assert (8192 in tokens) == (most_tokens == 8192)
        roomy = [draw_case("roomy=tight", 3, number, abilities) for number in range(20)]
        assert max(one.left.settings.spare_cells for one in roomy) == most_spare
        assert {one.right.settings.spare_cells for one in roomy} == {0}
        assert {one.left.settings.ubatch_tokens for one in roomy} >= {1024}


def test_a_model_without_images_is_told_what_a_law_needs():
    assert {law for law in LAWS if unmet_need(law, PLAIN)} == {
        "parts=whole",
        "axes=position",
        "bucket=rank",
        "hole=none",
    }
    assert not any(unmet_need(law, RICH) for law in LAWS)


def case_of(left: list[object], right: list[object], left_settings: object = None) -> Case:
    plain = SessionSettings(sequences=2)
    return Case(
        law="beside=alone",
        seed=1,
        left=History(settings=left_settings or plain, operations=tuple(left)),
        right=History(settings=plain, operations=tuple(right)),
    )


def text(sequence: int, tokens: int, conversation: str = "A") -> Evaluate:
    return Evaluate(runs=(Run(sequence=sequence, conversation=conversation, tokens=tokens),))


STEP = Step(sequence=0, conversation="A", tokens=1)


def test_bytes_are_promised_where_equal_ubatches_hold_the_same_rows_and_a_difference_elsewhere():
    same = case_of([text(1, 3, "B"), text(0, 4), STEP], [text(0, 4), STEP])
    assert (promise(same, RICH).is_bytes, promise(same, RICH).tolerance) == (True, 0.0)
    assert (promise(same, PLAIN).is_bytes, promise(same, PLAIN).tolerance) == (False, TOLERANCE["f32"])
    chunked = case_of([text(0, 1), text(0, 3), STEP], [text(0, 4), STEP])
    assert (promise(chunked, RICH).is_bytes, promise(chunked, RICH).tolerance) == (False, TOLERANCE["f32"])
    half = Abilities(takes_images=True, is_byte_exact=True, weights="half")
    assert (promise(same, half).tolerance, promise(chunked, half).tolerance) == (0.0, ROUNDING["half"])
    small = case_of([text(0, 4), STEP], [text(0, 4), STEP], SessionSettings(sequences=2, ubatch_tokens=3))
    assert not promise(small, RICH).is_bytes


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([text(0, 4)], [text(0, 4)]),
        ([text(0, 4), STEP], [text(0, 5), STEP]),
        ([text(0, 4), STEP, STEP], [text(0, 4), STEP]),
        ([text(0, 4, "B"), STEP], [text(0, 4), STEP]),
        ([Drop(sequence=0), text(0, 4), STEP], [text(0, 4), STEP]),
    ],
)
def test_a_pair_that_does_not_mean_the_same_is_no_case(left: list[object], right: list[object]):
    with pytest.raises(Meaningless):
        promise(case_of(left, right), RICH)


def test_equal_work_is_promised_where_only_the_writing_of_positions_differs():
    written = [one.model_copy(update={"coordinates": "ppp0"}) for one in (text(0, 4), STEP)]
    case = case_of(written, [text(0, 4), STEP])
    assert (promise(case, RICH).is_bytes, promise(case, RICH).is_work) == (True, True)
    assert not promise(case_of([text(1, 1), *written], [text(0, 4), STEP]), RICH).is_work
    assert not promise(case_of([text(0, 4), STEP], [text(0, 4), STEP]), RICH).is_work


def test_spare_cells_change_neither_bytes_nor_work():
    case = case_of([text(0, 4), STEP], [text(0, 4), STEP], SessionSettings(sequences=2, spare_cells=9))
    assert (promise(case, RICH).is_bytes, promise(case, RICH).is_work) == (True, True)


def test_positions_that_are_left_out_change_logits_and_no_work():
    hole, plain = Skip(sequence=0, positions=3), [text(0, 4), STEP]
    with pytest.raises(Meaningless, match="same tokens"):
        promise(case_of([text(0, 4), hole, STEP], plain), RICH)

    def of_work(left: list[object], right: list[object], settings: object = None) -> Case:
        return case_of(left, right, settings).model_copy(update={"law": "hole=none"})

    found = promise(of_work([text(0, 4), hole, STEP], plain), RICH)
    assert (found.is_logits, found.is_work, found.cells_each, found.text()) == (False, True, 5, "work")
    run = Generate(sequence=0, conversation="A", tokens=3)
    bucket = SessionSettings(sequences=2, is_bucket=True)
    for left, right, other, words in (
        ([text(0, 3), hole, STEP], plain, None, "differ by more"),
        ([text(0, 4), hole, STEP], plain, SessionSettings(sequences=2, ubatch_tokens=7), "differ by more"),
        ([text(0, 4), hole, STEP, run], [*plain, run], None, "chosen by logits"),
        ([text(0, 4), hole, text(0, 1)], [text(0, 4), text(0, 1)], None, "no compared step"),
    ):
        with pytest.raises(Meaningless, match=words):
            promise(of_work(left, right, other), RICH)
    both = of_work([text(0, 4), hole, STEP], plain, bucket)
    both = both.model_copy(update={"right": both.right.model_copy(update={"settings": bucket})})
    with pytest.raises(Meaningless, match="other blocks"):
        promise(both, RICH)


def test_bytes_are_not_promised_for_other_positions_other_policies_and_drafts():
    plain = [text(0, 4), STEP]
    assert not promise(case_of([Skip(sequence=0, positions=3), *plain], plain), RICH).is_bytes
    assert not promise(case_of(plain, plain, SessionSettings(sequences=2, is_bucket=True)), RICH).is_bytes
    run = Generate(sequence=0, conversation="A", tokens=3)
    drafts = SessionSettings(sequences=2, draft_tokens=2)
    drafted = case_of([run.model_copy(update={"depth": 2}), STEP], [run, STEP], drafts)
    assert (promise(drafted, RICH).is_bytes, promise(drafted, RICH).tolerance) == (False, TOLERANCE["f32"])
    assert promise(case_of([run], [run], drafts), RICH).is_bytes


def test_policies_with_other_blocks_and_other_counts_of_chosen_tokens_are_no_case():
    bucket = SessionSettings(sequences=2, is_bucket=True, is_unified=True)
    image = Image(sequence=0, conversation="A", side=2)
    with pytest.raises(Meaningless, match="other blocks"):
        promise(case_of([text(1, 3, "B"), image, STEP], [image, STEP], bucket), RICH)
    run = Generate(sequence=0, conversation="A", tokens=3)
    with pytest.raises(Meaningless, match="as many"):
        promise(case_of([run], [run.model_copy(update={"tokens": 4})]), RICH)


def test_caches_of_different_types_are_no_case():
    with pytest.raises(Meaningless, match="different types"):
        promise(case_of([STEP], [STEP], SessionSettings(sequences=2, kv_type="f16")), RICH)
