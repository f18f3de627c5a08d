"""Memory of engine-server: what it says it will take, what it refuses before it reads weights, and life after a failure."""

from __future__ import annotations

import json
import re
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qwen_data import tiny_model

MIB = 1 << 20


def run(program: Path, *arguments: str, address_space_bytes: int | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Run a server that must end by itself; its exit code and its log."""

    def limit() -> None:
        if address_space_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))

    argv = [str(program), "--port", "0", "--threads", "1", *arguments]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, preexec_fn=limit, check=False)
    assert result.stdout == ""
    return result.returncode, [json.loads(line) for line in result.stderr.splitlines()]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--parallel", "3", "--kv-unified", "--no-mmap"),
        ("--drafts", "6", "--draft-vocab", "200", "--draft-kv-type", "f32", "--kv-type", "f32", "--ubatch-size", "64"),
    ],
)
def test_what_is_planned_is_what_is_taken(start_server: Callable[..., Any], flags: tuple[str, ...]) -> None:
    server = start_server("--model", str(tiny_model("tiny-b")), "--threads", "1", "--ctx-size", "3000", *flags)
    props = server.get("/props")
    plan, session = props["memory_plan"], props["session"]
    assert plan["compute_bytes"] == props["compute_bytes"] == session["compute_bytes"] > MIB
    assert plan["cache_bytes"] == props["cache_bytes"] + session["ple"]["cache_bytes_max"]
    copied = sum(
        n for name, n in props["model_info"]["weight_bytes_by_buffer"].items() if name not in ("mapped", "in file")
    )
    # Tensors begin at multiples of the buffer's alignment.
    assert copied <= plan["weight_bytes"] <= copied + 64 * 1024
    assert (copied > 0) == ("--no-mmap" in flags)
    first, *_, last = server.log_lines()
    assert first["event"] == "memory_planned"
    assert last["event"] == "ready" or last["event"] == "request"
    assert {name: first[name] for name in plan} == plan
    assert plan["file_bytes"] == tiny_model("tiny-b").stat().st_size


def test_a_dense_model_is_planned_to_the_byte_too(server: Any) -> None:
    props = server.get("/props")
    assert props["memory_plan"]["compute_bytes"] == props["compute_bytes"]
    assert props["memory_plan"]["cache_bytes"] == props["cache_bytes"]


def test_the_use_of_the_n_gram_table_is_shown(start_server: Callable[..., Any]) -> None:
    flags = ("--model", str(tiny_model("tiny-b")), "--threads", "1", "--ctx-size", "512", "--ple-cache-mib", "1")
    server = start_server(*flags)
    body = {"prompt": list(range(5, 45)), "n_predict": 1, "temperature": 0, "cache_prompt": False}
    works = [server.post("/completion", **body)["work"] for _ in range(2)]
    assert works[0]["n_ple_rows"] == works[1]["n_ple_rows"] > 0
    assert works[0]["n_ple_misses"] > 0 == works[1]["n_ple_misses"]
    props = server.get("/props")
    use = props["session"]["ple"]
    assert props["ple_cache_mib"] == 1
    assert use["cache_bytes_max"] <= MIB
    assert (use["n_rows"], use["n_misses"]) == (2 * works[0]["n_ple_rows"], works[0]["n_ple_misses"])
    assert use["n_hits"] == use["n_rows"] - use["n_misses"]
    # Each miss became a page of one row, and all fit.
    assert use["n_pages"] == use["n_misses"]
    assert use["cached_bytes"] % use["n_pages"] == 0


def test_a_context_beyond_the_memory_is_refused_with_one_that_fits(
    scripted_folder: Path, start_scripted: Callable[..., Any], tmp_path: Path
) -> None:
    """A cell of the scripted model is a mebibyte here, and its file cannot be loaded: the refusal comes first."""
    (tmp_path / "bad").write_text("bad!")
    flags = ("--kv-type", "f32", "--ubatch-size", "256")
    program = scripted_folder / "bin" / "engine-server"
    code, log = run(program, "--model", str(tmp_path / "bad"), "--ctx-size", "900000", *flags)
    assert (code, [line["event"] for line in log]) == (2, ["memory_planned", "does_not_fit"])
    found = re.search(
        r"900001 MiB are needed \(.*caches 900000 MiB.*lower --ctx-size from 900000 to (\d+)$", log[1]["message"]
    )
    assert found is not None, log[1]
    fitting = int(found[1])
    assert 8 <= fitting < 900000
    model = str(scripted_folder / "model")
    # Memory may have become scarcer since.
    assert (
        start_scripted("--model", model, "--ctx-size", str(fitting // 2), *flags).get("/props")["n_ctx"] == fitting // 2
    )
    code, log = run(program, "--model", model, "--ctx-size", str(16 * fitting), *flags)
    assert (code, log[-1]["event"]) == (2, "does_not_fit")


def test_cells_beyond_all_memory_are_refused_before_anything_is_made_for_them(engine_folder: Path) -> None:
    model = str(tiny_model("tiny-b"))
    program = engine_folder / "bin" / "engine-server"
    code, log = run(program, "--model", model, "--ctx-size", "16777216", "--parallel", "256")
    assert (code, [line["event"] for line in log]) == (2, ["does_not_fit"])
    assert "lower --ctx-size from 16777216, or use fewer slots (--parallel)" in log[0]["message"]


def test_a_limit_of_address_space_is_kept_and_named(engine_folder: Path) -> None:
    model = str(tiny_model("tiny-b"))
    program = engine_folder / "bin" / "engine-server"
    flags = ("--model", model, "--ctx-size", "2000000")
    code, log = run(program, *flags, "--ubatch-size", "32", address_space_bytes=900 * MIB)
    assert (code, log[-1]["event"]) == (2, "does_not_fit")
    assert "under this process's limit of address space (ulimit -v)" in log[-1]["message"]
    assert "lower --ctx-size from 2000000 to " in log[-1]["message"]
    # Here not even the descriptions of the largest graph can be had.
    code, log = run(program, *flags, address_space_bytes=900 * MIB)
    assert (code, [line["event"] for line in log]) == (2, ["does_not_fit"])
    assert "lower --ubatch-size or --ctx-size" in log[0]["message"]


def test_a_failed_allocation_ends_one_request_and_the_server_lives(start_scripted: Any, scripted_folder: Path) -> None:
    server = start_scripted("--model", str(scripted_folder / "model"), "--ctx-size", "100")
    error = {"code": 500, "message": "an allocation failed", "type": "server_error"}
    assert server.refused("/completion", prompt=[97, 263, 124]) == error
    *events, last = server.stream("/completion", prompt="ab\x06|")
    assert (last, [event["content"] for event in events]) == ({"error": error}, ["a", "b", ""])
    answer = server.post("/completion", prompt="ab|")
    assert (answer["content"], answer["timings"]["cache_n"]) == ("ab", 0)


def test_a_server_that_the_system_gives_no_more_memory_answers_with_an_error_and_lives(
    start_server: Callable[..., Any], recall_model: Path
) -> None:
    server = start_server("--model", str(recall_model), "--threads", "1", "--ctx-size", "512")
    body = {"prompt": [5, 6, 7], "temperature": 0}
    pid = server.process.pid
    for n in range(3):  # everything but the logits has its memory now
        server.post("/completion", **body, n_predict=0, cache_prompt=n > 0)
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    used = int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024
    # The logits of one token take 192 KiB of their own.
    resource.prlimit(pid, resource.RLIMIT_AS, (used + 64 * 1024, before[1]))
    try:
        error = server.refused("/completion", **body, n_predict=1)
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)
    assert (error["code"], "an allocation" in error["message"]) == (500, True), error
    assert server.post("/completion", **body, n_predict=1)["tokens_predicted"] == 1
