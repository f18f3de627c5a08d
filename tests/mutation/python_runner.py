"""Runs the tests of a changed Python module in a copy of the checkout, in a process that costs no imports."""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mutants import Mutant

_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "assay-store", "*_cache")
# Imported once, before the processes part; nothing of the project is among them.
_HEAVY = ("hypothesis", "msgspec", "numpy", "pydantic", "pytest", "scipy.stats", "sqlalchemy", "yaml", "cryptography")


class Ended(NamedTuple):
    """How the tests ended: `killed`, `survived` or `timed out`, and the time that the processor took."""

    outcome: str
    cpu_s: float


class PythonRunner:
    """Tests over a copy of the checkout in which one file at a time is changed."""

    def __init__(self, checkout: Path, scratch: Path, *, least_s: float = 10.0) -> None:
        """Copy the checkout to `scratch`. A mutant gets ten times the time of the unchanged tests and `least_s`."""
        self._least_s = least_s
        self._folder = scratch / "checkout"
        shutil.copytree(checkout, self._folder, ignore=_NOT_COPIED, symlinks=True)
        self._base: dict[tuple[str, ...], float] = {}
        for name in _HEAVY:
            importlib.import_module(name)

    def run(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Run tests over a mutant until the first fails. Raises RuntimeError where they fail without it."""
        limit_s = 10 * self._without(tuple(tests)) + self._least_s
        path = self._folder / mutant.path
        source = path.read_bytes()
        path.write_bytes(mutant.apply(source))
        try:
            return self._tests(tests, limit_s).outcome
        finally:
            path.write_bytes(source)

    def _without(self, tests: tuple[str, ...]) -> float:
        """Return the processor time of tests over the unchanged sources, measured once."""
        if tests not in self._base:
            ended = self._tests(tests, 600.0)
            if ended.outcome != "survived":
                raise RuntimeError(f"{', '.join(tests)}: {ended.outcome} without any change; see {self._log}")
            self._base[tests] = ended.cpu_s
        return self._base[tests]

    @property
    def _log(self) -> Path:
        return self._folder.parent / "tests.log"

    def _tests(self, tests: Sequence[str], limit_s: float) -> Ended:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            self._child(tests, limit_s)
        # The clock on the wall is only a net: other work must not make a mutant look endless.
        deadline = time.monotonic() + 20 * limit_s
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what tests started and left
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGKILL, signal.SIGXCPU}:
            return Ended("timed out", cpu_s)
        return Ended("survived" if status == 0 else "killed", cpu_s)

    def _child(self, tests: Sequence[str], limit_s: float) -> None:
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
            os.chdir(self._folder)
            os.environ["PYTHONPATH"] = str(self._folder)
            sys.path.insert(0, str(self._folder))
            # A compiled file is taken for current by size and second of its source, which a mutant may share.
            sys.dont_write_bytecode = True
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = _pytest(tests)
        finally:
            os._exit(code)


def _pytest(tests: Sequence[str]) -> int:
    import hypothesis
    import pytest

    # The first failing example is enough, and slow ones are no failure beside other work.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, database=None, deadline=None)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--hypothesis-profile=mutants"]
    return int(pytest.main([*options, *tests]))
