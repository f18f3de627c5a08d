"""The search on real builds: a sound one keeps every law, and each fault is found and shrunk to a few operations."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from qwen_faulty import SEPARATE, built

from harness.search import Player
from protocols.laws import LAWS, Case, draw_case, promise

MODELS = Path(__file__).parents[1] / "engine" / "models"
TINY_A = MODELS / "tiny-a.gguf"


@pytest.fixture
def searched(world: Any, tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    """Search a build; the exit code and the document."""

    def run(build: Any, *options: str, model: Path = TINY_A) -> tuple[int, Any]:
        ended = world.run("search", model, "--build", build.folder, "--json", *options, GOMP_SPINCOUNT="0")
        assert ended.code in {0, 1}, ended.err
        return ended.code, json.loads(ended.out)

    return run


@pytest.mark.parametrize("model", ["tiny-a", "tiny-c"])
def test_a_sound_build_keeps_every_law(searched: Any, model: str) -> None:
    cases = "350" if os.environ.get("ASSAY_TEST_THOROUGH") else "14"
    code, document = searched(built("tests"), "--cases", cases, "--seed", "11", model=MODELS / f"{model}.gguf")
    assert (code, document["findings"]) == (0, [])
    assert {*document["laws"]} == {*LAWS}
    assert sum(one["tried"] for one in document["laws"].values()) == int(cases)
    assert all(one["applicable"] for one in document["laws"].values())


@pytest.mark.parametrize(
    ("build", "faults", "law", "most_left", "most_right"),
    [
        ("qwen-position", ("position-only-blocks",), "split=unified", 3, 3),
        ("qwen-faults", SEPARATE, "reused=fresh", 3, 1),
        ("qwen-faults", SEPARATE, "copied=single", 3, 2),
    ],
)
def test_a_fault_is_found_shrunk_and_found_again(
    searched: Any, tmp_path: Path, build: str, faults: tuple[str, ...], law: str, most_left: int, most_right: int
) -> None:
    out = tmp_path / "found.json"
    code, document = searched(built(build, *faults), "--law", law, "--cases", "10", "--out", str(out))
    (found,) = document["findings"]
    assert (code, found["status"], found["promise"], found["is_repeatable"]) == (1, "differs", "bytes", True)
    small, drawn = (
        Case.model_validate_json(json.dumps(found["case"])),
        Case.model_validate_json(json.dumps(found["drawn"])),
    )
    assert len(small.left.operations) <= most_left
    assert len(small.right.operations) <= most_right
    assert len(drawn.left.operations) > len(small.left.operations)
    assert json.loads(out.read_text()) == document
    code, again = searched(built(build, *faults), "--replay", str(out))
    assert (code, again["findings"][0]["comparison"]) == (1, found["comparison"])
    code, sound = searched(built("tests"), "--replay", str(out))
    assert (code, sound["laws"][law]["tried"]) == (0, 1)


def test_a_worker_that_dies_is_a_finding_and_the_next_case_gets_a_new_one() -> None:
    with Player(built("tests"), TINY_A) as player:
        case = draw_case("copied=single", 1, 0, player.abilities)
        os.kill(player.pid, signal.SIGKILL)
        died = player.judge(case)
        assert (died.status, died.is_finding, "SIGKILL" in died.words) == ("dies", True, True)
        assert player.judge(case).status == "holds"


def test_what_the_engine_cannot_do_is_not_applicable_and_what_it_refuses_wrongly_is_a_finding() -> None:
    with Player(built("tests"), TINY_A) as player:
        case = draw_case("rolled-back=never", 1, 0, player.abilities)
        none = case.left.settings.model_copy(update={"rollback_tokens": 0})
        unable = case.model_copy(update={"left": case.left.model_copy(update={"settings": none})})
        assert player.judge(unable).status == "not-applicable"
        small = replace(promise(case, player.abilities), cells_each=4, cells_together=4)
        with mock.patch("harness.search.promise", return_value=small):  # a session too small for what it is to hold
            full = player.judge(case)
        assert (full.status, "cells" in full.words) == ("fails", True)


def test_a_replayed_file_whose_histories_mean_different_things_is_refused(world: Any, tmp_path: Path) -> None:
    build = built("tests")
    with Player(build, TINY_A) as player:
        case = draw_case("copied=single", 1, 0, player.abilities)
    wrong = case.model_copy(update={"right": case.right.model_copy(update={"operations": case.right.operations[1:]})})
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"assay_search": 1, "findings": [{"case": wrong.model_dump(mode="json")}]}))
    ended = world.run("search", TINY_A, "--build", build.folder, "--replay", path)
    assert (ended.code, "do not mean the same" in ended.err) == (2, True)
