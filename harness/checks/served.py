"""An arm's server for a check: started with the settings that the check asks for, and stopped at its end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.arms import resolve_arm
from engine.identity import mapped_files, mapping_problems
from engine.libraries import interpreter_folders
from engine.process import EngineProcess
from harness.api_key import engine_environment
from harness.arm_server import STOP_GRACE_S, ArmServer
from harness.checks.context import CheckContext
from harness.load import script_of
from protocols.errors import EngineError


@contextmanager
def arm_server(
    context: CheckContext, *, changes: Mapping[str, Any] | None = None, arguments: Sequence[str] = ()
) -> Iterator[ArmServer]:
    """Start the judged arm's server with changed settings and more arguments, and stop it at the end.

    Raises EngineError where it does not start, or maps other files than the lock names.
    """
    prepared, name = context.prepared, context.arm
    arm, settings = prepared.protocol.arm(name), prepared.protocol.settings_of(name)
    settings = settings.model_copy(update=dict(changes or {}))
    if settings.slots > 1 and "drafts" in type(settings).model_fields:
        settings = settings.model_copy(update={"drafts": 0})  # a server drafts with one slot only
    resolved = resolve_arm(arm, settings, prepared.model_path, prepared.arms[name].build, base=prepared.base)
    limits = prepared.protocol.limits
    with tempfile.TemporaryDirectory(prefix="assay-check-") as folder:
        process = EngineProcess.start(
            (*resolved.argv, *arguments),
            env=dict(resolved.environment) | engine_environment(resolved.kind),
            stdout_log=Path(folder) / "stdout",
            stderr_log=Path(folder) / "stderr",
            cwd=Path(folder),
            readiness=resolved.readiness or "health",
        )
        try:
            address = process.wait_ready(limits.load_s)
            script = script_of(resolved.argv)
            mapped = (*mapped_files(process.pid), *([script] if script else []))
            hosts = interpreter_folders(Path(resolved.argv[0]), resolved.environment)
            problems = mapping_problems(prepared.arms[name].identity.files, mapped, hosts=hosts)
            if problems:
                raise EngineError("the server does not run what is locked: " + "; ".join(problems))
            yield ArmServer(process, address, timeout_s=limits.request_s)
        finally:
            process.stop(STOP_GRACE_S)
