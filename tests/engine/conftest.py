"""Shared pieces of the engine's tests: small real programs, sources and model files, made on the spot."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from qsa_library import Library
from qwen_data import MODELS, tiny_model

from engine.build import BuildSpec, EngineBuild, build_engine, installed_build
from engine.models import fetched_model, make_model
from engine.worker import EngineWorker
from protocols.errors import EngineError

# Threads of the engine that wait for each other give the processor back at once: spinning beside other work
# makes a test twenty times as slow, and no test measures speed.
YIELDS = "0"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a Python program and return the argv that starts it."""

    def write(source: str) -> list[str]:
        path = tmp_path / f"program-{len(list(tmp_path.glob('program-*')))}.py"
        path.write_text(source)
        return [sys.executable, "-I", "-S", str(path)]

    return write


@pytest.fixture
def environment() -> dict[str, str]:
    """Return the least environment that a program needs."""
    return {"PATH": os.environ["PATH"], "GOMP_SPINCOUNT": YIELDS}


def encode_value(value: Any) -> tuple[int, bytes]:
    """Encode one metadata value as GGUF does: type number and bytes."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return 8, struct.pack("<Q", len(data)) + data
    encoded = [encode_value(item) for item in value]
    return 9, struct.pack("<IQ", encoded[0][0] if encoded else 4, len(encoded)) + b"".join(data for _, data in encoded)


@pytest.fixture
def gguf_bytes() -> Callable[..., bytes]:
    """Return a function that encodes a GGUF header, and some tensor data behind it."""

    def encode(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]] | None = None, version: int = 3) -> bytes:
        shapes = {"weight": (2, 3)} if tensors is None else tensors
        out = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(metadata))
        for key, value in metadata.items():
            kind, data = encode_value(value)
            out += struct.pack("<Q", len(key.encode())) + key.encode() + struct.pack("<I", kind) + data
        for name, dimensions in shapes.items():
            out += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dimensions))
            out += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", 0, 0)
        return out + bytes(64)

    return encode


TINY_CMAKE = """
cmake_minimum_required(VERSION 3.24)
project(tiny LANGUAGES CXX)
if(NOT EXISTS ${ASSAY_GGML_DIR}/lib/libggml.so)
    message(FATAL_ERROR "no ggml")
endif()
foreach(fault IN LISTS ASSAY_FAULTS)
    if(NOT fault MATCHES "^slow-decode=[0-9]+$")
        message(FATAL_ERROR "Unknown fault '${fault}'")
    endif()
    string(REPLACE "slow-decode=" "" value ${fault})
    set_property(SOURCE src/pace.cpp APPEND PROPERTY COMPILE_DEFINITIONS PACE=${value})
endforeach()
set_property(SOURCE src/info.cpp APPEND PROPERTY COMPILE_DEFINITIONS SALT=${ASSAY_LAYOUT_SALT})
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
add_library(assay-engine SHARED src/big.cpp src/pace.cpp src/info.cpp)
target_link_options(assay-engine PRIVATE -Wl,--build-id=sha1)
add_executable(engine-server src/main.cpp)
target_link_libraries(engine-server PRIVATE assay-engine)
install(TARGETS assay-engine engine-server RUNTIME DESTINATION bin LIBRARY DESTINATION lib)
"""


@pytest.fixture
def tiny_source(tmp_path: Path) -> Path:
    """Return a source tree with the engine's build options and layout that compiles in a second."""
    folder = tmp_path / "tiny"
    (folder / "src").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include" / "tiny.h").write_text("int pace();\nint salt();\nint big();\n")
    (folder / "CMakeLists.txt").write_text(TINY_CMAKE)
    (folder / "src" / "big.cpp").write_text("int big() { return 7; }\n")
    (folder / "src" / "pace.cpp").write_text("#ifndef PACE\n#define PACE 0\n#endif\nint pace() { return PACE; }\n")
    (folder / "src" / "info.cpp").write_text("int salt() { return SALT; }\n")
    (folder / "src" / "main.cpp").write_text(
        '#include <cstdio>\n#include "../include/tiny.h"\n'
        'int main() { std::printf("%d %d %d\\n", salt(), pace(), big()); }\n'
    )
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the model that `assay model fetch smollm2` gets; its tests do not run where it is missing."""
    try:
        return fetched_model("smollm2")
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")


@pytest.fixture(scope="session")
def bundled_build() -> EngineBuild:
    """Return a build of the bundled source in the user's cache: a minute once, then reused."""
    return build_engine(BuildSpec(name="tests", layout_salt=1))


class ServerHandle:
    """A running engine-server and the least of a client: standard library only, one connection a call."""

    def __init__(self, argv: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=sink, env=environment)
        self.host, self.port = "127.0.0.1", 0

    def wait_ready(self) -> None:
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.listening = json.loads(line)
        self.port = self.listening["port"]

    def connect(self, timeout: float = 60) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def exchange(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        answer = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return answer

    def get(self, path: str) -> Any:
        status, _, body = self.exchange("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, **body: Any) -> Any:
        status, _, answer = self.exchange("POST", path, body)
        assert status == 200, answer
        return json.loads(answer)

    def refused(self, path: str, **body: Any) -> dict[str, Any]:
        """The error of a request that must be refused."""
        status, _, answer = self.exchange("POST", path, body)
        error = json.loads(answer)["error"]
        assert status == error["code"] != 200
        return error

    def stream(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream; [DONE] as the string."""
        status, headers, answer = self.exchange("POST", path, {**body, "stream": True})
        assert status == 200, answer
        assert headers["content-type"] == "text/event-stream"
        assert answer.endswith(b"\n\n")
        events = [event.removeprefix(b"data: ") for event in answer.removesuffix(b"\n\n").split(b"\n\n")]
        return [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]

    def begin(self, path: str, **body: Any) -> socket.socket:
        """Send a request and return the open connection."""
        data = json.dumps(body).encode()
        connection = self.connect()
        connection.sendall(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)
        )
        return connection

    def wait_for(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition did not come true"
            time.sleep(0.01)

    def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in self.get("/slots"))

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=10)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="session")
def engine_folder() -> Path:
    """Return the folder of an engine build: ASSAY_ENGINE_DIR, else the one of the installed distribution."""
    named = os.environ.get("ASSAY_ENGINE_DIR")
    folder = Path(named) if named else Path(str(metadata.distribution("assay").locate_file("engine/native")))
    assert (folder / "bin" / "engine-server").is_file(), f"no engine-server in {folder}"
    return folder


@pytest.fixture(scope="session")
def model_path() -> Path:
    """Return the SmolLM2 file: ASSAY_MODEL, else the cache, fetched where it is missing."""
    named = os.environ.get("ASSAY_MODEL")
    if named:
        return Path(named)
    from engine.models import fetch_model

    return fetch_model("smollm2")


@pytest.fixture(scope="session")
def recall_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model that gives private codes back, made on the spot: 70 MB and 3 seconds."""
    return make_model("qwen4exp-recall", cache=tmp_path_factory.mktemp("recall"))


def _start_servers(program: Path, folder: Path) -> Iterator[Callable[..., ServerHandle]]:
    running: list[ServerHandle] = []

    def start(*arguments: str, ready: bool = True, environment: dict[str, str] | None = None) -> ServerHandle:
        log = folder / f"server-{len(running)}.log"
        inherited = {
            k: v for k, v in os.environ.items() if k in ("PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")
        }
        inherited["GOMP_SPINCOUNT"] = YIELDS
        server = ServerHandle([str(program), "--port", "0", *arguments], log, inherited | (environment or {}))
        running.append(server)
        if ready:
            server.wait_ready()
        return server

    yield start
    for server in running:
        if server.process.poll() is None:
            assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.fixture(scope="session")
def start_server(
    engine_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., ServerHandle]]:
    """Return a function that starts the real server with further flags."""
    yield from _start_servers(engine_folder / "bin" / "engine-server", tmp_path_factory.mktemp("servers"))


@pytest.fixture(scope="session")
def server(
    start_server: Callable[..., ServerHandle], model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> ServerHandle:
    """Return a server of SmolLM2 with one slot of 512 tokens."""
    return start_server("--model", str(model_path), "--ctx-size", "512", "--threads", "1")


@pytest.fixture(scope="session")
def scripted_folder(engine_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the real server on a library whose replies the prompt dictates."""
    folder = tmp_path_factory.mktemp("scripted")
    (folder / "bin").mkdir()
    (folder / "lib").mkdir()
    shutil.copy(engine_folder / "bin" / "engine-server", folder / "bin")
    here = Path(__file__).resolve().parent
    argv = [
        "c++",
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-I",
        here.parents[1] / "engine" / "include",
    ]
    subprocess.run([*argv, here / "scripted_library.cpp", "-o", folder / "lib" / "libassay-engine.so"], check=True)
    (folder / "model").write_text("good")
    return folder


@pytest.fixture
def start_scripted(scripted_folder: Path, tmp_path: Path) -> Iterator[Callable[..., ServerHandle]]:
    """Return a function that starts the server on the scripted library."""
    yield from _start_servers(scripted_folder / "bin" / "engine-server", tmp_path)


@pytest.fixture
def in_parallel() -> Callable[..., list[Any]]:
    """Return a function that calls each of its arguments in a thread of its own and gives the results in order."""

    def call(*jobs: Callable[[], Any]) -> list[Any]:
        results: list[Any] = [None] * len(jobs)

        def keep(i: int) -> None:
            results[i] = jobs[i]()

        threads = [threading.Thread(target=keep, args=(i,)) for i in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=200)
            assert not thread.is_alive()
        return results

    return call


@pytest.fixture(scope="session")
def qsa() -> Library:
    """Return the installed library for block selection, or the one that ASSAY_QSA_LIBRARY names."""
    named = os.environ.get("ASSAY_QSA_LIBRARY")
    if named:
        return Library(Path(named))
    try:
        return Library(installed_build().folder / "lib" / "libassay-qsa.so")
    except (EngineError, OSError) as error:
        pytest.skip(f"NOT_RUN: {error}")


@pytest.fixture(scope="session")
def qwen_workers() -> Iterator[Callable[[str], EngineWorker]]:
    """Return a function that gives the worker of a tiny model, started once."""
    started: dict[str, EngineWorker] = {}

    def worker(name: str) -> EngineWorker:
        # One that a test has brought down must not bring the others down.
        if name not in started or not Path(f"/proc/{started[name].pid}/exe").exists():
            try:
                started[name] = EngineWorker(installed_build().library)
            except EngineError as error:
                pytest.skip(f"NOT_RUN: {error}")
            started[name].load(tiny_model(name))
        return started[name]

    yield worker
    for one in started.values():
        one.close()


@pytest.fixture(params=MODELS)
def qwen_name(request: pytest.FixtureRequest) -> str:
    """Name each tiny qwen4exp model in turn."""
    return str(request.param)


@pytest.fixture
def qwen(qwen_workers: Callable[[str], EngineWorker], qwen_name: str) -> EngineWorker:
    """Return the worker of each tiny model in turn."""
    return qwen_workers(qwen_name)


@pytest.fixture
def tiny_a(qwen_workers: Callable[[str], EngineWorker]) -> EngineWorker:
    return qwen_workers("tiny-a")


@pytest.fixture
def tiny_b(qwen_workers: Callable[[str], EngineWorker]) -> EngineWorker:
    return qwen_workers("tiny-b")


@pytest.fixture
def tiny_c(qwen_workers: Callable[[str], EngineWorker]) -> EngineWorker:
    return qwen_workers("tiny-c")
