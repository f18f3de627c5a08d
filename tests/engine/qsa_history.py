"""Random histories of a cache: conversations that grow, roll back, share cells, hold images and holes.

Three conversations stand in one stream (or each in its own), every one with a tracker of the library. The simulated
cache tells the trackers what an engine would, keeps what the graphs would hold (written only as far as a selection asks
for it), and after every step everything is compared with the reference, which looks at the cells alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
from qsa_library import INPUTS, MASKS, NOWHERE, CellArrays, Library, Row, Tracker
from qsa_reference import selection_inputs

Key = tuple[int, int, int]
# fmt: off
ACTIONS = (
    "text", "text", "text", "text", "decode", "decode", "image", "mixed", "hole", "rollback", "rollback",
    "middle", "refill", "copy", "share", "restore", "fail", "repeat", "clear",
)
# fmt: on
STEPS = 12


class Held:
    """What the graphs of one sequence hold: tables and pooled keys, written as selections ask."""

    def __init__(self) -> None:
        self.own: list[int] = []
        self.blocks: list[tuple[int, ...]] = []
        self.rope: list[tuple[int, ...]] = []
        self.pooled: list[object] = []  # per ordinal: what the members' rows held when the key was made


class Conversation:
    """A sequence of the cache: its tracker, and the position that comes next."""

    def __init__(self, library: Library, sequence: int, ratio: int, policy: str, first: int) -> None:
        self.tracker = Tracker(library, sequence, ratio=ratio, policy=policy)
        self.sequence = sequence
        self.held = Held()
        self.next = self.first = first


class History:
    """One random history; `step` does something and compares everything."""

    def __init__(self, library: Library, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy = self.rng.choice(("rank", "rank", "bucket"))
        self.ratio = self.rng.choice((4, 4, 2, 3))
        self.has_images = self.rng.random() < 0.6
        self.has_holes = self.rng.random() < 0.4
        self.n_others = self.rng.choice((0, 1, 2, 2))
        self.with_masks = self.rng.random() < 0.3
        n_cells = self.rng.choice((96, 300))
        self.cells = CellArrays(n_cells)
        self.stamps = np.zeros(n_cells, np.int64)  # when the row of a cell was written
        self.clock = 0
        self.owners: dict[int, set[int]] = {}
        self.at: dict[int, Key] = {}
        self.free = list(range(n_cells))
        if self.rng.random() < 0.7:
            self.rng.shuffle(self.free)
        firsts = [self.rng.choice((0, 0, 0, 1, 3, 3000, 3001)) for _ in range(3)]
        self.all = [Conversation(library, s, self.ratio, self.policy, firsts[s]) for s in range(3)]
        self.counts: Counter[str] = Counter()
        self.shared: tuple[Conversation, Conversation, int] | None = None

    def close(self) -> None:
        for talk in self.all:
            talk.tracker.close()

    # ------------------------------------------------------------------ the cache
    def own(self, talk: Conversation) -> list[int]:
        cells = [cell for cell, owners in self.owners.items() if talk.sequence in owners]
        return sorted(cells, key=lambda cell: self.at[cell])

    def write(self, cell: int) -> None:
        self.clock += 1
        self.stamps[cell] = self.clock

    def place(self, row: Row, owners: set[int]) -> None:
        self.owners[row.cell], self.at[row.cell] = owners, (row.t, row.y, row.x)
        self.cells.put(row, sorted(owners))
        self.write(row.cell)

    def set_owners(self, cell: int, owners: set[int]) -> None:
        if owners:
            self.owners[cell] = owners
            t, y, x = self.at[cell]
            self.cells.put(Row(cell, t, y, x), sorted(owners))
            return
        del self.owners[cell], self.at[cell]
        self.cells.axes[:, cell] = NOWHERE
        self.cells.sets[cell] = 0
        self.free.insert(self.rng.randrange(len(self.free) + 1), cell)

    def leave(self, talk: Conversation, cells: list[int]) -> None:
        """Take a sequence out of cells; who shared one with it is told, as an engine tells its trackers."""
        for cell in cells:
            others = self.owners[cell] - {talk.sequence}
            self.set_owners(cell, others)
            for other in others:
                self.all[other].tracker.changed("copied", NOWHERE)
            if self.shared is not None and self.shared[2] == cell:
                self.shared = None

    def pause(self, talk: Conversation) -> None:
        own = self.own(talk)
        floor = talk.first if not own else max(max(self.at[cell]) for cell in own) + 1
        talk.next = max(talk.next if self.has_holes else 0, floor)

    # ------------------------------------------------------------------ runs
    def text(self, talk: Conversation, n: int) -> list[Row]:
        rows = []
        for _ in range(n):
            rows.append(Row(self.free.pop(), *(talk.next,) * 3, fourth=self.rng.choice((0, 0, talk.next))))
            talk.next += 1
        return rows

    def image(self, talk: Conversation) -> list[Row]:
        height, width = self.rng.randrange(1, 4), self.rng.randrange(1, 6)
        p = talk.next
        talk.next += max(height, width)
        return [Row(self.free.pop(), p, p + a, p + b, is_image=True) for a in range(height) for b in range(width)]

    def run(self, talk: Conversation, rows: list[Row], *, fails: bool = False) -> None:
        for row in rows:
            self.place(row, {talk.sequence})
        self.cells.refresh()
        talk.tracker.select(self.cells, rows)
        self.compare(talk, rows)
        if not fails:
            talk.tracker.computed()
            self.check_held(talk)

    def compare(self, talk: Conversation, rows: list[Row]) -> None:
        tracker = talk.tracker
        keys = np.array([(row.t, row.y, row.x) for row in rows], np.int32)
        names = INPUTS + MASKS if self.with_masks else INPUTS
        expected = selection_inputs(
            self.cells.stream(),
            talk.sequence,
            keys,
            ratio=self.ratio,
            policy=self.policy,
            with_masks=self.with_masks,
        )
        for name in names:
            found = tracker.input(name)
            wanted = expected[name]
            assert found.dtype == wanted.dtype, name
            assert found.shape == wanted.shape, (name, found.shape, wanted.shape)
            assert found.tobytes() == wanted.tobytes(), (name, tracker.route, tracker.reason, found, wanted)
        self.counts[f"{tracker.route} {tracker.reason}"] += 1
        self.counts["runs"] += 1
        self.counts["queries"] += len(rows)
        self.write_held(talk, expected)

    def write_held(self, talk: Conversation, expected: dict[str, np.ndarray]) -> None:
        held, tracker = talk.held, talk.tracker
        first_own, first_block = tracker.number("first_new_own"), tracker.number("first_new_block")
        first_stale = tracker.number("first_stale_block")
        own = expected["own_cells"].tolist()
        blocks = [tuple(block) for block in expected["block_cells"].tolist()]
        rope = [tuple(at) for at in expected["block_at"].tolist()]
        assert first_own <= min(len(held.own), len(own)), "entries are written without a gap"
        assert first_stale <= first_block <= min(len(held.blocks), len(blocks))
        held.own[first_own:] = own[first_own:]
        held.blocks[first_block:], held.rope[first_block:] = blocks[first_block:], rope[first_block:]
        held.pooled[first_stale:] = [self.pool(b, at) for b, at in zip(blocks, rope, strict=True)][first_stale:]
        assert held.own == own, "the graphs hold the sequence's cells"
        assert (held.blocks, held.rope) == (blocks, rope), "the graphs hold the blocks"

    def pool(self, block: tuple[int, ...], at: tuple[int, ...]) -> object:
        return tuple(int(self.stamps[cell]) for cell in block), at

    def check_held(self, talk: Conversation) -> None:
        current = [self.pool(b, at) for b, at in zip(talk.held.blocks, talk.held.rope, strict=True)]
        assert talk.held.pooled == current, "every pooled key is that of its members' present rows"

    # ------------------------------------------------------------------ what may happen
    def step(self) -> None:
        talk = (
            self.all[0]
            if self.n_others == 0 or self.rng.random() < 0.6
            else self.all[self.rng.randint(1, self.n_others)]
        )
        action = self.rng.choice(ACTIONS)
        if len(self.free) < 40:
            action = "clear"
        getattr(self, f"do_{action}")(talk)
        self.cells.refresh()
        for other in self.all:
            state = other.tracker.compare_rebuilt(self.cells)
            assert state != "differs", "the kept prefix equals one rebuilt from nothing"
            self.counts[f"prefix {state}"] += 1

    def do_text(self, talk: Conversation) -> None:
        self.run(talk, self.text(talk, self.rng.randrange(1, 12)))

    def do_decode(self, talk: Conversation) -> None:
        for _ in range(3):
            self.run(talk, self.text(talk, 1))

    def do_image(self, talk: Conversation) -> None:
        if not self.has_images:
            return self.do_text(talk)
        rows = self.image(talk)
        cut = self.rng.randrange(1, len(rows) + 1)
        self.run(talk, rows[:cut])
        if rows[cut:]:
            self.run(talk, rows[cut:])
        return None

    def do_mixed(self, talk: Conversation) -> None:
        if not self.has_images:
            return self.do_text(talk)
        return self.run(talk, self.text(talk, 2) + self.image(talk) + self.text(talk, 3))

    def do_hole(self, talk: Conversation) -> None:
        if self.has_holes:
            talk.next += self.rng.randrange(1, 10)
        self.do_text(talk)

    def do_rollback(self, talk: Conversation) -> None:
        own = self.own(talk)
        if not own:
            return
        t = self.at[self.rng.choice(own[-12:])][0]
        self.leave(talk, [cell for cell in own if self.at[cell][0] >= t])
        talk.tracker.truncate(t)
        self.pause(talk)
        if not self.has_holes or self.rng.random() < 0.5:
            talk.next = max([talk.first, *(max(self.at[cell]) + 1 for cell in self.own(talk))])
        self.do_text(talk)

    def do_middle(self, talk: Conversation) -> None:
        own = self.own(talk)
        if len(own) < 3:
            return
        low = self.at[self.rng.choice(own)][0]
        high = low + self.rng.randrange(1, 9)
        self.leave(talk, [cell for cell in own if low <= self.at[cell][0] < high])
        talk.tracker.changed("removed", low)
        self.pause(talk)

    def do_refill(self, talk: Conversation) -> None:
        """Some cells go, and their coordinates come back in other cells: rows before the end of the prefix."""
        own = [cell for cell in self.own(talk) if self.owners[cell] == {talk.sequence}]
        if len(own) < 8:
            return
        start = self.rng.randrange(len(own) - 6)
        gone = own[start : start + 5]
        keys = [self.at[cell] for cell in gone]
        self.leave(talk, gone)
        talk.tracker.changed(self.rng.choice(("removed", "failed")), keys[0][0])
        for first, last in ((3, 5), (0, 3)):
            self.run(talk, [Row(self.free.pop(), *key, is_image=key[0] != key[1]) for key in keys[first:last]])

    def do_copy(self, talk: Conversation) -> None:
        """All cells of one sequence become another's too; rows are shared."""
        if self.n_others == 0:
            return
        other = self.rng.choice([t for t in self.all[: self.n_others + 1] if t is not talk])
        self.do_clear(other)
        for cell in self.own(talk):
            self.set_owners(cell, self.owners[cell] | {other.sequence})
        other.next, other.first = talk.next, talk.first
        other.tracker.changed("copied", 0)
        talk.tracker.changed("copied", NOWHERE)

    def do_share(self, talk: Conversation) -> None:
        """One cell belongs to a second conversation for a while."""
        if self.n_others == 0:
            return
        if self.shared is not None:
            guest, host, cell = self.shared
            self.shared = None
            self.set_owners(cell, self.owners[cell] - {guest.sequence})
            guest.tracker.changed("removed", self.at[cell][0])
            host.tracker.changed("copied", NOWHERE)
            return
        other = self.rng.choice([t for t in self.all[: self.n_others + 1] if t is not talk])
        own = [cell for cell in self.own(talk) if self.owners[cell] == {talk.sequence}]
        taken = {self.at[cell] for cell in self.own(other)}
        own = [cell for cell in own if self.at[cell] not in taken or self.rng.random() < 0.1]
        if own:
            cell = self.rng.choice(own)
            self.set_owners(cell, {talk.sequence, other.sequence})
            other.tracker.changed("copied", self.at[cell][0])
            talk.tracker.changed("copied", NOWHERE)
            self.shared = (other, talk, cell)
            self.pause(other)

    def do_restore(self, talk: Conversation) -> None:
        """A saved state comes back into other cells."""
        own = self.own(talk)
        if not own:
            return
        keys = [self.at[cell] for cell in own]
        self.leave(talk, own)
        for key in keys:
            self.place(Row(self.free.pop(self.rng.randrange(len(self.free))), *key), {talk.sequence})
        talk.tracker.changed("restored", 0)

    def do_fail(self, talk: Conversation) -> None:
        """A run that was not computed: its cells are given back, or it is tried again."""
        rows = self.text(talk, self.rng.randrange(1, 9))
        self.run(talk, rows, fails=True)
        if self.rng.random() < 0.5:
            self.run(talk, rows)
            return
        self.leave(talk, [row.cell for row in rows])
        talk.tracker.truncate(rows[0].t)
        self.pause(talk)

    def do_repeat(self, talk: Conversation) -> None:
        """The last ranks are computed again in their cells, and the run goes on past them."""
        own = self.own(talk)
        if not own or any(len(self.owners[cell]) > 1 for cell in own[-5:]):
            return
        rows = [Row(cell, *self.at[cell]) for cell in own[-self.rng.randrange(1, 6) :]]
        self.pause(talk)
        self.run(talk, rows + self.text(talk, self.rng.randrange(3)))

    def do_clear(self, talk: Conversation) -> None:
        self.leave(talk, self.own(talk))
        talk.tracker.truncate(0)
        talk.next = talk.first


def play(library: Library, seeds: Iterable[int]) -> Counter[str]:
    """Play the histories of these seeds; return how often each route, reason and state of a prefix was seen."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        history = History(library, seed)
        try:
            for _ in range(STEPS):
                history.step()
        except AssertionError as error:
            raise AssertionError(f"history {seed} ({history.policy}, ratio {history.ratio}): {error}") from error
        finally:
            history.close()
        counts += history.counts
    return counts
