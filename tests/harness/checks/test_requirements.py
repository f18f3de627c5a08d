"""Requirements carried out: programs that end in every way, hashed before and as locked, their output kept as it came."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from recorder.campaign_state import read_campaigns
from recorder.checks import read_checks
from recorder.store import Store

SCRIPTS = {
    "good.sh": "echo hello; echo to-the-other >&2; pwd; echo $1 $2 $3",
    "bad.sh": "echo ppl: 17.5; exit 4",
    "ppl.sh": "echo ppl: 17.5 over 3",
    "slow.sh": "echo begun; sleep 60 & echo $! > child; sleep 60",
    "flood.sh": "while :; do head -c 100000 /dev/zero; done",
    "skip.sh": "exit 77",
    "signal.sh": "kill -SEGV $$",
    "environment.sh": "echo canary=$CANARY own=$OWN",
    "spoil.sh": "echo '#!/bin/sh' > spoiled.sh",
    "spoiled.sh": "exit 0",
    "remove.sh": "rm removed.sh data.txt",
    "removed.sh": "exit 0",
    "daemon.sh": "setsid sh -c 'setsid sleep 100 & echo $! > daemon; wait' > /dev/null 2>&1 & sleep 0.5",
    "unlink.sh": "rm $(readlink /proc/$$/fd/1); echo ppl: 17.5; sleep 0.2",
    "thousands.sh": "echo ppl: 1,234",
}


def requirements(world: Any, *ones: str, gate: str = "required: false", name: str = "listed") -> Path:
    """Write a protocol of the fake engine whose candidate is asked for a list of requirements."""
    for script, text in SCRIPTS.items():
        path = world.root / script
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (world.root / "data.txt").write_text("data\n")
    listed = "\n".join(f"      - {{{one}}}" for one in ones)
    path: Path = world.protocol(
        name=name,
        schedule=world.PAIR,
        gates=f"\n  - {{id: complete, kind: completeness}}\n  - {{id: g, kind: check, check: project, {gate}}}\n",
        extra=f"checks:\n  - id: project\n    kind: requirements\n    requirements:\n{listed}\n",
    )
    lines = [
        line.rstrip("}") + '}, environment: {OWN: "1"}}' if line.startswith("  candidate:") else line
        for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def outcome(world: Any, path: Path, **variables: str) -> tuple[dict[str, tuple[str, str]], dict[str, bytes]]:
    """Run the protocol; return status and reason of each requirement, and every output as it was recorded."""
    ended = world.run("run", path, "--store", world.store, "--json", **variables)
    assert ended.code == 0, ended.err
    (gate,) = (one for one in ended.json()["gates"] if one["id"] == "g")
    with Store.open(world.store, read_only=True) as store:
        state = list(read_campaigns(store.entries()).values())[-1]
        (check,) = read_checks(state, store.blobs.read)
        outputs = {name: check.outputs[name] for name in check.outputs}
    return {row["id"]: (row["status"], row["reason"]) for row in gate["inputs"]["requirements"]}, outputs


@pytest.mark.timeout(240)
def test_every_end_is_what_it_is_called_and_its_output_is_kept(world: Any) -> None:
    path = requirements(
        world,
        "id: good, run: [./good.sh, '{here}', '{model}', '{folder}/x'], limit_s: 20",
        "id: bad, run: [./bad.sh], limit_s: 20",
        "id: wanted, run: [./bad.sh], limit_s: 20, exit_code: 4",
        'id: within, run: [./ppl.sh], limit_s: 20, number: {after: "ppl:", least: "17", most: "18"}',
        'id: above, run: [./ppl.sh], limit_s: 20, number: {after: "ppl:", most: "17.4"}',
        "id: slow, run: [./slow.sh], limit_s: 1",
        "id: flood, run: [./flood.sh], limit_s: 60",
        "id: skip, run: [./skip.sh], limit_s: 20, not_run_exit_code: 77",
        "id: signal, run: [./signal.sh], limit_s: 20",
        "id: absent, run: [no-such-tool-anywhere], limit_s: 20",
        "id: unbuilt, run: ['{folder}/no-such-program'], limit_s: 20",
        "id: found, run: [sh, ./good.sh], limit_s: 20",
        "id: environment, run: [./environment.sh], limit_s: 20",
        f"id: long, run: [./good.sh, {'x' * 4000}], limit_s: 20",
        "id: spoil, run: [./spoil.sh], limit_s: 20",
        "id: spoiled, run: [./spoiled.sh], limit_s: 20",
        "id: remove, run: [./remove.sh], limit_s: 20",
        "id: removed, run: [./removed.sh], limit_s: 20",
        "id: unread, run: [./good.sh], limit_s: 20, files: [data.txt]",
    )
    started_s = time.monotonic()
    rows, outputs = outcome(world, path, CANARY="seen")
    assert time.monotonic() - started_s < 60, "the slow ones were waited for"
    assert rows == {
        "good": ("PASS", "exit code 0"),
        "bad": ("FAIL", "exit code 4, expected 0"),
        "wanted": ("PASS", "exit code 4"),
        "within": ("PASS", "ppl: 17.5"),
        "above": ("FAIL", "ppl: 17.5 is above 17.4"),
        "slow": ("FAIL", "ended after 1 s"),
        "flood": ("FAIL", "ended after more than 4194304 bytes of output"),
        "skip": ("NOT_RUN", "exit code 77 says that it could not test"),
        "signal": ("FAIL", "ended by signal 11"),
        "absent": ("NOT_RUN", "there is no program no-such-tool-anywhere on this host"),
        "unbuilt": ("NOT_RUN", "there is no program {folder}/no-such-program here"),
        "found": ("PASS", "exit code 0"),
        "environment": ("PASS", "exit code 0"),
        "long": ("PASS", "exit code 0"),
        "spoil": ("PASS", "exit code 0"),
        "spoiled": ("FAIL", "not what is locked: spoiled.sh"),
        "remove": ("PASS", "exit code 0"),
        "removed": ("FAIL", "a locked file is gone: removed.sh"),
        "unread": ("FAIL", "a locked file is gone: data.txt"),
    }
    words = [str(world.root), str(world.root / "tiny.gguf"), f"{world.engine.parent}/x"]
    assert outputs["good"].decode().splitlines() == ["hello", "to-the-other", str(world.root), " ".join(words)]
    assert outputs["slow"] == b"begun\n"
    assert len(outputs["flood"]) == 4194304
    assert outputs["environment"] == b"canary= own=1\n"
    child = int((world.root / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()
    report = world.run("report", "--store", world.store).out
    assert "| project: above | ./ppl.sh | not asked | FAIL | broken in the candidate |" in report
    assert world.run("audit", "--store", world.store).code == 0


def test_a_smoke_can_be_required_of_an_arm_within_the_campaign_that_holds_the_host(world: Any) -> None:
    reference = world.root / "reference.json"
    written = world.run(
        "smoke", world.protocol(schedule=world.PAIR), "--arm", "baseline", "--write", reference, "--store", world.store
    )
    assert written.code == 0, written.err
    words = ["--arm", "baseline", "--log", world.order_log, "--counter", world.root / "baseline.starts"]
    arguments = ", ".join(f"'--argument={word}'" for word in words)
    smoke = "'{assay}', smoke, --reference, reference.json, --engine, '{folder}/fake_engine.py', --model, '{model}'"
    path = requirements(
        world,
        f"id: same, run: [{smoke}, {arguments}], limit_s: 60",
        f"id: other, run: [{smoke}, {arguments}, --argument=--fault=wrong-tokens, --argument=--good-requests=0], limit_s: 60",
    )
    rows, outputs = outcome(world, path)
    assert rows["same"] == ("PASS", "exit code 0"), outputs["same"].decode()
    assert rows["other"] == ("FAIL", "exit code 1, expected 0"), outputs["other"].decode()
    assert b"cold: reply ids" in outputs["other"]
    (lock,) = world.store.glob("campaigns/*/lock.json")
    locked = json.loads(lock.read_text())["requirements"][0]["files"]
    assert {"reference.json", "fake_engine.py"} <= {file["name"] for file in locked}


def test_what_a_program_leaves_or_removes_harms_nobody(world: Any) -> None:
    path = requirements(
        world,
        "id: daemon, run: [./daemon.sh], limit_s: 20",
        'id: unlink, run: [./unlink.sh], limit_s: 20, number: {after: "ppl:", most: "18"}',
        'id: thousands, run: [./thousands.sh], limit_s: 20, number: {after: "ppl:", most: "18"}',
    )
    rows, outputs = outcome(world, path)
    assert rows == {
        "daemon": ("PASS", "exit code 0"),
        "unlink": ("PASS", "ppl: 17.5"),
        "thousands": ("FAIL", 'the output has no number behind "ppl:"'),
    }
    assert outputs["unlink"] == b"ppl: 17.5\n"
    assert not Path(f"/proc/{int((world.root / 'daemon').read_text())}").exists(), "it runs beside the loads"


def test_programs_and_files_stand_in_the_lock_and_a_changed_one_stops_a_resumed_campaign(world: Any) -> None:
    (world.root / "corpus.txt").write_text("one two three\n")
    path = requirements(
        world, "id: one, run: [./good.sh, ./ppl.sh, text], limit_s: 20, files: [corpus.txt]", gate="required: true"
    )
    lines = path.read_text().replace(
        '"--arm", "candidate"', '"--arm", "candidate", "--fault", "not-start", "--fault-start", "1"'
    )
    path.write_text(lines)
    assert world.run("run", path, "--store", world.store).code == 5
    (lock,) = world.store.glob("campaigns/*/lock.json")
    (locked,) = json.loads(lock.read_text())["requirements"]
    assert (locked["check"], locked["arm"], locked["requirement"]) == ("project", "candidate", "one")
    assert [file["name"] for file in locked["files"]] == ["good.sh", "ppl.sh", "corpus.txt"]
    (world.root / "corpus.txt").write_text("one two three four\n")
    refused = world.run("resume", "--store", world.store)
    assert refused.code == 5
    assert "requirements: locked" in refused.err
    (world.root / "corpus.txt").write_text("one two three\n")
    assert world.run("resume", "--store", world.store).code == 0


def test_an_output_that_is_changed_afterwards_is_found(world: Any) -> None:
    path = requirements(world, 'id: one, run: [./ppl.sh], limit_s: 20, number: {after: "ppl:", most: "18"}')
    _, outputs = outcome(world, path)
    assert outputs == {"one": b"ppl: 17.5 over 3\n"}
    (blob,) = (
        file
        for file in (world.store / "blobs").rglob("*")
        if file.is_file() and file.read_bytes().endswith(b"ppl: 17.5 over 3\n")
    )
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes().replace(b"17.5", b"16.5"))
    audited = world.run("audit", "--store", world.store, "--json")
    assert audited.code == 6
    assert any(blob.name in finding["place"] for finding in audited.json()["findings"])


def test_what_is_not_there_is_refused_before_anything_starts_with_its_line(world: Any) -> None:
    path = requirements(
        world,
        "id: one, run: [./none.sh], limit_s: 20",
        "id: two, run: [./corpus.txt], limit_s: 20",
        f"id: three, run: [./good.sh], limit_s: 20, files: [./good.sh, none.txt, {'x' * 300}]",
    )
    (world.root / "corpus.txt").write_text("no program\n")
    ended = world.run("run", path, "--store", world.store)
    assert ended.code == 2
    for words in (
        "checks[0].requirements[0].run[0]: there is no executable program ./none.sh",
        "checks[0].requirements[1].run[0]: there is no executable program ./corpus.txt",
        "checks[0].requirements[2].files[1]: there is no file none.txt",
        "checks[0].requirements[2].files[2]: there is no file xxx",
    ):
        assert words in ended.err
    assert f"{path.name}:" in ended.err
    assert not world.order()


def test_a_protocol_without_requirements_locks_what_it_always_locked(world: Any) -> None:
    ended = world.run("run", world.protocol(schedule=world.PAIR), "--store", world.store)
    assert ended.code == 0, ended.err
    (lock,) = world.store.glob("campaigns/*/lock.json")
    assert "requirements" not in json.loads(lock.read_text())
