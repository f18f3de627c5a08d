"""Compiles a changed source of block selection, and asks its suites, its native test and its tests in Python."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mutants import Mutant

_FLAGS = ("-std=c++20", "-O1", "-fPIC")
_LIBRARY = "libassay-qsa.so"
_TESTS = ("tests/engine/test_qsa_inputs.py", "tests/engine/test_qsa_histories.py")
_CPU_S = 20
_MEMORY_BYTES = 4 << 30
_HISTORIES = "100"


class CppRunner:
    """A copy of `engine/src` and of the native tests, compiled once, in which one file at a time is changed."""

    def __init__(self, checkout: Path, scratch: Path) -> None:
        """Copy and compile. Raises RuntimeError where a test fails without any change."""
        self._checkout, self._folder = checkout, scratch / "engine"
        self._compiler = os.environ.get("CXX", "c++")
        for part in ("src", "tests"):
            shutil.copytree(checkout / "engine" / part, self._folder / part)
        qsa = self._folder / "src" / "qsa"
        self._sources = sorted(qsa.glob("*.cpp"))
        self._suites = sorted((qsa / "suites").glob("*.cpp"))
        native = [self._folder / "tests" / "qsa_prefix.cpp"]
        for source in (*self._sources, *self._suites, *native):
            self._compile(source, check=True)
        self._objects = {source: self._object(source) for source in self._sources}
        library = self._link([*self._objects.values()], _LIBRARY, "-shared")
        suites = [*(self._object(source) for source in self._suites), library]
        self._suites_program = self._link(suites, "qsa_suites", "-Wl,-rpath,$ORIGIN")
        if self._tests(self._objects) != "survived":
            raise RuntimeError("the tests of block selection fail without any change")

    def run(self, mutant: Mutant) -> str | None:
        """Compile a mutant and test it until the first failure; none where it does not compile."""
        path = self._checkout / mutant.path
        place = self._folder / path.relative_to(self._checkout / "engine")
        source = place.read_bytes()
        place.write_bytes(mutant.apply(source))
        try:
            changed = self._sources if place.suffix == ".h" else [place]
            objects = dict(self._objects)
            for one in changed:
                objects[one] = self._object(one).with_suffix(".mutant.o")
                if not self._compile(one, objects[one]):
                    return None
            return self._tests(objects)
        finally:
            place.write_bytes(source)

    def _object(self, source: Path) -> Path:
        return self._folder / f"{source.stem}.o"

    def _compile(self, source: Path, target: Path | None = None, *, check: bool = False) -> bool:
        target = target or self._object(source)
        command = [self._compiler, *_FLAGS, "-I", self._folder / "src", "-I", self._folder / "tests", "-c", source]
        ended = subprocess.run([*command, "-o", target], capture_output=True, text=True, check=False)
        if check and ended.returncode:
            raise RuntimeError(ended.stderr)
        return ended.returncode == 0

    def _link(self, objects: Sequence[Path], target: str, *flags: str) -> Path:
        path = self._folder / target
        subprocess.run([self._compiler, *flags, *objects, "-o", path], check=True, capture_output=True)
        return path

    def _tests(self, objects: Mapping[Path, Path]) -> str:
        library = self._link([*objects.values()], _LIBRARY, "-shared")
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._checkout),
            "ASSAY_QSA_LIBRARY": str(library),
            "ASSAY_QSA_HISTORIES": _HISTORIES,
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder),
        }
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        for command in ([self._suites_program], [self._folder / "qsa_prefix"], [*pytest, "-k", "not faster", *_TESTS]):
            if command[0] == self._folder / "qsa_prefix":
                self._link([self._folder / "qsa_prefix.o", *objects.values()], "qsa_prefix")
            ended = subprocess.run(
                command, cwd=self._checkout, env=environment, capture_output=True, check=False, preexec_fn=_limit
            )
            if ended.returncode in {-signal.SIGXCPU, -signal.SIGKILL}:
                return "timed out"
            if ended.returncode:
                return "killed"
        return "survived"


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
