"""Both paths of one `libassay-qsa.so` over a grid of shapes: SHA-256 of every input that they hand to the graphs.

A program for a fresh process, so that two builds never share one: ``python -m engine.qsa_grid --library FILE`` prints
one line of JSON: ``{"cases":[{"name","inputs":{tensor:[guarded,general]}}],"control":{...}}``. The control compares two
histories in which two cells are exchanged; a comparison that sees no difference there is blind.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

RATIO: Final = 4
CELLS: Final = 2048
OWN_ROWS: Final = 1024
FOREIGN_ROWS: Final = 200
NOWHERE: Final = 2**31 - 1
ROW_FIELDS: Final = 6
"""A row is cell, t, y, x, the fourth position row, and whether it is an image's: int32 each."""
COUNT: Final = ("own_cells", "block_cells", "block_at", "visible_cells", "visible_blocks", "tail_cells")
MASK: Final = ("own_cells", "block_cells", "block_at", "block_bias", "block_of_cell", "cell_mask")
FORMS: Final = {"count": COUNT, "mask": MASK}
BESIDE: Final = ("alone", "beside another", "fragmented beside another")
POLICIES: Final = ("rank", "bucket")
_RESTORED: Final = 1


class _Cells(ctypes.Structure):
    _fields_ = (
        ("n_cells", ctypes.c_uint32),
        ("n_used", ctypes.c_uint32),
        ("end", ctypes.c_uint32),
        ("t", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("sequences", ctypes.c_void_p),
    )


class _History:
    """Cells of a stream: our rows of text, and what another sequence has beside them."""

    def __init__(self, *, offset: int, n_tail: int, beside: str) -> None:
        self._at = np.full(CELLS, NOWHERE, np.int32)
        self._sets = np.zeros((CELLS, 4), np.uint64)
        self._taken = 0
        self._is_fragmented = beside == BESIDE[2]
        if beside != BESIDE[0]:
            for t in range(FOREIGN_ROWS):
                self._put(t, sequence=1)
        self.rows = [self._put(offset + i, sequence=0) for i in range(OWN_ROWS + n_tail)]

    def _put(self, t: int, *, sequence: int) -> tuple[int, int]:
        cell = (3 + 1021 * self._taken) % CELLS if self._is_fragmented else self._taken
        self._taken += 1
        self._at[cell], self._sets[cell, 0] = t, np.uint64(1 << sequence)
        return cell, t

    def cells(self) -> _Cells:
        """Return the structure that the library reads; it points into this object."""
        used = np.flatnonzero(self._at != NOWHERE)
        at = self._at.ctypes.data
        return _Cells(CELLS, len(used), int(used[-1]) + 1, at, at, at, self._sets.ctypes.data)

    def swap_last(self) -> None:
        """Exchange the cells of the last two rows: another history with the same positions."""
        (a, t_a), (b, t_b) = self.rows[-2:]
        self._at[a], self._at[b] = t_b, t_a
        self.rows[-2:] = [(b, t_a), (a, t_b)]


class _Library:
    """One build of the library."""

    def __init__(self, path: Path) -> None:
        self.calls = ctypes.CDLL(str(path))
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, arguments in (
            ("new", pointer, (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int)),
            ("free", None, (pointer,)),
            ("changed", ctypes.c_int, (pointer, ctypes.c_int, ctypes.c_int32)),
            ("computed", None, (pointer,)),
            ("select", ctypes.c_int, (pointer, ctypes.POINTER(_Cells), pointer, ctypes.c_uint32)),
            ("input", ctypes.c_int64, (pointer, text, ctypes.POINTER(pointer))),
            ("route", text, (pointer,)),
            ("error", text, ()),
        ):
            function = getattr(self.calls, f"assay_qsa_{name}")
            function.restype, function.argtypes = result, arguments

    def inputs(
        self, history: _History, n_queries: int, policy: str, form: str, *, is_guarded: bool
    ) -> tuple[dict[str, str], str]:
        """Return the hash of each input of the last queries, and the route that was taken."""
        tracker = self.calls.assay_qsa_new(0, RATIO, POLICIES.index(policy))
        try:
            cut = len(history.rows) - n_queries
            if is_guarded:
                self._select(tracker, history, history.rows[:cut])
                self.calls.assay_qsa_computed(tracker)
            else:
                self._check(self.calls.assay_qsa_changed(tracker, _RESTORED, 0))
            self._select(tracker, history, history.rows[cut:])
            hashes = {name: self._hash(tracker, name) for name in FORMS[form]}
            return hashes, str(self.calls.assay_qsa_route(tracker).decode())
        finally:
            self.calls.assay_qsa_free(tracker)

    def _select(self, tracker: int, history: _History, rows: Sequence[tuple[int, int]]) -> None:
        cells = history.cells()
        data = np.zeros((len(rows), ROW_FIELDS), np.int32)
        data[:, 0], data[:, 1:4] = [cell for cell, _ in rows], [[t] for _, t in rows]
        pointer = ctypes.c_void_p(data.ctypes.data)
        self._check(self.calls.assay_qsa_select(tracker, ctypes.byref(cells), pointer, len(rows)))

    def _hash(self, tracker: int, name: str) -> str:
        data = ctypes.c_void_p()
        size = self.calls.assay_qsa_input(tracker, name.encode(), ctypes.byref(data))
        if size < 0:
            raise RuntimeError(self.calls.assay_qsa_error().decode())
        return hashlib.sha256(ctypes.string_at(data, size) if size else b"").hexdigest()

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self.calls.assay_qsa_error().decode())


def grid(library: _Library) -> dict[str, Any]:
    """Return every case and the control."""
    cases = []
    shapes = product((0, 1, 3, 3000), range(RATIO), (1, 7, 512), BESIDE, FORMS)
    for offset, n_tail, n_queries, beside, form in shapes:
        history = _History(offset=offset, n_tail=n_tail, beside=beside)
        inputs: dict[str, list[str]] = {}
        routes: list[str] = []
        for policy in POLICIES:
            guarded, route = library.inputs(history, n_queries, policy, form, is_guarded=True)
            general, _ = library.inputs(history, n_queries, policy, form, is_guarded=False)
            inputs |= {f"{policy} {name}": [guarded[name], general[name]] for name in guarded}
            routes.append(route)
        name = f"offset {offset}, tail {n_tail}, {n_queries} queries, {beside}, {form}"
        cases.append({"name": name, "inputs": inputs, "routes": routes})
    return {"cases": cases, "control": _control(library)}


def _control(library: _Library) -> dict[str, Any]:
    history = _History(offset=0, n_tail=1, beside=BESIDE[0])
    other = _History(offset=0, n_tail=1, beside=BESIDE[0])
    other.swap_last()
    left, _ = library.inputs(history, 1, "rank", "count", is_guarded=True)
    right, _ = library.inputs(other, 1, "rank", "count", is_guarded=False)
    return {"name": "control: two cells exchanged", "inputs": {name: [left[name], right[name]] for name in left}}


def main() -> None:
    """Print the grid of the library that is named."""
    parser = argparse.ArgumentParser(description="Both paths of block selection over a grid, by SHA-256.")
    parser.add_argument("--library", type=Path, required=True)
    sys.stdout.write(json.dumps(grid(_Library(parser.parse_args().library))) + "\n")


if __name__ == "__main__":
    main()
