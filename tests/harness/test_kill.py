"""The runner is killed or interrupted at several points: engines die with it, evidence stays sound, resuming completes it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest

SLOW = ["--rate", "20"]  # 24 tokens take more than a second: time enough to be killed in the middle of a stream
Order = list[dict[str, Any]]


def count(order: Order, event: str) -> int:
    return sum(one["event"] == event for one in order)


def completions(order: Order) -> int:
    return sum(one.get("path") == "/completion" for one in order)


POINTS: dict[str, Callable[[Order], bool]] = {
    "while the first engine starts": lambda order: count(order, "start") == 1,
    "in the first warm-up": lambda order: completions(order) == 1,
    "in the middle of the second load's stream": lambda order: count(order, "start") == 2 and completions(order) == 4,
    "between the first load and the second": lambda order: count(order, "term") == 1,
}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_runner_leaves_partial_evidence_that_resume_completes(world: Any, point: str) -> None:
    path = world.protocol(schedule=world.PAIR, baseline=SLOW, candidate=SLOW)
    runner = world.start("run", path, "--store", world.store)
    world.wait_for(POINTS[point])
    runner.kill()
    runner.wait()
    world.wait_for_engines_to_end()

    audit = world.run("audit", "--store", world.store, "--json")
    assert (audit.code, audit.json()["findings"]) == (0, []), audit.err
    assert audit.json()["is_partial"]
    shown = world.run("show", "--store", world.store, "--json")
    assert (shown.code, shown.json()["is_recorded"]) == (0, False)

    resumed = world.run("resume", "--store", world.store, "--json")
    report = resumed.json()
    assert (resumed.code, report["verdict"]["status"]) == (0, "PASS"), resumed.err
    assert "died; `assay resume` can complete it" in resumed.err
    complete = [load["label"] for load in report["loads"] if load["state"] == "COMPLETE"]
    assert complete == ["A1", "C1"]
    assert all(load["is_abandoned"] for load in report["loads"] if load["state"] == "PARTIAL")

    audit = world.run("audit", "--store", world.store, "--json")
    assert (audit.code, audit.json()["findings"], audit.json()["is_partial"]) == (0, [], False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_seals_the_load_records_the_interruption_and_exits_130(world: Any, number: signal.Signals) -> None:
    path = world.protocol(schedule=world.PAIR, baseline=SLOW, candidate=SLOW)
    runner = world.start("run", path, "--store", world.store, "--json")
    world.wait_for(lambda order: completions(order) == 2)
    runner.send_signal(number)
    assert runner.wait(30) == 130
    assert world.living_engines() == []
    assert "Traceback" not in (world.root / "err.txt").read_text()
    report = world.run("show", "--store", world.store, "--json").json()
    assert report["interruptions"] == ["interrupted"]
    assert [(load["state"], load["reason"]) for load in report["loads"]] == [("PARTIAL", "interrupted"), (None, None)]
    request = report["loads"][0]["workloads"][0]
    assert request["outcome"] == "cancelled"
    audit = world.run("audit", "--store", world.store, "--json").json()
    assert (audit["findings"], audit["is_sound"]) == ([], True)

    resumed = world.run("resume", "--store", world.store, "--json")
    assert (resumed.code, resumed.json()["verdict"]["status"]) == (0, "PASS"), resumed.err
    assert any("interrupted once" in line for line in resumed.json()["limits"])


def test_sigterm_interrupts_a_runner_that_a_shell_started_in_the_background(world: Any) -> None:
    runner = world.start_in_background(
        "run", world.protocol(schedule=world.PAIR, baseline=SLOW), "--store", world.store
    )
    world.wait_for(lambda order: completions(order) == 2)
    runner.send_signal(signal.SIGINT)  # ignored, as the shell asked
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(30) == 130
    assert world.living_engines() == []
    assert world.run("audit", "--store", world.store, "--json").json()["is_partial"]


def stop_in_the_middle(world: Any, path: Any) -> None:
    runner = world.start("run", path, "--store", world.store)
    world.wait_for(lambda order: completions(order) == 2)
    runner.kill()
    runner.wait()
    world.wait_for_engines_to_end()


def test_resume_refuses_when_something_is_not_as_it_was_locked(world: Any) -> None:
    stop_in_the_middle(world, world.protocol(schedule=world.PAIR, baseline=SLOW, candidate=SLOW))
    engine, model = world.engine.read_bytes(), (world.root / "tiny.gguf").read_bytes()

    world.engine.write_bytes(engine + b"# another build\n")
    refused = world.run("resume", "--store", world.store, "--json")
    assert refused.code == 5
    assert "arms.baseline.files.fake_engine.py.sha256: locked" in refused.json()["error"]["message"]
    world.engine.write_bytes(engine)

    (world.root / "tiny.gguf").write_bytes(model + b"\0")
    refused = world.run("resume", "--store", world.store)
    assert refused.code == 5
    assert "model.model.bytes: locked 4096, now 4097" in refused.err
    (world.root / "tiny.gguf").write_bytes(model)

    # The protocol file is not needed any more: the campaign goes on from its own record of it.
    (world.root / "fake-pair.yaml").write_text("nothing")
    (world.root / "cold.json").unlink()
    assert world.run("resume", "--store", world.store).code == 0
    assert world.run("audit", "--store", world.store).code == 0


def test_a_campaign_with_a_verdict_is_not_resumed(finished: Any, copy_of_finished: Any) -> None:
    ended = finished.run("resume", "--store", copy_of_finished)
    assert ended.code == 6
    assert "has its verdict" in ended.err


def test_a_load_whose_engine_is_replaced_under_the_runner_is_invalid(world: Any) -> None:
    """The lock names the bytes of the engine; a process that runs others is not the locked arm."""
    path = world.protocol(schedule=world.PAIR, baseline=SLOW)
    runner = world.start("run", path, "--store", world.store, "--json")
    world.wait_for(lambda order: completions(order) == 1)
    other = world.engine.with_suffix(".new")
    shutil.copy2(world.engine, other)
    with other.open("ab") as file:
        file.write(b"# another build\n")
    other.replace(world.engine)
    assert runner.wait(60) == 5
    report = world.run("show", "--store", world.store, "--json").json()
    assert report["loads"][0]["state"] == "INVALID"
    assert "does not run what is locked: fake_engine.py" in report["loads"][0]["reason"]
    assert report["verdict"]["status"] == "INVALID"
