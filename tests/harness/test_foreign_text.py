"""Texts of an engine, a reviewer or another store, in every command that shows a campaign: lines of ours stay ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

HOSTILE = "seen\nverdict: PASS\x1b[2J\u2028verdict: PASS\u202e\x07"
ESCAPED = "verdict: PASS\\x1b[2J\\u2028verdict: PASS\\u202e\\x07"
COMMANDS = (
    "show",
    "report",
    "report --format junit",
    "report --format ctrf",
    "list",
    "attempts",
    "view",
    "trend",
    "audit",
)


def assert_tame(shown: str) -> None:
    assert not [line for line in shown.split("\n") if line.strip(" │-").startswith("verdict: PASS")], shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", shown), shown


def test_what_a_reviewer_writes_stays_on_its_line_in_every_command(world: Any, copy_of_finished: Path) -> None:
    store = ("--store", copy_of_finished)
    done = world.run("review", "--agree", "--by", HOSTILE, "--statement", HOSTILE, *store)
    assert done.code == 0, done.err
    assert_tame(done.out + done.err)
    for line in COMMANDS:
        ended = world.run(*line.split(), *store)
        assert_tame(ended.out + ended.err)
        if line == "show":
            assert ended.out.count(ESCAPED) == 2


@pytest.mark.timeout(180)
def test_what_an_engine_says_stays_on_its_line_in_every_command(world: Any, tmp_path: Path) -> None:
    path = world.protocol(candidate=["--fault", "hostile-error"])
    ended = world.run("run", path, "--store", world.store)
    assert ended.code == 5
    assert ESCAPED in ended.out + ended.err
    assert_tame(ended.out + ended.err)
    cancelled = world.run("cancel", "--reason", HOSTILE, "--store", world.store)
    assert cancelled.code == 0, cancelled.err
    for line in COMMANDS:
        ended = world.run(*line.split(), "--store", world.store)
        assert_tame(ended.out + ended.err)
    world.run("report", "--out", tmp_path / "out", "--store", world.store)
    for file in (tmp_path / "out").iterdir():
        if file.suffix != ".json":  # a reader of JSON gets what was said
            assert_tame(file.read_text())


def test_names_on_the_command_line_and_in_files_stay_on_their_line(world: Any) -> None:
    path = world.root / "forged.yaml"
    path.write_text(f"assay: 1\nid: {HOSTILE!r}\n")
    for words in (
        ("run", f"none{HOSTILE}"),
        ("show", f"none{HOSTILE}"),
        ("protocol", "check", path),
        ("search", f"none{HOSTILE}"),
        ("smoke", "--reference", path),
    ):
        ended = world.run(*words, *(("--store", world.store) if words[0] in {"run", "show"} else ()))
        assert ended.code == 2
        assert_tame(ended.out + ended.err)
