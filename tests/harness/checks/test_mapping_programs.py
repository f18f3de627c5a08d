"""The programs of a mapping grid, which come with the arm's build: whatever they do ends in words, and nothing stays."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.build import QSA_SUITES
from harness.checks import mapping_grid
from harness.checks.mapping_grid import run_mapping_grid
from protocols.checks.mapping_grid import CASES, MappingGridCheck
from protocols.errors import EngineError

CHECK = MappingGridCheck(kind="mapping_grid", id="c", suites=("reproducer",))
GRID = {
    "cases": [{"name": f"case {n}", "inputs": {"own_cells": ["a", "a"]}} for n in range(CASES)],
    "control": {"name": "control", "inputs": {"own_cells": ["a", "b"]}},
}


def receipt(**suite: Any) -> str:
    suites = {"reproducer": {"cases": 4, "failed": 0, "failures": []} | suite}
    return json.dumps({"suites": suites, "path": "guarded", "faults": []})


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the check with suites that are a shell script; the grid itself is sound."""

    def program(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        path.chmod(0o755)
        return path

    def run(script: str, *, limit_s: float = 20) -> Any:
        (tmp_path / "grid.json").write_text(json.dumps(GRID))
        grid = program("grid", "cat grid.json")
        suites = program("suites", script)
        monkeypatch.setattr(mapping_grid, "sys", SimpleNamespace(executable=str(grid)))
        context = SimpleNamespace(
            prepared=SimpleNamespace(protocol=SimpleNamespace(limits=SimpleNamespace(request_s=limit_s))),
            program=lambda name: suites if name == QSA_SUITES else tmp_path / "library",
            arm="candidate",
        )
        return run_mapping_grid(context, CHECK)  # type: ignore[arg-type]

    return run


def test_what_sound_suites_print_is_kept(ran: Any) -> None:
    found = ran(f"echo '{receipt()}'")
    assert found["suites"]["reproducer"] == {"cases": 4, "failed": 0, "failures": []}
    failed = ran(f"echo '{receipt(failed=1, failures=[{'case': 'a', 'problem': 'b'}])}'; exit 1")
    assert failed["suites"]["reproducer"]["failed"] == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo nonsense", "printed no JSON"),
        ("printf '\\377'", "printed no JSON"),
        ("head -c 100000 /dev/zero | tr '\\0' '['", "printed no JSON"),
        ("echo '[1]'", "printed no object"),
        ("echo '{}'", "no receipt that can be judged: the check left no suite reproducer"),
        (f"echo '{receipt(cases='x')}'", "no receipt that can be judged"),
        (f"echo '{receipt(cases=0)}'", "no receipt that can be judged"),
        (f"echo '{receipt(failed=0.5)}'", "no receipt that can be judged"),
        (f"echo '{receipt(failed=1, failures=[{'problem': 'b'}])}'", "no receipt that can be judged"),
        (f"echo '{receipt(more=2**60)}'", "no receipt that can be judged"),
        (f"echo '{receipt()}'; exit 1", "ended with 1 and name no case that failed"),
        ("echo broken >&2; exit 3", "ended with 3: broken"),
        ("kill -SEGV $$", "was ended by signal 11"),
        ("while :; do head -c 1000000 /dev/zero; done", "wrote more than 16777216 bytes"),
        ("while :; do head -c 1000000 /dev/zero >&2; done", "wrote more than 16777216 bytes"),
    ],
)
def test_suites_that_do_not_say_what_they_found_are_refused(ran: Any, script: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        ran(script)


def test_suites_that_do_not_end_are_ended_with_all_that_they_started(ran: Any, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with pytest.raises(EngineError, match="did not end within 1 s"):
        ran("setsid sleep 100 & echo $! > child; sleep 100", limit_s=1)
    assert time.monotonic() - started_s < 20  # a child that holds the pipe open must not be waited for
    child = int((tmp_path / "child").read_text())
    assert not Path(f"/proc/{child}").exists()
