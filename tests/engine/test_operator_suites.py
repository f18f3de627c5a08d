"""Every operator of the graphs against double precision: the program that a build brings, what it finds, and what it covers."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from qwen_faulty import SEPARATE

from engine.build import BuildSpec, EngineBuild, build_engine
from engine.source_tree import source_folder

PROGRAM = "bin/operator_suites"
# They make tensors or other views of the same numbers: no kernel runs.
NO_KERNEL = re.compile(r"ggml_(new_tensor|view|reshape|permute|transpose|dup_tensor|get_(first|next)?_?tensor).*")


def suites(build: EngineBuild, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [build.folder / PROGRAM, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


def receipt(build: EngineBuild, *arguments: str) -> dict[str, Any]:
    found = suites(build, "--json", *arguments)
    assert not found.stderr
    return dict(json.loads(found.stdout), exit_code=found.returncode)


def test_every_case_passes_and_states_its_error_and_tolerance(bundled_build: EngineBuild) -> None:
    found = receipt(bundled_build)
    assert (found["exit_code"], found["failed"], found["not_run"]) == (0, 0, 0)
    assert found["operators"] >= 35
    assert len(found["cases"]) > 400
    for case in found["cases"]:
        assert case["verdict"] == "PASS", case
        assert 0 <= case["error"] <= case["tolerance"], case


def test_numbers_and_verdicts_are_the_same_again(bundled_build: EngineBuild) -> None:
    names = ("MUL_MAT_ID", "FLASH_ATTN_EXT", "ROPE")
    assert receipt(bundled_build, *names) == receipt(bundled_build, *names)


def test_a_changed_input_is_seen_by_every_case(bundled_build: EngineBuild) -> None:
    found = suites(bundled_build, "--control")
    assert found.returncode == 0, [line for line in found.stdout.splitlines() if not line.startswith("PASS")]


def test_rows_that_are_not_normed_fail_the_cases_that_have_them(bundled_build: EngineBuild) -> None:
    del bundled_build  # shares its objects
    faulty = build_engine(BuildSpec(name="qwen-faults", layout_salt=1, faults=SEPARATE))
    found = receipt(faulty, "RMS_NORM")
    assert found["exit_code"] == 1
    failed = [case for case in found["cases"] if case["verdict"] == "FAIL"]
    assert [case["case"] for case in failed] == ["65536 rows of 128", "131072 rows of 128"]
    for case in failed:
        assert case["error"] > 0.1 > case["tolerance"]
        # The first row past the border, or a later one: never one that the norm reached.
        assert int(re.findall(r"\d+", case["reason"])[1]) >= 65535
    assert receipt(faulty, "SOFT_MAX")["exit_code"] == 0


def test_a_line_says_verdict_operator_case_error_and_tolerance(bundled_build: EngineBuild) -> None:
    found = suites(bundled_build, "SSM_CONV")
    *lines, summary = found.stdout.splitlines()
    assert len(lines) == 6
    for line in lines:
        assert re.fullmatch(
            r"PASS +SSM_CONV +\d+ channels, \d+ tokens +error \d\.\d\de-\d\d tolerance \d\.\d\de-\d\d", line
        )
    assert summary == "PASS: 1 operators, 6 cases on CPU, 0 failed, 0 not run"


def test_without_a_gpu_nothing_is_run_and_77_says_so(bundled_build: EngineBuild) -> None:
    found = suites(bundled_build, "--device", "gpu", "ADD")
    if found.returncode != 77:
        pytest.skip("NOT_RUN: this host has a GPU that ggml finds")
    assert found.stdout.startswith("NOT_RUN: ")
    assert receipt(bundled_build, "--device", "gpu")["verdict"] == "NOT_RUN"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--device", "tpu"], "cpu or gpu"),
        (["--device"], "cpu or gpu"),
        (["--threads", "0"], "from 1 to 256"),
        (["ADDD"], "'ADDD'"),
        (["--quick"], "'--quick'"),
    ],
)
def test_a_usage_error_ends_with_2_and_the_usage(
    bundled_build: EngineBuild, arguments: list[str], problem: str
) -> None:
    found = suites(bundled_build, *arguments)
    assert found.returncode == 2
    assert problem in found.stderr
    assert "operator_suites [--device cpu|gpu]" in found.stderr


def test_every_operator_states_the_reason_of_its_tolerance(bundled_build: EngineBuild) -> None:
    lines = suites(bundled_build, "--list").stdout.splitlines()
    assert len(lines) >= 35
    for line in lines:
        assert re.fullmatch(
            r"[A-Z_0-9]+ +\d+ cases; .*(exact|single|rounding|exponential|root|quotient|error|sum|lost).*", line
        )


def operators_of_ggml() -> set[str]:
    """Return the functions of ggml.h that add a node with a kernel to a graph."""
    found = importlib.util.find_spec("ggml")
    assert found is not None
    assert found.submodule_search_locations is not None
    package = Path(found.submodule_search_locations[0])
    header = next(path for path in (package / "include/ggml.h", package.parent / "include/ggml.h") if path.is_file())
    names = re.findall(r"GGML_API\s+struct ggml_tensor \* (ggml_\w+)\(\s*struct ggml_context", header.read_text())
    return {name for name in names if not NO_KERNEL.fullmatch(name)}


def used_in(*paths: Path) -> set[str]:
    text = "\n".join(path.read_text() for path in paths)
    # A name with a bracket is called; one with a comma is handed on.
    return set(re.findall(r"\b(ggml_\w+)\b(?=[(,])", text))


def test_every_operator_that_the_engine_calls_is_called_in_a_case() -> None:
    """The native test core_operators looks at graphs; this looks at the source, for what no tiny model reaches."""
    operators = operators_of_ggml()
    assert {"ggml_mul_mat", "ggml_rope_multi", "ggml_gated_delta_net"} <= operators
    source = source_folder() / "src"
    engine = used_in(*source.glob("*.cpp")) & operators
    cases = used_in(*(source / "operators").glob("*.cpp"), source / "block_choice.cpp", source / "norm.cpp")
    assert len(engine) > 35
    assert engine - cases == set()
