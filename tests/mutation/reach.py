"""Which tests reach which lines: a changed line then meets those tests alone, the quickest first."""

from __future__ import annotations

import ast
import json
import math
import resource
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

Line = tuple[str, int]
ANYWHERE: Line = ("*", 0)
"""Stands for whatever another process runs: a test that starts one may reach every line."""
_STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.forkpty")


class Test(NamedTuple):
    """One test: its seconds with those of the fixtures that it shares with others, and the lines that it reaches."""

    name: str
    cost_s: float
    lines: frozenset[Line]


class Reach(NamedTuple):
    """What a run of tests reached. ``imported`` are the lines that run when a module is imported, by any test."""

    tests: tuple[Test, ...]
    imported: frozenset[Line]

    @classmethod
    def read(cls, path: Path) -> Reach:
        """Return what a `Tracer` wrote."""
        document = json.loads(path.read_bytes())
        tests = (
            Test(one["name"], one["cost_s"], frozenset((path, line) for path, line in one["lines"]))
            for one in document["tests"]
        )
        return cls(tuple(tests), frozenset((path, line) for path, line in document["imported"]))

    @classmethod
    def joined(cls, parts: Iterable[Reach]) -> Reach:
        """Return what several runs reached."""
        parts = [*parts]
        tests = (test for part in parts for test in part.tests)
        return cls(tuple(tests), frozenset[Line]().union(*(part.imported for part in parts)))

    def of(self, path: str, lines: Sequence[int]) -> list[Test]:
        """Return the tests that may notice a change of these lines of a file, the quickest first."""
        wanted = {(path, line) for line in lines}
        # A constant or a default: whoever looks at the module may notice, without running a line of it.
        is_for_all = bool(wanted & self.imported)
        chosen = [one for one in self.tests if is_for_all or one.lines & wanted or ANYWHERE in one.lines]
        return sorted(chosen, key=lambda one: one.cost_s)


def statement_lines(source: bytes, line: int) -> range:
    """Return the lines of the innermost statement of Python around a line; of one with a body, those of its head."""
    found = [range(line, line + 1)]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.match_case(pattern=pattern, body=body):
                head = range(pattern.lineno, max(pattern.lineno + 1, body[0].lineno))
            case ast.Match(cases=cases):
                head = range(node.lineno, max(node.lineno + 1, cases[0].pattern.lineno))
            case ast.stmt() | ast.ExceptHandler() if body := getattr(node, "body", []):
                head = range(node.lineno, max(node.lineno + 1, body[0].lineno))
            case ast.stmt():
                head = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            case _:
                continue
        if line in head:
            found.append(head)
    return max(found[1:] or found, key=lambda one: (one.start, -one.stop))


class Tracer:
    """A plugin of pytest that notes the lines of some files that each test and each shared fixture reaches."""

    def __init__(self, files: Mapping[str, str], out: Path) -> None:
        """`files` are the names of the watched files by the file names that the interpreter gives them."""
        self._files, self._out = files, out
        self._imported: set[Line] = set()
        self._sets: list[set[Line]] = [self._imported]
        self._shared: dict[int, tuple[set[Line], float]] = {}
        self._tests: list[tuple[pytest.Item, set[Line], float]] = []
        sys.addaudithook(self._audit)
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._sets[-1].add(ANYWHERE)

    def _called(self, frame: FrameType, _event: str, _: Any) -> Any:
        path = self._files.get(frame.f_code.co_filename)
        if path is None:
            return None

        def ran(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                self._sets[-1].add((path, frame.f_lineno))
            return ran

        return ran

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Note what a test reaches, with what is made for it alone."""
        lines: set[Line] = set()
        self._sets.append(lines)
        begun, before_s = time.perf_counter(), sum(cost_s for _, cost_s in self._shared.values())
        result = yield
        made_s = sum(cost_s for _, cost_s in self._shared.values()) - before_s
        self._tests.append((item, lines, time.perf_counter() - begun - made_s))
        self._sets.pop()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """Note what a shared fixture reaches: it counts for each test that uses it."""
        if fixturedef.scope == "function":
            return (yield)
        lines: set[Line] = set()
        self._sets.append(lines)
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            self._sets.pop()
            self._sets[-1] |= lines
            self._shared[id(fixturedef)] = (lines, time.perf_counter() - begun)

    def pytest_sessionfinish(self) -> None:
        """Write what was noted."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        rows = []
        for item, lines, cost_s in self._tests:
            used = [one for defs in item._fixtureinfo.name2fixturedefs.values() for one in defs]  # type: ignore[attr-defined]
            shared = [self._shared[id(one)] for one in used if id(one) in self._shared]
            cost = cost_s + sum(made_s for _, made_s in shared)
            rows.append({"name": item.nodeid, "cost_s": cost, "lines": [*lines.union(*(one for one, _ in shared))]})
        self._out.write_text(json.dumps({"tests": rows, "imported": [*self._imported]}), encoding="utf-8")


def limit_cpu(more_s: float) -> None:
    """Let the processor work this much longer for this process, then end it by SIGXCPU."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + more_s), hard))


class Chosen:
    """A plugin of pytest that runs some tests only, in their order, and writes down which one failed first.

    A test that takes more than ten times what it took, and `least_s`, is endless.
    """

    def __init__(self, tests: Sequence[Test], out: Path, least_s: float) -> None:
        self._places = {one.name: place for place, one in enumerate(tests)}
        self._limits_s = {one.name: 10 * one.cost_s + least_s for one in tests}
        self._out = out

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the others out; none where the change itself gave tests other names."""
        chosen = sorted((one for one in items if one.nodeid in self._places), key=lambda one: self._places[one.nodeid])
        if len(chosen) == len(self._places):
            items[:] = chosen

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a test its time."""
        limit_cpu(self._limits_s.get(item.nodeid, max(self._limits_s.values())))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name the test that failed."""
        if report.failed:
            self._out.write_text(report.nodeid, encoding="utf-8")
