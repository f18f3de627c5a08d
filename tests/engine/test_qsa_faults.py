"""Each known fault of block selection is caught by a named suite, and absent from a build without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fault_blocks import strip_fault_blocks
from qsa_history import play
from qsa_library import Library

from engine.build import QSA_SUITES, EngineBuild, installed_build
from engine.source_tree import source_folder
from engine.toolchain import find_toolchain
from protocols.errors import EngineError

SOURCE = source_folder() / "src"
# The fault, and the suites that must notice it.
CAUGHT_BY = {
    "position-only-blocks": {"reproducer", "mapping"},
    "image-one-block": {"state", "allocation", "prefix"},
    "rank-order-ignored": {"state", "prefix"},
    "bias-by-block-number": {"reproducer", "mapping"},
    "tail-off-by-one": {"reproducer", "mapping", "state", "allocation", "prefix"},
    "stale-prefix-after-rollback": {"prefix"},
    "image-disables-prefix": {"routes"},
    "holes-invalidate-prefix": {"routes", "prefix"},
    "text-axis3-required": {"routes"},
    "bound-262140": {"routes"},
}


@pytest.fixture(scope="module")
def build() -> EngineBuild:
    try:
        return installed_build()
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")


def compile_library(folder: Path, *definitions: str, source: Path = SOURCE, level: str = "-O0") -> Path:
    """Compile the library as one translation unit; the suites and the wrapper take it for the built one."""
    whole = "".join(f'#include "qsa/{path.name}"\n' for path in sorted((source / "qsa").glob("*.cpp")))
    (folder / "whole.cpp").write_text(whole)
    library = folder / "libassay-qsa.so"
    flags = ["-std=c++20", level, "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    argv = [find_toolchain().compiler, *flags, *definitions, f"-I{source}", "whole.cpp", "-o", library]
    subprocess.run(argv, cwd=folder, check=True)
    return library


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that compiles the library with a fault, once."""
    folder = tmp_path_factory.mktemp("faults")
    made: dict[str, Path] = {}

    def make(fault: str) -> Path:
        if fault not in made:
            (folder / fault).mkdir()
            made[fault] = compile_library(folder / fault, macro(fault))
        return made[fault]

    return make


def macro(fault: str) -> str:
    return f"-DASSAY_FAULT_{fault.upper().replace('-', '_')}"


def receipt(build: EngineBuild, library: Path | None = None, suites: Iterable[str] = ()) -> dict[str, Any]:
    environment = dict(os.environ)
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    argv = [build.folder / QSA_SUITES, *suites]
    result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode in {0, 1}, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["passed"] == (result.returncode == 0)
    return answer


def test_every_suite_of_the_installed_library_passes_with_its_count_of_cases(build: EngineBuild) -> None:
    answer = receipt(build)
    assert answer["format"] == "assay-qsa-suites/1"
    assert (answer["path"], answer["faults"], answer["passed"]) == ("guarded", [], True)
    counts = {name: suite["cases"] for name, suite in answer["suites"].items()}
    assert counts["reproducer"] == 16
    assert counts["mapping"] == 64
    assert counts["equality"] == 288
    assert set(counts) == {"reproducer", "mapping", "state", "allocation", "prefix", "routes", "equality"}
    assert counts["mapping"] + counts["state"] >= 66
    assert counts["allocation"] >= 24
    assert not any(suite["failed"] for suite in answer["suites"].values())


def test_every_fault_that_can_be_built_is_among_those_that_are_caught() -> None:
    text = (source_folder() / "CMakeLists.txt").read_text()
    listed = re.search(r"set\(qsa_faults\s+([^)]*)\)", text)
    assert listed is not None
    assert set(listed[1].split()) == set(CAUGHT_BY)


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_a_fault_is_caught(build: EngineBuild, faulty: Callable[[str], Path], fault: str) -> None:
    answer = receipt(build, faulty(fault), {"reproducer", "mapping", "allocation", *CAUGHT_BY[fault]})
    failed = {name for name, suite in answer["suites"].items() if suite["failed"]}
    assert failed >= CAUGHT_BY[fault]
    if fault == "position-only-blocks":
        assert answer["suites"]["reproducer"]["failed"] == 16
    if fault in {"image-disables-prefix", "text-axis3-required", "bound-262140"}:
        # These cost time and memory; the choice stays right, so that only routes can tell.
        assert not failed & {"reproducer", "mapping", "allocation"}


@pytest.mark.parametrize(
    "fault",
    ["position-only-blocks", "image-one-block", "rank-order-ignored", "tail-off-by-one", "stale-prefix-after-rollback"],
)
def test_random_histories_catch_a_fault_too(faulty: Callable[[str], Path], fault: str) -> None:
    library = Library(faulty(fault))
    with pytest.raises(AssertionError, match="history"):
        play(library, range(40))


def test_a_library_without_the_guarded_path_is_right_and_says_so(build: EngineBuild, tmp_path: Path) -> None:
    answer = receipt(build, compile_library(tmp_path, "-DASSAY_PATH_GENERAL_ONLY"))
    assert (answer["path"], answer["passed"]) == ("general-only", True)
    assert answer["suites"]["equality"]["inputs_fnv1a64"] == receipt(build)["suites"]["equality"]["inputs_fnv1a64"]


def test_several_faults_go_into_one_library(build: EngineBuild, tmp_path: Path) -> None:
    answer = receipt(build, compile_library(tmp_path, *map(macro, CAUGHT_BY)), ["reproducer"])
    assert answer["suites"]["reproducer"]["failed"] == 16


def test_a_normal_library_is_that_of_the_source_without_the_fault_blocks(tmp_path: Path) -> None:
    stripped = tmp_path / "stripped" / "src"
    for path in (SOURCE / "qsa").glob("*.*"):
        target = stripped / "qsa" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(strip_fault_blocks(path.read_text()))
        assert "ASSAY_FAULT" not in target.read_text()
    for name in ("whole", "without"):
        (tmp_path / name).mkdir()
    whole = compile_library(tmp_path / "whole", level="-O2")
    without = compile_library(tmp_path / "without", source=stripped, level="-O2")
    assert whole.read_bytes() == without.read_bytes()


def test_stripping_keeps_what_a_build_without_faults_sees_and_refuses_what_it_cannot_tell() -> None:
    source = "a\n#if defined(ASSAY_FAULT_X)\nb\n#if Y\nc\n#endif\n#else\nd\n#endif\n#ifdef Z\ne\n#endif\n"
    assert strip_fault_blocks(source) == "a\nd\n#ifdef Z\ne\n#endif\n"
    assert strip_fault_blocks("#if !defined(ASSAY_FAULT_X)\na\n#endif\n") == "a\n"
    assert strip_fault_blocks("#if defined(ASSAY_FAULT_X) || defined(ASSAY_FAULT_Y)\na\n#endif\nb\n") == "b\n"
    for bad in ("#if defined(ASSAY_FAULT_X) && N > 3\n#endif\n", "#ifdef ASSAY_FAULT_X\n#elif N\n#endif\n"):
        with pytest.raises(ValueError, match="fault"):
            strip_fault_blocks(bad)


def test_the_documentation_has_the_counts_routes_and_faults_of_the_library(build: EngineBuild) -> None:
    page = Path(__file__).parents[2] / "docs" / "engine-qsa.md"
    counts = receipt(build)["suites"]
    assert ", ".join(f"{name} {suite['cases']}" for name, suite in counts.items()) in page.read_text()
    table = subprocess.run([build.folder / QSA_SUITES, "--routes"], capture_output=True, text=True, check=True).stdout
    assert len(table.splitlines()) == counts["routes"]["cases"]
    assert f"| policy | case | route | reason |\n|---|---|---|---|\n{table}" in page.read_text()
    assert all(f"| `{fault}` |" in page.read_text() for fault in CAUGHT_BY)
