"""What one step and one chunk of qwen4exp cost at depth, with and without an image in the history.

    python tests/bench/qwen_depth.py

Cells up to the depth are filled with zeros; then, outside the figures, one step brings tables and pooled keys up to date.
Host work is counted, not timed: entries that the host wrote or read for a step of one token, and cells scanned for it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
from qwen_data import Image, opened, tiny_model

from engine.build import installed_build
from engine.worker import EngineWorker

DEPTHS = (8192, 65536, 262144, 1048576)
CHUNK = 512


def _measure(worker: EngineWorker, depth: int, *, has_image: bool) -> str:
    image = Image("tiny-a")
    tokens = np.random.default_rng(depth).integers(0, 480, 3 * CHUNK).tolist()
    opened(worker, context_tokens=depth + 4 * CHUNK, ubatch_tokens=CHUNK, kv_type="f16", has_flash_attention=True)
    worker.fill_zero(depth)
    start = depth
    if has_image:
        rows = image.end - image.first
        at = image.at[:, image.first : image.end] - image.at[0, image.first] + start
        worker.decode_rows([-1] * rows, at, embeddings=image.embeddings)
        start = int(at.max()) + 1
    worker.decode(tokens[:CHUNK], start=start, rows="none")
    before_bytes = worker.session_info()["compute_bytes"]
    times = []
    for i in (1, 2):
        began = time.monotonic()
        worker.decode(tokens[i * CHUNK : (i + 1) * CHUNK], start=start + i * CHUNK, rows="none")
        times.append(time.monotonic() - began)
    worker.decode([1], start=start + 3 * CHUNK)
    worker.work(reset=True)
    worker.decode([2], start=start + 3 * CHUNK + 1)
    work, info = worker.work(), worker.session_info()
    assert info["compute_bytes"] == before_bytes
    return (
        f"| {depth} | {'yes' if has_image else 'no'} | {work['n_mapping_steps']} | {work['n_cells_visited']} | "
        f"{min(times) * 1e3:.0f} | {info['compute_bytes'] / 2**20:.1f} | {info['cache_bytes'] / 2**20:.1f} |"
    )


def main() -> int:
    """Print the table."""
    print(
        "| depth | image | host entries a step | cells scanned a step | ms a chunk of 512 | compute MiB | cache MiB |"
    )
    print("|---|---|---|---|---|---|---|")
    with EngineWorker(installed_build().library) as worker:
        worker.load(tiny_model("tiny-a"))
        for depth in DEPTHS:
            for has_image in (False, True):
                print(_measure(worker, depth, has_image=has_image), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
