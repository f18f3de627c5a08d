"""Greedy token ids of the bundled server beside a llama-server of the same host, prompt by prompt.

Each prompt is answered by both with the same body (temperature 0, 64 tokens, no cached prompt). Where they part, the
two candidates' distance in log-probability is shown for both engines: under 0.02 in both it is a tie. Exit code 1 if
anything else differs.

    python tests/bench/engine_ids.py --peer PATH/llama-server [--peer-argument=--no-repack] [--ours-argument=...]

`engine_peer.py` builds a llama-server where none is at hand. Kernels for other processors sum in another order, so
both must be built for this one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from engine.build import installed_build
from engine.models import fetch_model
from engine.process import PORT_MARK, EngineProcess

TIE = 0.02
PROMPTS = Path(__file__).parents[1] / "engine" / "golden" / "llama_server.json"
BODY = {
    "n_predict": 64,
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
    "cache_prompt": False,
    "n_probs": 10,
}


class Answer(NamedTuple):
    """Token ids, and the log-probabilities of the best candidates at each place."""

    ids: list[int]
    candidates: list[dict[int, float]]


def start(argv: list[str], folder: Path, name: str) -> EngineProcess:
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LD_LIBRARY_PATH") if key in os.environ}
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    return EngineProcess.start(argv, env=environment, stdout_log=out, stderr_log=err, readiness="health")


def ask(port: int, prompt: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request(
        "POST", "/completion", json.dumps({"prompt": prompt, **BODY}), {"Content-Type": "application/json"}
    )
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    places = answer["completion_probabilities"]
    return Answer(answer["tokens"], [{one["id"]: one["logprob"] for one in place["top_logprobs"]} for place in places])


def distance(answer: Answer, place: int, chosen: int, other: int) -> float:
    """How far the engine's own choice is ahead of the other engine's, in log-probability."""
    candidates = answer.candidates[place]
    return candidates[chosen] - candidates.get(other, float("-inf"))


def compare(ours: Answer, theirs: Answer) -> tuple[bool, str]:
    """Return whether the ids are equal or part at a tie, and the words for it."""
    for place, (a, b) in enumerate(zip(ours.ids, theirs.ids, strict=True)):
        if a != b:
            mine, peer = distance(ours, place, a, b), distance(theirs, place, b, a)
            is_tie = max(mine, peer) < TIE
            word = "tie" if is_tie else "differs"
            return is_tie, f"{word} at token {place}: ours {a} ahead by {mine:.4f}, peer {b} ahead by {peer:.4f}"
    return True, f"{len(ours.ids)} ids equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="a llama-server binary")
    parser.add_argument("--peer-argument", action="append", default=[], help="one more argument of the peer")
    parser.add_argument("--ours-argument", action="append", default=[], help="one more argument of engine-server")
    parser.add_argument("--ours", type=Path, help="an engine-server binary; the installed one when not given")
    parser.add_argument("--model", type=Path, help="a GGUF file; smollm2 when not given")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model = options.model or fetch_model("smollm2")
    common = ["--model", str(model), "--host", "127.0.0.1", "--ctx-size", "512", "--parallel", "1"]
    common += ["--threads", str(options.threads), "--threads-batch", str(options.threads), "--port", PORT_MARK]
    ours = [str(options.ours or installed_build().server), *common, *options.ours_argument]
    peer = [str(options.peer), *common, *options.peer_argument]
    prompts = {name: golden["prompt"] for name, golden in json.loads(PROMPTS.read_text())["greedy"].items()}
    good = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        start(ours, Path(folder), "ours") as a,
        start(peer, Path(folder), "peer") as b,
    ):
        ports = a.wait_ready(120).port, b.wait_ready(120).port
        for name, prompt in prompts.items():
            is_good, words = compare(ask(ports[0], prompt), ask(ports[1], prompt))
            good += is_good
            print(f"{name:16} {words}", flush=True)
    print(f"{good} of {len(prompts)} prompts: equal ids, or parted at a tie")
    sys.exit(good != len(prompts))


if __name__ == "__main__":
    main()
