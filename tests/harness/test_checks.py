"""Checks in process on the real engine and a real model: carried out, recorded, judged, audited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.build import BuildSpec, build_engine
from engine.models import fetched_model
from protocols.errors import EngineError

CHECKS = """
  - {id: twice, kind: determinism, prompt_tokens: 24, steps: 4}
  - {id: state-split, kind: state_round_trip, prompt_tokens: 24, steps: 4, kv_mode: split}
  - {id: state-unified, kind: state_round_trip, prompt_tokens: 24, steps: 4, kv_mode: unified}
  - {id: copy-split, kind: sequence_copy, prompt_tokens: 24, steps: 4, kv_mode: split}
  - {id: copy-unified, kind: sequence_copy, prompt_tokens: 24, steps: 4, kv_mode: unified}
  - {id: foreign-split, kind: foreign_content, prompt_tokens: 24, foreign_tokens: 30, steps: 4, kv_mode: split}
  - {id: foreign-unified, kind: foreign_content, prompt_tokens: 24, foreign_tokens: 30, steps: 4, kv_mode: unified}
"""
NAMES = [line.split("id: ")[1].split(",")[0] for line in CHECKS.strip().splitlines()]


def with_checks(path: Path, checks: str) -> Path:
    """Put checks and a gate for each of them and each arm into a protocol."""
    text = path.read_text()
    names = [line.split("id: ")[1].split(",")[0] for line in checks.strip().splitlines()]
    gates = "".join(
        f"  - {{id: {name}-{arm}, kind: check, check: {name}, arm: {arm}}}\n"
        for name in names
        for arm in ("baseline", "candidate")
    )
    text = text.replace("gates:\n", f"gates:\n{gates}").replace("limits:", f"checks:{checks}limits:")
    path.write_text(text)
    return path


@pytest.fixture
def real(world: Any) -> Path:
    """A protocol of two arms of the installed engine with a real model, and a short request."""
    try:
        build, model = build_engine(BuildSpec(name="tests", layout_salt=1)), fetched_model("smollm2")
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    path: Path = world.protocol(schedule=world.PAIR, gates=world.EXACT_GATES)
    text = path.read_text().replace("model: {path: tiny.gguf}", f"model: {{path: '{model}'}}")
    lines = []
    for line in text.splitlines():
        arm = line.strip().partition(":")[0]
        is_arm = arm in {"baseline", "candidate"} and "kind: llama-server" in line
        engine = f"{{kind: folder, path: '{build.folder}'}}"
        lines.append(f'  {arm}: {{engine: {engine}, environment: {{GOMP_SPINCOUNT: "0"}}}}' if is_arm else line)
    path.write_text("\n".join(lines) + "\n")
    return path


def gates_of(document: dict[str, Any]) -> dict[str, str]:
    return {gate["id"]: gate["status"] for gate in document["gates"]}


def test_the_engine_passes_every_check_in_both_arms_and_the_evidence_audits(world: Any, real: Path) -> None:
    ended = world.run("run", with_checks(real, CHECKS), "--store", world.store, "--json")
    document = ended.json()
    gates = gates_of(document)
    found = {name: status for name, status in gates.items() if name.rpartition("-")[2] in {"baseline", "candidate"}}
    reasons = {gate["id"]: gate["reason"] for gate in document["gates"]}
    assert found == {f"{name}-{arm}": "PASS" for name in NAMES for arm in ("baseline", "candidate")}, reasons
    assert reasons["twice-baseline"] == "Byte-equal over 4 steps: two fresh processes give the same logits."
    audited = world.run("audit", "--store", world.store, "--json")
    assert (audited.code, audited.json()["findings"]) == (0, [])

    size = 4 * 4 * 49152  # four steps of the whole vocabulary; blobs may begin with a salt
    blocks = [
        one for one in (world.store / "blobs").rglob("*") if one.is_file() and size <= one.stat().st_size <= size + 16
    ]
    assert len(blocks) >= 4
    content = bytearray(blocks[0].read_bytes())
    content[1000] ^= 1
    blocks[0].write_bytes(content)
    audited = world.run("audit", "--store", world.store, "--json")
    assert audited.code == 6
    assert any(blocks[0].name in finding["place"] for finding in audited.json()["findings"])


def test_an_arm_without_a_library_is_not_run_and_says_why(world: Any) -> None:
    path = with_checks(
        world.protocol(schedule=world.PAIR), "\n  - {id: twice, kind: determinism, prompt_tokens: 4, steps: 1}\n"
    )
    refused = world.run("run", path, "--store", world.store)
    assert refused.code == 2
    assert "cannot be asked for determinism" in refused.err
    assert "has no library of its own to load" in refused.err
    path.write_text(path.read_text().replace("check: twice, arm: baseline", "check: twice, required: false, arm: baseline")
                    .replace("check: twice, arm: candidate", "check: twice, required: false, arm: candidate"))  # fmt: skip
    ended = world.run("run", path, "--store", world.store, "--json")
    assert ended.code == 0, ended.err
    gate = next(gate for gate in ended.json()["gates"] if gate["id"] == "twice-baseline")
    assert gate["status"] == "NOT_RUN"
    assert gate["reason"] == "The check was not run: an arm of kind llama-server has no library of its own to load."


def test_a_step_that_the_engine_refuses_is_what_the_check_found(world: Any, real: Path) -> None:
    # More tokens in one step than the cache type's context can hold is refused by the library; the arm FAILs.
    check = "\n  - {id: huge, kind: determinism, prompt_tokens: 1048576, steps: 1, kv_type: f32}\n"
    text = with_checks(real, check).read_text().replace("request_s: 10", "request_s: 30")
    real.write_text(text)
    ended = world.run("run", real, "--store", world.store, "--json")
    gate = next(gate for gate in ended.json()["gates"] if gate["id"] == "huge-candidate")
    assert gate["status"] == "FAIL", json.dumps(gate)[:500]
    assert "did not carry the check out" in gate["reason"]
