"""Every way in which an engine can break: a record, a clear message, an exit code, sound evidence, and never a traceback."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

BROKEN = {
    "not-start": "ended before it was ready (exit code 7)",
    "never-ready": "was not ready within 2 s",
    "die-after=5": "the engine has ended",
    "hang-after=5": "nothing came for 1 s",
    "nonsense": "the answer is not HTTP",
    "not-json": "stream_error",
    "http-error": "the cache is on fire",
}
SHORT = "{load_s: 2, request_s: 5, idle_s: 1, campaign_min: 5}"
ONE_ARM_LATER = "{kind: explicit, order: [A1, C1], burn_in: false}"


def run_broken(world: Any, fault: str) -> Any:
    path = world.protocol(candidate=["--fault", fault, "--fault-start", "1"], schedule=ONE_ARM_LATER, limits=SHORT)
    return world.run("run", path, "--store", world.store, "--json")


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_engine_ends_its_load_as_partial_and_the_campaign_can_go_on(world: Any, fault: str) -> None:
    ended = run_broken(world, fault)
    report = ended.json()
    assert ended.code == 5, ended.err
    assert "Traceback" not in ended.err + ended.out
    states = [(load["label"], load["state"]) for load in report["loads"]]
    assert states == [("A1", "COMPLETE"), ("C1", "PARTIAL")]
    assert BROKEN[fault] in report["loads"][1]["reason"]
    assert BROKEN[fault] in ended.err, "the person who waits is told"
    assert not report["is_recorded"]
    assert world.living_engines() == []

    audit = world.run("audit", "--store", world.store, "--json")
    assert (audit.code, audit.json()["findings"]) == (0, [])

    resumed = world.run("resume", "--store", world.store, "--json")
    loads = [(load["label"], load["attempt"], load["state"]) for load in resumed.json()["loads"]]
    assert loads == [("A1", 1, "COMPLETE"), ("C1", 1, "PARTIAL"), ("C1", 2, "COMPLETE")], resumed.err
    assert (resumed.code, resumed.json()["verdict"]["status"]) == (0, "PASS")
    assert world.run("audit", "--store", world.store).code == 0


def test_an_engine_that_ends_at_its_start_is_to_be_corrected_and_not_resumed(world: Any) -> None:
    path = world.protocol(candidate=["--fault", "not-start"], schedule=ONE_ARM_LATER, limits=SHORT)
    ended = world.run("run", path, "--store", world.store)
    assert ended.code == 5
    assert "assay resume" not in ended.err + ended.out
    assert "Correct the engine or its arguments, then run again" in ended.err
    listed = world.run("list", "--store", world.store)
    assert "candidate does not start" in listed.out
    assert world.run("list", "--store", world.store, "--json").json()[0]["arms_that_do_not_start"] == ["candidate"]
    steps = [
        one for one in world.run("report", "--store", world.store, "--json").json()["claims"] if one["kind"] == "next"
    ]
    assert steps
    assert not any("resume" in one["text"].replace("resumed", "") for one in steps)


WRONG = {
    "wrong-tokens": ("tokens", "differs from A1 at token 12"),
    "wrong-counts": ("complete", "has 33 prompt tokens, stated are 32"),
    "short-answer": ("complete", "has 22 generated tokens, stated are 24"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_engine_that_does_other_work_fails_the_exact_gates(world: Any, fault: str) -> None:
    ended = run_broken(world, fault)
    report = ended.json()
    gate_id, words = WRONG[fault]
    gate = next(gate for gate in report["gates"] if gate["id"] == gate_id)
    assert (ended.code, report["verdict"]["status"], gate["status"]) == (1, "FAIL", "FAIL"), ended.err
    assert words in gate["reason"]
    assert [load["state"] for load in report["loads"]] == ["COMPLETE", "COMPLETE"]


def test_speeds_of_unequal_work_are_not_compared(world: Any) -> None:
    path = world.protocol(candidate=["--fault", "wrong-tokens"], gates=world.EXACT_GATES + world.LOSS_GATE)
    report = world.run("run", path, "--store", world.store, "--json").json()
    gate = next(gate for gate in report["gates"] if gate["id"] == "generation-loss")
    assert gate["status"] == "NOT_COMPARABLE"
    said = " ".join(claim["text"] for claim in report["claims"] if claim["gate"] == "generation-loss")
    assert "That the candidate's generation rate is as good as the baseline's" in said


def test_an_engine_that_ignores_sigterm_is_killed_and_its_load_still_counts(world: Any) -> None:
    ended = run_broken(world, "ignore-term")
    assert (ended.code, ended.json()["verdict"]["status"]) == (0, "PASS"), ended.err
    assert "C1: the engine did not end within 5 s and was killed" in ended.err
    assert world.living_engines() == []


def test_a_model_that_is_missing_is_a_clean_error_and_leaves_no_store(world: Any) -> None:
    path = world.protocol()
    (world.root / "tiny.gguf").unlink()
    ended = world.run("run", path, "--store", world.store)
    assert ended.code == 2, "nothing was started: the protocol names what is not there"
    assert "error: there is no model file tiny.gguf" in ended.err
    assert "next:" in ended.err
    assert not world.store.exists()


def test_the_time_of_the_campaign_ends_it_as_an_interruption(
    world: Any, monkeypatch: pytest.MonkeyPatch, as_user_of: Any
) -> None:
    """The limit is checked before each load, so the clock of the runner is moved and not waited for."""
    from harness import runner
    from harness.console import Console

    as_user_of(world)
    times = iter([0.0, *[61.0 * 5] * 50])
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(times))
    end = runner.run_campaign(world.protocol(schedule=world.PAIR), world.store, progress=Console().progress())
    assert end.exit_code == 5
    assert end.stopped_by == "the campaign's time of 5 minutes is over"
    assert [load.state for load in end.facts.loads] == [None, None]


def test_a_full_disk_stops_the_campaign_before_the_next_load(
    world: Any, monkeypatch: pytest.MonkeyPatch, as_user_of: Any
) -> None:
    from harness import runner
    from harness.console import Console
    from harness.preflight import Finding

    as_user_of(world)
    full = Finding(id="disk_room", effect="refuse", found="3 MiB", expected="at least 70 MiB", message="no room")
    monkeypatch.setattr(runner, "check_disk", lambda *_: full)
    end = runner.run_campaign(world.protocol(schedule=world.PAIR), world.store, progress=Console().progress())
    assert (end.exit_code, end.stopped_by) == (5, "no room: found 3 MiB, needs at least 70 MiB")


ENGINE_WITH_A_LIBRARY = """#!/usr/bin/env python3
import ctypes, pathlib, runpy, sys
here = pathlib.Path(__file__).resolve().parent
CHANGE
ctypes.CDLL(str(here / "LIBRARY"))
runpy.run_path(str(here / "fake_engine.py"), run_name="__main__")
"""
SWAP = "library = here / 'LIBRARY'; data = library.read_bytes() + b' '; library.unlink(); library.write_bytes(data)"


@pytest.mark.parametrize(
    ("library", "change", "words"),
    [
        ("libbeside.so", "", None),
        ("libbeside.so", SWAP, "libbeside.so was mapped with SHA-256"),
        ("../lib/libelsewhere.so", "", "lib/libelsewhere.so was mapped, and no file of that name is locked"),
    ],
)
def test_a_load_that_maps_another_library_than_the_locked_one_is_invalid(
    world: Any, library: str, change: str, words: str | None
) -> None:
    folder = world.engine.parent
    code = folder / "code.cpp"
    code.write_text("int one() { return 1; }\n")
    out = folder / library
    out.parent.mkdir(exist_ok=True)
    subprocess.run(["c++", "-shared", "-fPIC", code, "-o", out], check=True)
    engine = folder / "with_library.py"
    engine.write_text(ENGINE_WITH_A_LIBRARY.replace("CHANGE", change).replace("LIBRARY", library))
    engine.chmod(0o755)
    path = world.protocol(schedule=ONE_ARM_LATER, limits=SHORT)
    path.write_text(path.read_text().replace("engines/fake_engine.py", "engines/with_library.py"))
    ended = world.run("run", path, "--store", world.store, "--json")
    first = ended.json()["loads"][0]
    if words is None:
        assert (ended.code, first["state"]) == (0, "COMPLETE"), ended.err
    else:
        assert (ended.code, first["state"]) == (5, "INVALID"), ended.err
        assert words in first["reason"]


def test_the_last_words_of_an_engine_are_printed_once(world: Any) -> None:
    path = world.protocol(
        candidate=["--fault", "not-start", "--fault-start", "1"], schedule=ONE_ARM_LATER, limits=SHORT
    )
    ended = world.run("run", path, "--store", world.store)
    assert (ended.out + ended.err).count("error: cannot open the model: it is only a fake") == 1
    assert ended.err.count("ended before it was ready (exit code 7)") >= 1, "why it ended is said everywhere"
    words = world.run("report", "--store", world.store).out
    assert words.count("it is only a fake") == 1


def test_a_number_that_the_protocol_states_wrongly_is_not_the_candidates_fault(world: Any) -> None:
    """Both engines count 33 tokens where the protocol says 32: FAIL would say that the candidate may not be used."""
    fault = ["--fault", "wrong-counts"]
    path = world.protocol(baseline=fault, candidate=fault, schedule=ONE_ARM_LATER, limits=SHORT)
    ended = world.run("run", path, "--store", world.store)
    words = " ".join(ended.out.replace("│", " ").split())
    assert ended.code == 4, words
    assert "Verdict: NOT_COMPARABLE" in words
    assert "must not replace" not in words
    assert "next: If that is what the request means, write prompt_tokens: 33 in workload" in words
    assert world.run("audit", "--store", world.store).code == 0
