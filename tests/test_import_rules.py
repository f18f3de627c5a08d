"""Who may import whom: the table of the house, enforced over the syntax trees of every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the modules of one folder may import besides the standard library and themselves."""

    houses: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()


def rule(houses: str = "", libraries: str = "") -> Rule:
    return Rule(houses=frozenset(houses.split()), libraries=frozenset(libraries.split()))


RULES = {
    "protocols": rule(libraries="pydantic pydantic_core yaml numpy scipy rfc8785"),
    "engine": rule("protocols", "numpy gguf elftools httptools"),
    "recorder": rule(
        "protocols",
        "sqlalchemy alembic msgspec cryptography securesystemslib in_toto_attestation zstandard pyarrow httptools",
    ),
    "reports": rule("protocols recorder", "pandas matplotlib jinja2"),
    "harness": rule("protocols engine recorder reports", "click rich"),
}
# Libraries of drivers and hosts that may be absent: only below recorder/telemetry, and only inside functions,
# so that whoever judges starts without them.
LAZY_FOLDER = "recorder/telemetry"
LAZY = frozenset({"psutil", "amdsmi", "pynvml"})
# Programs for developers that are run by hand and are not shipped.
TOOLS = frozenset({"engine/tools"})


def imported(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yield the top-level name of each import, its line, and whether it stands inside a function."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, is_inside = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node.lineno, is_inside
        elif isinstance(node, ast.ImportFrom):
            yield "." if node.level else str(node.module).split(".")[0], node.lineno, is_inside
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            name = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(name, ast.Constant):
                yield str(name.value).split(".")[0], node.lineno, is_inside
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        stack.extend((child, is_inside or is_function) for child in ast.iter_child_nodes(node))


def violations(name: str, source: str) -> list[str]:
    """Return what the module `name` (a path below the root) imports against the table, as `path:line: words`."""
    house = name.split("/")[0]
    allowed = RULES[house]
    found = []
    for module, line, is_inside in imported(ast.parse(source)):
        where = f"{name}:{line}: "
        if module == ".":
            found.append(where + "imports relatively; write the whole name")
        elif module in RULES:
            if module != house and module not in allowed.houses:
                found.append(where + f"{house} must not import {module}")
        elif module in LAZY:
            if not name.startswith(LAZY_FOLDER + "/"):
                found.append(where + f"only {LAZY_FOLDER} imports {module}")
            elif not is_inside:
                found.append(where + f"imports {module} at the top; import it inside the function that needs it")
        elif module not in sys.stdlib_module_names and module not in allowed.libraries:
            found.append(where + f"{house} must not import {module}")
    return sorted(found)


def modules(house: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / house).rglob("*.py"))
        if path.parent.relative_to(ROOT).as_posix() not in TOOLS and "__pycache__" not in path.parts
    ]


@pytest.mark.parametrize("house", RULES)
def test_every_module_keeps_to_the_table(house: str) -> None:
    paths = modules(house)
    assert paths, f"{house} has no modules"
    found = [line for path in paths for line in violations(path.relative_to(ROOT).as_posix(), path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("protocols/a.py", "import engine.build", "protocols must not import engine"),
        ("protocols/a.py", "from recorder import store", "protocols must not import recorder"),
        ("recorder/a.py", "def f():\n    from engine.client import exchange", "recorder must not import engine"),
        ("reports/a.py", "import engine", "reports must not import engine"),
        ("engine/a.py", "import recorder.wire", "engine must not import recorder"),
        ("engine/a.py", "from harness import cli", "engine must not import harness"),
        ("reports/a.py", "import harness", "reports must not import harness"),
        ("protocols/a.py", "import sqlalchemy", "protocols must not import sqlalchemy"),
        ("recorder/a.py", "import pandas as pd", "recorder must not import pandas"),
        ("harness/a.py", "import requests", "harness must not import requests"),
        ("harness/a.py", "def f():\n    import psutil", "only recorder/telemetry imports psutil"),
        ("recorder/a.py", "def f():\n    import amdsmi", "only recorder/telemetry imports amdsmi"),
        ("recorder/telemetry/a.py", "import psutil", "at the top"),
        ("recorder/telemetry/a.py", "if True:\n    import pynvml", "at the top"),
        ("recorder/a.py", "from .wire import read_wire", "relatively"),
        (
            "recorder/a.py",
            "import importlib\nimportlib.import_module('engine.build')",
            "recorder must not import engine",
        ),
        ("recorder/a.py", "__import__('torch')", "recorder must not import torch"),
    ],
)
def test_a_forbidden_import_is_found(name: str, source: str, words: str) -> None:
    (found,) = violations(name, source)
    assert words in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "protocols/a.py",
            "from __future__ import annotations\nimport json\nimport numpy as np\nfrom protocols import load",
        ),
        ("recorder/telemetry/a.py", "def probe():\n    import psutil\n    import amdsmi"),
        ("recorder/telemetry/a.py", "async def probe():\n    import importlib\n    importlib.import_module('pynvml')"),
        ("harness/a.py", "import click, rich\nimport engine, recorder, reports, protocols"),
        ("reports/a.py", "from recorder.store import Store\nimport pandas"),
    ],
)
def test_an_allowed_import_is_let_through(name: str, source: str) -> None:
    assert violations(name, source) == []


def test_nothing_imports_a_test() -> None:
    assert not [path for house in RULES for path in modules(house) if "import tests" in path.read_text()]
