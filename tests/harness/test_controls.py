"""A reduced detection matrix over the real engine: faults of a server, each caught by its gate."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.cache import cache_folder
from harness.console import Console
from harness.controls import run_controls
from harness.made_up_gpu import CYCLE, MadeUpGpu
from protocols.controls import load_controls


@pytest.mark.timeout(900)
def test_known_faults_of_a_server_are_caught_and_nothing_is_without_one(world: Any):
    out = world.root / "detection.md"
    names = ["split-utf8", "doubled-token-event", "swapped-library"]
    command = ["controls", "run", *names, "--store", world.store, "--out", out, "--json"]
    ended = world.run(*command, ASSAY_CACHE=str(cache_folder()))
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["rows"]
    assert [(row["control"], row["caught"]) for row in rows] == [(None, True), *((name, True) for name in names)]
    assert "3 of 3 faults caught" in out.read_text()


def test_a_throttled_clock_is_run_beside_a_card_that_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The wiring alone; tests/harness/test_made_up_gpu.py runs the campaign that shows what comes of it."""
    seen: list[tuple[str, tuple[int, int] | None]] = []

    def run_loaded(loaded: Any, _base: Path, _store: Path, *, progress: Any, gpu: MadeUpGpu | None) -> Any:
        found = None if gpu is None else tuple(_throttles(gpu, arm) for arm in ("baseline", "candidate"))
        seen.append((loaded.protocol.id, found))
        left_out = [{"block": 1}] if found == (0, 1) else []
        loss = SimpleNamespace(id="loss", status="INCONCLUSIVE", required=False, inputs={"invalid_blocks": left_out})
        return SimpleNamespace(campaign_id="c", facts=SimpleNamespace(verdict=None, gates=[loss], loads=[]))

    monkeypatch.setattr("harness.controls.run_loaded", run_loaded)
    control = next(one for one in load_controls() if one.id == "throttled-clock")
    progress = Console(as_json=False).progress()
    sound, throttled = run_controls([control], tmp_path, progress=progress)
    assert seen == [("control-telemetry", (0, 0)), ("control-telemetry.throttled-clock", (0, 1))]
    assert (sound.caught, sound.fired, throttled.caught, throttled.fired) == (True, (), True, ("validity",))
    served = next(one for one in load_controls() if one.id == "lost-token-event")
    outcomes = list(run_controls([served], tmp_path, progress=progress))
    assert [one for _, one in seen[2:]] == [None, None]
    assert [one.caught for one in outcomes] == [True, False]


def _throttles(gpu: MadeUpGpu, arm: Any) -> int:
    """Return in how many of one cycle's samples a limit of the card stood, as 0 or 1 for none or some."""
    selection = gpu.select(arm, None, 50_000_000)
    readings = [one for tick in range(CYCLE) for part in selection.providers for one in part.read(tick)]
    selection.close()
    return int(any(one.raw for one in readings if one.field.name == "throttle_bits"))


def test_an_unknown_control_is_refused_with_the_nearest_name(world: Any):
    ended = world.run("controls", "run", "split-utf", "--store", world.store)
    assert ended.code == 2
    assert "split-utf8" in ended.err


@pytest.mark.timeout(900)
def test_over_two_right_builds_no_exact_gate_fires(world: Any):
    out = world.root / "alarms.md"
    command = ["controls", "alarms", "control-served", "--campaigns", 1, "--store", world.store, "--out", out, "--json"]
    ended = world.run(*command, ASSAY_CACHE=str(cache_folder()))
    assert ended.code == 0, ended.err
    gates = json.loads(ended.out)["gates"]
    assert {gate["gate"]: gate["fired"] for gate in gates if gate["is_exact"]} == dict.fromkeys(
        (gate["gate"] for gate in gates if gate["is_exact"]), 0
    )
    assert "1 campaigns without a fault: exact gates fired 0 times" in out.read_text()
    assert "control-served.fault-free" in world.run("list", "--store", world.store).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["alarms", "release-quik"], "write release-quick"),
        (["alarms", "release-quick", "--out", "nowhere/alarms.md"], "mkdir -p nowhere"),
        (["run", "split-utf8", "--out", "nowhere/detection.md"], "mkdir -p nowhere"),
    ],
)
def test_what_cannot_be_run_or_written_is_said_before_the_first_campaign(world: Any, arguments: list[str], words: str):
    ended = world.run("controls", *arguments, "--store", world.store)
    assert ended.code == 2
    assert words in ended.err
    assert not world.store.exists()
