"""The check `smoke` on real builds: what a package loses or changes, and a build that runs in its first folder alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from qwen_faulty import SEPARATE, built

from engine.build import LIBRARY, SERVER, EngineBuild, copy_build, open_build
from engine.identity import RECEIPT_NAME, identify_build
from harness.checks import smoke as smoke_check
from harness.transfer import LIST, Transfer, pack_build
from protocols.canonical import canonical_bytes, sha256_hex
from protocols.errors import HostError
from recorder.archive import END, Member, pack_member, read_members
from recorder.bundle import unpack_bundle

TINY = Path(__file__).parents[2] / "engine" / "models" / "tiny-a.gguf"
Files = dict[str, bytes]
SMOKE = "kind: smoke"
SUITES = "bin/qsa_suites"
REAL = "bin/engine-server.real"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that must be empty at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def rows(found: Any) -> dict[str, str]:
    """Return every row that does not hold, with its status."""
    return {row["name"]: row["status"] for row in found.inputs["rows"] if row["status"] != "PASS"}


def with_receipt(folder: Path) -> EngineBuild:
    """Write the files of a build anew into its receipt, as whoever made them would have."""
    path = folder / RECEIPT_NAME
    receipt = json.loads(path.read_text())
    receipt["outputs"] = {file.name: file.sha256 for file in identify_build(folder).files}
    path.write_text(json.dumps(receipt))
    return open_build(folder)


def wrapped(tmp_path: Path, script: str) -> EngineBuild:
    """Return a build of its own folder whose server is a script; {here} is that folder, {own} where it runs."""
    folder = tmp_path / "build"
    copy_build(built("tests"), folder)
    (folder / SERVER).rename(folder / REAL)
    own = '"$(dirname "$0")/.."'
    (folder / SERVER).write_text(f"#!/bin/sh\n{script.format(here=folder, own=own)}\n")
    (folder / SERVER).chmod(0o755)
    return with_receipt(folder)


def spoil_packages(monkeypatch: pytest.MonkeyPatch, change: Callable[[Files], object]) -> None:
    """Let every package hold other files than the build, its list written anew."""

    def pack(folder: Path, target: Path) -> Transfer:
        done = pack_build(folder, target)
        with target.open("rb") as file:
            members = read_members(zstandard.ZstdDecompressor().stream_reader(file))
            files = {member.name: b"".join(pieces) for member, pieces in members}
        listed = json.loads(files.pop(LIST))
        change(files)
        listed["files"] = [
            {**one, "bytes": len(files[one["name"]]), "sha256": sha256_hex(files[one["name"]])}
            for one in listed["files"]
            if one["name"] in files
        ]
        files = {LIST: canonical_bytes(listed), **files}
        data = b"".join(b"".join(pack_member(Member(name, len(one)), (one,))) for name, one in files.items())
        target.write_bytes(zstandard.compress(data + END))
        return done

    monkeypatch.setattr(smoke_check, "pack_build", pack)


def listing(files: Files) -> None:
    """Make the receipt within a package fit its other files."""
    receipt = json.loads(files[RECEIPT_NAME])
    receipt["outputs"] = {name: sha256_hex(one) for name, one in files.items() if name != RECEIPT_NAME}
    files[RECEIPT_NAME] = json.dumps(receipt).encode()


def test_a_build_out_of_its_package_shows_what_it_shows_and_leaves_nothing(
    prepared: Any, outcome: Any, temporary: Path
) -> None:
    found = outcome(prepared(SMOKE))
    assert found.status == "PASS", found.reason
    assert "does what the build does on this host" in found.reason
    assert "another host is asked by `assay smoke --reference`" in found.reason
    names = {row["name"] for row in found.inputs["rows"]}
    assert {f"file {Path(LIBRARY).name}", "model", "device", "mapped files", "context", "slots"} < names
    assert {"cold: reply ids", "end", "runs the package", "without its first folder", "left behind"} < names
    assert found.inputs["package"]["files"] == sum(path.is_file() for path in built("tests").folder.rglob("*"))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda files: files.pop(SUITES), f"{SUITES} differs from the build's receipt"),
        (lambda files: files.update({LIBRARY: files[LIBRARY] + b"\0"}), f"{LIBRARY} differs from the build's receipt"),
        (lambda files: files.pop(RECEIPT_NAME), "no finished build"),
    ],
)
def test_a_package_that_lost_or_changed_a_file_does_not_come_out(
    prepared: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch, temporary: Path, change: Any, words: str
) -> None:
    spoil_packages(monkeypatch, change)
    found = outcome(prepared(SMOKE))
    assert (found.status, words in found.reason) == ("FAIL", True), found.reason
    assert list(temporary.iterdir()) == []


def test_a_package_without_a_file_fails_the_row_of_that_file_although_its_receipt_fits(
    prepared: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_packages(monkeypatch, lambda files: (files.pop(SUITES), listing(files)))
    found = outcome(prepared(SMOKE))
    assert (found.status, rows(found)) == ("FAIL", {f"file {Path(SUITES).name}": "FAIL"})
    assert "the engine here has no such file" in found.reason


def test_a_package_with_another_library_fails_by_hash_and_by_what_that_library_says(
    prepared: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch, recall_model: Path
) -> None:
    other = built("qwen-faults", *SEPARATE).library.read_bytes()
    spoil_packages(monkeypatch, lambda files: (files.update({LIBRARY: other}), listing(files)))
    made = prepared(SMOKE, model=recall_model)
    found = outcome(made)
    assert found.status == "FAIL"
    assert {f"file {Path(LIBRARY).name}": "FAIL", "runs the package": "FAIL"}.items() <= rows(found).items()


@pytest.mark.parametrize(
    ("script", "row", "words"),
    [
        ('exec {here}/bin/engine-server.real "$@"', "without its first folder", "bin/engine-server.real"),
        ('[ "$0" = {here}/bin/engine-server ] || exit 3\nexec {own}/bin/engine-server.real "$@"', "start", "exit code 3"),
        ('exec 9< {here}/receipt.json\nexec {own}/bin/engine-server.real "$@"', "without its first folder", "receipt.json"),
        ('cd {here} || exit 3\nexec {here}/bin/engine-server.real "$@"', "runs the package", "no file of the package"),
    ],
)  # fmt: skip
def test_a_build_that_only_runs_in_its_own_folder_is_found(
    prepared: Any, outcome: Any, tmp_path: Path, script: str, row: str, words: str
) -> None:
    found = outcome(prepared(SMOKE, faulty=wrapped(tmp_path, script)))
    assert (found.status, rows(found).get(row)) == ("FAIL", "FAIL"), found.reason
    assert words in found.reason
    assert not {name for name in rows(found) if name.startswith("file ")}


def test_a_library_that_is_looked_for_in_the_first_folder_is_found_there(prepared: Any, outcome: Any) -> None:
    where = built("tests").library.parent
    found = outcome(prepared(SMOKE, environment=f"LD_LIBRARY_PATH: '{where}'"))
    assert (found.status, rows(found)) == ("FAIL", {"without its first folder": "FAIL"}), found.reason
    assert Path(LIBRARY).name in found.reason


def test_a_process_that_the_unpacked_engine_leaves_is_named_and_ended(
    prepared: Any, outcome: Any, tmp_path: Path
) -> None:
    script = f'setsid sleep 300 9>&- & echo $! >> {tmp_path}/strays\nexec {{own}}/bin/engine-server.real "$@"'
    found = outcome(prepared(SMOKE, faulty=wrapped(tmp_path, script)))
    assert (found.status, rows(found)) == ("FAIL", {"left behind": "FAIL"}), found.reason
    assert "processes: 2 instead of" in found.reason
    for pid in (tmp_path / "strays").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_a_build_that_was_made_anew_since_the_lock_is_no_build_of_this_campaign(
    prepared: Any, outcome: Any, tmp_path: Path
) -> None:
    build = wrapped(tmp_path, 'exec {own}/bin/engine-server.real "$@"')
    made = prepared(SMOKE, faulty=build)
    (build.folder / SUITES).write_bytes(b"another")
    with_receipt(build.folder)
    found = outcome(made)
    assert (found.status, "the build is no longer what is locked" in found.reason) == ("FAIL", True), found.reason


def test_a_host_that_cannot_hold_or_run_the_package_is_not_blamed_on_the_build(
    prepared: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared(SMOKE)

    def full(folder: Path, target: Path) -> Transfer:
        raise HostError("the disk is full", where=str(target))

    with monkeypatch.context() as context:
        context.setattr(smoke_check, "pack_build", full)
        found = outcome(made)
        assert (found.status, "the disk is full" in found.reason) == ("NOT_RUN", True), found.reason
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    found = outcome(made)
    assert (found.status, "TMPDIR" in found.reason) == ("NOT_RUN", True), found.reason


@pytest.mark.timeout(300)
def test_the_reference_of_a_campaign_is_taken_out_of_its_bundle_as_the_document_says(world: Any) -> None:
    build = built("tests").folder
    path = world.root / "smoked.yaml"
    engine = f"{{engine: {{kind: folder, path: '{build}'}}, environment: {{GOMP_SPINCOUNT: '0'}}}}"
    path.write_text(f"""assay: 1
id: smoked
title: One build twice
claim: screen
purpose: To leave a reference.
model: {{path: '{TINY}'}}
settings: {{context_tokens: 256, threads: 1}}
arms: {{baseline: {engine}, candidate: {engine}}}
schedule: {world.PAIR}
workloads:
  - {{id: cold, route: /completion, request: cold.json, prompt_tokens: 32, generated_tokens: 24}}
checks:
  - {{id: packed, kind: smoke, workloads: [cold]}}
gates:
  - {{id: complete, kind: completeness}}
  - {{id: packed-candidate, kind: check, check: packed}}
""")
    ended = world.run("run", path, "--store", world.store, "--json")
    assert ended.code == 0, ended.err
    (gate,) = (one for one in ended.json()["gates"] if one["id"] == "packed-candidate")
    assert gate["status"] == "PASS", gate["reason"]
    audited = world.run("audit", "--store", world.store, "--json")
    assert (audited.code, audited.json()["findings"]) == (0, [])

    bundle = world.root / "b.assay.tar.zst"
    assert world.run("bundle", "--out", bundle, "--store", world.store).code == 0
    unpack_bundle(bundle, world.root / "unpacked")
    text = (Path(__file__).parents[3] / "docs" / "checks.md").read_text()
    (lines,) = re.findall(r"^```\n(for blob in .*?)^```$", text, re.MULTILINE | re.DOTALL)
    subprocess.run(["sh", "-c", lines], cwd=world.root / "unpacked", check=True)
    (reference,) = (world.root / "unpacked").glob("reference-*.json")
    asked = ["--reference", reference, "--sha256", gate["inputs"]["reference_sha256"]]
    ended = world.run("smoke", *asked, "--engine", build, "--model", TINY, "--store", world.store, "--json")
    assert (ended.code, ended.json()["status"]) == (0, "PASS"), ended.err
