"""How far the installed engine is from transformers on every oracle prompt of the tiny qwen4exp models, as a table.

    python tests/bench/qwen_differences.py

Each figure is the largest absolute difference over all positions and the whole vocabulary; logits have a standard
deviation of 0.9 to 1.5.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
from qwen_data import MODELS, PROMPTS, Image, distance, opened, oracle, stepwise, tiny_model

from engine.build import installed_build
from engine.worker import EngineWorker

# Single precision: ways of cutting the prompt; then other operators, and smaller caches.
CUTS = (512, 32, 7, 1)
OTHERS: tuple[dict[str, Any], ...] = ({"has_flash_attention": True}, {"has_plain_operators": True}, {"kv_type": "f16"})


def _row(worker: EngineWorker, name: str, prompt: str) -> list[float]:
    arrays = oracle(name)
    tokens, needed = arrays[f"{prompt}.ids"].tolist(), arrays[f"{prompt}.logits_hf"]
    found = [distance(opened(worker, ubatch_tokens=n).decode(tokens, start=0), needed) for n in CUTS]
    found.append(distance(stepwise(opened(worker), tokens, 0), needed))
    return found + [distance(opened(worker, **other).decode(tokens, start=0), needed) for other in OTHERS]


def _image_row(worker: EngineWorker, name: str) -> list[float]:
    image = Image(name)
    found = [distance(image.decode_all(opened(worker, ubatch_tokens=n)), image.logits) for n in CUTS]
    opened(worker)
    steps = [image.decode(worker, i, i + 1) for i in range(len(image.ids))]
    found.append(distance(np.concatenate(steps), image.logits))
    return found + [distance(image.decode_all(opened(worker, **other)), image.logits) for other in OTHERS]


def main() -> int:
    """Print the table."""
    heads = (*(f"ubatch {n}" for n in CUTS), "token by token", "fused attention", "plain operators", "F16 cache")
    print("| model | prompt | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * len(heads))
    for name in MODELS:
        with EngineWorker(installed_build().library) as worker:
            worker.load(tiny_model(name))
            for prompt in (*PROMPTS, "image"):
                row = _image_row(worker, name) if prompt == "image" else _row(worker, name, prompt)
                print(f"| {name} | {prompt} | " + " | ".join(f"{value:.1e}" for value in row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
