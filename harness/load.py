"""One load: a fresh engine process from the locked arm, its requests, and its end.

Order, every step of which is recorded: start, readiness, mapped files against the lock, telemetry on, `/health` and
`/props`, warm-ups, measured requests, telemetry off, mapped files again, stop with a cleanup receipt, seal. The first
thing that goes wrong ends the load: what was recorded is sealed as PARTIAL, or as INVALID where the process did not run
the locked files.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from engine.identity import FileIdentity, identify_file, mapped_files, mapping_problems
from engine.libraries import interpreter_folders
from engine.process import EngineProcess, ExitRecord
from harness.api_key import engine_environment
from harness.made_up_gpu import MadeUpGpu
from harness.preparation import Prepared, PreparedArm
from harness.progress import Progress
from harness.requests import Conversation, RequestFailed, Target
from harness.signals import uninterrupted
from harness.watching import watched_host
from protocols.errors import EngineError
from protocols.measurements import LoadState
from protocols.schedule import Position
from recorder.load_recorder import LoadRecorder

STOP_GRACE_S: Final = 5.0
"""Seconds that an engine has to end after SIGTERM, before its group is killed."""
INTERRUPTED: Final = "interrupted"
MAPPED_AT_START: Final = "mapped-at-start.json"
MAPPED_AT_END: Final = "mapped-at-end.json"


@dataclass(frozen=True, kw_only=True)
class LoadEnd:
    """How a load ended; `reason` is None for COMPLETE."""

    state: LoadState
    reason: str | None


class LoadBroken(Exception):  # noqa: N818 - not an error of Assay: it becomes the state of a load
    """The load cannot go on; `state` is what it is sealed as."""

    def __init__(self, state: LoadState, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """What every load of a campaign shares.

    `system_files` collects the hash of each mapped file that no lock names (the C library and its kind) by path, so
    that a library that changes between two loads is seen. `deadline_s` is when the campaign's time is over (monotonic).
    `gpu` is a made-up one that controls of the telemetry read in place of the host's.
    """

    prepared: Prepared
    progress: Progress
    system_files: dict[str, str]
    deadline_s: float
    gpu: MadeUpGpu | None = None


def run_load(context: LoadContext, position: Position, load: LoadRecorder) -> LoadEnd:
    """Run one load and seal it.

    Errors of the engine end in the returned state. KeyboardInterrupt is raised again after the load was sealed as
    PARTIAL; errors of the recorder are raised at once, because nothing can be sealed then: resuming does it.
    """
    was_interrupted = False
    try:
        _Load(context, position, load).run()
        end = LoadEnd(state="COMPLETE", reason=None)
    except LoadBroken as broken:
        end = LoadEnd(state=broken.state, reason=broken.reason)
    except EngineError as error:
        end = LoadEnd(state="PARTIAL", reason=str(error))
    except KeyboardInterrupt:
        was_interrupted = True
        end = LoadEnd(state="PARTIAL", reason=INTERRUPTED)
    with uninterrupted():
        load.seal(state=end.state, reason=end.reason)
    if was_interrupted:
        raise KeyboardInterrupt
    return end


class _Load:
    """The steps of one load."""

    def __init__(self, context: LoadContext, position: Position, load: LoadRecorder) -> None:
        self._context = context
        self._position = position
        self._load = load
        self._arm: PreparedArm = context.prepared.arms[position.arm]
        self._limits = context.prepared.protocol.limits

    def run(self) -> None:
        if not self._arm.resolved.fresh:
            self._converse(None)
            return
        with self._process() as process:
            self._context.progress.phase("waits for the engine")
            started_s = time.monotonic()
            address = process.wait_ready(self._limits.load_s)
            waited_ms = round((time.monotonic() - started_s) * 1000)
            self._load.note("engine.ready", port=address.port, pid=process.pid, waited_ms=waited_ms)
            self._compare_mapping(process, MAPPED_AT_START)
            self._converse(process, Target(host=address.host, port=address.port))
            self._compare_mapping(process, MAPPED_AT_END)

    @contextmanager
    def _process(self) -> Iterator[EngineProcess]:
        """Start the engine; stop it and write the cleanup receipt however the block ends."""
        resolved = self._arm.resolved
        environment = dict(resolved.environment) | engine_environment(resolved.kind)
        with tempfile.TemporaryDirectory(prefix="assay-engine-") as folder:
            self._load.note("engine.starting")
            process = EngineProcess.start(
                resolved.argv,
                env=environment,
                stdout_log=self._load.log_path("engine.stdout"),
                stderr_log=self._load.log_path("engine.stderr"),
                cwd=Path(folder),
                readiness=resolved.readiness or "health",
            )
            try:
                yield process
                if not process.is_alive:
                    raise LoadBroken("PARTIAL", "the engine ended by itself after its last request")
            finally:
                with uninterrupted():
                    self._stop(process)

    def _stop(self, process: EngineProcess) -> None:
        group = process.pid
        ended: ExitRecord = process.stop(STOP_GRACE_S)
        left = _group_members(group)
        self._load.note(
            "engine.stopped",
            exit_code=ended.code,
            exit_signal=ended.signal,
            was_forced=int(ended.was_forced),
            stop_ms=round(ended.seconds * 1000),
            leftover_processes=len(left),
        )
        if ended.was_forced:
            self._context.progress.warn(
                f"{self._position.label}: the engine did not end within {STOP_GRACE_S:g} s and was killed"
            )
        if left:
            self._context.progress.warn(f"{self._position.label}: {len(left)} processes of the engine are left: {left}")

    def _compare_mapping(self, process: EngineProcess, name: str) -> None:
        """Hash what the process mapped, keep the list, and compare it with the lock and with earlier loads."""
        mapped = mapped_files(process.pid)
        script = script_of(self._arm.resolved.argv)
        if script is not None:
            mapped = (*mapped, script)
        listed = [asdict(file) for file in mapped]
        self._load.attach(name, (json.dumps(listed, indent=1, sort_keys=True) + "\n").encode())
        resolved = self._arm.resolved
        hosts = interpreter_folders(Path(resolved.argv[0]), resolved.environment)
        locked = self._arm.identity.files
        problems = [*mapping_problems(locked, mapped, hosts=hosts), *self._changed_system_files(mapped)]
        if problems:
            raise LoadBroken("INVALID", "the process does not run what is locked: " + "; ".join(problems))

    def _changed_system_files(self, mapped: tuple[FileIdentity, ...]) -> list[str]:
        locked = {file.name for file in self._arm.identity.files}
        known = self._context.system_files
        changed = []
        for file in mapped:
            if Path(file.name).name in locked:
                continue
            if known.setdefault(file.name, file.sha256) != file.sha256:
                changed.append(f"{file.name} is not the file that an earlier load of this campaign mapped")
        return changed

    def _converse(self, process: EngineProcess | None, target: Target | None = None) -> None:
        """Sample the host while the requests are exchanged."""
        if target is None:
            address = self._arm.resolved.address
            if address is None:
                raise EngineError("the endpoint has no address")
            target = Target(host=address.host, port=address.port)
        telemetry = self._context.prepared.protocol.telemetry
        pid = process.pid if process else None
        is_off, gpu = telemetry.off_in == self._position.arm, self._context.gpu
        selection = None if gpu is None else gpu.select(self._position.arm, pid, telemetry.period_ms * 1_000_000)
        try:
            with watched_host(
                self._load, pid, period_ms=telemetry.period_ms, is_off=is_off, selection=selection
            ) as watch:
                conversation = Conversation(
                    prepared=self._context.prepared,
                    arm=self._arm,
                    load=self._load,
                    target=target,
                    progress=self._context.progress,
                    deadline_s=self._context.deadline_s,
                    watch=watch,
                )
                asyncio.run(conversation.run())
        except RequestFailed as failed:
            died = process is not None and not process.is_alive
            reason = f"{failed.reason}; the engine has ended" if died else failed.reason
            raise LoadBroken("PARTIAL", reason) from failed


def script_of(argv: Sequence[str]) -> FileIdentity | None:
    """Return the identity of an engine that is a script: its interpreter is mapped, the script itself is only read."""
    path = Path(argv[0])
    with path.open("rb") as file:
        is_script = file.read(2) == b"#!"
    return identify_file(path) if is_script else None


def _group_members(group: int) -> list[int]:
    """Return the processes of a process group that still live; zombies only wait for their parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, process_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if int(process_group) == group and state != "Z":
            found.append(int(folder.name))
    return sorted(found)
