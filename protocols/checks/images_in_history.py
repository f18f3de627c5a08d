"""An image in the history: the answers at depth stay right, what a chunk costs stays flat, and memory does not grow."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from protocols.canonical import JsonValue, decimal_text
from protocols.checks.base import RECALL_MODEL, CheckOutcome, SessionCheck, field, rows_of
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.vocabulary import PlainDecimal

Depth = Annotated[int, Field(ge=512, le=1_048_576)]
WITH_AND_WITHOUT = (False, True)
_SHOWN_CHARACTERS = 200


class ImagesInHistoryCheck(SessionCheck):
    """One image in the history changes neither the answers at depth, nor what a chunk costs, nor the memory it needs.

    The same requests at several depths, without and with an image of made-up embeddings near the start. The last line
    gives a code, which is asked for; host steps of a chunk are counted exactly, seconds only recorded. A request that
    ends in a failed allocation is a recorded cell. The model is `qwen4exp-recall`, which answers from its prompt.
    """

    MODEL: ClassVar[str | None] = RECALL_MODEL

    kind: Literal["images_in_history"]
    """The check."""
    depths: Annotated[tuple[Depth, ...], Field(strict=False, min_length=3, max_length=8)]
    """Tokens of the history of each request, rising."""
    image_side: int = Field(default=32, ge=2, le=64)
    """Rows and columns of the image."""
    distance_tokens: int = Field(default=300, ge=64, le=4096)
    """Tokens between the last line's code and the question."""
    most_ratio: PlainDecimal = Decimal(2)
    """Most that the last full chunk's host steps, and the compute buffer, may be of those without the image."""
    address_space_mib: int | None = Field(default=None, ge=64, le=2**31 - 1)
    """Address space of the process after loading, in MiB, to see what a smaller host would; null sets no limit."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of the image."""


def judge_images_in_history(check: ImagesInHistoryCheck, observation: CheckObservation) -> CheckOutcome:
    """PASS where every answer is right, no allocation failed, and cost and memory stay within the ratio."""
    cells = rows_of(observation.facts, "cells", 2 * len(check.depths))
    wanted = [(depth, has_image) for depth in check.depths for has_image in WITH_AND_WITHOUT]
    if [(field(cell, "depth", int), field(cell, "has_image", bool)) for cell in cells] != wanted:
        raise EvidenceError("the cells of the check are not one for each depth and condition")
    problems = [problem for cell in cells for problem in _answer_problems(cell)]
    limit, rows = float(check.most_ratio), []
    for plain, image in zip(cells[::2], cells[1::2], strict=True):
        row: dict[str, JsonValue] = {"depth": plain["depth"]}
        for name, cell in (("without", plain), ("with", image)):
            row[name] = {"answer": _answer(cell), **_cost(cell, check.ubatch_tokens)}
        rows.append(row)
        if plain.get("error") is None and image.get("error") is None:
            problems += _growth(plain, row, limit)
    inputs: dict[str, JsonValue] = {
        "image_sha256": field(dict(observation.facts), "image_sha256", str),
        "most_ratio": decimal_text(check.most_ratio), "depths": [*rows],
    }  # fmt: skip
    if problems:
        return CheckOutcome("FAIL", f"Image in the history: {'; '.join(problems)}.", inputs)
    first, last = check.depths[0], check.depths[-1]
    reason = (
        f"Right answers at {len(check.depths)} depths from {first} to {last} tokens with an image in the history; host "
        f"steps of a chunk and the compute buffer stay within {limit:g} times those without it."
    )
    return CheckOutcome("PASS", reason, inputs)


def _where(cell: dict[str, Any]) -> str:
    return f"at {cell['depth']} tokens {'with' if cell['has_image'] else 'without'} the image"


def _answer(cell: dict[str, Any]) -> str:
    if cell.get("error") is not None:
        return " ".join(str(cell["error"]).split())[:_SHOWN_CHARACTERS]
    return "right" if field(cell, "found", list) == field(cell, "expected", list) else "wrong"


def _answer_problems(cell: dict[str, Any]) -> list[str]:
    if cell.get("error") is not None:
        return [f"{_where(cell)} the request failed ({_answer(cell)})"]
    if not field(cell, "expected", list):
        raise EvidenceError("a cell of the check expects no answer")
    return [] if _answer(cell) == "right" else [f"{_where(cell)} the answer is wrong"]


def _cost(cell: dict[str, Any], chunk_rows: int) -> dict[str, JsonValue]:
    """Return what the first and the last full chunk after the image took."""
    if cell.get("error") is not None:
        return {}
    chunks = [chunk for chunk in rows_of(cell, "chunks") if field(chunk, "rows", int) == chunk_rows]
    if not chunks:
        raise EvidenceError(f"a cell of the check has no chunk of {chunk_rows} rows")
    return {
        "first_chunk_ns": field(chunks[0], "elapsed_ns", int), "last_chunk_ns": field(chunks[-1], "elapsed_ns", int),
        "last_chunk_steps": field(chunks[-1], "steps", int), "compute_bytes": field(cell, "compute_bytes", int),
    }  # fmt: skip


def _growth(cell: dict[str, Any], row: dict[str, JsonValue], limit: float) -> list[str]:
    """Compare host steps and compute buffers of one depth, with the image and without."""
    without, with_image = row["without"], row["with"]
    if not isinstance(without, dict) or not isinstance(with_image, dict):
        return []
    found = []
    for words, name in (
        ("host steps of the last full chunk", "last_chunk_steps"),
        ("bytes of compute buffers", "compute_bytes"),
    ):
        plain, image = without[name], with_image[name]
        if isinstance(plain, int) and isinstance(image, int) and image > limit * plain:
            found.append(f"at {cell['depth']} tokens with the image {image} {words}, {plain} without it")
    return found
