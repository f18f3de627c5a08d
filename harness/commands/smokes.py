"""`assay smoke`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import click

from engine.build import open_build
from engine.identity import RECEIPT_NAME
from harness.api_key import secret_values
from harness.console import Console, table
from harness.engines import find_build, find_model
from harness.exits import EXIT_OK
from harness.host_guard import hold_host
from harness.options import Settings, assay_version, command
from harness.result_files import check_file, write_result
from harness.smoke import Smoked, SmokeEngine, smoke, smoke_engine
from harness.smoke_writing import known_model, make_reference
from protocols.canonical import sha256_hex
from protocols.errors import AssayError, EvidenceError, HostError, UsageError
from protocols.measurements import ARMS, Arm
from protocols.paths import is_file
from protocols.smoke import SmokeRow, judge_smoke, smoke_exit_code, smoke_status
from protocols.smoke_cases import SmokePrompt
from protocols.smoke_reference import SmokeReference, read_smoke_reference
from recorder.receipts import record_receipt
from recorder.store import Store

FILE = click.Path(path_type=Path, dir_okay=False)
HEADS: Final = ("row", "status", "expected", "found", "why")
_HASH: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def register(root: click.Group) -> None:
    """Add the command to the root group."""
    root.add_command(smoke_command)


@command(
    "smoke",
    example="assay smoke release --arm candidate --write reference.json\n"
    "assay smoke --reference reference.json --engine builds/candidate --model qwen4exp-recall",
)
@click.argument("protocol", required=False)
@click.option("--arm", type=click.Choice(ARMS), default="candidate", show_default=True, help="Arm to write of.")
@click.option("--write", "out", type=FILE, help="New file that gets the reference; on the reference host.")
@click.option("--reference", type=FILE, help="Reference that this host must show again.")
@click.option("--sha256", help="Hash that the reference must have, as --write printed it.")
@click.option(
    "--engine",
    type=click.Path(path_type=Path, exists=True),
    help="Build folder or llama-server.  [default: the installed build]",
)
@click.option("--model", help="Known name or GGUF file.  [default: the known model of the reference's hash]")
@click.option("--argument", "arguments", multiple=True, help="Argument of a llama-server; repeatable.")
@click.option("--environment", multiple=True, metavar="NAME=VALUE", help="Variable of the engine; repeatable.")
@click.option("--any-device", is_flag=True, help="Show another device than the reference's without a FAIL.")
@click.option("--record", is_flag=True, help="Also record a receipt in the store, whatever comes of it.")
def smoke_command(
    settings: Settings,
    *,
    protocol: str | None,
    arm: str,
    out: Path | None,
    reference: Path | None,
    sha256: str | None,
    engine: Path | None,
    model: str | None,
    arguments: tuple[str, ...],
    environment: tuple[str, ...],
    any_device: bool,
    record: bool,
) -> int:
    """Ask this host for what a reference host showed: files by hash, prompts by ids, replies, drafts, context, device.

    With --write, an arm of PROTOCOL is started here and the prompts of its workloads are asked greedily, twice; the
    file holds what came. With --reference, an engine of this host is identified, started once and asked the same: each
    row is PASS, FAIL or NOT_RUN. Exit code 1 with a FAIL, 3 where a row could not be judged, 5 where the engine does
    not start or ends by itself, 6 where the reference has another hash than --sha256.
    """
    if (out is None) == (reference is None):
        raise click.UsageError("say either PROTOCOL --write FILE or --reference FILE")
    if (out is None) == (protocol is not None):
        raise click.UsageError("PROTOCOL goes with --write, and a reference needs none")
    if out is not None:
        asked: dict[str, object] = {"--engine": engine, "--model": model, "--sha256": sha256}
        asked |= {"--argument": arguments, "--environment": environment, "--any-device": any_device}
        for name in (name for name, value in asked.items() if value):
            raise click.UsageError(f"{name} goes with --reference: the arm of the protocol says it for --write")
        return _write(settings, str(protocol), cast("Arm", arm), out, record=record)
    assert reference is not None  # noqa: S101 - one of the two is given
    wanted, data = read_smoke_reference(reference)
    if sha256 is not None and sha256_hex(data) != sha256:
        raise EvidenceError(f"the reference has the hash {sha256_hex(data)}, not {sha256}", where=str(reference))
    found = _found_engine(settings, wanted, engine, model, arguments, _variables(environment))
    return _check(settings, wanted, data, found, any_device=any_device, record=record)


def _write(settings: Settings, protocol: str, arm: Arm, out: Path, *, record: bool) -> int:
    check_file(out, option="--write")
    if out.exists():
        raise HostError(
            "the file exists already", where=str(out), hint="references are not overwritten: name a new file"
        )
    if record:
        Store.open(settings.store, create=True).close()  # what cannot be kept afterwards is refused before
    with hold_host(settings.store):
        try:
            made, smoked = make_reference(protocol, arm, log=settings.console.say)
        except AssayError as error:
            if record:
                _record(settings, {"action": "write", "error": str(error), "where": error.where}, {})
            raise
        except KeyboardInterrupt:
            if record:
                _record(settings, {"action": "write", "error": "interrupted"}, {})
            raise
    data = made.file_bytes()
    value: dict[str, Any] = {"file": str(out), "sha256": sha256_hex(data), "cases": [one.id for one in made.cases]}
    problem = _written(out, data)
    if record:
        value |= {} if problem is None else {"error": str(problem)}
        _record(settings, {"action": "write", **value}, {"reference.json": data, **_attached(smoked)})
    if problem is not None:
        raise problem
    lines = (f"{out}: {len(made.cases)} prompts, {len(made.files)} files of the engine", f"sha256: {value['sha256']}")
    settings.console.result(value, lambda console: console.show(*lines))
    return EXIT_OK


def _written(out: Path, data: bytes) -> HostError | None:
    """Write a new file, or leave none and return why."""
    try:
        write_result(out, data, is_new=True)
    except HostError as error:
        return error
    return None


def _found_engine(
    settings: Settings,
    wanted: SmokeReference,
    engine: Path | None,
    model: str | None,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
) -> SmokeEngine:
    """Find the engine and the model of this host. UsageError where one has to be named."""
    name = known_model(wanted.model.sha256) if model is None else model
    if name is None:
        raise UsageError(
            f"the reference is of the model {wanted.model.sha256}, which no known name gets",
            hint="name its file with --model",
        )
    if engine is None and wanted.kind == "llama-server":
        raise UsageError("the reference is of a llama.cpp server", hint="name the one of this host with --engine")
    if engine is not None and wanted.kind == "build" and not engine.is_dir():
        folder = _build_around(engine.absolute())
        raise UsageError(
            "the reference is of a build, and this is a file" + (" of one" if folder else ""),
            where=str(engine),
            hint=f"give the build's folder: --engine {folder or 'FOLDER'}",
        )
    if engine is not None and wanted.kind != "build" and engine.is_dir():
        raise UsageError("the reference is of a llama.cpp server: name its file", where=str(engine))
    # The engine starts in a folder of its own, so that a relative path would lead elsewhere.
    model_path, place = find_model(name).absolute(), None if engine is None else engine.absolute()
    if place is not None and not place.is_dir():
        return smoke_engine(place, wanted.settings, model_path, arguments=arguments, environment=environment)
    build = find_build(None, settings.console.say) if place is None else open_build(place)
    return smoke_engine(
        build.folder, wanted.settings, model_path, build=build, arguments=arguments, environment=environment
    )


def _build_around(file: Path) -> Path | None:
    """Return the folder of the build that a file lies in; None where it is none of ours."""
    return next((folder for folder in file.parents if is_file(folder / RECEIPT_NAME)), None)


def _variables(pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", pair, re.DOTALL):
            raise UsageError(f"{pair!r} is no variable", hint="write --environment NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def _check(
    settings: Settings, wanted: SmokeReference, data: bytes, engine: SmokeEngine, *, any_device: bool, record: bool
) -> int:
    prompts = [SmokePrompt(one.id, one.prompt, one.prompt_tokens, len(one.reply_tokens)) for one in wanted.cases]
    settings.console.say(f"asking {len(prompts)} prompts of {wanted.protocol}, {wanted.arm}")
    if record:
        Store.open(settings.store, create=True).close()  # what cannot be kept afterwards is refused before
    with hold_host(settings.store):
        try:
            smoked = smoke(
                engine,
                prompts,
                load_s=wanted.load_s,
                request_s=wanted.request_s,
                model_sha256=wanted.model.sha256,
            )
        except KeyboardInterrupt:
            if record:
                _record(settings, {"action": "check", "error": "interrupted"}, {"reference.json": data})
            raise
    rows = judge_smoke(wanted, smoked.sight, any_device=any_device)
    code = smoke_exit_code(rows, smoked.sight.run)
    value: dict[str, Any] = {
        "status": smoke_status(rows),
        "exit_code": code,
        "reference_sha256": sha256_hex(data),
        "rows": [row.payload() for row in rows],
    }
    if record:
        seen = {"device": smoked.sight.device.model_dump(mode="json"), "versions": {"assay": assay_version()}}
        _record(settings, {"action": "check", **value, **seen}, {"reference.json": data, **_attached(smoked)})
    settings.console.result(value, lambda console: _show(console, rows))
    return code


def _show(console: Console, rows: tuple[SmokeRow, ...]) -> None:
    def short(text: str | None) -> str | None:
        return None if text is None else _HASH.sub(r"\1...", text)

    console.show(
        table(HEADS, [(row.name, row.status, short(row.expected), short(row.found), short(row.reason)) for row in rows])
    )
    counts = {status: sum(row.status == status for row in rows) for status in ("PASS", "FAIL", "NOT_RUN")}
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    console.show("", f"{smoke_status(rows)}: {words}")


def _attached(smoked: Smoked) -> dict[str, bytes]:
    """Return what a receipt keeps beside its rows: every exchange as it came, and the end of the engine's log."""
    rows = () if smoked.recorded is None else smoked.recorded.exchanges
    exchanges = "".join(json.dumps(row) + "\n" for row in rows)
    return {"exchanges.jsonl": exchanges.encode(), "engine.stderr": smoked.log}


def _record(settings: Settings, payload: Mapping[str, Any], attachments: Mapping[str, bytes]) -> None:
    with Store.open(settings.store, create=True, secrets=secret_values()) as store:
        record_receipt(store.writer, "smoke", payload, attachments)
