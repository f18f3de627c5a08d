"""An arm's server for a check: started with the settings that the check asks for, and asked over HTTP."""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.arms import resolve_arm
from engine.identity import mapped_files, mapping_problems
from engine.libraries import interpreter_folders
from engine.process import Address, EngineProcess, cut_after
from harness.api_key import engine_environment, request_headers
from harness.checks.context import CheckContext
from harness.load import script_of
from protocols.canonical import JsonValue
from protocols.errors import EngineError

STOP_GRACE_S = 5.0
NO_ANSWER = 0
"""Stands for the status of an exchange without one."""
MAX_ANSWER_BYTES = 64 << 20
"""Longest answer that is read; 262,144 ids take 2 MB."""


class ArmServer:
    """One running server of an arm."""

    def __init__(self, process: EngineProcess, address: Address, *, timeout_s: float) -> None:
        self.process = process
        self._address = address
        self._timeout_s = timeout_s

    def ask(self, name: str, body: Mapping[str, Any], route: str = "/completion") -> dict[str, JsonValue]:
        """Post a body; return ``{"name","status","body"}``, the status 0 and the reason where no answer came."""
        return self.send(name, json.dumps(body).encode(), route)

    def send(self, name: str, body: bytes | None, route: str) -> dict[str, JsonValue]:
        """Post bytes, or get where there are none."""
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout_s)
        try:
            headers = {"Content-Type": "application/json", **request_headers()}
            with cut_after(connection, self._timeout_s):
                connection.request("GET" if body is None else "POST", route, body, headers)
                answer = connection.getresponse()
                text = _whole(answer).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return {"name": name, "status": NO_ANSWER, "body": f"no answer: {type(error).__name__} {error}"}
        else:
            return {"name": name, "status": answer.status, "body": text}
        finally:
            connection.close()

    def at_once(self, calls: Sequence[Callable[[], dict[str, JsonValue]]]) -> list[dict[str, JsonValue]]:
        """Make several calls that begin at the same moment; return what each gave, in order."""
        found: list[dict[str, JsonValue]] = [{} for _ in calls]
        start = threading.Barrier(len(calls))

        def make(place: int) -> None:
            start.wait()
            found[place] = calls[place]()

        threads = [threading.Thread(target=make, args=(place,)) for place in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def _whole(answer: http.client.HTTPResponse) -> bytes:
    """Read a body in pieces: a length that is a lie reserves no memory. HTTPException where it is cut or too long."""
    data = bytearray()
    while piece := answer.read(1 << 20):
        data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise http.client.HTTPException(f"more than {MAX_ANSWER_BYTES} bytes")
    if answer.length:
        raise http.client.IncompleteRead(bytes(data), answer.length)
    return bytes(data)


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


def greedy_body(ids: Sequence[int], n_tokens: int, **more: object) -> dict[str, object]:
    """Return a greedy completion request over token ids that asks for the ids of its answer."""
    return {
        "prompt": [*ids],
        "n_predict": n_tokens,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": True,
        "return_tokens": True,
        "stream": False,
        **more,
    }
