"""`libassay-qsa.so` through its C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from qsa_reference import Stream

INPUTS = ("own_cells", "block_cells", "block_at", "visible_cells", "visible_blocks", "tail_cells")
MASKS = ("block_bias", "block_of_cell", "cell_mask")
CHANGES = {"copied": 0, "restored": 1, "removed": 2, "failed": 3}
NOWHERE = 2**31 - 1


class Row(NamedTuple):
    """One token of a run, whose cell has been taken."""

    cell: int
    t: int
    y: int
    x: int
    fourth: int = 0
    is_image: bool = False


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


class _Row(ctypes.Structure):
    _fields_ = (
        ("cell", ctypes.c_uint32),
        ("t", ctypes.c_int32),
        ("y", ctypes.c_int32),
        ("x", ctypes.c_int32),
        ("fourth", ctypes.c_int32),
        ("is_image", ctypes.c_int32),
    )


class QsaError(Exception):
    """The library refused a call, in its own words."""


class Library:
    """One build of the library; several builds may be loaded beside each other."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, arguments in (
            ("new", pointer, (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int)),
            ("free", None, (pointer,)),
            ("truncate", None, (pointer, ctypes.c_int32)),
            ("changed", ctypes.c_int, (pointer, ctypes.c_int, ctypes.c_int32)),
            ("computed", None, (pointer,)),
            ("select", ctypes.c_int, (pointer, ctypes.POINTER(_Cells), ctypes.POINTER(_Row), ctypes.c_uint32)),
            ("input", ctypes.c_int64, (pointer, text, ctypes.POINTER(pointer))),
            ("number", ctypes.c_int64, (pointer, text)),
            ("route", text, (pointer,)),
            ("reason", text, (pointer,)),
            ("compare_rebuilt", ctypes.c_int, (pointer, ctypes.POINTER(_Cells))),
            ("faults", text, ()),
            ("path", text, ()),
            ("error", text, ()),
        ):
            function = getattr(self._c, f"assay_qsa_{name}")
            function.restype, function.argtypes = result, arguments

    @property
    def faults(self) -> list[str]:
        return [name for name in self._c.assay_qsa_faults().decode().split(",") if name]

    @property
    def path(self) -> str:
        return str(self._c.assay_qsa_path().decode())

    def error(self) -> str:
        return str(self._c.assay_qsa_error().decode())


class CellArrays:
    """Cells of a stream that both sides read: the library by pointer, the reference as a `Stream`."""

    def __init__(self, n_cells: int) -> None:
        self.axes = np.full((3, n_cells), NOWHERE, np.int32)
        self.sets = np.zeros((n_cells, 4), np.uint64)
        self.n_used = 0
        self.end = 0
        self._c = _Cells(n_cells, 0, 0, *(self.axes[axis].ctypes.data for axis in range(3)), self.sets.ctypes.data)

    def refresh(self) -> None:
        used = np.flatnonzero(self.axes[0] != NOWHERE)
        self.n_used, self.end = len(used), int(used[-1]) + 1 if len(used) else 0

    def put(self, row: Row, sequences: Sequence[int]) -> None:
        self.axes[:, row.cell] = row.t, row.y, row.x
        self.sets[row.cell] = 0
        for sequence in sequences:
            self.sets[row.cell, sequence // 64] |= np.uint64(1 << sequence % 64)

    def stream(self) -> Stream:
        return Stream(self.axes.T, self.sets, self.end)

    def pointer(self) -> _Cells:
        self._c.n_used, self._c.end = self.n_used, self.end
        return self._c


class Tracker:
    """One sequence's tracker in the library."""

    def __init__(self, library: Library, sequence: int, *, ratio: int, policy: str) -> None:
        self._library, self._c = library, library._c
        self.sequence, self.ratio, self.policy = sequence, ratio, policy
        self._handle = self._c.assay_qsa_new(sequence, ratio, ("rank", "bucket").index(policy))
        if not self._handle:
            raise QsaError(library.error())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._c.assay_qsa_free(self._handle)
        self._handle = None

    def truncate(self, t: int) -> None:
        self._c.assay_qsa_truncate(self._handle, t)

    def changed(self, what: str, stale_from: int = 0) -> None:
        self._c.assay_qsa_changed(self._handle, CHANGES[what], stale_from)

    def computed(self) -> None:
        self._c.assay_qsa_computed(self._handle)

    def select(self, cells: CellArrays, rows: Sequence[Row]) -> None:
        array = (_Row * len(rows))(*((r.cell, r.t, r.y, r.x, r.fourth, int(r.is_image)) for r in rows))
        if self._c.assay_qsa_select(self._handle, cells.pointer(), array, len(rows)) != 0:
            raise QsaError(self._library.error())

    def input(self, name: str) -> NDArray[np.int32] | NDArray[np.float32]:
        """Return a copy of an input, in the shape that the documentation gives it."""
        data = ctypes.c_void_p()
        n_bytes = self._c.assay_qsa_input(self._handle, name.encode(), ctypes.byref(data))
        if n_bytes < 0:
            raise QsaError(self._library.error())
        raw = ctypes.string_at(data, n_bytes) if n_bytes else b""
        kind = np.float32 if name in {"block_bias", "cell_mask"} else np.int32
        width = {"block_cells": self.ratio, "block_at": 3, "tail_cells": self.ratio - 1}.get(name)
        flat = np.frombuffer(raw, kind)
        if width is not None:
            return flat.reshape(-1, width)
        if name in {"block_bias", "cell_mask"}:
            return flat.reshape(self.number("n_queries"), -1)
        return flat

    def number(self, name: str) -> int:
        value = int(self._c.assay_qsa_number(self._handle, name.encode()))
        if value < 0:
            raise QsaError(self._library.error())
        return value

    @property
    def route(self) -> str:
        return str(self._c.assay_qsa_route(self._handle).decode())

    @property
    def reason(self) -> str:
        return str(self._c.assay_qsa_reason(self._handle).decode())

    def compare_rebuilt(self, cells: CellArrays) -> str:
        return {0: "differs", 1: "equal", 2: "untracked"}[
            self._c.assay_qsa_compare_rebuilt(self._handle, cells.pointer())
        ]
