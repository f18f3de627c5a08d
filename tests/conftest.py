"""Shared pieces of all tests: golden files, and a small world in which whole campaigns run against the fake engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

FAKE_ENGINE = Path(__file__).parent / "fakes" / "fake_engine.py"
COMMAND = [sys.executable, "-c", "from harness.cli import main; main()"]
VARIABLES = ("ASSAY_CACHE", "ASSAY_KEY_HOME", "ASSAY_HOST_GUARD")
EXACT_GATES = """
  - {id: complete, kind: completeness}
  - {id: tokens, kind: exact_tokens, workload: cold}
  - {id: work, kind: equal_work, workload: cold, fields: [prompt_tokens_evaluated, generated_tokens]}
"""
LOSS_GATE = """
  - {id: generation-loss, kind: loss, workload: cold, metric: generation_rate, margin_pct: "10", after: [complete, tokens, work]}
"""
QUARTET = "{kind: explicit, order: [A1, C1, C2, A2], burn_in: false}"
PAIR = "{kind: explicit, order: [A1, C1], burn_in: false}"
BLOCKS = "{kind: blocks, blocks: 2, order: abba, seed: 7, burn_in: true}"


# The clock of a shared machine says nothing about a test: one that hangs is ended by its time limit.
settings.register_profile("assay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("assay")


def pytest_configure() -> None:
    # A runner in the background of a shell starts with SIGINT ignored, and every process of a test would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """Compare content with a golden file beside the test, or write it with --update-golden."""

    def compare(name: str, content: bytes) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            return
        assert path.read_bytes().decode() == content.decode(), f"{name} changed; look at it, then use --update-golden"

    return compare


def tiny_model() -> bytes:
    """Return the smallest GGUF file that names itself."""
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, 2)
    for key, value in ((b"general.architecture", b"llama"), (b"general.name", b"tiny")):
        out += struct.pack("<Q", len(key)) + key + struct.pack("<I", 8) + struct.pack("<Q", len(value)) + value
    return out + bytes(4096 - len(out))


def request_body(prompt_tokens: int, generated_tokens: int) -> bytes:
    """Return a greedy completion request with a prompt of so many ids."""
    body = {
        "prompt": list(range(1, prompt_tokens + 1)),
        "n_predict": generated_tokens,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }
    return json.dumps(body).encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@dataclass
class World:
    """A folder with a model, an engine and frozen requests, and a user with own keys, cache and host guard."""

    EXACT_GATES = EXACT_GATES
    LOSS_GATE = LOSS_GATE
    QUARTET = QUARTET
    PAIR = PAIR
    BLOCKS = BLOCKS

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment = {
            "ASSAY_CACHE": str(self.root / "cache"),
            "ASSAY_KEY_HOME": str(self.root / "keys"),
            "ASSAY_HOST_GUARD": str(self.root / "host.guard"),
        }
        self.store = self.root / "store"
        self.engine = self.root / "engines" / "fake_engine.py"
        self.engine.parent.mkdir()
        shutil.copy2(FAKE_ENGINE, self.engine)
        self.order_log = self.root / "order.jsonl"
        (self.root / "tiny.gguf").write_bytes(tiny_model())
        (self.root / "cold.json").write_bytes(request_body(32, 24))
        (self.root / "warm.json").write_bytes(request_body(8, 4))

    def protocol(
        self,
        *,
        name: str = "fake-pair",
        baseline: list[str] | None = None,
        candidate: list[str] | None = None,
        schedule: str = QUARTET,
        gates: str = EXACT_GATES,
        claim: str = "screen",
        limits: str = "{load_s: 10, request_s: 10, idle_s: 2, campaign_min: 5}",
        extra: str = "",
    ) -> Path:
        """Write a protocol whose arms are the fake engine with these extra arguments."""
        arms = {
            arm: [
                "--arm",
                arm,
                "--log",
                str(self.order_log),
                "--counter",
                str(self.root / f"{arm}.starts"),
                *(more or []),
            ]
            for arm, more in (("baseline", baseline), ("candidate", candidate))
        }
        lines = [
            f"  {arm}: {{engine: {{kind: llama-server, path: engines/fake_engine.py, arguments: {json.dumps(list_)}}}}}"
            for arm, list_ in arms.items()
        ]
        text = f"""assay: 1
id: {name}
title: Two fakes
claim: {claim}
purpose: To see the harness at work.
model: {{path: tiny.gguf}}
settings: {{context_tokens: 2048, threads: 1}}
arms:
{chr(10).join(lines)}
schedule: {schedule}
workloads:
  - {{id: cold, route: /completion, warmup: {{request: warm.json}}, request: cold.json, prompt_tokens: 32, generated_tokens: 24}}
limits: {limits}
telemetry: {{period_ms: 100}}
gates:{gates}
{"margin_reason: It is a test." if "kind: loss" in gates else ""}
{extra}
"""
        path = self.root / f"{name}.yaml"
        path.write_text(text)
        return path

    def run(self, *arguments: str | Path, **variables: str) -> Ended:
        """Run `assay` in this process: most of a command's own time is spent importing what is imported here already."""
        from harness.cli import run_cli

        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.root),
            mock.patch.dict(os.environ, {**self.environment, **variables}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run_cli([str(argument) for argument in arguments])
        return Ended(code=code, out=out.getvalue(), err=err.getvalue())

    def run_process(self, *arguments: str | Path, **variables: str) -> Ended:
        """Run `assay` in a process of its own."""
        ended = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.root,
            env={**os.environ, **self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def start(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start `assay` and return the process, its output in files of this world."""
        return self._start(COMMAND, arguments, variables)

    def start_in_background(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start `assay` as a shell without job control does in the background: with SIGINT ignored."""
        shell = ["sh", "-c", """trap '' INT; exec "$@\"""", "sh"]
        return self._start([*shell, *COMMAND], arguments, variables)

    def _start(
        self, command: list[str], arguments: tuple[str | Path, ...], variables: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.root / "out.txt").open("wb") as out, (self.root / "err.txt").open("wb") as err:
            return subprocess.Popen(
                [*command, *map(str, arguments)],
                cwd=self.root,
                env={**os.environ, **self.environment, **variables},
                stdout=out,
                stderr=err,
            )

    def order(self) -> list[dict[str, Any]]:
        """Return what the fake engines logged so far."""
        if not self.order_log.exists():
            return []
        return [json.loads(line) for line in self.order_log.read_text().splitlines()]

    def wait_for(self, happened: Callable[[list[dict[str, Any]]], bool], *, timeout_s: float = 60) -> None:
        """Wait until the fake engines' log satisfies a condition."""
        deadline = time.monotonic() + timeout_s
        while not happened(self.order()):
            assert time.monotonic() < deadline, self.order()
            time.sleep(0.01)

    def living_engines(self) -> list[int]:
        """Return the fake engines of this world that still run."""
        return [pid for pid in {one["pid"] for one in self.order() if one["event"] == "start"} if is_running(pid)]

    def wait_for_engines_to_end(self, *, timeout_s: float = 10) -> None:
        """Wait until no fake engine of this world is left."""
        deadline = time.monotonic() + timeout_s
        while left := self.living_engines():
            assert time.monotonic() < deadline, f"engines outlive their runner: {left}"
            time.sleep(0.02)

    def clean_up(self) -> None:
        """End what a failed test may have left."""
        for pid in self.living_engines():
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether a process lives and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return an empty world of its own."""
    made = World(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Return a world with one complete campaign (A1 C1 C2 A2), for tests that only read."""
    made = World(tmp_path_factory.mktemp("finished"))
    path = made.protocol(gates=EXACT_GATES + LOSS_GATE)
    ended = made.run("run", path, "--store", made.store, "--json")
    assert ended.code == 3, ended.err
    (made.root / "run.json").write_text(ended.out)
    (made.root / "run.err").write_text(ended.err)
    return made


@pytest.fixture
def copy_of_finished(finished: World, tmp_path: Path) -> Path:
    """Return a copy of the finished world's store, to be changed at will."""
    return Path(shutil.copytree(finished.store, tmp_path / "store"))


@pytest.fixture
def as_user_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """Let code in this process use a world's keys, cache and guard."""

    def use(world: World) -> None:
        for name, value in world.environment.items():
            monkeypatch.setenv(name, value)

    return use
