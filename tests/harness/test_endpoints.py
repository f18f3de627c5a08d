"""A whole campaign over endpoints that Assay does not start: the real server behind OpenAI's routes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.build import installed_build
from engine.models import fetched_model
from protocols.errors import EngineError

PROMPT = "Name the capital of France, the capital of Italy and the capital of Spain, one a line."
BODIES = {
    "/v1/completions": {
        "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "cache_prompt": False,
        "stream": True, "stream_options": {"include_usage": True},
    },
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, "temperature": 0,
        "ignore_eos": True, "cache_prompt": False, "stream": True, "stream_options": {"include_usage": True},
    },
}  # fmt: skip


GATES = """
  - {id: complete, kind: completeness}
  - {id: work, kind: equal_work, workload: cold, fields: [prompt_tokens, generated_tokens]}
  - {id: loss, kind: loss, workload: cold, metric: generation_rate, margin_pct: "90", after: [complete, work]}
"""


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[str]]:
    """Two servers of the user's own, and their addresses."""
    try:
        server, model = installed_build().server, fetched_model("smollm2")
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    argv = [str(server), "--model", str(model), "--port", "0", "--ctx-size", "256", "--threads", "1"]
    environment = {"PATH": os.environ["PATH"], "GOMP_SPINCOUNT": "0"}
    processes = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) for _ in "AC"
    ]
    try:
        yield [address_of(process) for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def address_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    return f"http://127.0.0.1:{line['port']}"


@pytest.fixture
def write(world: Any, endpoints: list[str]) -> Callable[..., Path]:
    """Write a protocol over the two endpoints."""

    def make(route: str, prompt_tokens: int, *, has_model: bool = True) -> Path:
        (world.root / "body.json").write_text(json.dumps({"model": "smollm2", **BODIES[route]}))
        path: Path = world.protocol(gates=GATES, limits="{load_s: 30, request_s: 60, idle_s: 30, campaign_min: 5}")
        lines = []
        for line in path.read_text().splitlines():
            if line.startswith("model:") and not has_model:
                continue
            arm = line.strip().partition(":")[0]
            if arm in {"baseline", "candidate"} and "kind: llama-server" in line:
                url = endpoints[arm == "candidate"]
                line = f"  {arm}: {{engine: {{kind: openai, url: '{url}', model: smollm2}}}}"
            if "id: cold" in line:
                line = (
                    f"  - {{id: cold, route: {route}, request: body.json, prompt_tokens: {prompt_tokens},"
                    " generated_tokens: 16}"
                )
            lines.append(line)
        path.write_text("\n".join(lines) + "\n")
        return path

    return make


@pytest.mark.parametrize(("route", "prompt_tokens"), [("/v1/completions", 20), ("/v1/chat/completions", 50)])
def test_a_campaign_over_endpoints_is_recorded_judged_and_audited_and_never_more_than_a_screen(
    world: Any, write: Callable[..., Path], route: str, prompt_tokens: int
) -> None:
    has_model = route == "/v1/completions"
    ended = world.run("run", write(route, prompt_tokens, has_model=has_model), "--store", world.store, "--json")
    assert ended.code == 3, ended.err
    document = ended.json()
    assert {gate["id"]: gate["status"] for gate in document["gates"]} == {
        "complete": "PASS", "work": "PASS", "loss": "SCREEN_ONLY",
    }  # fmt: skip
    loss = next(gate for gate in document["gates"] if gate["id"] == "loss")
    assert "not started afresh" in loss["reason"]
    assert all(load["tokens"] == 15 for load in loss["inputs"]["loads"])
    assert document["stated_models"] == {"baseline": "smollm2", "candidate": "smollm2"}
    assert (document["model"] is not None) is has_model
    step = next(claim["text"] for claim in document["claims"] if (claim["gate"], claim["kind"]) == ("loss", "next"))
    assert step.startswith("Let Assay start the engine")
    shown = world.run("report", "--store", world.store).out
    assert "Nothing is known of the files behind the endpoints" in shown
    assert ("model file (stated, not verified)" in shown) is has_model
    attempts = world.run("attempts", "--store", world.store)
    assert attempts.code == 0, attempts.err
    audited = world.run("audit", "--store", world.store, "--json")
    assert (audited.code, audited.json()["findings"]) == (0, [])
