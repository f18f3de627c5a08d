"""A made-up GPU is read as a real one is, and a clock that collapses on it leaves the block out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.console import Console
from harness.made_up_gpu import ADDRESS, CYCLE, DIP, MadeUpGpu
from harness.runner import CampaignEnd, run_loaded
from protocols.load import load_protocol
from protocols.measurements import Arm
from recorder.anomalies import COLLAPSE_TICKS, MarkedPhase, find_anomalies
from recorder.host_counts import host_counts
from recorder.phases import Phase
from recorder.telemetry.sample import Sample

TICK_NS = 50_000_000
TICKS = 4 * CYCLE
RULES = "validity: [{reading: clock_collapses, most: 0}, {reading: throttle_events, most: 0}]"
GATES = """
  - {id: complete, kind: completeness}
  - {id: loss, kind: loss, workload: cold, metric: generation_rate, margin_pct: "10", after: [complete], required: false}
"""
N_TOKENS = 112  # 2.8 s at the rate below: more samples than a cycle has
RATE = "40"


def samples_of(gpu: MadeUpGpu, arm: Arm) -> list[Sample]:
    """Return so many ticks of a load as the sampler takes them."""
    selection = gpu.select(arm, None, TICK_NS)
    taken = []
    for tick in range(TICKS):
        readings = [one for provider in selection.providers for one in provider.read(tick)]
        raws = [one for provider in selection.providers for one in provider.raws()]
        taken.append(
            Sample(
                tick=tick,
                deadline_ns=tick * TICK_NS,
                t_begin_ns=tick * TICK_NS,
                t_end_ns=tick * TICK_NS,
                cpu_ns=0,
                readings=tuple(readings),
                raws=tuple(raws),
            )
        )
    selection.close()
    return taken


def test_the_card_keeps_its_clock_and_throttles_in_one_arm_only(tmp_path: Path) -> None:
    assert DIP > COLLAPSE_TICKS
    gpu = MadeUpGpu(tmp_path, throttles_in="candidate")
    phase = MarkedPhase(request=1, phase=Phase(name="generation", start_ns=0, end_ns=TICKS * TICK_NS))
    sound, throttled = samples_of(gpu, "baseline"), samples_of(gpu, "candidate")
    counts = [host_counts(one, [phase]) for one in (sound, throttled, samples_of(gpu, "baseline"))]
    assert [(one["clock_collapses"], one["throttle_events"]) for one in counts] == [(0, 0), (4, 4), (0, 0)]
    found = [one for one in find_anomalies(throttled, [phase]) if one.kind == "clock_collapse"]
    assert {(one.field, one.value, one.cause) for one in found} == {("gfx_clock_hz", 1_100_000_000, "thermal")}


def test_everything_but_the_card_is_the_host_s_own(tmp_path: Path) -> None:
    gpu = MadeUpGpu(tmp_path, throttles_in=None)
    selection = gpu.select("baseline", None, TICK_NS)
    assert [one.identifier for one in selection.devices() if one.kind in {"amdgpu", "amdsmi", "nvidia"}] == [ADDRESS]
    values = {one.field.name: one.raw for provider in selection.providers for one in provider.read(0)}
    total_kib = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert values["mem_total_bytes"] == 1024 * total_kib
    assert values["gfx_busy_ppm"] == 990_000
    assert values["smu_gfx_clock_hz"] == values["gfx_clock_hz"] == 2_400_000_000
    selection.close()


def run_with(world: Any, name: str, throttles_in: Arm | None) -> CampaignEnd:
    """Run one block of the fake engine beside a made-up card."""
    path = world.protocol(
        name=name,
        baseline=["--rate", RATE],
        candidate=["--rate", RATE],
        schedule="{kind: blocks, blocks: 1, order: abba, seed: 7, burn_in: false}",
        gates=GATES,
        extra=RULES,
    )
    body = json.loads((world.root / "cold.json").read_text()) | {"n_predict": N_TOKENS}
    (world.root / "cold.json").write_text(json.dumps(body))
    text = path.read_text().replace("period_ms: 100", "period_ms: 50")
    path.write_text(text.replace("generated_tokens: 24", f"generated_tokens: {N_TOKENS}"))
    gpu = MadeUpGpu(world.root / name, throttles_in=throttles_in)
    return run_loaded(load_protocol(path), world.root, world.store, progress=Console(as_json=False).progress(), gpu=gpu)


@pytest.mark.timeout(240)
def test_a_clock_that_collapses_leaves_the_block_out_and_the_evidence_audits(
    world: Any, as_user_of: Callable[[Any], None]
) -> None:
    as_user_of(world)
    ends = {arm: run_with(world, f"gpu-{arm or 'steady'}", arm) for arm in (None, "candidate")}
    losses = {arm: next(gate for gate in end.facts.gates if gate.id == "loss") for arm, end in ends.items()}
    assert [one.inputs["unchecked_readings"] for one in losses.values()] == [[], []]
    assert losses[None].inputs["invalid_blocks"] == []
    (left_out,) = losses["candidate"].inputs["invalid_blocks"]
    broken = " ".join(left_out["broken"])
    for label in ("C1", "C2"):
        assert f"{label} had" in broken
    assert "A1" not in broken
    assert "collapses of the GPU's clock within a phase" in broken
    assert "times that the GPU's clock was throttled" in broken
    assert losses["candidate"].status == "INCONCLUSIVE"
    with sqlite3.connect(world.store / "assay.sqlite") as database:
        notes = database.execute("SELECT count(*) FROM load_event WHERE event = 'telemetry.made_up'").fetchone()
    assert notes == (8,)
    audited = world.run("audit", "--store", world.store, "--json")
    assert (audited.code, audited.json()["findings"]) == (0, [])
