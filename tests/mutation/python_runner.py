"""Runs the tests of a changed Python module in a copy of the checkout, in a process that costs no imports."""

from __future__ import annotations

import hashlib
import importlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mutants import Mutant
from reach import Chosen, Reach, Test, Tracer, limit_cpu, statement_lines

_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "assay-store", "*_cache", ".hypothesis")
# Imported once, before the processes part; nothing of the project is among them.
_HEAVY = (
    "alembic",
    "click",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "httptools",
    "hypothesis",
    "hypothesis.strategies",
    "msgspec",
    "numpy",
    "pandas",
    "psutil",
    "pyarrow.parquet",
    "pydantic",
    "pytest",
    "rfc8785",
    "scipy.special",
    "scipy.stats",
    "sqlalchemy.dialects.sqlite",
    "yaml",
    "zstandard",
)


_IMPORTS_S = 30.0
"""Processor time within which the tests are collected, their modules imported."""
_TRACED_S = 3600.0
"""Time within which all tests run while it is noted what they reach."""


class Ended(NamedTuple):
    """How the tests ended: `killed`, `survived` or `timed out`, the time of the processor, and the test that failed."""

    outcome: str
    cpu_s: float = 0.0
    by: str = ""


class PythonRunner:
    """Tests over a copy of the checkout in which one file at a time is changed."""

    def __init__(self, checkout: Path, scratch: Path, files: Sequence[str], *, least_s: float = 10.0) -> None:
        """Copy the checkout to `scratch`; `files` are those that are changed.

        Each test of a mutant gets ten times the time that it takes without one, and `least_s`.
        """
        self._least_s = least_s
        self._folder = scratch / "checkout"
        shutil.copytree(checkout, self._folder, ignore=_NOT_COPIED, symlinks=True)
        self._watched = {str(self._folder / name): name for name in files}
        self._known = checkout / ".cache" / "mutants"
        self._reach: dict[str, Reach] = {}
        for name in _HEAVY:
            importlib.import_module(name)

    def run(self, mutant: Mutant, tests: Sequence[str]) -> Ended:
        """Run the tests that reach a mutant until the first fails. Raises RuntimeError where they fail without it."""
        reach = Reach.joined([self._reached(test) for test in tests])
        path = self._folder / mutant.path
        source = path.read_bytes()
        chosen = reach.of(mutant.path, statement_lines(source, mutant.line))
        if not chosen:
            return Ended("survived")
        path.write_bytes(mutant.apply(source))
        try:
            return self._tests(chosen)
        finally:
            path.write_bytes(source)

    def _reached(self, tests: str) -> Reach:
        """Return what a file of tests reaches in the unchanged sources; kept as long as nothing that it may use changes.

        They run twice: to see it, and in the order in which mutants meet them.
        """
        if tests not in self._reach:
            out = self._known / f"{self._state(tests)}.json"
            if not out.is_file():
                noted = self._folder.parent / "reach.json"
                self._must_hold(tests, self._child(lambda: _pytest([tests], Tracer(self._watched, noted)), _TRACED_S))
                found = sorted(Reach.read(noted).tests, key=lambda one: one.cost_s)
                self._must_hold(tests, self._tests(found))
                self._known.mkdir(parents=True, exist_ok=True)
                shutil.move(noted, out)
            self._reach[tests] = Reach.read(out)
        return self._reach[tests]

    def _state(self, tests: str) -> str:
        """Return a hash of a file of tests, of the files that are watched, and of all that are neither tests nor texts."""
        state = hashlib.sha256(repr(sorted(self._watched.values())).encode())
        for path in sorted(self._folder.rglob("*.*")):
            name = path.relative_to(self._folder).as_posix()
            is_other = path.name.startswith("test_") or path.suffix == ".md" or name.startswith("tests/mutation/")
            if path.is_file() and (name == tests or not is_other):
                state.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return state.hexdigest()

    def _must_hold(self, tests: str, ended: Ended) -> None:
        if ended.outcome != "survived":
            words = f"{ended.outcome} without any change {ended.by}"
            raise RuntimeError(f"{tests}: {words}:\n{self._log.read_text(errors='replace')[-4000:]}")

    @property
    def _log(self) -> Path:
        return self._folder.parent / "tests.log"

    def _tests(self, chosen: Sequence[Test]) -> Ended:
        out = self._folder.parent / "failed.txt"
        out.unlink(missing_ok=True)
        files = [*dict.fromkeys(one.name.partition("::")[0] for one in chosen)]
        limit_s = self._least_s + sum(one.cost_s for one in chosen)
        plugin = Chosen(chosen, out, self._least_s)
        ended = self._child(lambda: _pytest(files, plugin), limit_s, _IMPORTS_S + self._least_s)
        return ended._replace(by=out.read_text(encoding="utf-8") if out.is_file() else "")

    def _child(self, run: Callable[[], int], limit_s: float, first_cpu_s: float = _TRACED_S) -> Ended:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            self._run(run, first_cpu_s)
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

    def _run(self, run: Callable[[], int], first_cpu_s: float) -> None:
        code = 1
        try:
            os.setsid()
            limit_cpu(first_cpu_s)
            os.chdir(self._folder)
            os.environ |= {"PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"}
            sys.path.insert(0, str(self._folder))
            # A compiled file is taken for current by size and second of its source, which a mutant may share.
            sys.dont_write_bytecode = True
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = run()
        finally:
            os._exit(code)


class _Profile:
    """A plugin of pytest that sets the profile of hypothesis again, after each `conftest.py` has set its own."""

    def pytest_collection_modifyitems(self) -> None:
        import hypothesis

        hypothesis.settings.load_profile("mutants")


def _pytest(tests: Sequence[str], plugin: Any) -> int:
    import hypothesis
    import pytest

    # The first failing example is enough, and slow ones are no failure beside other work.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, database=None, deadline=None)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--hypothesis-profile=mutants"]
    return int(pytest.main([*options, *tests], plugins=[plugin, _Profile()]))
