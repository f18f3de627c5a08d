"""Diagnostic loads: after the last timed load, each named profiler looks at a fresh engine once, and leaves a receipt.

Order, for one arm: prerequisites of the host, engine started (under the profiler, or ready for it), its prerequisites,
the request once to fill the cache, the profiler, the request again, the profiler's end, the engine's end, the trace
files judged, the receipt recorded. Whatever goes wrong ends in the receipt: nothing here changes a verdict.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from engine.client import ExchangeEnd, build_request, exchange
from engine.process import Address, EngineProcess
from harness.api_key import engine_environment, request_headers
from harness.preparation import Prepared, PreparedArm
from harness.profilers.tools import PROFILERS, Need, Profiler, version_of
from harness.progress import Progress
from protocols.canonical import sha256_hex
from protocols.errors import EngineError
from protocols.measurements import Arm
from protocols.schema import Diagnostic
from recorder.campaign import CampaignRecorder
from recorder.derive import DerivedRequest, derive_request
from recorder.wire import WireWriter, read_wire

Outcome = Literal["preflight_failed", "engine_failed", "attach_failed", "no_trace", "target_died", "captured"]

RECEIPT: Final = "profiler"
SETTLE_S: Final = 0.5
"""Seconds that an attached profiler gets before the request is sent."""
END_S: Final = 10.0
"""Seconds that a profiler gets to write its files after it was asked to end."""
LAUNCH_GRACE_S: Final = 30.0
"""Seconds that an engine under a profiler has to end: the profiler writes its files after it."""
KEPT_BYTES: Final = 4 << 20
"""Trace files above this are named by size and hash, and not kept."""


@dataclass
class Receipt:
    """What is recorded of one look. Times are monotonic; `status` is RAN only where the request met its terms."""

    diagnostic: str
    tool: str
    arm: str
    outcome: Outcome = "preflight_failed"
    status: Literal["RAN", "NOT_RUN"] = "NOT_RUN"
    reason: str | None = None
    timing_closed_at_ns: int = 0
    started_at_ns: int | None = None
    ended_at_ns: int | None = None
    tool_path: str | None = None
    tool_version: str | None = None
    tool_sha256: str | None = None
    argv: tuple[str, ...] = ()
    needs: list[dict[str, object]] = field(default_factory=list)
    target_pid: int | None = None
    target_sha256: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    target_alive_after: bool | None = None
    outputs: list[dict[str, object]] = field(default_factory=list)
    rows: int = 0
    numbers: dict[str, int | str] = field(default_factory=dict)
    cached_tokens: int | None = None
    generated_tokens: int | None = None


class _Stopped(Exception):  # noqa: N818 - becomes the outcome of a receipt
    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.reason = reason


def run_diagnostics(
    prepared: Prepared, recorder: CampaignRecorder, progress: Progress, *, timing_closed_at_ns: int
) -> tuple[Receipt, ...]:
    """Run every diagnostic of a protocol and record its receipts. Errors of engines and profilers end in receipts."""
    receipts = []
    for diagnostic in prepared.protocol.diagnostics:
        for arm in diagnostic.arms:
            progress.say(f"diagnostic {diagnostic.id}: {diagnostic.tool} looks at the {arm}")
            look = _Look(prepared, diagnostic, arm, timing_closed_at_ns)
            receipt, attachments = look.take()
            recorder.record_receipt(f"{RECEIPT}.{diagnostic.id}.{arm}", asdict(receipt), attachments)
            if receipt.outcome != "captured" or receipt.status != "RAN":
                progress.warn(
                    f"diagnostic {diagnostic.id}, {arm}: {receipt.status}, {receipt.outcome}: {receipt.reason}"
                )
            receipts.append(receipt)
    return tuple(receipts)


def unmet(needs: tuple[Need, ...]) -> str | None:
    """Return the prerequisites that are not met, with what would help; None where all are."""
    missing = [
        f"{need.name}: {need.found}" + (f" ({need.help})" if need.help else "") for need in needs if not need.is_met
    ]
    return "; ".join(missing) or None


class _Look:
    """One profiler at one arm."""

    def __init__(self, prepared: Prepared, diagnostic: Diagnostic, arm: Arm, closed_ns: int) -> None:
        self._prepared = prepared
        self._diagnostic = diagnostic
        self._arm: PreparedArm = prepared.arms[arm]
        self._profiler: Profiler = PROFILERS[diagnostic.tool]
        self._attachments: dict[str, bytes] = {}
        self.receipt = Receipt(diagnostic=diagnostic.id, tool=diagnostic.tool, arm=arm, timing_closed_at_ns=closed_ns)

    def take(self) -> tuple[Receipt, Mapping[str, bytes]]:
        """Look once. Never raises for an engine or a profiler; returns the receipt and its files."""
        receipt = self.receipt
        with tempfile.TemporaryDirectory(prefix="assay-profiler-") as name:
            folder = Path(name)
            traces = folder / "traces"
            traces.mkdir()
            try:
                self._check(self._profiler.needs(Path("/proc")))
                self._name_tool()
                self._observe(folder, traces)
                self._judge(traces)
            except _Stopped as stopped:
                receipt.outcome, receipt.reason = stopped.outcome, stopped.reason
            except (EngineError, OSError) as error:
                receipt.outcome, receipt.reason = "engine_failed", str(error)
            self._keep(folder)
        return receipt, self._attachments

    def _check(self, needs: tuple[Need, ...]) -> None:
        self.receipt.needs += [asdict(need) for need in needs]
        missing = unmet(needs)
        if missing is not None:
            raise _Stopped("preflight_failed", missing)

    def _name_tool(self) -> None:
        path = Path(shutil.which(self._profiler.program) or "").resolve()
        self.receipt.tool_path = str(path)
        self.receipt.tool_version = version_of(self._profiler.program)
        with path.open("rb") as file:
            self.receipt.tool_sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    def _observe(self, folder: Path, traces: Path) -> None:
        """Start the engine, prime it, and send the request while the profiler looks."""
        resolved, receipt, profiler = self._arm.resolved, self.receipt, self._profiler
        if not resolved.fresh:
            raise _Stopped("preflight_failed", "the engine is an endpoint that Assay does not start")
        program, is_launch = str(receipt.tool_path), profiler.mode == "launch"
        seconds = self._diagnostic.limit_s
        prefix = tuple(profiler.command(program, 0, traces, seconds)) if is_launch else ()
        if is_launch:
            receipt.argv, receipt.started_at_ns = prefix, time.monotonic_ns()
        environment = dict(resolved.environment) | engine_environment(resolved.kind) | dict(profiler.environment)
        engine_folder = folder / "engine"
        engine_folder.mkdir()
        process = EngineProcess.start(
            (*prefix, *resolved.argv),
            env=environment,
            stdout_log=folder / "engine.stdout",
            stderr_log=folder / "engine.stderr",
            cwd=engine_folder,
            readiness=resolved.readiness or "health",
        )
        try:
            address = process.wait_ready(self._prepared.protocol.limits.load_s)
            receipt.target_pid = process.pid
            receipt.target_sha256 = self._target_sha256()
            self._check(profiler.needs_of_process(process.pid, Path("/proc")))
            self._send(address)
            if is_launch:
                self._judge_answer(self._send(address))
            else:
                self._attached(process, address, folder, traces)
            receipt.target_alive_after = process.is_alive
            if not process.is_alive:
                raise _Stopped("target_died", "the engine ended while the profiler looked")
        finally:
            ended = process.stop(LAUNCH_GRACE_S if is_launch else 5.0)
            if is_launch:
                receipt.ended_at_ns = time.monotonic_ns()
                receipt.exit_code, receipt.signal = ended.code, ended.signal

    def _target_sha256(self) -> str | None:
        name = Path(self._arm.resolved.argv[0]).name
        return next((file.sha256 for file in self._arm.identity.files if file.name == name), None)

    def _attached(self, process: EngineProcess, address: Address, folder: Path, traces: Path) -> None:
        receipt = self.receipt
        seconds = self._diagnostic.limit_s
        receipt.argv = tuple(self._profiler.command(str(receipt.tool_path), process.pid, traces, seconds))
        with (folder / "tool.stdout").open("wb") as out, (folder / "tool.stderr").open("wb") as err:
            receipt.started_at_ns = time.monotonic_ns()
            tool = subprocess.Popen(receipt.argv, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=traces)
            try:
                time.sleep(SETTLE_S)
                early = tool.poll()
                if process.is_alive:
                    self._judge_answer(self._send(address))
                if early is not None:
                    receipt.exit_code = early
            finally:
                _end(tool)
                receipt.ended_at_ns = time.monotonic_ns()
        code = tool.returncode
        receipt.exit_code, receipt.signal = (None, -code) if code < 0 else (code, None)
        if early is not None and early != 0:
            said = (folder / "tool.stderr").read_text(errors="replace").strip()[-400:]
            raise _Stopped("attach_failed", f"the profiler ended at once with {early}: {said}")

    def _send(self, address: Address) -> tuple[DerivedRequest, ExchangeEnd]:
        """Send the request and keep its bytes."""
        diagnostic = self._diagnostic
        body = self._prepared.loaded.requests[diagnostic.request]
        headers = {"Accept": "*/*", **request_headers()}
        request = build_request("POST", diagnostic.route, f"{address.host}:{address.port}", headers, body)
        file = io.BytesIO()
        writer = WireWriter(file.write)
        writer.sent_bytes(request)
        sink = _Sink(writer)
        limit_s = float(min(diagnostic.limit_s, self._prepared.protocol.limits.request_s))
        end = asyncio.run(exchange(address.host, address.port, request, sink, total_s=limit_s, idle_s=limit_s))
        writer.end(end.reason, end.end_ns)
        wire = file.getvalue()
        self._attachments["diagnostic.wire"] = wire
        derived = derive_request(read_wire(wire), "native" if diagnostic.route == "/completion" else "openai")
        return derived, end

    def _judge_answer(self, answer: tuple[DerivedRequest, ExchangeEnd]) -> None:
        """Compare the answer with what the protocol asked for; the trace is judged whatever comes of it."""
        derived, end = answer
        receipt, diagnostic = self.receipt, self._diagnostic
        receipt.cached_tokens, receipt.generated_tokens = derived.cached_tokens, derived.generated_tokens
        cached = derived.cached_tokens or 0
        if derived.outcome != "ok":
            receipt.reason = f"the diagnostic request ended as {derived.outcome} ({end.reason})"
        elif derived.generated_tokens != diagnostic.generated_tokens:
            receipt.reason = (
                f"{derived.generated_tokens} tokens were generated, {diagnostic.generated_tokens} asked for"
            )
        elif cached < diagnostic.minimum_cached_tokens:
            receipt.reason = (
                f"{cached} tokens came from the cache, at least {diagnostic.minimum_cached_tokens} asked for"
            )
        else:
            receipt.status = "RAN"

    def _judge(self, traces: Path) -> None:
        trace = self._profiler.judge(traces)
        receipt = self.receipt
        # Hashed JSON holds no real numbers: they are written as text.
        receipt.rows = trace.rows
        receipt.numbers = {key: str(one) if isinstance(one, float) else one for key, one in trace.numbers.items()}
        receipt.outcome = "captured" if trace.rows else "no_trace"
        if not trace.rows:
            receipt.status, receipt.reason = "NOT_RUN", trace.problem

    def _keep(self, folder: Path) -> None:
        """Name every file, and keep those that are small; an unsuccessful look keeps what it said, too."""
        if self.receipt.outcome != "captured":
            self.receipt.status = "NOT_RUN"
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.is_relative_to(folder / "engine"):
                continue
            content = path.read_bytes()
            name = path.relative_to(folder).as_posix().replace("/", "-")
            self.receipt.outputs.append({"path": name, "bytes": len(content), "sha256": sha256_hex(content)})
            if len(content) <= KEPT_BYTES:
                self._attachments[name] = content


class _Sink:
    """Writes a diagnostic exchange as every other is written."""

    def __init__(self, writer: WireWriter) -> None:
        self._writer = writer

    def on_sent(self, t_ns: int) -> None:
        self._writer.sent(t_ns)

    def on_read(self, t_ns: int, data: bytes) -> None:
        self._writer.read(t_ns, data)


def _end(tool: subprocess.Popen[Any]) -> None:
    """Ask a profiler to write its files, as Ctrl-C does; kill it where it does not end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if tool.poll() is not None:
            return
        os.kill(tool.pid, number)
        try:
            tool.wait(END_S)
        except subprocess.TimeoutExpired:
            continue
