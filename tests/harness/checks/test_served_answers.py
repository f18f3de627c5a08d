"""What a server may do to whoever asks it: bytes that never end, a length that is a lie, an answer of any size."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from engine.process import Address, EngineProcess
from harness import arm_server
from harness.arm_server import NO_ANSWER, ArmServer
from protocols.errors import EngineError

HEAD = b"HTTP/1.1 200 OK\r\n"


def drip(start: bytes) -> Callable[[socket.socket], None]:
    def answer(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(b"x")
            time.sleep(0.05)

    return answer


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Serve each connection by `answer`, until the end of the block."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with suppress(OSError), peer:
                    asked = b""
                    while not asked.endswith(b"\r\n\r\n{}"):
                        asked += peer.recv(65536)
                        if asked.startswith(b"GET"):
                            break
                    answer(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield Address(*listener.getsockname())


def asked(address: Address, *, timeout_s: float = 0.5) -> dict[str, Any]:
    process: Any = None
    return ArmServer(process, address, timeout_s=timeout_s).ask("one", {})


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "start", [HEAD + b"\r\n", HEAD + b"X: ", b"HTTP/1.1 2", HEAD + b"Content-Length: 9999\r\n\r\n"]
)
def test_an_answer_that_never_ends_ends_at_the_limit_of_the_request(start: bytes) -> None:
    with listening(drip(start)) as address:
        row = asked(address)
    assert (row["status"], row["body"]) == (NO_ANSWER, "no answer: TimeoutError no whole answer within 0.5 s")


def test_a_length_that_is_a_lie_reserves_no_memory_and_is_no_answer() -> None:
    with listening(lambda peer: peer.sendall(HEAD + b"Content-Length: 99999999999999\r\n\r\nabc")) as address:
        row = asked(address, timeout_s=10)
    assert row["status"] == NO_ANSWER
    assert "3 bytes read, 99999999999996 more expected" in row["body"]


def test_an_answer_that_is_too_long_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_server, "MAX_ANSWER_BYTES", 1000)
    with listening(lambda peer: peer.sendall(HEAD + b"\r\n" + b"x" * 1000)) as address:
        assert asked(address, timeout_s=10)["body"] == "x" * 1000
    with listening(lambda peer: peer.sendall(HEAD + b"\r\n" + b"x" * 1001)) as address:
        assert asked(address, timeout_s=10)["body"] == "no answer: HTTPException more than 1000 bytes"


@pytest.mark.timeout(30)
def test_a_health_that_never_ends_is_not_ready_within_the_limit(tmp_path: Any) -> None:
    with listening(drip(b"HTTP/1.1 200 ")) as address:
        process = EngineProcess.start(
            ["/bin/sh", "-c", "sleep 60", "{port}"],
            env={},
            stdout_log=tmp_path / "out",
            stderr_log=tmp_path / "err",
            readiness="health",
        )
        process._address = address  # the port that was chosen for it is another
        with process, pytest.raises(EngineError, match="was not ready within 1 s"):
            process.wait_ready(1)
