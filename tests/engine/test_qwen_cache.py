"""The cache of qwen4exp: sequences beside each other, copies, saved states, rollback; nobody sees anybody else."""

from __future__ import annotations

import numpy as np
import pytest
from qwen_data import SAME, Image, distance, opened, oracle, stepwise, tiny_model

from engine.build import EngineBuild
from engine.worker import EngineWorker
from protocols.errors import EngineError

BOTH = pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])


class Texts:
    """Two long texts and two short ones, and the logits of the short ones after the long ones, decoded alone."""

    def __init__(self) -> None:
        arrays = oracle("cache")
        self.a, self.b, self.x, self.y = (arrays[name].tolist() for name in ("A", "B", "X", "Y"))
        self.ax, self.by, self.ay = (arrays[f"logits.{name}"] for name in ("AX", "BY", "AY"))


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts()


@BOTH
def test_two_sequences_with_overlapping_positions_each_equal_their_solo_run(
    tiny_a: EngineWorker, texts: Texts, unified: bool
) -> None:
    """Blocks by position alone would make the first one 2.6 off in a unified cache."""
    opened(tiny_a, sequences=2, is_unified=unified)
    tiny_a.decode(texts.a, start=0, sequence=0)
    tiny_a.decode(texts.b, start=0, sequence=1)
    assert distance(tiny_a.decode(texts.x, start=len(texts.a)), texts.ax) < SAME
    assert distance(tiny_a.decode(texts.y, start=len(texts.b), sequence=1), texts.by) < SAME


@BOTH
@pytest.mark.parametrize("ubatch", [512, 10])
def test_sequences_in_one_batch_give_the_same(tiny_a: EngineWorker, texts: Texts, unified: bool, ubatch: int) -> None:
    opened(tiny_a, sequences=2, is_unified=unified, ubatch_tokens=ubatch)
    n_a, n_b = len(texts.a), len(texts.b)
    tiny_a.decode_rows([*texts.a, *texts.b], [*range(n_a), *range(n_b)], sequences=[0] * n_a + [1] * n_b)
    for i, (x, y) in enumerate(zip(texts.x, texts.y, strict=True)):
        both = tiny_a.decode_rows([y, x], [n_b + i, n_a + i], sequences=[1, 0])
        assert distance(both[1], texts.ax[i]) < SAME
        assert distance(both[0], texts.by[i]) < SAME


@BOTH
def test_foreign_content_changes_not_one_byte(tiny_a: EngineWorker, texts: Texts, unified: bool) -> None:
    rng = np.random.default_rng(5)
    seen = []
    for _ in range(3):
        foreign = rng.integers(0, 480, len(texts.b) + 24).tolist()
        opened(tiny_a, sequences=2, is_unified=unified)
        tiny_a.decode(texts.a, start=0, sequence=0)
        tiny_a.decode(foreign[:-24], start=0, sequence=1)
        rows = [tiny_a.decode([texts.x[0]], start=len(texts.a))]
        for i in range(1, 12):
            places = [len(texts.a) + i, len(texts.b) + i - 1]
            rows.append(tiny_a.decode_rows([texts.x[i], foreign[len(texts.b) + i]], places, sequences=[0, 1])[:1])
        seen.append(np.concatenate(rows).tobytes())
    assert len(set(seen)) == 1


def test_where_cells_lie_changes_not_one_byte(tiny_a: EngineWorker, texts: Texts) -> None:
    """Rows are read in rank order: split, unified, scattered and reserved layouts give the same bytes."""
    seen = {}
    for layout in ("alone", "split", "unified", "scattered", "reserved"):
        shared = layout in {"unified", "scattered", "reserved"}
        opened(tiny_a, sequences=3, is_unified=shared, context_tokens=900, is_reserved=layout == "reserved")
        if layout != "alone":
            tiny_a.decode(texts.b[:50], start=0, sequence=1)
        if layout == "scattered":
            tiny_a.decode(texts.b[:9], start=0, sequence=2)
            tiny_a.remove(sequence=1)
        seen[layout] = np.concatenate(
            [tiny_a.decode(texts.a, start=0), stepwise(tiny_a, texts.x, len(texts.a))]
        ).tobytes()
    assert len(set(seen.values())) == 1


def test_reserved_cells_are_nobody_elses(tiny_a: EngineWorker, texts: Texts) -> None:
    opened(tiny_a, sequences=2, is_unified=True, is_reserved=True, context_tokens=200)
    tiny_a.decode(texts.a[:100], start=0, sequence=0)
    with pytest.raises(EngineError, match="needs 1 cells and sequence 0 has 0 free"):
        tiny_a.decode([5], start=100, sequence=0)
    tiny_a.decode(texts.b[:100], start=0, sequence=1)


@BOTH
def test_a_copy_goes_on_like_its_source_and_both_go_on(tiny_a: EngineWorker, texts: Texts, unified: bool) -> None:
    """Without the raw indexer keys a split copy would be 1.1 off."""
    n = len(texts.a)
    opened(tiny_a, sequences=2, is_unified=unified)
    tiny_a.decode(texts.a, start=0)
    tiny_a.copy(0, 1)
    assert distance(tiny_a.decode(texts.y, start=n, sequence=1), texts.ay) < SAME
    assert distance(tiny_a.decode(texts.x, start=n, sequence=0), texts.ax) < SAME
    opened(tiny_a, sequences=2, is_unified=unified)
    tiny_a.decode(texts.a, start=0)
    tiny_a.copy(0, 1)
    together = tiny_a.decode_rows([*texts.x, *texts.y], [*range(n, n + 24)] * 2, sequences=[0] * 24 + [1] * 24)
    assert distance(together, np.concatenate([texts.ax, texts.ay])) < SAME


@pytest.mark.parametrize("offset", range(4))
def test_a_shared_prefix_may_part_at_any_place_in_a_block(tiny_a: EngineWorker, texts: Texts, offset: int) -> None:
    """Buckets keyed by sequence sets would be 0.17 to 0.52 off where the parting lies inside a block."""
    whole, cut = [*texts.a, *texts.x], len(texts.a) + offset
    opened(tiny_a)
    needed = tiny_a.decode(whole, start=0)[cut:]
    other = [*whole[:cut], *texts.y]
    opened(tiny_a)
    needed_other = tiny_a.decode(other, start=0)[cut:]
    opened(tiny_a, sequences=2, is_unified=True)
    tiny_a.decode(whole[:cut], start=0)
    cells = tiny_a.sequence(0)["cells"]
    tiny_a.copy(0, 1)
    assert tiny_a.sequence(1)["cells"] == cells
    assert distance(stepwise(tiny_a, texts.y, cut, sequence=1), needed_other) < SAME
    assert distance(tiny_a.decode(whole[cut:], start=cut, sequence=0), needed) < SAME
    # Whoever stays behind when the other goes is alone in the cells again.
    tiny_a.remove(sequence=0)
    assert tiny_a.sequence(1)["cells"] == cells + len(texts.y)


@BOTH
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_state_goes_into_another_sequence_and_layout_and_saves_to_the_same_bytes(
    tiny_a: EngineWorker, texts: Texts, unified: bool, drafts: int
) -> None:
    opened(tiny_a, sequences=3, is_unified=unified, draft_tokens=drafts)
    tiny_a.decode(texts.a, start=0, sequence=1)
    state = tiny_a.save(1)
    for other in (False, True):
        opened(tiny_a, sequences=3, is_unified=other, draft_tokens=drafts)
        tiny_a.decode(texts.b[:40], start=0, sequence=0)
        tiny_a.decode(texts.b[:30], start=0, sequence=1)
        tiny_a.remove(sequence=0)
        tiny_a.restore(2, state)
        assert tiny_a.save(2) == state
        assert distance(tiny_a.decode(texts.x, start=len(texts.a), sequence=2), texts.ax) < SAME
        tiny_a.restore(2, state)
        assert tiny_a.save(2) == state
        assert distance(stepwise(tiny_a, texts.y, len(texts.a), 2), texts.ay) < SAME


@BOTH
def test_a_state_with_an_image_keeps_its_rows_and_columns(tiny_a: EngineWorker, unified: bool) -> None:
    """Cells that come back with y = x = 0 would make the text after them 0.70 off."""
    image = Image("tiny-a")
    for cut in (image.end + 5, image.first + 11):
        opened(tiny_a, sequences=2, is_unified=unified)
        image.decode(tiny_a, 0, cut)
        state = tiny_a.save(0)
        opened(tiny_a, sequences=2, is_unified=not unified)
        tiny_a.decode([1, 2, 3], start=0, sequence=0)
        tiny_a.restore(1, state)
        assert tiny_a.save(1) == state
        assert distance(image.decode(tiny_a, cut, len(image.ids), 1), image.logits[cut:]) < SAME


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_states_of_smaller_types_round_trip(tiny_a: EngineWorker, texts: Texts, kv_type: str) -> None:
    opened(tiny_a, kv_type=kv_type)
    tiny_a.decode(texts.a, start=0)
    state = tiny_a.save(0)
    needed = tiny_a.decode(texts.x, start=len(texts.a))
    tiny_a.restore(0, state)
    assert tiny_a.save(0) == state
    assert (tiny_a.decode(texts.x, start=len(texts.a)) == needed).all()


def test_what_is_no_state_of_this_session_is_refused_and_changes_nothing(
    tiny_a: EngineWorker, tiny_b: EngineWorker, texts: Texts
) -> None:
    opened(tiny_b)
    tiny_b.decode(texts.a[:9], start=0)
    foreign = tiny_b.save(0)
    opened(tiny_a)
    tiny_a.decode(texts.a[:50], start=0)
    state = tiny_a.save(0)
    middle = len(state) // 2
    flipped = [state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :] for at in (0, 9, 60, 100, middle, len(state) - 1)]
    bad = [b"", state[:40], state[:-1], state + b"x", foreign, *flipped]
    for candidate in bad:
        with pytest.raises(EngineError, match="cannot restore the state"):
            tiny_a.restore(0, candidate)
        assert tiny_a.save(0) == state
    with pytest.raises(EngineError, match="another model"):
        tiny_a.restore(0, foreign)
    opened(tiny_a, kv_type="f16")
    with pytest.raises(EngineError, match="holds f32 rows, this session has f16"):
        tiny_a.restore(0, state)
    opened(tiny_a, context_tokens=40)
    with pytest.raises(EngineError, match="50 cells, 40 are free"):
        tiny_a.restore(0, state)
    opened(tiny_a, draft_tokens=1)
    with pytest.raises(EngineError, match="saved without drafts"):
        tiny_a.restore(0, state)


@BOTH
@pytest.mark.parametrize("count", range(7))
def test_up_to_the_snapshots_tokens_can_be_taken_back(
    tiny_a: EngineWorker, texts: Texts, unified: bool, count: int
) -> None:
    n = len(texts.a)
    opened(tiny_a, sequences=2, is_unified=unified, rollback_tokens=6)
    tiny_a.decode(texts.a, start=0)
    wrong = [7] * count
    tiny_a.decode([*texts.y[:7], *wrong], start=n)
    end = n + 7
    if count:
        tiny_a.remove(sequence=0, start=end)
    assert tiny_a.sequence(0) == {"last": end - 1, "cells": end}
    assert distance(tiny_a.decode(texts.y[7:], start=end), texts.ay[7:]) < SAME


def test_single_steps_can_be_taken_back_together(tiny_a: EngineWorker, texts: Texts) -> None:
    n = len(texts.a)
    opened(tiny_a, rollback_tokens=4)
    tiny_a.decode(texts.a, start=0)
    stepwise(tiny_a, [9, 8, 7, 6], n)
    tiny_a.remove(sequence=0, start=n)
    assert distance(tiny_a.decode(texts.x, start=n), texts.ax) < SAME


def test_what_the_recurrent_state_cannot_do_is_refused_and_changes_nothing(tiny_a: EngineWorker, texts: Texts) -> None:
    n = len(texts.a)
    opened(tiny_a, sequences=2, rollback_tokens=3)
    tiny_a.decode(texts.a, start=0)
    tiny_a.decode(texts.y[:5], start=n)
    state = tiny_a.save(0)

    def refused(words: str, action: object, *arguments: object, **named: object) -> None:
        with pytest.raises(EngineError, match=words):
            action(*arguments, **named)  # type: ignore[operator]
        assert tiny_a.save(0) == state

    refused(
        "4 tokens of sequence 0 cannot be taken back, the recurrent state goes back 3",
        tiny_a.remove,
        sequence=0,
        start=n + 1,
    )
    refused("cannot forget tokens in the middle", tiny_a.remove, sequence=0, start=5, end=9)
    refused("cannot forget tokens in the middle", tiny_a.remove, sequence=0, start=0, end=9)
    refused("only whole sequences", tiny_a.copy, 0, 1, end=20)
    refused("cannot be shifted", tiny_a.shift, 0, 3)
    refused("positions rise", tiny_a.decode, [1], start=n + 4)
    tiny_a.remove(sequence=0, start=n + 3)
    state = tiny_a.save(0)
    refused("goes back 0", tiny_a.remove, sequence=0, start=n + 2)
    tiny_a.remove(sequence=0, start=n + 3)  # nothing is there
    assert distance(tiny_a.decode(texts.y[3:], start=n + 3), texts.ay[3:]) < SAME
    tiny_a.remove(sequence=0)
    assert tiny_a.sequence(0) == {"last": -1, "cells": 0}
    tiny_a.decode(texts.a, start=0)
    assert distance(tiny_a.decode(texts.x, start=n), texts.ax) < SAME


def test_a_full_cache_refuses_a_batch_and_changes_nothing(tiny_a: EngineWorker, texts: Texts) -> None:
    opened(tiny_a, context_tokens=len(texts.a) + 24, draft_tokens=2)
    tiny_a.decode(texts.a, start=0)
    state = tiny_a.save(0)
    with pytest.raises(EngineError, match="needs 25 cells"):
        tiny_a.decode([*texts.x, 1], start=len(texts.a))
    assert tiny_a.save(0) == state
    assert distance(tiny_a.decode(texts.x, start=len(texts.a)), texts.ax) < SAME


@pytest.mark.parametrize("first", [0, 3000, 3001, 2_000_000])
def test_a_sequence_may_begin_anywhere(tiny_a: EngineWorker, texts: Texts, first: int) -> None:
    """Buckets by position would need as many as the positions, and be 1.7 off at a start inside a block."""
    opened(tiny_a)
    found = [tiny_a.decode(texts.a, start=first), stepwise(tiny_a, texts.x, first + len(texts.a))]
    opened(tiny_a, has_plain_operators=True, ubatch_tokens=16)
    again = tiny_a.decode([*texts.a, *texts.x], start=first)
    assert np.isfinite(again).all()
    # Turning by large angles is less exact in single precision.
    assert distance(np.concatenate(found), again) < (SAME if first < 10_000 else 0.5)
    assert tiny_a.sequence(0)["last"] == first + len(texts.a) + 23


def test_gaps_between_positions_are_no_gaps_between_ranks(tiny_a: EngineWorker, texts: Texts) -> None:
    """By position, both predecessors of the token after the gap would be the one before it: 3.1 off."""
    arrays = oracle("cache")
    tokens = [*texts.a, *texts.x]
    for ubatch in (512, 7):
        opened(tiny_a, ubatch_tokens=ubatch)
        found = tiny_a.decode_rows(tokens, arrays["hole.pos"].tolist())
        assert distance(found[-24:], arrays["hole.logits_rank"]) < SAME


def test_filled_cells_can_be_followed(tiny_a: EngineWorker, texts: Texts) -> None:
    opened(tiny_a, draft_tokens=2)
    tiny_a.fill_zero(100)
    assert tiny_a.sequence(0) == {"last": 99, "cells": 100}
    assert np.isfinite(tiny_a.decode(texts.x, start=100)).all()


def test_work_counters_are_exact_from_run_to_run(tiny_a: EngineWorker, texts: Texts) -> None:
    seen = []
    for _ in range(2):
        opened(tiny_a, sequences=2, draft_tokens=3)
        tiny_a.decode(texts.a, start=0)
        stepwise(tiny_a, texts.x, len(texts.a))
        tiny_a.copy(0, 1)
        tiny_a.draft_round(5, left=9, depth=3, sequence=1)
        seen.append(tiny_a.work())
    assert seen[0] == seen[1]
    assert seen[0]["n_runs_guarded"] > 24
    assert seen[0]["n_tokens_evaluated"] == len(texts.a) + 24 + 4


def test_host_work_of_a_step_does_not_grow_with_the_context(tiny_a: EngineWorker) -> None:
    steps = {}
    for depth in (512, 4096, 32768):
        opened(tiny_a, context_tokens=depth + 64, kv_type="f16")
        tiny_a.fill_zero(depth)
        tiny_a.decode([1, 2, 3, 4], start=depth, rows="none")
        tiny_a.work(reset=True)
        stepwise(tiny_a, [5, 6, 7, 8], depth + 4)
        work = tiny_a.work()
        steps[depth] = (work["n_mapping_steps"], work["n_cells_visited"], work["n_scans"])
    assert len(set(steps.values())) == 1, steps
    assert steps[512][2] == 0


def test_bucket_policy_is_another_policy(tiny_a: EngineWorker, texts: Texts) -> None:
    """Equal where positions are 0, 1, 2, ...; as far off as the published ones where they are not."""
    n = len(texts.a)
    opened(tiny_a, is_bucket=True)
    tiny_a.decode(texts.a, start=0)
    assert distance(tiny_a.decode(texts.x, start=n), texts.ax) < SAME
    opened(tiny_a, is_bucket=True, sequences=2, is_unified=True)
    tiny_a.decode(texts.a, start=0)
    tiny_a.decode(texts.b, start=0, sequence=1)
    assert distance(tiny_a.decode(texts.x, start=n), texts.ax) < SAME
    image = Image("tiny-a")
    opened(tiny_a, is_bucket=True)
    assert distance(image.decode_all(tiny_a), image.logits) < SAME
    opened(tiny_a, is_bucket=True)
    hole = oracle("cache")
    off = distance(tiny_a.decode_rows([*texts.a, *texts.x], hole["hole.pos"].tolist())[-24:], hole["hole.logits_rank"])
    assert 0.9 < off < 1.4
    opened(tiny_a, is_bucket=True, sequences=2, is_unified=True)
    tiny_a.decode(texts.a, start=0)
    tiny_a.copy(0, 1)
    tiny_a.decode(texts.y, start=n, sequence=1)
    assert 0.1 < distance(tiny_a.decode(texts.x, start=n, sequence=0), texts.ax) < 0.6


@pytest.mark.parametrize("context", [1, 3])
def test_a_context_smaller_than_a_block_aborts_under_neither_policy(
    bundled_build: EngineBuild, texts: Texts, context: int
) -> None:
    """A search found it: a graph over no block ended the process."""
    with EngineWorker(bundled_build.library) as worker:
        worker.load(tiny_model("tiny-a"))
        by_rank, by_bucket = (
            opened(worker, context_tokens=context, is_bucket=is_bucket).decode(texts.a[:context], start=0)
            for is_bucket in (False, True)
        )
    assert distance(by_bucket, by_rank) < SAME
