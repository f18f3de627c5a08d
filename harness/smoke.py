"""Starts an engine once and asks what a smoke reference holds: written on one host, compared on another."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from engine.arms import ResolvedArm, identify_arm, resolve_arm
from engine.build import EngineBuild, open_build
from engine.identity import BuildIdentity, FileIdentity, identify_model, mapped_files, mapping_problems
from engine.libraries import interpreter_folders
from engine.open_files import held_paths
from engine.process import EngineProcess
from harness.api_key import engine_environment
from harness.arm_server import NO_ANSWER, STOP_GRACE_S, ArmServer, greedy_body
from harness.load import script_of
from protocols.errors import EngineError
from protocols.schema import Arm, FolderEngine, LlamaServerEngine, Settings
from protocols.smoke import SmokeSight
from protocols.smoke_cases import SmokePrompt
from protocols.smoke_exchanges import PROPS, RecordedRun, answer_name, read_prompt_ids, tokenize_name
from protocols.smoke_reference import SmokeDevice
from recorder.telemetry.facts import host_facts
from recorder.telemetry.registry import select_providers
from recorder.telemetry.sample import DeviceIdentity

YIELDING: Final = {"GOMP_SPINCOUNT": "0"}
"""Nothing is timed here, so threads that wait give the processor back."""
_END_WAIT_S: Final = 2.0
_LOG_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SmokeEngine:
    """An engine of this host: a build folder or a llama.cpp server, ready to be identified and started."""

    resolved: ResolvedArm
    identity: BuildIdentity
    arguments: tuple[str, ...]
    model_path: Path


@dataclass(frozen=True, kw_only=True)
class Smoked:
    """What the engine showed, and for the record: its start with every exchange as it came, and the end of its log.

    `recorded` is None where nothing was started. `mapped` are the programs and libraries that the process ran, and
    `held` every path that it mapped, held open or ran, both as they were when it was ready and after the last answer.
    """

    sight: SmokeSight
    recorded: RecordedRun | None
    log: bytes
    mapped: tuple[FileIdentity, ...] = ()
    held: frozenset[str] = frozenset()


def smoke_engine(
    path: Path,
    settings: Settings,
    model_path: Path,
    *,
    build: EngineBuild | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> SmokeEngine:
    """Find the engine at a path: a build where it is a folder, else a llama.cpp server; `build` is one that is open.

    Raises EngineError where there is none, or where a build is given arguments: it takes its settings and nothing else.
    """
    is_build = build is not None or path.is_dir()
    if is_build and arguments:
        raise EngineError(
            "a build takes no further arguments", where=str(path), hint="--argument is for llama.cpp servers"
        )
    arm = Arm(
        engine=FolderEngine(kind="folder", path=str(path))
        if is_build
        else LlamaServerEngine(kind="llama-server", path=str(path), arguments=tuple(arguments)),
        environment=YIELDING | dict(environment or {}),
    )
    if is_build and build is None:
        build = open_build(path)
    base = Path.cwd()
    return SmokeEngine(
        resolved=resolve_arm(arm, settings, model_path, build, base=base),
        identity=identify_arm(arm, build, base=base),
        arguments=tuple(arguments),
        model_path=model_path,
    )


def smoke(
    engine: SmokeEngine,
    prompts: Sequence[SmokePrompt],
    *,
    load_s: float,
    request_s: float,
    model_sha256: str | None = None,
    rounds: int = 1,
) -> Smoked:
    """Identify everything, start the engine once, ask every prompt `rounds` times, and stop it.

    An engine that breaks is what was found. With `model_sha256` nothing is started over another model. Raises
    EngineError where files cannot be read.
    """
    sight = SmokeSight(
        files=engine.identity.locked(),
        arguments=engine.arguments,
        model=identify_model(engine.model_path).locked(),
        device=find_device(),
        run=None,
    )
    if model_sha256 is not None and sight.model.sha256 != model_sha256:
        return Smoked(sight=sight, recorded=None, log=b"")
    with tempfile.TemporaryDirectory(prefix="assay-smoke-") as folder:
        runner = _Runner(engine, prompts, load_s=load_s, request_s=request_s, rounds=rounds, folder=Path(folder))
        recorded = runner.run()
        run = recorded.read()
        device = sight.device.model_copy(update={"is_engine_on_gpu": run.is_on_gpu})
        return Smoked(
            sight=replace(sight, run=run, device=device),
            recorded=recorded,
            log=_tail(Path(folder) / "stderr"),
            mapped=tuple(runner.mapped.values()),
            held=frozenset(runner.held),
        )


def find_device(devices: Sequence[DeviceIdentity] | None = None) -> SmokeDevice:
    """Say what this host computes with: GPUs by architecture (AMD) or product (NVIDIA), one name for each address."""
    if devices is None:
        selection = select_providers()
        try:
            devices = selection.devices()
        finally:
            selection.close()
    gpus: dict[str, str] = {}
    for one in devices:
        if (name := _gpu_name(one)) is not None:
            gpus.setdefault(one.identifier, name)  # the driver's files come before its library
    processor = host_facts()["cpu_model"]
    return SmokeDevice(processor=None if processor is None else str(processor), gpus=tuple(sorted(gpus.values())))


def _gpu_name(device: DeviceIdentity) -> str | None:
    keys = {
        "amdgpu": ("gfx_target", "device"),
        "amdsmi": ("target_graphics_version", "market_name"),
        "nvidia": ("name",),
    }
    found = (device.facts.get(key) for key in keys.get(device.kind, ()))
    return next((str(value) for value in found if value), None)


class _Runner:
    """The engine's one start."""

    def __init__(
        self,
        engine: SmokeEngine,
        prompts: Sequence[SmokePrompt],
        *,
        load_s: float,
        request_s: float,
        rounds: int,
        folder: Path,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._load_s, self._request_s, self._rounds = load_s, request_s, rounds
        self._folder = folder
        self._exchanges: list[Mapping[str, Any]] = []
        self.mapped: dict[tuple[str, str], FileIdentity] = {}
        self.held: set[str] = set()

    def run(self) -> RecordedRun:
        resolved = self._engine.resolved
        try:
            process = EngineProcess.start(
                resolved.argv,
                env=dict(resolved.environment) | engine_environment(resolved.kind),
                stdout_log=self._folder / "stdout",
                stderr_log=self._folder / "stderr",
                cwd=self._folder,
                readiness=resolved.readiness or "health",
            )
        except EngineError as error:
            return RecordedRun(start_problem=str(error))
        with process:
            started_s = time.monotonic()
            try:
                address = process.wait_ready(self._load_s)
            except EngineError as error:
                return RecordedRun(start_problem=str(error))
            ready_ms = round((time.monotonic() - started_s) * 1000)
            problems = self._ask(process, ArmServer(process, address, timeout_s=self._request_s))
            was_alive = not self._has_ended(process)
            ended = process.stop(STOP_GRACE_S)
            forced = f"killed: it did not end within {STOP_GRACE_S:g} s" if ended.was_forced else None
            return RecordedRun(
                ready_ms=ready_ms,
                mapping_problems=problems,
                exchanges=tuple(self._exchanges),
                own_end=None if was_alive else ended.text(),
                stop_problem=forced,
            )

    def _ask(self, process: EngineProcess, server: ArmServer) -> tuple[str, ...]:
        """Ask every prompt; return how the files that the process runs differ from those that were identified."""
        try:
            self._look(process)
        except EngineError as error:  # its files cannot be read: it ended just now, or they were replaced
            return (str(error),)
        self._exchanges.append(server.send(PROPS, None, "/props"))
        for prompt in self._prompts:
            ids = prompt.ids
            if prompt.text is not None:
                body = {"content": prompt.text, "add_special": True, "parse_special": True}
                found = read_prompt_ids(self._asked(server.ask(tokenize_name(prompt.id), body, "/tokenize"))).ids
                ids = found if ids is None else ids
            for number in range(1, self._rounds + 1):
                body = greedy_body(ids or (), prompt.n_tokens, cache_prompt=False)
                self._asked(server.ask(answer_name(prompt.id, number), body))
        if not self._has_ended(process):
            try:
                self._look(process)  # a library may be opened with the first request
            except EngineError as error:
                if process.is_alive:  # else it ended just now, and its end says so
                    return (str(error),)
        hosts = interpreter_folders(Path(self._engine.resolved.argv[0]), self._engine.resolved.environment)
        return mapping_problems(self._engine.identity.files, self.mapped.values(), hosts=hosts)

    def _look(self, process: EngineProcess) -> None:
        script = script_of(self._engine.resolved.argv)
        for file in (*mapped_files(process.pid), *([script] if script else [])):
            self.mapped[(file.name, file.sha256)] = file
        self.held |= held_paths(process.pid)

    def _has_ended(self, process: EngineProcess) -> bool:
        """Whether the engine ended by itself; a lost connection is seen before the end of the process."""
        lost = any(row["status"] == NO_ANSWER for row in self._exchanges)
        deadline = time.monotonic() + (_END_WAIT_S if lost else 0.0)
        while process.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)
        return not process.is_alive

    def _asked(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        self._exchanges.append(row)
        return row


def _tail(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read()
    return b""
