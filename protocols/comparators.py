"""Differences between two blocks of logits, in the words of the field: bytes, ULP, RMS, KL, top-1.

Pure arithmetic in float64 over float32 inputs, so that a recorder, an audit and a stranger get the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.canonical import JsonValue, real_text
from protocols.errors import EvidenceError

Rows = NDArray[np.float32]
"""Logits, [rows, columns]."""
_CHUNK_ROWS = 64
"""Rows that are compared at once: a block of logits may be larger than the memory for its float64 copies."""


def joined(parts: Sequence[Rows]) -> Rows:
    """Return blocks of equal width as one, in order."""
    return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first row whose bytes differ.

    `left_top` and `right_top` are the ids of the largest logits there (the lower id of equal ones). `margin` says how
    far the left side's best is ahead of its second best, in logits: where it is small, the choice was close.
    """

    row: int
    left_top: int
    right_top: int
    margin: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two blocks [rows, columns] of float32 logits differ.

    `max_abs` and `rms` are over all finite pairs, in logits. `mean_kl` and `max_kl` are the divergence of the right
    row's softmax from the left one's, in nats, over rows that are finite on both sides; exactly 0 for equal rows.
    `max_ulp` is the largest distance in representable float32 values. `top1_changes` counts rows whose largest logit is
    another one. `nonfinite` counts values that are NaN or infinite on either side.
    """

    rows: int
    columns: int
    differing_rows: int
    max_abs: float
    rms: float
    mean_kl: float
    max_kl: float
    max_ulp: int
    top1_changes: int
    nonfinite: int
    first: Divergence | None

    @property
    def is_byte_equal(self) -> bool:
        """Whether every byte is the same: also the signs of zeros and the payloads of NaNs."""
        return self.differing_rows == 0

    def payload(self) -> dict[str, JsonValue]:
        """Return the figures as canonical JSON; reals as text."""
        first: Mapping[str, JsonValue] | None = None
        if self.first is not None:
            first = {
                "row": self.first.row,
                "left_top": self.first.left_top,
                "right_top": self.first.right_top,
                "margin": real_text(self.first.margin),
            }
        return {
            "rows": self.rows,
            "columns": self.columns,
            "differing_rows": self.differing_rows,
            "max_abs": real_text(self.max_abs),
            "rms": real_text(self.rms),
            "mean_kl": real_text(self.mean_kl),
            "max_kl": real_text(self.max_kl),
            "max_ulp": self.max_ulp,
            "top1_changes": self.top1_changes,
            "nonfinite": self.nonfinite,
            "first_divergence": None if first is None else dict(first),
        }


def top_of(row: NDArray[np.float32]) -> tuple[int, float]:
    """Return the id of the largest logit (the lower one of equals), and how far it is ahead of the next; [columns]."""
    return int(np.argmax(_ranked(row))), _margin(row)


def compare_logits(left: Rows, right: Rows) -> Comparison:
    """Compare two blocks of logits row by row.

    Raises EvidenceError where they are no float32 blocks of one shape with at least one row and column.
    """
    for block in (left, right):
        if block.ndim != 2 or block.dtype != np.float32 or block.size == 0:
            raise EvidenceError(f"found an array {block.dtype}{list(block.shape)}, expected float32 [rows, columns]")
    if left.shape != right.shape:
        raise EvidenceError(f"found shapes {list(left.shape)} and {list(right.shape)}, expected one shape")
    n_rows, n_columns = left.shape
    differing = top1 = nonfinite = pairs = max_ulp = 0
    max_abs = squares = 0.0
    kls: list[float] = []
    first: Divergence | None = None
    for start in range(0, n_rows, _CHUNK_ROWS):
        a, b = left[start : start + _CHUNK_ROWS], right[start : start + _CHUNK_ROWS]
        is_different = np.any(a.view(np.uint32) != b.view(np.uint32), axis=1)
        is_finite = np.isfinite(a) & np.isfinite(b)
        nonfinite += int(a.size - np.count_nonzero(is_finite))
        pairs += int(np.count_nonzero(is_finite))
        tops = np.argmax(_ranked(a), axis=1), np.argmax(_ranked(b), axis=1)
        top1 += int(np.count_nonzero(tops[0] != tops[1]))
        for row in np.flatnonzero(is_different):
            if first is None:
                margin = _margin(a[row])
                first = Divergence(
                    row=start + int(row), left_top=int(tops[0][row]), right_top=int(tops[1][row]), margin=margin
                )
            good = is_finite[row]
            x, y = a[row][good].astype(np.float64), b[row][good].astype(np.float64)
            gaps = np.abs(x - y)
            if gaps.size:
                max_abs = max(max_abs, float(gaps.max()))
                squares += float(np.dot(gaps, gaps))
                max_ulp = max(max_ulp, int(np.abs(_ordinals(a[row][good]) - _ordinals(b[row][good])).max()))
            if good.all():
                kls.append(_divergence(x, y))
        differing += int(np.count_nonzero(is_different))
        equal_rows = ~is_different & is_finite.all(axis=1)
        kls.extend([0.0] * int(np.count_nonzero(equal_rows)))
    return Comparison(
        rows=n_rows,
        columns=n_columns,
        differing_rows=differing,
        max_abs=max_abs,
        rms=float(np.sqrt(squares / pairs)) if pairs else 0.0,
        mean_kl=sum(kls) / len(kls) if kls else 0.0,
        max_kl=max(kls, default=0.0),
        max_ulp=max_ulp,
        top1_changes=top1,
        nonfinite=nonfinite,
        first=first,
    )


def _ranked(rows: Rows) -> Rows:
    """Return rows in which NaN never wins."""
    return np.where(np.isnan(rows), np.float32(-np.inf), rows)


def _margin(row: Rows) -> float:
    """Return how far the largest finite value is ahead of the second largest; 0 where there are no two."""
    finite = row[np.isfinite(row)]
    if finite.size < 2:
        return 0.0
    second, best = np.partition(finite.astype(np.float64), -2)[-2:]
    return float(best - second)


def _ordinals(values: Rows) -> NDArray[np.int64]:
    """Return numbers of float32 values in their order: neighbours differ by 1, and both zeros have one number."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _divergence(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return KL(softmax(x) || softmax(y)) in nats. Rounding can make it negative by an ulp, which is 0."""
    log_p, log_q = _log_softmax(x), _log_softmax(y)
    return max(0.0, float(np.sum(np.exp(log_p) * (log_p - log_q))))


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = x - x.max()
    result: NDArray[np.float64] = shifted - np.log(np.sum(np.exp(shifted)))
    return result
