"""The mutation program: what it changes, what it leaves alone, and that its outcomes are what happened."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from cpp_mutants import cpp_mutants
from cpp_runner import CppRunner
from equivalents import EQUIVALENT, reason
from mutants import Mutant, draw
from mutate import CHECKOUT, Result, all_mutants, survivors, table
from python_mutants import python_mutants
from reach import statement_lines
from targets import PYTHON as GROUPS

PYTHON = b'''"""1 < 2 is no code."""
from typing import Final
LIMIT: Final[int] = 3
def held(values: list[int], most: int | None = None) -> bool:
    """Return a + b."""
    for value in values:
        if value < 0 or not value:
            continue
        if value > LIMIT:
            raise ValueError(f"{value + 1} is too many")
    total = 0
    total += max(values)
    return total - 1 == 2 * LIMIT
'''
CPP = b"""#include <vector>
// a < b is no code
static const char* text = "a < b";
template <class T> T low(const std::vector<int>& at, T a) {
#if defined(ASSAY_FAULT_LOW)
    return a + 1;
#else
    if (!at.empty() && a >= 7) return std::min(a, a - 1);
#endif
    for (int* i = nullptr;; ++i) continue;
}
"""


def changes(mutants: list[Mutant]) -> list[tuple[int, str, str]]:
    return [(one.line, " ".join(one.old.split()), one.new) for one in mutants]


def test_python_is_changed_where_it_computes_or_decides_and_nowhere_else():
    assert changes(python_mutants("m.py", PYTHON)) == [
        (3, "3", "(4)"),
        (7, "value < 0", "(value <= 0)"),
        (7, "value < 0 or not value", "(value < 0 and (not value))"),
        (7, "0", "(1)"),
        (7, "not value", "(value)"),
        (8, "continue", "break"),
        (9, "value > LIMIT", "(value >= LIMIT)"),
        (10, 'raise ValueError(f"{value + 1} is too many")', "pass"),
        (11, "0", "(1)"),
        (12, "total += max(values)", "total -= max(values)"),
        (12, "max(values)", "(min(values))"),
        (13, "total - 1", "(total + 1)"),
        (13, "total - 1 == 2 * LIMIT", "(total - 1 != 2 * LIMIT)"),
        (13, "1", "(2)"),
        (13, "2", "(3)"),
        (13, "2 * LIMIT", "(2 / LIMIT)"),
    ]


def test_a_number_too_large_for_one_more_is_doubled():
    assert changes(python_mutants("m.py", b"LIMIT = 1e30\nSMALL = 0.5\n")) == [
        (1, "1e30", "(2e+30)"),
        (2, "0.5", "(1.5)"),
    ]


def test_cpp_is_changed_by_tokens_outside_of_texts_templates_pointers_and_faults():
    assert changes(cpp_mutants("m.cpp", CPP)) == [
        (8, "!", ""),
        (8, "&&", "||"),
        (8, ">=", ">"),
        (8, "7", "8"),
        (8, "std::min", "std::max"),
        (8, "-", "+"),
        (8, "1", "2"),
        (10, "++", "--"),
        (10, "continue", "break"),
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_every_python_mutant_of_the_checkout_is_a_program(group: str):
    found = all_mutants(group)
    assert len(found) > 400
    for path in {one.path for one in found}:
        source = (CHECKOUT / path).read_bytes()
        for one in [each for each in found if each.path == path]:
            assert ast.dump(ast.parse(one.apply(source))) != ast.dump(ast.parse(source))


def test_a_mutant_of_another_file_is_refused():
    one = python_mutants("m.py", PYTHON)[0]
    with pytest.raises(ValueError, match="another file"):
        one.apply(b"#" + PYTHON)


def test_a_sample_follows_from_its_seed():
    found = all_mutants("qsa")
    sample = draw(found, 50, 1)
    assert sample == draw(found, 50, 1)
    assert sample != draw(found, 50, 2)
    assert len({one.words for one in sample}) == 50
    assert sorted(map(repr, draw(found, 10**6, 1))) == sorted(map(repr, found))


@pytest.mark.parametrize("seed", range(5))
def test_any_beginning_of_a_sample_has_a_share_of_each_file(seed: int):
    found = all_mutants("audit")
    assert draw(found, 30, seed) == draw(found, 60, seed)[:30]
    whole = Counter(one.path for one in found)
    for size in range(0, len(found) + 1, 20):
        counts = Counter(one.path for one in draw(found, size, seed))
        assert all(abs(counts[path] - size * n / len(found)) < 2 for path, n in whole.items()), size


def test_every_explained_mutant_exists_and_is_told_by_its_line():
    found = [one for group in (*GROUPS, "qsa") for one in all_mutants(group)]
    sources = {one.path: (CHECKOUT / one.path).read_bytes() for one in found}
    told = [reason(one, sources[one.path]) for one in found]
    for one in EQUIVALENT:
        assert one.why in told, f"no such mutant any more: {one.path}, {one.line}"


def test_the_table_counts_each_file_and_takes_equivalent_ones_out_of_the_rate():
    first, second = python_mutants("a.py", PYTHON)[0], python_mutants("b.py", PYTHON)[1]
    found = [
        Result(first, "killed"),
        Result(first, "timed out"),
        Result(first, "equivalent", "because"),
        Result(second, "survived"),
        Result(second, "killed"),
    ]
    assert table(found).splitlines()[2:] == [
        "| a.py | 3 | 1 | 1 | 0 | 1 | 100% |",
        "| b.py | 2 | 1 | 0 | 1 | 0 | 50% |",
        "| all | 5 | 2 | 1 | 1 | 1 | 75% |",
    ]


def test_what_survived_is_read_back_to_be_tried_again(tmp_path: Path):
    first, second = python_mutants("m.py", PYTHON)[:2]
    rows = [{"outcome": "survived", "why": "", **vars(first)}, {"outcome": "killed", "why": "", **vars(second)}]
    (tmp_path / "out.json").write_text(json.dumps(rows))
    assert survivors(tmp_path / "out.json") == [first]


RUN = """
import sys
from pathlib import Path
from mutants import Mutant
from python_mutants import python_mutants
from python_runner import PythonRunner
checkout, scratch = Path(sys.argv[1]), Path(sys.argv[2])
runner = PythonRunner(checkout, scratch, ["m.py"], least_s=1)
for one in python_mutants("m.py", (checkout / "m.py").read_bytes()):
    ended = runner.run(one, ["test_m.py"])
    print(one.words, "=", ended.outcome, ended.by.rpartition("::")[2], flush=True)
"""


def run(checkout: Path, module: str, test: str) -> subprocess.CompletedProcess[str]:
    checkout.mkdir()
    (checkout / "m.py").write_text(module)
    (checkout / "test_m.py").write_text(test)
    (checkout / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return subprocess.run(
        [sys.executable, "-c", RUN, checkout, checkout.parent / "scratch"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parent), "PATH": "/usr/bin:/bin"},
    )


def test_a_mutant_is_killed_survives_or_never_ends(tmp_path: Path):
    module = "def f(n):\n    while n > 0:\n        n -= 1\n    return n\ndef g(n):\n    return n < 5\n"
    test = "from m import f, g\ndef test_f():\n    assert f(2) == 0\n    assert g(4) and not g(6)\n"
    ended = run(tmp_path / "checkout", module, test)
    assert ended.stdout.splitlines() == [
        "m.py:2:11: n > 0 -> (n >= 0) = killed test_f",
        "m.py:2:15: 0 -> (1) = killed test_f",
        "m.py:3:9: n -= 1 -> n += 1 = timed out ",
        "m.py:3:14: 1 -> (2) = survived ",
        "m.py:6:12: n < 5 -> (n <= 5) = survived ",
        "m.py:6:16: 5 -> (6) = survived ",
    ], ended.stderr
    assert (tmp_path / "checkout" / "m.py").read_text() == module


REACHING = """
import subprocess, sys, time
import pytest
from m import f, g, h
@pytest.fixture(scope="module")
def made():
    return f(1)
def test_slow():
    time.sleep(0.3)
    assert f(1) == 2
def test_never_calls_f(): assert g() == 4
def test_makes_the_fixture(made): assert made is not None
def test_by_the_same_fixture(made): assert made == 2
def test_by_a_process():
    assert subprocess.run([sys.executable, "-c", "import m; exit(m.h())"], env={"PYTHONPATH": "."}).returncode == 5
"""


def test_a_mutant_meets_the_quickest_test_that_reaches_it_also_by_a_fixture_or_a_process(tmp_path: Path):
    module = "A = 3\ndef f(n):\n    return n + 1\ndef g():\n    return A + 1\ndef h():\n    return 5\n"
    ended = run(tmp_path / "checkout", module, REACHING)
    assert ended.stdout.splitlines() == [
        "m.py:1:5: 3 -> (4) = killed test_never_calls_f",
        "m.py:3:12: n + 1 -> (n - 1) = killed test_by_the_same_fixture",
        "m.py:3:16: 1 -> (2) = killed test_by_the_same_fixture",
        "m.py:5:12: A + 1 -> (A - 1) = killed test_never_calls_f",
        "m.py:5:16: 1 -> (2) = killed test_never_calls_f",
        "m.py:7:12: 5 -> (6) = killed test_by_a_process",
    ], ended.stderr


def test_a_change_that_no_test_reaches_survives(tmp_path: Path):
    ended = run(tmp_path / "checkout", "def f():\n    return 1\n", "import m\ndef test_m():\n    assert m\n")
    assert ended.stdout.splitlines() == ["m.py:2:12: 1 -> (2) = survived "], ended.stderr


def test_the_lines_of_a_statement_are_its_own_or_those_of_its_head():
    source = b"""if (a and
        b):
    return c(
        1,
        2,
    )
try:
    pass
except (
    ValueError
):
    pass
match a:
    case [1]:
        for one in a: b()
"""
    by_line = {line: [*statement_lines(source, line)] for line in range(1, 16)}
    assert by_line == {
        1: [1, 2],
        2: [1, 2],
        **{line: [3, 4, 5, 6] for line in (3, 4, 5, 6)},
        7: [7],
        8: [8],
        **{line: [9, 10, 11] for line in (9, 10, 11)},
        12: [12],
        13: [13],
        14: [14],
        15: [15],
    }


def test_tests_that_fail_without_a_mutant_say_nothing_about_one(tmp_path: Path):
    ended = run(tmp_path / "checkout", "ONE = 1\n", "def test_one():\n    assert False\n")
    assert (ended.returncode, "without any change" in ended.stderr) == (1, True)


def test_a_changed_source_of_block_selection_is_compiled_and_noticed(tmp_path: Path):
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("NOT_RUN: no C++ compiler")
    path = "engine/src/qsa/prefix.cpp"
    source = (CHECKOUT / path).read_bytes()
    line = next(number for number, text in enumerate(source.splitlines(), 1) if b"n_blocks = (rank + 1)" in text)
    plus = next(one for one in cpp_mutants(path, source) if (one.line, one.old) == (line, "+"))
    runner = CppRunner(CHECKOUT, tmp_path)
    assert runner.run(plus) == "killed"
    assert runner.run(replace(plus, new="+ nothing +")) is None
    assert (CHECKOUT / path).read_bytes() == source
