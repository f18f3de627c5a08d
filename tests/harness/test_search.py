"""The search on real builds: a sound one keeps every law, and each fault is found and shrunk to a few operations."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from qwen_faulty import SEPARATE, built

from harness.search import Player, search
from protocols.draws import Abilities
from protocols.laws import LAWS, Case, LawName, draw_case, promise
from protocols.search import Judgement
from protocols.vocabulary import MOST_THREADS

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


@pytest.mark.parametrize(("model", "not_run"), [("tiny-a", set()), ("tiny-c", {"drafts=none"})])
def test_a_sound_build_keeps_every_law(searched: Any, model: str, not_run: set[str]) -> None:
    cases = "2520" if os.environ.get("ASSAY_TEST_THOROUGH") else "24"
    code, document = searched(built("tests"), "--cases", cases, "--seed", "11", model=MODELS / f"{model}.gguf")
    assert (code, document["findings"]) == (0, [])
    assert {*document["laws"]} == {*LAWS}
    assert sum(one["tried"] for one in document["laws"].values()) == int(cases)
    assert {law for law, one in document["laws"].items() if not one["applicable"]} == not_run
    assert all("no draft block" in document["laws"][law]["unmet"] for law in not_run)


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


@pytest.mark.parametrize(
    ("fault", "law", "cases", "left"),
    [
        ("rank-order-ignored", "parts=whole", 7, ["evaluate", "image", "drop", "image", "step"]),
        ("image-one-block", "bucket=rank", 1, ["image", "step"]),
        ("image-one-block", "shifted=unshifted", 10, ["skip", "image", "evaluate", "step"]),
        ("text-axis3-required", "axes=position", 1, ["step", "step"]),
        ("holes-invalidate-prefix", "hole=none", 1, ["step", "skip", "step"]),
    ],
)
def test_a_fault_of_block_selection_breaks_the_law_that_can_see_it(
    searched: Any, fault: str, law: str, cases: int, left: list[str]
) -> None:
    code, document = searched(built(f"qwen-{fault}", fault), "--law", law, "--cases", str(cases))
    (found,) = document["findings"]
    assert (code, found["status"], found["is_repeatable"]) == (1, "differs", True)
    assert [one["do"] for one in found["case"]["left"]["operations"]] == left
    if law == "hole=none":
        assert (found["promise"], found["comparison"], "n_scans 1 instead of 0" in found["words"]) == (
            "work",
            None,
            True,
        )
    if fault == "text-axis3-required":
        assert (found["comparison"]["differing_rows"], "n_runs_guarded" in found["words"]) == (0, True)


@pytest.mark.parametrize(
    ("name", "faults", "law", "number"),
    [("qwen-faults", SEPARATE, "wide=narrow", 1), ("qwen-bound-262140", ("bound-262140",), "roomy=tight", 12)],
)
def test_a_fault_of_large_sizes_is_seen_on_a_small_model(
    name: str, faults: tuple[str, ...], law: LawName, number: int
) -> None:
    with Player(built("tests"), TINY_A) as sound, Player(built(name, *faults), TINY_A) as faulty:
        case = draw_case(law, 1, number, sound.abilities)
        assert sound.judge(case).status == "holds"
        assert faulty.judge(case).status == "differs"


@pytest.mark.parametrize(("build", "faults"), [("qwen-faults", SEPARATE), ("qwen-shortlist", ("shortlist-in-target",))])
def test_drafts_that_change_what_is_chosen_break_a_law(searched: Any, build: str, faults: tuple[str, ...]) -> None:
    code, document = searched(built(build, *faults), "--law", "drafts=none", "--cases", "8")
    (found,) = document["findings"]
    assert (code, found["status"], found["words"].startswith("chosen token")) == (1, "differs", True)
    assert len(found["case"]["left"]["operations"]) == 1


class Plain:
    """A player of a model without images and drafts: it refuses drafts in the engine's words, all else holds."""

    abilities = Abilities(takes_images=False, is_byte_exact=False)
    build, model, vocabulary = SimpleNamespace(name="b"), Path("m"), 9

    def judge(self, case: Case) -> Judgement:
        promised = promise(case, self.abilities)
        if case.left.settings.draft_tokens:
            return Judgement(status="not-applicable", promise=promised, words="this model has no draft block")
        return Judgement(status="holds", promise=promised)


def test_laws_that_a_model_cannot_be_tried_on_are_not_run_with_the_reason() -> None:
    laws: list[LawName] = ["parts=whole", "drafts=none", "shifted=unshifted"]
    found = search(Plain(), laws, seed=1, cases=6, seconds=None, progress=mock.Mock())  # type: ignore[arg-type]
    assert [(one.tried, one.applicable) for one in found.tallies.values()] == [(0, 0), (3, 0), (3, 3)]
    words = [one.unmet for one in found.tallies.values()]
    assert ("takes images" in words[0], words[1:]) == (True, ["this model has no draft block", ""])
    none = search(Plain(), ["parts=whole"], seed=1, cases=6, seconds=None, progress=mock.Mock())  # type: ignore[arg-type]
    assert none.tallies["parts=whole"].tried == 0


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


@pytest.mark.parametrize(
    "line",
    ["search tiny.gguf", "engine perplexity --text t --model tiny.gguf", "engine logits --tokens t --model m --out o"],
)
@pytest.mark.parametrize("threads", [0, MOST_THREADS + 1, 2**32 + 1])
def test_threads_that_no_engine_takes_are_a_usage_error_and_no_finding(world: Any, line: str, threads: int) -> None:
    ended = world.run(*line.split(), "--threads", str(threads))
    assert (ended.code, f"{threads} is not in the range 1<=x<={MOST_THREADS}" in ended.err) == (2, True), ended.err


def test_a_finding_that_is_played_on_another_model_says_so(world: Any, tmp_path: Path) -> None:
    build = built("tests")
    with Player(build, TINY_A) as player:
        case = draw_case("copied=single", 1, 0, player.abilities)
        own = {"model": TINY_A.name, "vocabulary": player.vocabulary}
    path = tmp_path / "found.json"
    for said, is_told in (
        (own, False),
        ({}, False),
        (own | {"model": "another.gguf"}, True),
        (own | {"vocabulary": 3}, True),
    ):
        path.write_text(json.dumps({"assay_search": 1, **said, "findings": [{"case": case.model_dump(mode="json")}]}))
        ended = world.run("search", TINY_A, "--build", build.folder, "--replay", path)
        assert (ended.code, "other weights, other logits" in ended.err) == (0, is_told), said
