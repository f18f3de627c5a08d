"""Diagnostic loads against the fake engine, with tools that work, lie, crash or are not there."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

GOOD_PERF = """for word in "$@"; do [ "$last" = --output ] && out=$word; last=$word; done
[ "$1" = --version ] && { echo 'perf version 6.1.187'; exit 0; }
trap 'printf "1234,,instructions,1,100.00,,\\n" > "$out"; exit 0' INT
while :; do sleep 0.05; done
"""
DIAGNOSTIC = (
    "diagnostics: [{{id: look, tool: {tool}, arms: [candidate], route: /completion, request: cached.json, "
    "generated_tokens: 4, minimum_cached_tokens: {least}, limit_s: 20}}]"
)


def tool(world: Any, name: str, script: str) -> dict[str, str]:
    """Put a program before all others, for a run of `assay`."""
    folder = world.root / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + script)
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def protocol(world: Any, *, least: int = 31, tool_name: str = "perf-stat", **more: Any) -> Path:
    body = json.loads((world.root / "cold.json").read_bytes()) | {"n_predict": 4, "cache_prompt": True}
    (world.root / "cached.json").write_text(json.dumps(body))
    return world.protocol(schedule=world.PAIR, extra=DIAGNOSTIC.format(tool=tool_name, least=least), **more)


def receipt_of(world: Any) -> dict[str, Any]:
    with sqlite3.connect(f"file:{world.store / 'assay.sqlite'}?mode=ro", uri=True) as connection:
        ((kind, payload),) = connection.execute("SELECT kind, payload_json FROM receipt").fetchall()
        kept = {name for (name,) in connection.execute("SELECT name FROM attachment WHERE role = 'attachment'")}
    assert kind == "profiler.look.candidate"
    return json.loads(payload) | {"kept": kept}


def run(world: Any, path: Path, variables: dict[str, str]) -> tuple[dict[str, Any], Any]:
    ended = world.run("run", path, "--store", world.store, "--json", **variables)
    return receipt_of(world), ended


def test_a_profiler_looks_at_a_cached_request_after_the_last_load_and_the_verdict_stands(world: Any) -> None:
    receipt, ended = run(world, protocol(world), tool(world, "perf", GOOD_PERF))
    assert (receipt["outcome"], receipt["status"], receipt["reason"]) == ("captured", "RAN", None), ended.err
    assert (receipt["rows"], receipt["numbers"]) == (1, {"instructions": 1234})
    assert (receipt["cached_tokens"], receipt["generated_tokens"]) == (31, 4)
    assert receipt["timing_closed_at_ns"] < receipt["started_at_ns"] < receipt["ended_at_ns"]
    assert receipt["tool_version"] == "perf version 6.1.187"
    assert len(receipt["tool_sha256"]) == len(receipt["target_sha256"]) == 64
    assert receipt["target_alive_after"] is True
    assert {"diagnostic.wire", "traces-perf.csv"} <= receipt["kept"]
    assert (ended.code, ended.json()["verdict"]["status"]) == (0, "PASS")
    assert ended.json()["diagnostics"][0]["status"] == "RAN"
    starts = [one["arm"] for one in world.order() if one["event"] == "start"]
    assert starts[-1] == "candidate"
    assert len(starts) == 3, "the diagnostic load is one more process"
    assert world.living_engines() == []
    assert world.run("audit", "--store", world.store).code == 0


def test_too_little_from_the_cache_makes_it_not_run_and_says_so(world: Any) -> None:
    receipt, ended = run(world, protocol(world, least=32), tool(world, "perf", GOOD_PERF))
    assert (receipt["outcome"], receipt["status"]) == ("captured", "NOT_RUN")
    assert receipt["reason"] == "31 tokens came from the cache, at least 32 asked for"
    assert (ended.code, "NOT_RUN" in ended.err) == (0, True)


def test_a_tool_that_says_success_and_writes_nothing_captured_nothing(world: Any) -> None:
    """Regression of a known trap: exit code 0 without a file."""
    lying = '[ "$1" = --version ] && exit 0\necho success\nexit 0\n'
    receipt, ended = run(world, protocol(world), tool(world, "perf", lying))
    assert (receipt["outcome"], receipt["status"], receipt["exit_code"]) == ("no_trace", "NOT_RUN", 0)
    assert receipt["reason"] == "perf wrote no file"
    assert "tool.stdout" in receipt["kept"]
    assert ended.code == 0


def test_a_tool_that_cannot_attach_leaves_its_words(world: Any) -> None:
    receipt, _ = run(world, protocol(world), tool(world, "perf", "echo 'no permission' >&2\nexit 255\n"))
    assert (receipt["outcome"], receipt["exit_code"]) == ("attach_failed", 255)
    assert "no permission" in receipt["reason"]


def test_a_tool_that_kills_the_engine_is_found_out(world: Any) -> None:
    murder = """[ "$1" = --version ] && exit 0
for word in "$@"; do [ "$last" = --pid ] && kill -9 "$word"; last=$word; done
sleep 5
"""
    receipt, ended = run(world, protocol(world), tool(world, "perf", murder))
    assert (receipt["outcome"], receipt["status"], receipt["target_alive_after"]) == ("target_died", "NOT_RUN", False)
    assert ended.code == 0


def test_prerequisites_are_checked_before_an_engine_is_started(world: Any) -> None:
    empty = world.root / "empty"
    empty.mkdir()
    path = protocol(world, tool_name="rocprofv3-attach")
    receipt, ended = run(world, path, {"PATH": f"{empty}{os.pathsep}{os.environ['PATH']}"})
    if shutil.which("rocprofv3"):
        pytest.skip("NOT_RUN: this host has rocprofv3")
    assert (receipt["outcome"], receipt["status"], receipt["target_pid"]) == ("preflight_failed", "NOT_RUN", None)
    assert "rocprofv3: not found (install rocprofiler-sdk" in receipt["reason"]
    assert len([one for one in world.order() if one["event"] == "start"]) == 2
    assert ended.json()["diagnostics"][0]["outcome"] == "preflight_failed"


def test_an_engine_that_does_not_start_again_is_a_receipt_and_no_failure(world: Any) -> None:
    path = protocol(world, candidate=["--fault", "never-ready", "--fault-start", "2"])
    receipt, ended = run(world, path, tool(world, "perf", GOOD_PERF))
    assert (receipt["outcome"], receipt["status"]) == ("engine_failed", "NOT_RUN"), receipt
    assert ended.code == 0


def test_resuming_a_finished_look_does_not_look_again(world: Any) -> None:
    variables = tool(world, "perf", GOOD_PERF)
    run(world, protocol(world), variables)
    before = len(world.order())
    world.run("resume", "--store", world.store, **variables)
    receipt_of(world)
    assert len(world.order()) == before


def test_perf_itself_counts_here_or_the_receipt_says_why_not(world: Any) -> None:
    """Live: whatever this host has."""
    receipt, _ = run(world, protocol(world), {})
    if receipt["outcome"] == "captured":
        assert receipt["rows"] >= 1
        assert "task-clock (msec)" in receipt["numbers"]
    else:
        assert receipt["outcome"] in {"preflight_failed", "attach_failed", "no_trace"}
        assert receipt["reason"]
