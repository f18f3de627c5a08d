"""Start, settings and end of engine-server, on the library whose replies the prompt dictates."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def program(scripted_folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the server to its end."""

    def call(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        argv = [scripted_folder / "bin" / "engine-server", *arguments]
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=30,
            env={"PATH": "/usr/bin", **(environment or {})},
            check=False,
        )

    return call


@pytest.fixture
def model(scripted_folder: Path) -> str:
    return str(scripted_folder / "model")


def message_of(result: subprocess.CompletedProcess[str]) -> str:
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    errors = [line for line in lines if line["level"] == "error"]
    assert len(errors) == 1, result.stderr
    return errors[0]["message"]


def test_one_line_on_standard_output_says_where_it_listens(start_scripted: Callable[..., Any], model: str) -> None:
    server = start_scripted("--model", model)
    assert server.listening == {
        "event": "listening",
        "host": "127.0.0.1",
        "port": server.port,
        "pid": server.process.pid,
    }
    assert server.get("/health") == {"status": "ok"}
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stdout.read() == b""
    assert server.process.wait(5) == 0


def test_health_says_loading_until_the_model_is_there(start_scripted: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "slow").write_text("slow")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = start_scripted("--model", str(tmp_path / "slow"), "--port", str(port), ready=False)
    server.port = port

    def answer() -> int | None:
        try:
            return server.exchange("GET", "/health")[0]
        except OSError:
            return None

    server.wait_for(lambda: answer() is not None)
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    for method, path in (("GET", "/health"), ("GET", "/props"), ("GET", "/v1/models"), ("POST", "/completion")):
        status, _, body = server.exchange(method, path, b"{}" if method == "POST" else None)
        assert (status, json.loads(body)) == (503, loading)
    server.wait_ready()
    assert answer() == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_while_it_works(
    start_scripted: Callable[..., Any], model: str, number: int
) -> None:
    server = start_scripted("--model", model, "--parallel", "2")
    busy = server.begin("/completion", prompt="\x03" * 400 + "|", stream=True)
    waiting = [server.begin("/completion", prompt="\x03" * 400 + "|") for _ in range(3)]
    idle = server.connect()
    server.wait_for(lambda: server.busy_slots() == 2)
    start = time.monotonic()
    assert server.stop(number) == 0
    assert time.monotonic() - start < 2
    data = b""
    while piece := busy.recv(65536):
        data += piece
    error = {"code": 503, "message": "the server is shutting down", "type": "unavailable_error"}
    assert json.loads(data.split(b"data: ")[-1].partition(b"\n\n")[0]) == {"error": error}
    for connection in waiting:
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": error}
    for connection in (busy, idle, *waiting):
        connection.close()


def test_a_signal_ends_it_while_a_step_hangs(start_scripted: Callable[..., Any], model: str) -> None:
    server = start_scripted("--model", model)
    with server.begin("/completion", prompt=[262, 124]):
        server.wait_for(lambda: server.busy_slots() == 1)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 2


def test_a_signal_ends_it_while_the_model_loads(start_scripted: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "slow").write_text("slow")
    server = start_scripted("--model", str(tmp_path / "slow"), ready=False)
    time.sleep(0.4)
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 1


def test_a_model_that_does_not_load_is_one_log_line_and_exit_1(program: Any, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("bad")
    for path, words in ((tmp_path / "bad", "not a model"), (tmp_path / "missing", "no such file")):
        result = program("--model", str(path), "--port", "0")
        assert (result.returncode, result.stdout) == (1, "")
        assert words in message_of(result)


def test_a_taken_port_is_exit_1_with_the_flag_to_change(
    start_scripted: Callable[..., Any], program: Any, model: str
) -> None:
    server = start_scripted("--model", model)
    result = program("--model", model, "--port", str(server.port))
    assert (result.returncode, result.stdout) == (1, "")
    assert f"127.0.0.1:{server.port}" in message_of(result)
    assert "--port" in message_of(result)
    assert "--host" in message_of(program("--model", model, "--host", "203.0.113.7"))


def test_an_unknown_flag_is_exit_2_with_the_valid_list(program: Any, model: str) -> None:
    result = program("--model", model, "--flash")
    assert (result.returncode, result.stdout) == (2, "")
    message = message_of(result)
    assert "unknown flag '--flash'" in message
    for flag in ("--model", "--host", "--port", "--ctx-size", "--parallel", "--ubatch-size", "--threads", "--threads-batch", "--kv-type",
                 "--kv-unified", "--no-mmap", "--n-gpu-layers", "--api-key", "--alias", "--slot-save-path", "--log-format", "--seed"):  # fmt: skip
        assert flag in message
    assert program("model.gguf").returncode == 2
    assert program().returncode == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port"], "--port: needs a value"),
        (["--port", "x"], "--port: expected an integer from 0 to 65535, got 'x'"),
        (["--port", "65536"], "--port: expected an integer from 0 to 65535"),
        (["--port=-1"], "--port: expected"),
        (["--ctx-size", "4"], "--ctx-size: expected an integer from 8"),
        (["--ctx-size", "12.5"], "--ctx-size: expected"),
        (["--parallel", "0"], "--parallel: expected an integer from 1 to 256"),
        (["--ubatch-size", "8193"], "--ubatch-size: expected an integer from 1 to 8192"),
        (
            ["--ubatch-size", "2", "--parallel", "3"],
            "--ubatch-size: 2 tokens cannot hold one token of each of the 3 slots",
        ),
        (["--drafts", "7"], "--drafts: expected an integer from 0 to 6, got '7'"),
        (["--drafts", "3", "--ubatch-size", "3"], "--ubatch-size: 3 tokens do not hold 3 drafts (--drafts)"),
        (["--draft-kv-type", "q4_0"], "--draft-kv-type: expected f32, f16 or q8_0, got 'q4_0'"),
        (["--ple-cache-mib", "0"], "--ple-cache-mib: expected an integer from 1"),
        (["--kv-type", "q4_0"], "--kv-type: expected f32, f16 or q8_0, got 'q4_0'"),
        (["--kv-unified=yes"], "--kv-unified: takes no value"),
        (["--log-format", "xml"], "--log-format: expected json or text"),
        (["--alias", ""], "--alias: must not be empty"),
        (["--seed", "4294967296"], "--seed: expected"),
        (["--slot-save-path", "/nowhere/at/all"], "--slot-save-path: '/nowhere/at/all' is not a folder"),
        # What only the engine knows.
        (["--kv-type", "q8_0"], "the scripted model has no q8_0 cache (--ctx-size as the model has it, --parallel 1"),
    ],
)
def test_settings_that_cannot_work_are_exit_2_with_the_flag(
    program: Any, model: str, arguments: list[str], words: str
) -> None:
    result = (
        program("--model", model, *arguments)
        if "--port" in arguments[0]
        else program("--model", model, "--port", "0", *arguments)
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert words in message_of(result)


def test_drafts_with_a_second_slot_are_refused_before_the_model_is_looked_at(program: Any) -> None:
    flags = ("--model", "/there/is/none", "--port", "0")
    needed = "use ENABLE_MTP=0 PARALLEL_SLOTS=2 (--drafts 0 --parallel 2), or PARALLEL_SLOTS=1 (--parallel 1)"
    for result in (
        program(*flags, "--drafts", "3", "--parallel", "2"),
        program(*flags, environment={"ENABLE_MTP": "1", "PARALLEL_SLOTS": "2"}),
    ):
        assert (result.returncode, result.stdout) == (2, "")
        assert needed in message_of(result)
    result = program(*flags, environment={"ENABLE_MTP": "0", "PARALLEL_SLOTS": "2"})
    assert (result.returncode, "no such file" in message_of(result)) == (1, True)


def test_a_cache_that_cannot_be_allocated_is_exit_1_with_the_flags(program: Any, model: str) -> None:
    result = program("--model", model, "--port", "0", "--ctx-size", "2000000")
    assert result.returncode == 1
    assert "--ctx-size 2000000" in message_of(result)


def test_the_environment_sets_what_no_flag_sets(start_scripted: Callable[..., Any], program: Any, model: str) -> None:
    environment = {"CTX_SIZE": "300", "PARALLEL_SLOTS": "3", "UBATCH_SIZE": "64", "THREADS": "1"}
    props = start_scripted("--model", model, environment=environment).get("/props")
    assert (props["n_ctx"], props["total_slots"], props["ubatch"], props["threads"], props["threads_batch"]) == (
        300,
        3,
        64,
        1,
        1,
    )
    flagged = start_scripted("--model", model, "--parallel", "2", "--threads-batch", "2", environment=environment).get(
        "/props"
    )
    assert (flagged["total_slots"], flagged["threads"], flagged["threads_batch"]) == (2, 1, 2)
    result = program("--model", model, environment={"CTX_SIZE": "many"})
    assert result.returncode == 2
    assert "environment CTX_SIZE: expected an integer" in message_of(result)


def test_props_show_the_settings_in_use(start_scripted: Callable[..., Any], model: str) -> None:
    server = start_scripted(
        "--model", model, "--alias", "näme", "--kv-unified", "--no-mmap", "--seed", "7", "--threads", "2"
    )
    props = server.get("/props")
    assert (props["model_alias"], props["model_path"], props["kv_unified"], props["mmap"]) == (
        "näme",
        model,
        True,
        False,
    )
    assert (props["kv_type"], props["n_ctx"], props["default_generation_settings"]["n_ctx"]) == ("f16", 4096, 4096)
    assert props["default_generation_settings"]["params"]["seed"] == 7
    assert props["chat_template"] == ""
    assert "no chat template" in props["chat_template_error"]
    assert (props["bos_token"], props["eos_token"]) == ("<bos>", "<eos>")
    assert json.loads(props["build_info"]) == props["build"] == {"version": "scripted", "faults": ""}
    assert props["modalities"] == {"vision": False, "audio": False}
    assert server.get("/v1/models")["data"][0]["id"] == "näme"
    answer = server.post("/completion", prompt="a|", n_predict=1)
    assert (answer["model"], answer["generation_settings"]["seed"]) == ("näme", 7)


def test_help_and_version(program: Any) -> None:
    result = program("--help")
    assert result.returncode == 0
    assert "PARALLEL_SLOTS" in result.stdout
    assert "Example:" in result.stdout
    version = program("--version")
    assert version.returncode == 0
    assert json.loads(version.stdout)["version"] == "scripted"


def test_the_log_is_json_lines_or_text_without_prompts(start_scripted: Callable[..., Any], model: str) -> None:
    for form in ("json", "text"):
        server = start_scripted("--model", model, "--log-format", form)
        server.post("/completion", prompt="secret|")
        server.exchange("GET", '/nope"%0a')
        assert server.stop() == 0
        text = server.log.read_text()
        assert "secret" not in text
        if form == "json":
            events = [line["event"] for line in server.log_lines()]
            assert events == ["memory_planned", "ready", "request", "request", "stopped"]
            assert {"method": "POST", "path": "/completion", "status": 200}.items() <= server.log_lines()[2].items()
        else:
            assert 'path="/completion"' in text


def test_a_model_without_a_template_refuses_chat_with_a_reason(start_scripted: Callable[..., Any], model: str) -> None:
    server = start_scripted("--model", model)
    for path in ("/v1/chat/completions", "/apply-template"):
        error = server.refused(path, messages=[{"role": "user", "content": "hi"}])
        assert (error["code"], error["type"]) == (400, "invalid_request_error")
        assert "no chat template" in error["message"]
