"""Asks for the code of the last line at several depths, without and with an image in the history."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

from engine.images import MadeUpImage, PlacedRows, place_image, place_text
from engine.recall_prompts import CODE_TOKENS, KEY_TOKENS, RecallPrompt, recall_prompt
from engine.worker import EngineWorker
from harness.checks.context import CheckContext
from harness.checks.recall import greedy_reply
from protocols.canonical import JsonValue
from protocols.checks.images_in_history import WITH_AND_WITHOUT, ImagesInHistoryCheck
from protocols.errors import EngineError

BEFORE_IMAGE = 64
"""Tokens of the history before the image."""


def run_images_in_history(context: CheckContext, check: ImagesInHistoryCheck) -> dict[str, JsonValue]:
    """Return one cell for each depth and condition, each from a fresh worker; a failure is a cell as well."""
    cells: list[JsonValue] = []
    image_sha256 = ""
    for depth in check.depths:
        for has_image in WITH_AND_WITHOUT:
            cell: dict[str, JsonValue] = {"depth": depth, "has_image": has_image, "error": None}
            with context.worker() as worker:
                image = context.made_up_image(check.image_side, seed=check.seed)
                image_sha256 = image.sha256
                if check.address_space_mib is not None:
                    limit_bytes = check.address_space_mib << 20
                    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
                try:
                    cell |= _ask(context, check, worker, depth, image if has_image else None)
                except EngineError as error:
                    cell["error"] = str(error)
            cells.append(cell)
    return {"cells": cells, "image_sha256": image_sha256}


def _ask(
    context: CheckContext, check: ImagesInHistoryCheck, worker: EngineWorker, depth: int, image: MadeUpImage | None
) -> dict[str, JsonValue]:
    """Evaluate one history in chunks of the ubatch, each timed and counted, and the reply to its last line."""
    prompt = _prompt(check, depth)
    room = len(prompt.ids) + check.image_side**2 + CODE_TOKENS
    context.open_session(worker, check, sequences=1, tokens=room)
    chunks: list[JsonValue] = []
    end = 0
    for rows in _chunks(check, prompt.ids[:-KEY_TOKENS], image):
        worker.work(reset=True)
        began_ns = time.monotonic_ns()
        rows.evaluate(worker)
        elapsed_ns = time.monotonic_ns() - began_ns
        work = worker.work()
        steps = work["n_mapping_steps"] + work["n_cells_visited"]
        masked = work["n_runs_masked"]
        chunks.append({"rows": len(rows.tokens), "elapsed_ns": elapsed_ns, "steps": steps, "masked": masked})
        end = rows.end
    reply: list[JsonValue] = [*greedy_reply(worker, list(prompt.ids[-KEY_TOKENS:]), end, 0)]
    expected: list[JsonValue] = [*prompt.expected_ids]
    compute_bytes = int(worker.session_info()["compute_bytes"])
    return {"expected": expected, "found": reply, "chunks": chunks, "compute_bytes": compute_bytes}


def _prompt(check: ImagesInHistoryCheck, depth: int) -> RecallPrompt:
    """Return lines of so many tokens, the last of which is asked for."""
    lead = depth - check.distance_tokens - KEY_TOKENS
    return recall_prompt(f"{check.id} {check.seed} {depth}", distance_tokens=check.distance_tokens, lead_tokens=lead)


def _chunks(check: ImagesInHistoryCheck, ids: tuple[int, ...], image: MadeUpImage | None) -> Iterator[PlacedRows]:
    """Yield the chunks of a history; the image comes with the first words."""
    step, at, left = check.ubatch_tokens, 0, list(ids)
    if image is not None:
        first = place_image(left[:BEFORE_IMAGE], image)
        yield first
        left, at = left[BEFORE_IMAGE:], first.end
    for begin in range(0, len(left), step):
        rows = place_text(left[begin : begin + step], at)
        yield rows
        at = rows.end
