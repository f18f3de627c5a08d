"""Starts an engine, waits until it is ready, and stops it; the engine dies with its runner.

The engine's standard output and error go straight into two files, so that what
it said survives the runner. Readiness is read from those files or asked over
HTTP; nothing here sends a request.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from engine.patience import Patience
from engine.spawner import spawn_bound
from protocols.errors import EngineError
from protocols.results import LAST_WORDS
from protocols.start_failures import ENDED_AT_START

Readiness = Literal["line", "health"]
PORT_MARK: Final = "{port}"
_POLL_S: Final = 0.02
_HEALTH_POLL_S: Final = 0.1
_HEALTH_TIMEOUT_S: Final = 2.0
_KILL_WAIT_S: Final = 10.0
_LOG_TAIL_LINES: Final = 8
_LOG_TAIL_BYTES: Final = 8192
_LINE_LIMIT_BYTES: Final = 65536


class Address(NamedTuple):
    """Where an engine listens."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How an engine ended: exit code, or the signal that ended it; `seconds` from the stop to the end."""

    code: int | None
    signal: int | None
    was_forced: bool
    seconds: float

    def text(self) -> str:
        """Words for a message."""
        if self.signal is not None:
            return f"signal {_signal_name(self.signal)}"
        return f"exit code {self.code}"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that was free a moment ago; another process may take it before the engine does."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class _Flag(threading.Event):
    """An event that can be waited for as for a file."""

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        return [(0, 0)] if self.wait(None if timeout is None else timeout / 1000) else []


@contextmanager
def cut_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Connect, and cut the connection after `seconds`, however slowly bytes come. TimeoutError where it was cut.

    The timeout of a socket bounds the wait for the next byte alone: a server that sends one now and then never ends.
    Time in which this process was stopped does not count.
    """
    connection.connect()
    opened = connection.sock
    is_over, was_cut = _Flag(), threading.Event()

    def cut() -> None:
        if not Patience(seconds).wait(is_over):
            was_cut.set()
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=cut, daemon=True).start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not was_cut.is_set():
            raise
    finally:
        is_over.set()
    if was_cut.is_set():
        raise TimeoutError(f"no whole answer within {seconds:g} s")


class EngineProcess:
    """One running engine. Use as a context manager: leaving it stops the engine."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        argv: tuple[str, ...],
        readiness: Readiness,
        address: Address,
        stdout_log: Path,
        stderr_log: Path,
    ) -> None:
        self._process = process
        self._readiness = readiness
        self._address = address
        self._ended: ExitRecord | None = None
        self.argv = argv
        self.stdout_log = stdout_log
        self.stderr_log = stderr_log

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout_log: Path,
        stderr_log: Path,
        cwd: Path | None = None,
        readiness: Readiness = "line",
        host: str = "127.0.0.1",
    ) -> Self:
        """Start `argv` with exactly the environment `env`.

        `{port}` in an argument becomes a free port, which readiness `health` needs. The logs are opened for
        appending and never truncated. Raises EngineError when no process can be made.
        """
        port = free_port(host) if any(PORT_MARK in part for part in argv) else 0
        if readiness == "health" and port == 0:
            raise EngineError("readiness by health needs {port} in an argument", where=argv[0])
        final = tuple(part.replace(PORT_MARK, str(port)) for part in argv)
        with stdout_log.open("ab") as out, stderr_log.open("ab") as err:
            process = spawn_bound(final, env=env, stdout=out.fileno(), stderr=err.fileno(), cwd=cwd)
        return cls(
            process,
            argv=final,
            readiness=readiness,
            address=Address(host, port),
            stdout_log=stdout_log,
            stderr_log=stderr_log,
        )

    @property
    def pid(self) -> int:
        """Process id of the engine itself (the launcher became it)."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the engine has not ended yet."""
        return not self._has_ended()

    def wait_ready(self, timeout_s: float) -> Address:
        """Wait until the engine answers, and say where.

        Raises EngineError when it ends first, prints something else than its readiness line, answers health
        with an unexpected status, or takes longer than `timeout_s`; the engine is stopped then. The message holds
        the exit code or signal and the last lines of its log.
        """
        deadline = time.monotonic() + timeout_s
        check, pause = (self._listening, _POLL_S) if self._readiness == "line" else (self._healthy, _HEALTH_POLL_S)
        try:
            while True:
                ended = self._has_ended()
                address = check()
                if address is not None and not ended:
                    return address
                if ended:
                    raise self._failure(f"{ENDED_AT_START} ({self._exit(forced=False).text()})")
                if time.monotonic() >= deadline:
                    raise self._failure(f"the engine was not ready within {timeout_s:g} s")
                time.sleep(pause)
        except EngineError:
            self.stop(0)
            raise

    def stop(self, grace_s: float) -> ExitRecord:
        """Ask the engine to end, kill its group after `grace_s`, and say how it ended; further calls say the same.

        An engine that had already ended by itself keeps its own exit code, `was_forced` False and 0 seconds.
        """
        if self._ended is not None:
            return self._ended
        started = time.monotonic()
        was_forced = False
        if not self._has_ended():
            if grace_s > 0:
                with suppress(ProcessLookupError):
                    self._process.terminate()
                self._wait(grace_s)
            if not self._has_ended():
                was_forced = True
                self._kill_group()
                if not self._wait(_KILL_WAIT_S):
                    raise EngineError(
                        f"the engine (process {self.pid}) survives SIGKILL",
                        where=self.argv[0],
                        hint="a driver may hold it; restart the host before the next campaign",
                    )
        self._ended = self._exit(forced=was_forced, seconds=time.monotonic() - started)
        return self._ended

    def log_tail(self) -> tuple[str, ...]:
        """Return the last lines that the engine wrote: standard error, else standard output."""
        for path in (self.stderr_log, self.stdout_log):
            lines = _tail(path)
            if lines:
                return lines
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(2.0)

    def _has_ended(self) -> bool:
        """Whether the engine ended; its group is killed while its id still belongs to it, then it is reaped."""
        if self._process.returncode is not None:
            return True
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
        except ChildProcessError:  # another thread reaped it just now
            return self._process.poll() is not None
        self._kill_group()
        self._process.wait()
        return True

    def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_ended():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S / 2)
        return True

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _exit(self, *, forced: bool, seconds: float = 0.0) -> ExitRecord:
        status = self._process.returncode
        has_code = status is not None and status >= 0
        return ExitRecord(
            code=status if has_code else None,
            signal=None if has_code or status is None else -status,
            was_forced=forced,
            seconds=seconds,
        )

    def _failure(self, problem: str) -> EngineError:
        tail = self.log_tail()
        text = problem if not tail else problem + LAST_WORDS + "\n  " + "\n  ".join(tail)
        return EngineError(text, where=self.argv[0], hint=f"the whole log is {self.stderr_log.name}")

    def _listening(self) -> Address | None:
        """Return the address in the first line of standard output, once that line is whole."""
        with self.stdout_log.open("rb") as file:
            line = file.readline(_LINE_LIMIT_BYTES)
        if not line.endswith(b"\n"):
            if len(line) >= _LINE_LIMIT_BYTES:
                raise self._failure("the engine printed no readiness line but a very long one")
            return None
        try:
            event = json.loads(line)
            host, port = event["host"], event["port"]
            if event["event"] == "listening" and isinstance(host, str) and isinstance(port, int) and 0 < port < 65536:
                return Address(host, port)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        shown = line[:200].decode("utf-8", "replace").rstrip()
        raise self._failure(f"the engine printed {shown!r} instead of its readiness line")

    def _healthy(self) -> Address | None:
        connection = http.client.HTTPConnection(*self._address, timeout=_HEALTH_TIMEOUT_S)
        try:
            with cut_after(connection, _HEALTH_TIMEOUT_S):
                connection.request("GET", "/health")
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None  # not listening yet, or another's answer; the deadline decides
        finally:
            connection.close()
        if status == http.HTTPStatus.OK:
            return self._address
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            return None  # loading its model
        raise self._failure(f"the engine answered /health with status {status}")


def _tail(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            data = file.read()
    except OSError:
        return ()
    lines = [line.rstrip() for line in data.decode("utf-8", "replace").splitlines()]
    return tuple(line for line in lines if line)[-_LOG_TAIL_LINES:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
