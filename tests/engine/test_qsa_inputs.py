"""The inputs of block selection equal an independent reference byte for byte, and cost what they are said to cost."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
from collections.abc import Sequence

import numpy as np
import pytest
from qsa_library import INPUTS, MASKS, NOWHERE, CellArrays, Library, QsaError, Row, Tracker
from qsa_reference import selection_inputs

from engine.build import EngineBuild, installed_build
from protocols.errors import EngineError

RATIO = 4
POLICIES = ("rank", "bucket")
OFFSETS = (0, 1, 3, 3000)
TAILS = (0, 1, 2, 3)
STREAMS = ("split", "unified", "unified fragmented")
BATCHES = (1, 7, 512)
COUNT_FORM, MASK_FORM = INPUTS, (*INPUTS[:3], *MASKS)
N_HISTORY = 96


@pytest.fixture(scope="module")
def build() -> EngineBuild:
    try:
        return installed_build()
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")


def lay_out(stream: str, offset: int, n_own: int) -> tuple[CellArrays, list[Row]]:
    """Return cells with one text sequence of n_own tokens, and another one beside it unless the cache is split."""
    n_cells = 1024
    step = 389 if stream == "unified fragmented" else 1
    order = [(3 + step * index) % n_cells if step > 1 else index for index in range(n_cells)]
    cells = CellArrays(n_cells)
    if stream != "split":
        for t in range(100):
            cells.put(Row(order.pop(0), t, t, t), [1])
    rows = [Row(order[index], *(offset + index,) * 3) for index in range(n_own)]
    for row in rows:
        cells.put(row, [0])
    cells.refresh()
    return cells, rows


def keys_of(rows: Sequence[Row]) -> np.ndarray:
    return np.array([(row.t, row.y, row.x) for row in rows], np.int32)


def sha256(name: str, data: np.ndarray) -> str:
    return hashlib.sha256(f"{name} {data.dtype} {data.shape}\n".encode() + data.tobytes()).hexdigest()


@pytest.mark.parametrize("policy", POLICIES)
def test_both_paths_and_the_reference_give_the_same_bytes_over_the_grid(qsa: Library, policy: str) -> None:
    """288 cases a policy: offsets, tails, streams, batches, and each in both bias forms."""
    n_cases = n_guarded = 0
    for offset, tail, stream, batch in itertools.product(OFFSETS, TAILS, STREAMS, BATCHES):
        n_own = N_HISTORY + -(-batch // RATIO) * RATIO + tail
        cells, rows = lay_out(stream, offset, n_own)
        history, run = rows[:-batch], rows[-batch:]
        expected = selection_inputs(cells.stream(), 0, keys_of(run), ratio=RATIO, policy=policy)
        with Tracker(qsa, 0, ratio=RATIO, policy=policy) as kept, Tracker(qsa, 0, ratio=RATIO, policy=policy) as other:
            kept.select(cells, history)
            kept.computed()
            kept.select(cells, run)
            other.changed("restored")
            other.select(cells, run)
            assert other.route != "guarded"
            n_guarded += kept.route == "guarded"
            for form in (COUNT_FORM, MASK_FORM):
                n_cases += 1
                for name in form:
                    wanted = sha256(name, expected[name])
                    case = (policy, offset, tail, stream, batch, name)
                    assert sha256(name, kept.input(name)) == wanted, case
                    assert sha256(name, other.input(name)) == wanted, case
    assert n_cases == 288
    # By buckets, an offset beside another sequence is for the scan; all else is guarded.
    assert n_guarded == (144 if policy == "rank" else 144 - 3 * 4 * 2 * 3)


def test_an_image_and_its_neighbours_equal_the_reference_in_both_forms(qsa: Library) -> None:
    for policy, n_others, height, width in itertools.product(POLICIES, (0, 20), (1, 3), (1, 2, 5)):
        cells = CellArrays(512)
        for t in range(n_others):
            cells.put(Row(300 + t, t, t, t), [1])
        spread = iter(range(290, -1, -1))  # backwards: cell order is no rank order
        text = [Row(next(spread), t, t, t) for t in range(30)]
        image = [Row(next(spread), 30, 30 + a, 30 + b, is_image=True) for a in range(height) for b in range(width)]
        after = 30 + max(height, width)
        more = [Row(next(spread), t, t, t) for t in range(after, after + 9)]
        with Tracker(qsa, 0, ratio=RATIO, policy=policy) as tracker:
            half = (len(image) + 1) // 2
            for rows in filter(None, (text, image[:half], image[half:], more)):
                for row in rows:
                    cells.put(row, [0])
                cells.refresh()
                tracker.select(cells, rows)
                expected = selection_inputs(cells.stream(), 0, keys_of(rows), ratio=RATIO, policy=policy)
                for name, wanted in expected.items():
                    assert tracker.input(name).tobytes() == wanted.tobytes(), (policy, n_others, height, width, name)
                tracker.computed()


def steps_of_decode(qsa: Library, context: int, *, scans: bool) -> list[int]:
    """Return the mapping steps of eight runs of one token at the end of a context."""
    cells = CellArrays(context + 8)
    cells.axes[:] = np.arange(context + 8, dtype=np.int32)
    cells.axes[0, context:] = 2**31 - 1
    cells.sets[:context, 0] = 1
    cells.refresh()
    steps = []
    with Tracker(qsa, 0, ratio=RATIO, policy="rank") as tracker:
        tracker.changed("restored")
        tracker.select(cells, [Row(context - 1, *(context - 1,) * 3)])
        tracker.computed()
        before = tracker.number("n_mapping_steps")
        for cell in range(context, context + 8):
            cells.put(Row(cell, cell, cell, cell), [0])
            cells.refresh()
            if scans:
                tracker.changed("copied", 2**31 - 1)
            tracker.select(cells, [Row(cell, cell, cell, cell)])
            assert tracker.route == ("general" if scans else "guarded")
            assert tracker.number("n_own") == cell + 1
            assert tracker.number("first_new_own") == cell, "the tables are extended, not written again"
            assert tracker.number("first_new_block") == tracker.number("first_stale_block") == cell // RATIO
            tracker.computed()
            now = tracker.number("n_mapping_steps")
            steps.append(now - before)
            before = now
    return steps


def test_a_decode_step_costs_the_same_mapping_steps_at_every_context(qsa: Library) -> None:
    # One row, five entries of its query, and four members where the token completes a block.
    for context in (8192, 65536, 262144, 1048576):
        assert steps_of_decode(qsa, context, scans=False) == [6, 6, 6, 10] * 2
    small, large = (sum(steps_of_decode(qsa, context, scans=True)) for context in (8192, 65536))
    assert large > 7 * small, "the scan does grow"


def test_the_last_of_a_million_cells_is_named_exactly(qsa: Library) -> None:
    context = 2**20
    cells = CellArrays(context)
    cells.axes[:] = np.arange(context, dtype=np.int32)
    cells.sets[:, 3] = 1 << 63
    cells.refresh()
    with Tracker(qsa, 255, ratio=RATIO, policy="rank") as tracker:
        tracker.changed("restored")
        tracker.select(cells, [Row(context - 1, *(context - 1,) * 3)])
        assert tracker.input("own_cells")[-1] == context - 1
        assert tracker.input("block_cells")[-1].tolist() == list(range(context - 4, context))
        assert tracker.input("visible_blocks").tolist() == [context // 4]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cell_that_is_written_again_makes_its_block_stale_although_another_one_has_its_coordinates(
    qsa: Library, policy: str
) -> None:
    cells = CellArrays(32)
    rows = [Row(10 + t, t, t, t) for t in range(4)]
    twin = Row(20, 3, 3, 3)
    for row in (*rows, twin):
        cells.put(row, [0])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy=policy) as tracker:
        tracker.select(cells, [*rows, twin])
        tracker.computed()
        assert (tracker.reason, tracker.number("n_blocks")) == ("equal-coordinates", 1)
        tracker.select(cells, [rows[3]])
        assert tracker.number("first_stale_block") == 0


def test_a_cell_that_is_written_again_makes_its_block_stale_although_blocks_interleave(qsa: Library) -> None:
    # Ranks 0, 2, 4, 6 belong to sequence 0 alone, the others to 1 as well: two whole blocks in one bucket.
    cells = CellArrays(32)
    rows = [Row(10 + rank, *(rank // 2,) * 3) for rank in range(8)]
    for rank, row in enumerate(rows):
        cells.put(row, [0] if rank % 2 == 0 else [0, 1])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy="bucket") as tracker:
        tracker.select(cells, rows)
        tracker.computed()
        assert tracker.input("block_cells").tolist() == [[10, 12, 14, 16], [11, 13, 15, 17]]
        tracker.select(cells, [rows[6]])
        assert tracker.number("first_stale_block") == 0


@pytest.mark.parametrize("hole", [(), (9,)])
def test_a_kept_prefix_that_is_not_the_sequence_is_told(qsa: Library, hole: tuple[int, ...]) -> None:
    cells = CellArrays(32)
    rows = [Row(10 + rank, t, t, t) for rank, t in enumerate((0, 1, 2, 3, *hole))]
    for row in rows:
        cells.put(row, [0])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy="rank") as tracker:
        tracker.select(cells, rows)
        assert tracker.compare_rebuilt(cells) == "equal"
        next_t = rows[-1].t + 1
        cells.put(Row(20, next_t, next_t, next_t), [0])  # nobody told the tracker
        cells.refresh()
        assert tracker.compare_rebuilt(cells) == "differs"


def test_the_first_two_cells_may_have_the_same_coordinates(qsa: Library) -> None:
    cells = CellArrays(8)
    rows = [Row(0, 0, 0, 0), Row(5, 0, 0, 0)]
    for row in rows:
        cells.put(row, [0])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy="rank") as tracker:
        tracker.select(cells, rows)
        assert tracker.reason == "equal-coordinates"
        assert tracker.input("own_cells").tolist() == [0, 5]


def test_an_image_of_the_first_two_cells_makes_ranks_of_positions(qsa: Library) -> None:
    cells = CellArrays(32)
    rows = [Row(0, 0, 0, 0, is_image=True), Row(1, 0, 0, 1, is_image=True), *(Row(t, t, t, t) for t in range(2, 8))]
    for row in rows:
        cells.put(row, [0])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy="bucket") as tracker:
        tracker.select(cells, rows)
        assert tracker.input("block_cells").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert tracker.input("block_at").tolist() == [[0, 0, 0], [4, 4, 4]]


def test_blocks_that_an_image_collapsed_are_made_anew_when_the_others_are_gone(qsa: Library) -> None:
    cells = CellArrays(32)
    rows = [Row(0, 0, 0, 0, is_image=True), Row(1, 0, 0, 1, is_image=True), *(Row(t, t, t, t) for t in range(2, 8))]
    other, last = Row(20, 0, 0, 0), Row(8, 8, 8, 8)
    for row in rows:
        cells.put(row, [0])
    cells.put(other, [1])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy="bucket") as tracker:
        tracker.select(cells, rows)
        tracker.computed()
        assert (tracker.route, tracker.input("block_cells").tolist()) == ("masked", [[4, 5, 6, 7]])
        cells.put(other._replace(t=NOWHERE), [])
        cells.put(last, [0])
        cells.refresh()
        tracker.select(cells, [last])
        assert (tracker.route, tracker.input("block_cells").tolist()) == ("guarded", [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_a_whole_block_counts_beside_cells_of_its_bucket_that_are_none(qsa: Library) -> None:
    cells = CellArrays(32)
    rows = [Row(0, 0, 0, 0), *(Row(10 + t, t, t, t) for t in range(4))]
    for row in rows:
        cells.put(row, [0] if row.cell == 0 else [0, 1])
    cells.refresh()
    with Tracker(qsa, 0, ratio=RATIO, policy="bucket") as tracker:
        tracker.select(cells, rows)
        assert tracker.input("block_cells").tolist() == [[10, 11, 12, 13]]


def test_a_call_that_makes_no_sense_is_refused_in_words(qsa: Library) -> None:
    for sequence, ratio, problem in ((256, 4, "below 256"), (0, 1, "at least two cells")):
        with pytest.raises(QsaError, match=problem):
            Tracker(qsa, sequence, ratio=ratio, policy="rank")
    with Tracker(qsa, 0, ratio=4, policy="rank") as tracker:
        cells = CellArrays(8)
        cells.put(Row(5, 0, 0, 0), [0])
        cells.refresh()
        with pytest.raises(QsaError, match="cell 3 of a run is free"):
            tracker.select(cells, [Row(3, 0, 0, 0)])
        for row, problem in (
            (Row(8, 0, 0, 0), "cell 8 of a run lies outside the stream"),
            (Row(5, 1, 0, 0), "cell 5 of a run stands at other coordinates"),
            (Row(5, 0, 0, 1), "cell 5 of a run stands at other coordinates"),
            (Row(6, -1, -1, -1), "cell 6 of a run has a negative position"),
            (Row(7, 0, 0, 0), "cell 7 of a run belongs to other sequences only"),
        ):
            cells.put(Row(6, -1, -1, -1), [0])
            cells.put(Row(7, 0, 0, 0), [1])
            cells.refresh()
            with pytest.raises(QsaError, match=problem):
                tracker.select(cells, [row])
        cells.end = 5
        with pytest.raises(QsaError, match="cell 5 of a run lies outside the stream"):
            tracker.select(cells, [Row(5, 0, 0, 0)])
        with pytest.raises(QsaError, match="no input has this name"):
            tracker.input("no_such_input")
        with pytest.raises(QsaError, match="no number has this name"):
            tracker.number("no_such_number")


def test_the_guarded_path_is_faster_in_all_twelve_shapes(build: EngineBuild) -> None:
    result = subprocess.run(
        [build.folder / "bin" / "qsa_bench", "--repeats", "21"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("guarded is faster in all twelve\n")
