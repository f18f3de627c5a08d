"""What sparse attention may choose from, straight from the definitions: every input of a run, byte for byte.

Nothing is kept between runs and nothing is shared with the engine. Visibility is a matrix, groups are dictionaries;
`docs/engine-qsa.md` states the definitions and the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FREE = 2**31 - 1
ALWAYS = np.float32(1e9)
NEVER = np.float32(-np.inf)
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Stream:
    """Cells of one stream: `keys` i32 [n_cells, 3] as (t, y, x), t = FREE where free; `sets` u64 [n_cells, 4]."""

    keys: Ints
    sets: NDArray[np.uint64]
    end: int

    def owners(self, cell: int) -> frozenset[int]:
        whole = sum(int(word) << 64 * index for index, word in enumerate(self.sets[cell]))
        return frozenset(bit for bit in range(whole.bit_length()) if whole >> bit & 1)


@dataclass(frozen=True)
class Blocks:
    """Blocks in ordinal order: members as ranks, the rope position, the start that tail starts are compared with."""

    members: list[list[int]]
    rope: list[tuple[int, int, int]]
    start: list[int]
    block_of_rank: list[int]


def own_ranks(stream: Stream, sequence: int) -> tuple[Ints, Ints]:
    """Return the cells of a sequence and their coordinates in rank order."""
    word, bit = divmod(sequence, 64)
    belongs = (stream.sets[:, word] >> np.uint64(bit)) & np.uint64(1)
    cells = np.flatnonzero((stream.keys[:, 0] != FREE) & (belongs == 1)).astype(np.int32)
    keys = stream.keys[cells]
    order = np.lexsort((cells, keys[:, 2], keys[:, 1], keys[:, 0]))
    return cells[order], keys[order]


def visibility(keys: Ints, queries: Ints) -> NDArray[np.bool_]:
    """Return [n_queries, n_own]: (t, y, x) of the cell is at most that of the query."""
    before = np.zeros((len(queries), len(keys)), bool)
    equal = np.ones_like(before)
    for axis in range(3):
        cell, query = keys[None, :, axis], queries[:, axis, None]
        before |= equal & (cell < query)
        equal &= cell == query
    return before | equal


def is_ranked(stream: Stream, keys: Ints, policy: str) -> bool:
    """Blocks are ranks: always under `rank`; under `bucket` where a position repeats and one sequence is in the stream."""
    if policy == "rank":
        return True
    used = np.flatnonzero(stream.keys[:, 0] != FREE)
    everyone = frozenset().union(*(stream.owners(int(cell)) for cell in used))
    return len(everyone) <= 1 and len(set(keys[:, 0].tolist())) < len(keys)


def rank_blocks(keys: Ints, ratio: int) -> Blocks:
    count = len(keys) // ratio
    members = [list(range(b * ratio, b * ratio + ratio)) for b in range(count)]
    rope = [tuple(int(v) for v in keys[m[0]]) for m in members]
    owner = [rank // ratio if rank < count * ratio else count for rank in range(len(keys))]
    return Blocks(members, rope, [m[0] for m in members], owner)  # type: ignore[arg-type]


def bucket_blocks(stream: Stream, cells: Ints, keys: Ints, ratio: int) -> Blocks:
    groups: dict[tuple[int, frozenset[int]], list[int]] = {}
    for rank, cell in enumerate(cells.tolist()):
        groups.setdefault((int(keys[rank, 0]) // ratio, stream.owners(cell)), []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: item[0][0])  # stable: first come, first numbered within a bucket
    blocks = Blocks([], [], [], [-1] * len(cells))
    for (bucket, _), ranks in ordered:
        slots = {int(keys[rank, 0]) % ratio: rank for rank in ranks}  # the last one stays
        if len(slots) < ratio:
            continue
        for rank in ranks:
            blocks.block_of_rank[rank] = len(blocks.start)
        blocks.members.append([slots[slot] for slot in range(ratio)])
        blocks.rope.append((bucket * ratio,) * 3)
        blocks.start.append(bucket * ratio)
    count = len(blocks.start)
    blocks.block_of_rank[:] = [count if block < 0 else block for block in blocks.block_of_rank]
    return blocks


def selection_inputs(
    stream: Stream, sequence: int, rows: Ints, *, ratio: int, policy: str, with_masks: bool = True
) -> dict[str, NDArray[np.int32] | NDArray[np.float32]]:
    """Return every input of the run of `rows` (i32 [n_queries, 3], in the cells already) by its name."""
    cells, keys = own_ranks(stream, sequence)
    visible = visibility(keys, rows)
    ranked = is_ranked(stream, keys, policy)
    blocks = rank_blocks(keys, ratio) if ranked else bucket_blocks(stream, cells, keys, ratio)
    counts = visible.sum(axis=1)
    past = counts if ranked else rows[:, 0] + 1
    tail_starts = past // ratio * ratio
    place = np.arange(len(cells)) if ranked else keys[:, 0]
    tails = np.full((len(rows), ratio - 1), -1, np.int32)
    for query, start in enumerate(tail_starts):
        for rank in np.flatnonzero(visible[query] & (place >= start)):
            tails[query, (place[rank] - start) % ratio] = cells[rank]
    starts = np.array(blocks.start, np.int64)
    inputs: dict[str, NDArray[np.int32] | NDArray[np.float32]] = {
        "own_cells": cells,
        "block_cells": cells[np.array(blocks.members, np.int64).reshape(-1, ratio)],
        "block_at": np.array(blocks.rope, np.int32).reshape(-1, 3),
        "visible_cells": counts.astype(np.int32),
        "visible_blocks": (starts[None, :] < tail_starts[:, None]).sum(axis=1).astype(np.int32),
        "tail_cells": tails,
    }
    if with_masks:
        inputs |= masks(stream, cells, visible, blocks, starts, tail_starts)
    return inputs


def masks(
    stream: Stream,
    cells: Ints,
    visible: NDArray[np.bool_],
    blocks: Blocks,
    starts: NDArray[np.int64],
    tail_starts: NDArray[np.int64],
) -> dict[str, NDArray[np.int32] | NDArray[np.float32]]:
    """Bias form "mask"."""
    n_queries, spare = len(visible), len(starts)
    owner = np.array(blocks.block_of_rank, np.int64)
    window = min(len(stream.keys), max(256, -(-stream.end // 256) * 256))
    bias = np.full((n_queries, -(-(spare + 1) // 32) * 32), NEVER, np.float32)
    for block in range(spare + 1):
        seen = (visible & (owner == block)[None, :]).any(axis=1)
        bias[seen, block] = ALWAYS
        if block < spare:
            bias[starts[block] < tail_starts, block] = 0
    block_of_cell = np.full(window, -1, np.int32)
    block_of_cell[cells] = owner
    mask = np.full((n_queries, window), NEVER, np.float32)
    mask[:, cells] = np.where(visible, np.float32(0), NEVER)
    return {"block_bias": bias, "block_of_cell": block_of_cell, "cell_mask": mask}
