"""What is started for each kind of arm, and with what environment."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from engine.arms import ResolvedArm, identify_arm, prepare_build, resolve_arm
from engine.build import BuildSpec, EngineBuild, build_engine, copy_build
from engine.client import build_request, exchange
from engine.identity import mapped_files, mapping_problems
from engine.process import EngineProcess
from protocols.errors import EngineError
from protocols.schema import Arm, BundledEngine, FolderEngine, LlamaServerEngine, OpenAIEngine, Settings

MODEL = Path("/models/m.gguf")
SETTINGS = Settings(context_tokens=2048, slots=2, threads=3, ubatch_tokens=256, kv_type="q8_0")


def bundled_arm(**environment: str) -> Arm:
    return Arm(engine=BundledEngine(kind="bundled", layout_salt=1), environment=environment)


def fake_build(folder: Path) -> EngineBuild:
    return EngineBuild(name="x", folder=folder, server=folder / "bin" / "engine-server", libraries=(), receipt={})


def option(arm: ResolvedArm, name: str) -> str:
    return arm.argv[arm.argv.index(name) + 1]


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    server = tmp_path / "bin" / "llama-server"
    server.parent.mkdir()
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    (server.parent / "libllama.so").write_text("x")
    return server


def test_the_bundled_engine_is_told_every_setting(tmp_path: Path) -> None:
    arm = resolve_arm(bundled_arm(), SETTINGS, MODEL, fake_build(tmp_path), base=tmp_path)
    assert arm.argv[0] == str(tmp_path / "bin" / "engine-server")
    expected = {
        "--model": str(MODEL),
        "--host": "127.0.0.1",
        "--port": "0",
        "--ctx-size": "2048",
        "--parallel": "2",
        "--ubatch-size": "256",
        "--threads": "3",
        "--threads-batch": "3",
        "--kv-type": "q8_0",
        "--n-gpu-layers": "0",
        "--log-format": "json",
        "--drafts": "0",
        "--draft-kv-type": "f16",
        "--draft-vocab": "0",
        "--ple-cache-mib": "64",
    }
    assert {name: option(arm, name) for name in expected} == expected
    assert "--kv-unified" not in arm.argv
    assert "--no-mmap" not in arm.argv
    assert (arm.kind, arm.readiness, arm.fresh) == ("bundled", "line", True)
    assert "work_counters" in arm.capabilities


def test_unified_cache_read_weights_and_batch_threads_are_told_too(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"kv_mode": "unified", "mmap": False, "threads_batch": 8, "gpu_layers": 4})
    arm = resolve_arm(bundled_arm(), settings, MODEL, fake_build(tmp_path), base=tmp_path)
    assert {"--kv-unified", "--no-mmap"} <= set(arm.argv)
    assert (option(arm, "--threads-batch"), option(arm, "--n-gpu-layers")) == ("8", "4")


def test_a_llama_server_gets_the_same_settings_in_its_own_words(tmp_path: Path, llama_server: Path) -> None:
    spec = Arm(engine=LlamaServerEngine(kind="llama-server", path="bin/llama-server", arguments=("--cache-ram", "0")))
    arm = resolve_arm(spec, SETTINGS, MODEL, None, base=tmp_path)
    assert arm.argv[0] == str(llama_server)
    assert option(arm, "--ctx-size") == "4096"  # it divides its context among the slots
    assert option(arm, "--port") == "{port}"
    assert (option(arm, "--cache-type-k"), option(arm, "--cache-type-v")) == ("q8_0", "q8_0")
    assert option(arm, "--batch-size") == "2048"
    assert "--no-kv-unified" in arm.argv
    assert arm.argv[-2:] == ("--cache-ram", "0")
    assert (arm.readiness, arm.fresh) == ("health", True)
    assert "work_counters" not in arm.capabilities
    assert [file.name for file in identify_arm(spec, None, base=tmp_path).files] == ["llama-server", "libllama.so"]


def test_a_llama_server_with_one_cache_for_all_gets_the_context_once(tmp_path: Path, llama_server: Path) -> None:
    settings = SETTINGS.model_copy(update={"kv_mode": "unified", "ubatch_tokens": 4096})
    spec = Arm(engine=LlamaServerEngine(kind="llama-server", path=str(llama_server)))
    arm = resolve_arm(spec, settings, MODEL, None, base=Path("/"))
    assert option(arm, "--ctx-size") == "2048"
    assert option(arm, "--batch-size") == "4096"
    assert "--kv-unified" in arm.argv


def test_a_missing_llama_server_is_refused(tmp_path: Path) -> None:
    spec = Arm(engine=LlamaServerEngine(kind="llama-server", path="bin/none"))
    with pytest.raises(EngineError, match="no executable"):
        resolve_arm(spec, SETTINGS, MODEL, None, base=tmp_path)


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://engine.local/openai/", "engine.local", 80, "/openai"),
        ("http://[::1]:9000", "::1", 9000, ""),
    ],
)
def test_an_endpoint_is_not_started(url: str, host: str, port: int, prefix: str, tmp_path: Path) -> None:
    spec = Arm(engine=OpenAIEngine(kind="openai", url=url, model="big"))
    arm = resolve_arm(spec, SETTINGS, MODEL, None, base=tmp_path)
    assert (arm.argv, arm.fresh, arm.readiness, arm.model_name) == ((), False, None, "big")
    assert arm.address == (host, port)
    assert arm.route_prefix == prefix
    assert identify_arm(spec, None, base=tmp_path).files == ()


def test_an_endpoint_over_tls_is_refused(tmp_path: Path) -> None:
    spec = Arm(engine=OpenAIEngine(kind="openai", url="https://engine.local", model="big"))
    with pytest.raises(EngineError, match="plain http"):
        resolve_arm(spec, SETTINGS, MODEL, None, base=tmp_path)


def test_the_environment_is_an_allowlist_and_what_the_arm_adds(tmp_path: Path) -> None:
    ambient = {
        "PATH": "/usr/bin",
        "HIP_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "2",
        "LD_PRELOAD": "/evil.so",
        "LD_LIBRARY_PATH": "/else",
        "API_KEY": "secret",
        "LC_ALL": "de_DE.UTF-8",
    }
    arm = resolve_arm(
        bundled_arm(OMP_NUM_THREADS="4", EXTRA="1"),
        SETTINGS,
        MODEL,
        fake_build(tmp_path),
        base=tmp_path,
        environment=ambient,
    )
    assert arm.environment == {
        "PATH": "/usr/bin",
        "HIP_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "4",
        "LC_ALL": "C.UTF-8",
        "EXTRA": "1",
    }


def test_the_runners_own_environment_is_used_by_default(tmp_path: Path) -> None:
    arm = resolve_arm(bundled_arm(), SETTINGS, MODEL, fake_build(tmp_path), base=tmp_path)
    assert arm.environment["PATH"] == os.environ["PATH"]


def test_an_arm_of_ours_without_a_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="needs a build"):
        resolve_arm(bundled_arm(), SETTINGS, MODEL, None, base=tmp_path)


def test_a_folder_arm_opens_a_build_that_was_made_before(tiny_source: Path, tmp_path: Path) -> None:
    made = build_engine(BuildSpec(name="tiny", path=tiny_source), cache=tmp_path / "cache")
    copy_build(made, tmp_path / "mine")
    spec = Arm(engine=FolderEngine(kind="folder", path="mine"))
    opened = prepare_build(spec, name="candidate", base=tmp_path)
    assert opened is not None
    assert (opened.name, opened.folder) == ("candidate", tmp_path / "mine")
    arm = resolve_arm(spec, SETTINGS, MODEL, opened, base=tmp_path)
    assert arm.argv[0] == str(tmp_path / "mine" / "bin" / "engine-server")
    names = [file.name for file in identify_arm(spec, opened, base=tmp_path).files]
    assert names == ["bin/engine-server", "lib/libassay-engine.so"]
    with pytest.raises(EngineError, match="no finished build"):
        prepare_build(Arm(engine=FolderEngine(kind="folder", path="none")), name="x", base=tmp_path)


def test_engines_that_are_not_ours_need_no_build(tmp_path: Path) -> None:
    for engine in (
        LlamaServerEngine(kind="llama-server", path="x"),
        OpenAIEngine(kind="openai", url="http://h", model="m"),
    ):
        assert prepare_build(Arm(engine=engine), name="x", base=tmp_path) is None


class Record:
    """Keeps what the client hands over."""

    def __init__(self) -> None:
        self.data = b""

    def on_sent(self, t_ns: int) -> None:
        pass

    def on_read(self, t_ns: int, data: bytes) -> None:
        self.data += data


def test_the_bundled_engine_starts_answers_and_maps_exactly_what_was_locked(
    bundled_build: EngineBuild, smollm2: Path, tmp_path: Path
) -> None:
    spec = bundled_arm()
    settings = Settings(context_tokens=256)
    arm = resolve_arm(spec, settings, smollm2, bundled_build, base=tmp_path)
    assert arm.readiness is not None
    record = Record()
    with EngineProcess.start(
        arm.argv,
        env=arm.environment,
        stdout_log=tmp_path / "stdout.log",
        stderr_log=tmp_path / "stderr.log",
        readiness=arm.readiness,
    ) as engine:
        address = engine.wait_ready(60)
        mapped = mapped_files(engine.pid)
        body = json.dumps(
            {"prompt": [504, 3575, 282, 4649, 314], "n_predict": 4, "temperature": 0, "stream": True}
        ).encode()
        request = build_request("POST", "/completion", f"{address.host}:{address.port}", {}, body)
        end = asyncio.run(exchange(*address, request, record, total_s=60, idle_s=60))
        ended = engine.stop(5)
    assert mapping_problems(identify_arm(spec, bundled_build, base=tmp_path).files, mapped) == ()
    names = {Path(file.name).name for file in mapped}
    assert {"engine-server", "libassay-engine.so", "libggml.so", "libggml-base.so", "libggml-cpu.so"} <= names
    assert end.reason == "complete"
    assert record.data.startswith(b"HTTP/1.1 200 ")
    assert b'"tokens":[7042]' in record.data  # " Paris"
    assert b'"work":{' in record.data
    assert (ended.code, ended.was_forced) == (0, False)
