"""Programs of a build whose result is what they print: a result that could not be written is no success."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.build import EngineBuild

RUNS = (
    ("operator_suites", "ADD"),
    ("operator_suites", "--json", "ADD"),
    ("operator_suites", "--list"),
    ("operator_suites", "--help"),
    ("qsa_suites", "mapping"),
    ("qsa_suites", "--routes"),
    ("qsa_suites", "--help"),
    ("qsa_bench", "--steps"),
    ("qsa_bench", "--help"),
    ("engine-bench", "--help"),
)


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_a_full_disk_is_no_success(bundled_build: EngineBuild, run: tuple[str, ...]) -> None:
    argv = [bundled_build.folder / "bin" / run[0], *run[1:]]
    assert subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, timeout=120).returncode == 0
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr == f"{run[0]}: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("threads", ["2x", "0", "257", "4294967298", " 2", "+2", ""])
def test_a_number_of_threads_that_is_none_is_refused(bundled_build: EngineBuild, threads: str) -> None:
    argv = [bundled_build.folder / "bin" / "operator_suites", "--threads", threads, "ADD"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--threads wants a number from 1 to 256" in ended.stderr
