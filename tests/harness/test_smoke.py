"""`assay smoke` with real processes: a reference is written on one host and asked for again, and what differs is named."""

from __future__ import annotations

import json
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engine.build import BuildSpec, EngineBuild, build_engine
from engine.cache import cache_folder
from engine.models import fetched_model, make_model
from harness.commands.smokes import _written
from harness.smoke import find_device
from protocols.errors import EngineError
from recorder.store import Store
from recorder.telemetry.sample import DeviceIdentity

# The build of these faults is the one that tests/engine/qwen_faulty.py names: nothing is compiled for this module.
FAULTS = ("copy-loses-index-keys", "norm-65535", "state-loses-positions", "draft-accepts-wrong", "slot-leaks-cache")
CODE = [16799, 10239, 7828, 34953, 47254, 19172, 12963, 11403, 11262, 22817, 36156, 37610, 13584, 27563, 16799, 10239]


def arguments_of(world: Any, *more: str, arm: str = "candidate") -> list[str]:
    """Return the options that name the fake engine as the protocol of a world does."""
    words = ["--arm", arm, "--log", world.order_log, "--counter", world.root / f"{arm}.starts", *more]
    named = [f"--argument={word}" for word in words]
    return ["--engine", world.engine, "--model", world.root / "tiny.gguf", *named, "--store", world.store]


@pytest.fixture
def written(world: Any) -> Path:
    """A reference of the fake engine."""
    path: Path = world.root / "reference.json"
    ended = world.run("smoke", world.protocol(), "--write", path, "--store", world.store)
    assert ended.code == 0, ended.err
    return path


def rows_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["rows"]}


def failures(document: dict[str, Any]) -> dict[str, str | None]:
    return {name: row["reason"] for name, row in rows_of(document).items() if row["status"] == "FAIL"}


def test_the_same_engine_passes_with_one_start_and_leaves_nothing_behind(world: Any, written: Path) -> None:
    before = sum(one["event"] == "start" for one in world.order())
    ended = world.run("smoke", "--reference", written, *arguments_of(world), "--json")
    assert ended.code == 0, ended.out
    document = ended.json()
    assert (document["status"], {row["status"] for row in document["rows"]}) == ("PASS", {"PASS"})
    assert {"model", "device", "context", "arguments", "cold: reply ids", "cold: drafts", "end"} <= rows_of(
        document
    ).keys()
    assert sum(one["event"] == "start" for one in world.order()) == before + 1
    world.wait_for_engines_to_end()
    assert not world.store.exists()


@pytest.mark.parametrize(
    ("fault", "code", "failed"),
    [
        ("wrong-tokens", 1, {"arguments", "cold: reply ids"}),
        ("short-answer", 1, {"arguments", "cold: reply ids"}),
        ("nonsense", 1, {"arguments", "cold: reply ids"}),
        ("http-error", 1, {"arguments", "cold: reply ids"}),
        ("die", 5, {"arguments", "cold: reply ids", "end"}),
        ("not-start", 5, {"arguments", "start"}),
        ("ignore-term", 1, {"arguments", "end"}),
    ],
)
def test_an_engine_that_does_something_else_fails_the_row_that_says_so(
    world: Any, written: Path, fault: str, code: int, failed: set[str]
) -> None:
    more = arguments_of(world, "--fault", fault, "--good-requests", "0")
    ended = world.run("smoke", "--reference", written, *more, "--json")
    document = ended.json()
    assert (ended.code, failures(document).keys()) == (code, failed)
    assert document["exit_code"] == code
    world.wait_for_engines_to_end()


def test_an_engine_that_is_never_ready_is_waited_for_as_long_as_the_reference_says(world: Any, written: Path) -> None:
    value = json.loads(written.read_text()) | {"load_s": 1}
    written.write_text(json.dumps(value))
    ended = world.run("smoke", "--reference", written, *arguments_of(world, "--fault", "never-ready"), "--json")
    assert ended.code == 5
    assert "was not ready within 1 s" in str(failures(ended.json())["start"])


def test_a_reference_that_was_changed_fails_where_it_was_changed_and_is_found_by_its_hash(
    world: Any, written: Path
) -> None:
    first = world.run("smoke", "--reference", written, *arguments_of(world), "--json").json()
    value = json.loads(written.read_text())
    value["cases"][0]["reply_tokens"][7] += 1
    value["cases"][0]["drafted_tokens"] = 3
    written.write_text(json.dumps(value))
    ended = world.run("smoke", "--reference", written, *arguments_of(world), "--json")
    assert ended.code == 1
    assert failures(ended.json()).keys() == {"cold: reply ids", "cold: drafts"}
    assert str(failures(ended.json())["cold: reply ids"]).startswith("id 7 is ")
    pinned = ["--sha256", first["reference_sha256"]]
    refused = world.run("smoke", "--reference", written, *arguments_of(world), *pinned)
    assert refused.code == 6
    assert f"not {first['reference_sha256']}" in refused.err


def test_what_could_not_be_kept_is_refused_before_an_engine_starts(world: Any, written: Path) -> None:
    before = len(world.order())
    ended = world.run("smoke", world.protocol(), "--write", world.root / "none" / "r.json", "--store", world.store)
    assert (ended.code, "its folder is not there" in ended.err) == (2, True)
    (world.root / "occupied").write_text("no folder\n")
    words = [str(word).replace(str(world.store), str(world.root / "occupied" / "s")) for word in arguments_of(world)]
    refused = world.run("smoke", "--reference", written, *words, "--record")
    assert refused.code == 5, refused.err
    assert "should not have happened" not in refused.err
    refused = world.run("smoke", world.protocol(), "--write", world.root / "n.json", "--record", *words[-2:])
    assert refused.code == 5, refused.err
    assert len(world.order()) == before
    assert not (world.root / "n.json").exists()


def test_a_reference_that_was_half_written_is_not_left(world: Any) -> None:
    path = world.root / "reference.json"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limit[1]))
    try:
        problem = _written(path, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert problem is not None
    assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_smoke_is_recorded_and_leaves_nothing(
    world: Any, written: Path, tmp_path: Path, number: int
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = sum(one["event"] == "start" for one in world.order())
    words = ["smoke", "--reference", written, *arguments_of(world, "--fault", "never-ready"), "--record"]
    process = world.start(*words, TMPDIR=str(temporary))
    world.wait_for(lambda seen: sum(one["event"] == "start" for one in seen) > before)
    time.sleep(0.2)
    process.send_signal(number)
    code = process.wait(30)
    assert code == 130
    world.wait_for_engines_to_end()
    assert list(temporary.glob("assay-smoke-*")) == []
    with Store.open(world.store, read_only=True) as store:
        (entry,) = (one for one in store.entries() if one.kind == "receipt.recorded")
        assert json.loads(store.blobs.read(entry.blob("detail")))["error"] == "interrupted"


def test_another_model_is_named_and_nothing_is_started(world: Any, written: Path) -> None:
    model = world.root / "tiny.gguf"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    before = len(world.order())
    ended = world.run("smoke", "--reference", written, *arguments_of(world), "--json")
    assert (ended.code, failures(ended.json()).keys()) == (1, {"model"})
    assert rows_of(ended.json())["start"]["status"] == "NOT_RUN"
    assert len(world.order()) == before


def test_a_smoke_is_recorded_as_a_receipt_whatever_comes_of_it(world: Any, written: Path) -> None:
    for more, code in (((), 0), (("--fault", "wrong-tokens"), 1), (("--fault", "not-start"), 5)):
        words = arguments_of(world, *more, *(("--good-requests", "0") if more else ()))
        assert world.run("smoke", "--reference", written, *words, "--record").code == code
    with Store.open(world.store, read_only=True) as store:
        entries = [one for one in store.entries() if one.kind == "receipt.recorded"]
        details = [json.loads(store.blobs.read(one.blob("detail"))) for one in entries]
        kept = [{str(blob["name"]) for blob in one.blobs()} for one in entries]
    assert [one.text("receipt") for one in entries] == ["smoke"] * 3
    assert [(one["action"], one["status"], one["exit_code"]) for one in details] == [
        ("check", "PASS", 0),
        ("check", "FAIL", 1),
        ("check", "FAIL", 5),
    ]
    assert kept == [{"detail.json", "reference.json", "exchanges.jsonl", "engine.stderr"}] * 3
    audited = world.run("audit", "--store", world.store, "--json")
    assert (audited.code, audited.json()["findings"]) == (0, [])


def test_no_reference_is_made_of_an_engine_that_contradicts_itself_or_breaks(world: Any) -> None:
    for fault, words in (
        ("wrong-tokens", "asked again, it gives another token at 12"),
        ("http-error", "status 500"),
        ("die", "it ended by itself: signal SIGKILL"),
        ("not-start", "ended before it was ready (exit code 7)"),
    ):
        path = world.protocol(candidate=["--fault", fault])
        ended = world.run("smoke", path, "--write", world.root / "reference.json", "--store", world.store)
        assert ended.code == 5
        assert words in ended.err
        assert not (world.root / "reference.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say either PROTOCOL --write FILE or --reference FILE"),
        (["served-pair"], "say either PROTOCOL --write FILE or --reference FILE"),
        (["--write", "new.json"], "PROTOCOL goes with --write"),
        (["served-pair", "--reference", "reference.json"], "PROTOCOL goes with --write"),
        (["served-pair", "--write", "new.json", "--any-device"], "--any-device goes with --reference"),
        (["--reference", "none.json"], "cannot be read: No such file"),
        (["--reference", "reference.json"], "name its file with --model"),
        (["--reference", "reference.json", "--model", "no.gguf", "--engine", "engines/fake_engine.py"], "neither a known model"),
        (["--reference", "reference.json", "--model", "tiny.gguf"], "name the one of this host with --engine"),
        (["--reference", "reference.json", "--model", "tiny.gguf", "--engine", "none"], "Path 'none' does not exist"),
        (["--reference", "reference.json", "--model", "tiny.gguf", "--engine", "."], "a llama.cpp server: name its file"),
        (
            ["--reference", "reference.json", "--model", "tiny.gguf", "--engine", "engines/fake_engine.py", "--environment", "A"],
            "'A' is no variable",
        ),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_meant_is_refused_with_2(
    world: Any, written: Path, words: list[str], message: str
) -> None:
    ended = world.run("smoke", *words, "--store", world.store)
    assert written.is_file()
    assert (ended.code, message in " ".join(ended.err.split())) == (2, True), ended.err


def test_a_file_of_a_build_is_refused_with_the_folder_that_is_meant(world: Any, written: Path) -> None:
    value = json.loads(written.read_text())
    written.write_text(json.dumps(value | {"kind": "build"}))
    inner = world.root / "build" / "bin"
    inner.mkdir(parents=True)
    (inner / "engine-server").write_text("#!/bin/sh\n")
    where = ["--reference", written, "--model", "tiny.gguf", "--store", world.store]
    for hint in ("--engine FOLDER", f"--engine {world.root}/build"):
        ended = world.run("smoke", *where, "--engine", inner / "engine-server", "--json")
        error = ended.json()["error"]
        assert (ended.code, error["hint"]) == (2, f"give the build's folder: {hint}")
        (world.root / "build" / "receipt.json").write_text("{}")
    assert error["message"] == "the reference is of a build, and this is a file of one"


def test_a_reference_is_never_overwritten_and_an_endpoint_has_none(world: Any, written: Path) -> None:
    before = written.read_bytes()
    again = world.run("smoke", world.protocol(), "--write", written, "--store", world.store)
    assert (again.code, written.read_bytes()) == (5, before)
    path = world.protocol(gates="\n  - {id: complete, kind: completeness}\n")
    body = {"model": "x", "prompt": [1], "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True}
    (world.root / "cold.json").write_text(json.dumps(body))
    endpoint = "  candidate: {engine: {kind: openai, url: 'http://127.0.0.1:1', model: x}}"
    lines = [endpoint if line.startswith("  candidate:") else line for line in path.read_text().splitlines()]
    workload = "  - {id: cold, route: /v1/completions, request: cold.json, prompt_tokens: 1, generated_tokens: 2}"
    lines = [workload if line.startswith("  - {id: cold") else line for line in lines]
    path.write_text("\n".join(lines) + "\n")
    ended = world.run("smoke", path, "--write", world.root / "new.json", "--store", world.store)
    assert ended.code == 2, ended.err
    assert "has no files to identify" in ended.err
    ended = world.run("smoke", path, "--arm", "baseline", "--write", world.root / "new.json", "--store", world.store)
    assert (ended.code, "there is nothing to ask again" in ended.err) == (2, True), ended.err


def test_a_gpu_goes_by_what_kernel_or_driver_name_and_counts_once() -> None:
    found = find_device(
        [
            DeviceIdentity(kind="amdgpu", identifier="0000:c5:00.0", facts={"gfx_target": "gfx1151", "device": "0x1586"}),
            DeviceIdentity(kind="amdsmi", identifier="0000:c5:00.0", facts={"market_name": "Radeon 8060S"}),
            DeviceIdentity(kind="nvidia", identifier="0000:01:00.0", facts={"name": "NVIDIA H200"}),
            DeviceIdentity(kind="host", identifier="cpu", facts={}),
        ]
    )  # fmt: skip
    assert found.gpus == ("NVIDIA H200", "gfx1151")


@pytest.fixture(scope="module")
def builds() -> dict[str, EngineBuild]:
    """The sound build and one in which a wrong draft is accepted."""
    try:
        return {
            "sound": build_engine(BuildSpec(name="tests", layout_salt=1)),
            "faulty": build_engine(BuildSpec(name="qwen-faults", layout_salt=1, faults=FAULTS)),
        }
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")


def real_protocol(world: Any, build: EngineBuild, model: Path, prompt: list[int] | str, n_prompt: int) -> Path:
    """Write a protocol whose arms are one build: the candidate drafts where the prompt is of ids."""
    body = {
        "prompt": prompt,
        "n_predict": 24,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
        "stream": True,
    }
    (world.root / "real.json").write_text(json.dumps(body))
    drafts = 3 if isinstance(prompt, list) else 0
    engine = f"{{engine: {{kind: folder, path: '{build.folder}'}}, settings: {{drafts: {drafts}}}}}"
    path = world.root / "real.yaml"
    path.write_text(f"""assay: 1
id: real
title: One build twice
claim: screen
purpose: To make a reference.
model: {{path: '{model}'}}
settings: {{context_tokens: 512, threads: 2}}
arms:
  baseline: {engine}
  candidate: {engine}
schedule: {world.PAIR}
workloads:
  - {{id: short, route: /completion, request: real.json, prompt_tokens: {n_prompt}, generated_tokens: 24}}
gates:
  - {{id: complete, kind: completeness}}
""")
    return Path(path)


@pytest.mark.timeout(900)
def test_the_engine_passes_its_own_reference_and_a_build_with_a_fault_fails_ids_and_drafts(
    world: Any, builds: dict[str, EngineBuild]
) -> None:
    model = make_model("qwen4exp-recall", cache=cache_folder())
    path = real_protocol(world, builds["sound"], model, CODE, len(CODE))
    reference = world.root / "reference.json"
    ended = world.run("smoke", path, "--write", reference, "--store", world.store)
    assert ended.code == 0, ended.err
    case = json.loads(reference.read_text())["cases"][0]
    assert (case["prompt_tokens"], len(case["reply_tokens"])) == (CODE, 24)
    assert 0 < case["accepted_tokens"] < case["drafted_tokens"]

    where = ["--reference", reference, "--store", world.store, "--model", model, "--json"]
    same = world.run("smoke", *where, "--engine", builds["sound"].folder)
    assert (same.code, failures(same.json())) == (0, {})
    other = world.run("smoke", *where, "--engine", builds["faulty"].folder)
    assert other.code == 1
    failed = failures(other.json())
    assert {"file libassay-engine.so", "short: reply ids", "short: drafts"} <= failed.keys()
    assert not {"model", "device", "start", "mapped files", "context", "end"} & failed.keys()

    # The files are right, and the process loads another library all the same.
    swapped = f"LD_LIBRARY_PATH={builds['faulty'].library.parent}"
    mapped = world.run("smoke", *where, "--engine", builds["sound"].folder, "--environment", swapped)
    assert mapped.code == 1
    assert "mapped files" in failures(mapped.json())
    assert "file libassay-engine.so" not in failures(mapped.json())


def test_a_prompt_of_text_is_compared_by_the_ids_that_the_engine_makes_of_it(
    world: Any, builds: dict[str, EngineBuild]
) -> None:
    try:
        model = fetched_model("smollm2")
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    path = real_protocol(world, builds["sound"], model, "The capital of France is", 5)
    reference = world.root / "reference.json"
    ended = world.run("smoke", path, "--write", reference, "--store", world.store)
    assert ended.code == 0, ended.err
    value = json.loads(reference.read_text())
    assert value["cases"][0]["prompt"] == "The capital of France is"
    where = ["--reference", reference, "--store", world.store, "--engine", builds["sound"].folder, "--json"]
    where += ["--model", model]
    assert world.run("smoke", *where).code == 0
    value["cases"][0]["prompt"] = "The capital of Spain is"
    reference.write_text(json.dumps(value))
    ended = world.run("smoke", *where)
    assert (ended.code, failures(ended.json()).keys()) == (1, {"short: prompt ids"})
    path.write_text(path.read_text().replace("prompt_tokens: 5", "prompt_tokens: 6"))
    refused = world.run("smoke", path, "--write", world.root / "new.json", "--store", world.store)
    assert refused.code == 5
    assert "the engine makes 5 tokens of the prompt, and the protocol states 6" in refused.err
