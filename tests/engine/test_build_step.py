"""A step of a build: its log, its exit code, and what a person who waits is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from engine.build_log import steps_done
from engine.build_step import run_step


def step(log: Path, code: str, told: list[str], **limits: float) -> int:
    options = {"limit_s": 60.0, "every_s": 0.2} | limits
    return run_step([sys.executable, "-u", "-c", code], log, environment=dict(os.environ), tell=told.append, **options)


def test_a_long_step_tells_how_many_files_are_done(tmp_path: Path) -> None:
    log, told = tmp_path / "log", list[str]()
    log.write_text("[9/9] a step of before\n")
    told_early: list[str] = []
    assert step(log, "import time; time.sleep(0.5)", told_early) == 0
    assert told_early == [], "no count of this step yet"
    assert step(log, "import time; print('[12/94] Building x.o'); time.sleep(1)", told) == 0
    assert told
    assert all(line.startswith("12 of 94 files after ") for line in told)
    assert log.read_text().startswith("[9/9] a step of before\n$ ")


def test_the_exit_code_is_the_commands_and_a_step_that_never_ends_is_killed(tmp_path: Path) -> None:
    assert step(tmp_path / "log", "raise SystemExit(7)", []) == 7
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        step(tmp_path / "log", "import time; time.sleep(600)", [], limit_s=0.5)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("log", "done"), [("", None), ("[x/3] no\n", None), ("[1/3] a\n[2/3] b\nwarning: [3/3]\n", (2, 3))]
)
def test_the_newest_count_of_a_log_is_read(log: str, done: tuple[int, int] | None) -> None:
    assert steps_done(log) == done
