"""docs/complaints.md: all fifty are there, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[a-z_/]+\.py)::(test_\w+)`")
OWN = "tests/recorder/test_complaints.py"


def rows() -> dict[int, str]:
    found = ROW.findall((ROOT / "docs" / "complaints.md").read_text())
    assert len(found) == len({number for number, _, _ in found})
    return {int(number): answer for number, _, answer in found}


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_complaint_has_an_answer() -> None:
    assert [*rows()] == [*range(1, 51)]
    for number, answer in rows().items():
        assert NAMED.search(answer) or len(answer) > 40, f"{number} names no test and gives no reason"


def test_every_named_test_exists() -> None:
    for number, answer in rows().items():
        for path, name in NAMED.findall(answer):
            assert name in functions_of(path), f"complaint {number}: {path} has no {name}"


def test_each_stream_of_a_complaint_stands_in_its_row() -> None:
    streams = {name for name in functions_of(OWN) if re.match(r"test_\d\d_", name)}
    assert {int(name[5:7]) for name in streams} >= {*range(1, 24), 25}
    for name in streams:
        assert f"`{OWN}::{name}`" in rows()[int(name[5:7])], f"{name} is not named in row {name[5:7]}"
