"""Compiles a named build of the bundled engine and writes down how.

Layout of the cache folder:

    trees/KEY/            one Ninja tree per source, compiler, flags and libraries, shared by all builds of them
    trees/KEY.lock        held while the tree is in use
    builds/KEY/           one finished build: bin/, lib/ and receipt.json; never changed afterwards
    failures/KEY.json     receipt of the last failed attempt
    logs/KEY.log          what the build tools printed

A layout salt only relinks and a fault recompiles a few files of one library, so that
a second arm costs seconds, and both arms hold the same objects otherwise. What
concerns block selection alone changes libassay-qsa.so and no other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from engine.build_log import first_errors
from engine.build_step import run_step
from engine.cache import Log, cache_folder, held
from engine.identity import RECEIPT_NAME, identify_build
from engine.receipt_file import read_receipt
from engine.source_tree import hash_sources, source_folder
from engine.toolchain import Toolchain, find_toolchain
from protocols.errors import EngineError

RECEIPT_FORMAT: Final = "assay-engine-build/1"
SERVER: Final = "bin/engine-server"
BENCH: Final = "bin/engine-bench"
LIBRARY: Final = "lib/libassay-engine.so"
QSA_LIBRARY: Final = "lib/libassay-qsa.so"
QSA_SUITES: Final = "bin/qsa_suites"
QSA_PATHS: Final = ("guarded", "general-only")
_FAULT: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(=[0-9]+)?")
_STEP_LIMIT_S: Final = 1800


class BuildError(EngineError):
    """A build that failed; `receipt` records the attempt."""

    def __init__(self, message: str, *, receipt: dict[str, Any], where: str | None = None) -> None:
        super().__init__(message, where=where, hint="read the build log; nothing was installed")
        self.receipt = receipt


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """What to build: `name` is only a label; `path` is a source tree, None for the bundled source.

    `qsa_path` says how block selection finds its inputs: one of QSA_PATHS.
    """

    name: str
    layout_salt: int = 0
    faults: tuple[str, ...] = ()
    qsa_path: str = "guarded"
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class EngineBuild:
    """A build that can be started; `receipt` says how it was made (origin `wheel` when the installer made it)."""

    name: str
    folder: Path
    server: Path
    libraries: tuple[Path, ...]
    receipt: dict[str, Any]

    @property
    def library(self) -> Path:
        """The library behind the C interface."""
        return self.folder / LIBRARY

    @property
    def bench(self) -> Path:
        """The benchmark program."""
        return self.folder / BENCH


def installed_build() -> EngineBuild:
    """Return the build that came with the installed wheel (salt 0, no faults, guarded path).

    Raises EngineError where Assay runs from a source tree without being installed.
    """
    try:
        folder = Path(str(metadata.distribution("assay").locate_file("engine/native")))
    except metadata.PackageNotFoundError:
        raise EngineError("assay is not installed", hint="pip install . or make qualify") from None
    if not (folder / SERVER).is_file():
        raise EngineError("the installed package holds no engine", where=str(folder), hint="pip install . again")
    choices = _choices(BuildSpec(name="installed"))
    receipt = {"format": RECEIPT_FORMAT, "origin": "wheel", **choices, "outputs": _outputs(folder)}
    return _engine_build("installed", folder, receipt)


def open_build(folder: Path, *, name: str | None = None) -> EngineBuild:
    """Open a finished build and check its files against its receipt.

    Raises EngineError when the receipt is missing or a file differs from it.
    """
    receipt = read_receipt(folder)
    if receipt is None:
        raise EngineError(
            "this folder is no finished build (no readable receipt.json)",
            where=str(folder),
            hint="make one with `assay engine build --out`",
        )
    found = _outputs(folder)
    recorded = receipt["outputs"]
    for changed in sorted(set(found) | set(recorded)):
        if found.get(changed) != recorded.get(changed):
            raise EngineError(f"{changed} differs from the build's receipt", where=str(folder), hint="build it again")
    return _engine_build(name or folder.name, folder, receipt)


def copy_build(build: EngineBuild, out: Path) -> EngineBuild:
    """Copy a finished build to the new folder `out`, receipt included.

    Raises EngineError when `out` exists already.
    """
    if out.exists():
        raise EngineError("the output folder exists already", where=str(out), hint="name a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        shutil.copytree(build.folder, partial, dirs_exist_ok=True)
        (partial / RECEIPT_NAME).write_text(_render(build.receipt), encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return open_build(out, name=build.name)


def build_engine(spec: BuildSpec, *, cache: Path | None = None, log: Log = lambda _: None) -> EngineBuild:
    """Build `spec`, or reuse a finished build whose files still match its receipt.

    `log` gets one line a step. Raises BuildError when a tool fails, EngineError when a tool is missing
    or the specification cannot be built.
    """
    _check(spec)
    cache = cache_folder() if cache is None else cache
    source = source_folder() if spec.path is None else spec.path
    tools = find_toolchain()
    inputs = hash_sources(source)
    tree_key = _key("tree", _tree_facts(tools, inputs))
    key = _key("build", {"tree": tree_key, **_choices(spec)})
    folder = cache / "builds" / key
    ready = _reuse(folder, spec.name, log)
    if ready is not None:
        return ready
    with held(cache / "trees" / f"{tree_key}.lock", log, "another build of the same source"):
        # Another process may have finished it while we waited.
        ready = _reuse(folder, spec.name, log)
        if ready is not None:
            return ready
        return _Attempt(spec, cache, source, tools, inputs, tree_key, key, log).run()


class _Attempt:
    """One build under the tree's lock, from the copied source to the installed folder."""

    def __init__(
        self,
        spec: BuildSpec,
        cache: Path,
        source: Path,
        tools: Toolchain,
        inputs: dict[str, str],
        tree_key: str,
        key: str,
        log: Log,
    ) -> None:
        self._spec = spec
        self._cache = cache
        self._source = source
        self._tools = tools
        self._tree = cache / "trees" / tree_key
        self._key = key
        self._log = log
        self._log_path = cache / "logs" / f"{key}.log"
        self._receipt: dict[str, Any] = {
            "format": RECEIPT_FORMAT,
            "origin": "build",
            "key": key,
            "tree_key": tree_key,
            **_choices(spec),
            **_tree_facts(tools, inputs),
            "compiler_path": str(tools.compiler),
            "source_path": str(source),
        }

    def run(self) -> EngineBuild:
        started_ns = time.monotonic_ns()
        self._receipt["started_utc_ns"] = str(time.time_ns())
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        folder = self._cache / "builds" / self._key
        folder.parent.mkdir(parents=True, exist_ok=True)
        for leftover in folder.parent.glob(f".{self._key}-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a killed attempt: we hold its lock now
        # Installed beside its final place, so that a killed build never looks finished.
        partial = Path(tempfile.mkdtemp(prefix=f".{self._key}-", dir=folder.parent))
        try:
            self._copy_source()
            self._compile(partial)
            self._receipt["inputs_after"] = hash_sources(self._tree / "source")
            if self._receipt["inputs_after"] != self._receipt["inputs"]:
                raise self._failure("the source changed while it was compiled", ())
            self._receipt["compile_commands"] = self._compile_commands()
            self._receipt["outputs"] = _outputs(partial)
            self._receipt["duration_ns"] = time.monotonic_ns() - started_ns
            self._receipt["outcome"] = "built"
            (partial / RECEIPT_NAME).write_text(_render(self._receipt), encoding="utf-8")
            partial.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        except BuildError as error:
            error.receipt["duration_ns"] = time.monotonic_ns() - started_ns
            self._keep_failure(error.receipt)
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self._log(f"built {self._spec.name} in {self._receipt['duration_ns'] / 1e9:.0f} s")
        return _engine_build(self._spec.name, folder, self._receipt)

    def _copy_source(self) -> None:
        """Compile a copy, so that neither an edit nor another checkout of the same source disturbs the tree."""
        copy = self._tree / "source"
        for name in self._receipt["inputs"]:
            target = copy / name
            data = (self._source / name).read_bytes()
            if target.is_file() and target.read_bytes() == data:
                continue  # an unchanged time stamp keeps the objects valid
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if hash_sources(copy) != self._receipt["inputs"]:
            raise self._failure("the source changed while it was copied", ())

    def _compile(self, prefix: Path) -> None:
        cmake = str(self._tools.cmake)
        objects = self._tree / "objects"
        variables = [
            *self._tools.definitions(),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
            "-DASSAY_TESTS=OFF",
            f"-DASSAY_LAYOUT_SALT={self._spec.layout_salt}",
            f"-DASSAY_FAULTS={';'.join(sorted(self._spec.faults))}",
            f"-DASSAY_PATH={self._spec.qsa_path}",
        ]
        self._receipt["definitions"] = variables
        self._log_path.write_text("", encoding="utf-8")
        self._log(f"configuring {self._spec.name}")
        self._step([cmake, "-G", "Ninja", "-S", str(self._tree / "source"), "-B", str(objects), *variables])
        self._log(f"compiling {self._spec.name} (the first time a minute on two idle cores, ten on busy ones)")
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        self._step([cmake, "--build", str(objects), "--parallel", jobs])
        self._step([cmake, "--install", str(objects), "--prefix", str(prefix)])
        for name in (SERVER, LIBRARY):
            if not (prefix / name).is_file():
                raise self._failure(f"the build installed no {name}", ())

    def _step(self, argv: list[str]) -> None:
        try:
            code = run_step(
                argv,
                self._log_path,
                environment=self._tools.environment(),
                limit_s=_STEP_LIMIT_S,
                tell=lambda text: self._log(f"compiling {self._spec.name}: {text}"),
            )
        except TimeoutError:
            raise self._failure(f"a build step took longer than {_STEP_LIMIT_S} s", ()) from None
        if code != 0:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
            raise self._failure(f"the build ended with code {code}", first_errors(lines))

    def _failure(self, problem: str, lines: list[str] | tuple[str, ...]) -> BuildError:
        message = f"build {self._spec.name!r} failed: {problem}"
        if lines:
            message += "\n  " + "\n  ".join(lines)
        receipt = self._receipt | {"outcome": "failed", "failure": problem, "error_lines": list(lines)}
        return BuildError(message, receipt=receipt, where=str(self._log_path))

    def _keep_failure(self, receipt: dict[str, Any]) -> None:
        path = self._cache / "failures" / f"{self._key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_render(receipt), encoding="utf-8")

    def _compile_commands(self) -> list[str]:
        listed = json.loads((self._tree / "objects" / "compile_commands.json").read_text(encoding="utf-8"))
        return sorted(str(entry["command"]) for entry in listed)


def _check(spec: BuildSpec) -> None:
    if spec.layout_salt < 0:
        raise EngineError(f"a layout salt is a number from 0, not {spec.layout_salt}")
    for fault in spec.faults:
        if not _FAULT.fullmatch(fault):
            raise EngineError(
                f"{fault!r} does not name a fault", hint="write it like slow-decode=30 or image-one-block"
            )
    if len(set(spec.faults)) != len(spec.faults):
        raise EngineError("a fault is named twice")
    if spec.qsa_path not in QSA_PATHS:
        raise EngineError(f"{spec.qsa_path!r} is no path of block selection", hint=f"use one of {', '.join(QSA_PATHS)}")


def _choices(spec: BuildSpec) -> dict[str, Any]:
    """Return what one build of a tree has of its own."""
    return {"layout_salt": spec.layout_salt, "faults": sorted(spec.faults), "qsa_path": spec.qsa_path}


def _tree_facts(tools: Toolchain, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return what decides the objects of a tree. Paths are not among it: the same source elsewhere is the same tree."""
    return {
        "compiler_version": tools.compiler_version,
        "compiler_target": tools.compiler_target,
        "cmake_version": tools.cmake_version,
        "ninja_version": tools.ninja_version,
        "flags": dict(tools.flags),
        "package_versions": dict(tools.package_versions),
        "library_hashes": dict(tools.library_hashes),
        "inputs": dict(inputs),
    }


def _key(kind: str, facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{kind}\n{_render(facts)}".encode()).hexdigest()[:24]


def _render(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _outputs(folder: Path) -> dict[str, str]:
    return {file.name: file.sha256 for file in identify_build(folder).files}


def _engine_build(name: str, folder: Path, receipt: dict[str, Any]) -> EngineBuild:
    return EngineBuild(
        name=name,
        folder=folder,
        server=folder / SERVER,
        libraries=tuple(sorted((folder / "lib").glob("*.so*"))),
        receipt=receipt,
    )


def _reuse(folder: Path, name: str, log: Log) -> EngineBuild | None:
    if not folder.is_dir():
        return None
    try:
        build = open_build(folder, name=name)
    except EngineError as error:
        log(f"building {name} again: {error}")
        return None
    log(f"reusing the finished build of {name}")
    return replace(build, name=name)
