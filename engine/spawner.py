"""Starts processes that die with this one: forked from one thread, bound by a death signal."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from protocols.errors import EngineError

LAUNCH_FAILED: Final = 127
# Asks the kernel to kill us with our parent, checks that the parent did not die in between, and becomes
# the engine under the same process id. The death signal survives an execve of an ordinary program.
_LAUNCHER: Final = """
import ctypes, os, signal, sys
parent, argv = int(sys.argv[1]), sys.argv[2:]
if ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0) != 0:
    sys.exit("launcher: the kernel refused PR_SET_PDEATHSIG")
if os.getppid() != parent:
    os._exit(0)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
try:
    os.execve(argv[0], argv, os.environ)
except OSError as error:
    print(f"launcher: cannot start {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)
"""


class _Spawner:
    """Forks every engine from one thread that lives as long as the process.

    The kernel sends the death signal when the forking *thread* ends, so that an engine started from a
    passing worker thread would die with that thread.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], _Answer]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="engine-spawner", daemon=True).start()

    def _serve(self) -> None:
        while True:
            job, answer = self._jobs.get()
            try:
                answer.process = job()
            except OSError as error:
                answer.error = error
            answer.done.set()

    def spawn(self, job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        answer = _Answer()
        self._jobs.put((job, answer))
        answer.done.wait()
        if answer.process is None:
            raise EngineError(f"cannot start a process: {answer.error}") from answer.error
        return answer.process


class _Answer:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.error: OSError | None = None


_spawner_lock = threading.Lock()
_spawners: dict[int, _Spawner] = {}


def _spawner() -> _Spawner:
    with _spawner_lock:
        # Keyed by process id: a fork has the table but not the thread.
        if os.getpid() not in _spawners:
            _spawners[os.getpid()] = _Spawner()
        return _spawners[os.getpid()]


def spawn_bound(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None,
    stderr: int | None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in its own process group, bound to the life of this process.

    The bound covers the process itself; children that it starts end with it only if it ends them.
    Raises EngineError when no process can be made; a program that cannot be executed exits with 127.
    """
    command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv]
    return _spawner().spawn(
        lambda: subprocess.Popen(
            command, env=dict(env), stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, process_group=0
        )
    )
