"""HTTP of engine-server with clients that behave badly, on the library whose replies the prompt dictates."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def server(start_scripted: Callable[..., Any], scripted_folder: Any) -> Any:
    return start_scripted("--model", str(scripted_folder / "model"), "--ctx-size", "100000")


def read_response(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One response with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return int(lines[0].split()[1]), headers, body


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def error_of(body: bytes) -> dict[str, Any]:
    return json.loads(body)["error"]


def post(path: str, body: bytes, *extra: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def test_several_requests_use_one_connection(server: Any) -> None:
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            status, headers, body = read_response(connection)
            assert (status, headers["connection"], json.loads(body)) == (200, "keep-alive", {"status": "ok"})
            connection.sendall(post("/tokenize", b'{"content":"ab"}'))
            assert json.loads(read_response(connection)[2]) == {"tokens": [97, 98]}


def test_requests_that_were_sent_ahead_are_answered_in_order(server: Any) -> None:
    with server.connect() as connection:
        bodies = [b'{"prompt":"%d|","n_predict":1}' % i for i in range(5)]
        connection.sendall(b"".join(post("/completion", body) for body in bodies))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = read_all(connection).split(b"HTTP/1.1 ")[1:]
    assert len(answers) == 6
    contents = [json.loads(answer.partition(b"\r\n\r\n")[2])["content"] for answer in answers[:5]]
    assert contents == ["0", "1", "2", "3", "4"]
    assert answers[5].endswith(b'{"status":"ok"}')


def test_a_connection_closes_when_the_client_asks_for_it(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"Connection: close" in read_all(connection)


def test_http_1_0_gets_a_stream_without_chunks(server: Any) -> None:
    body = b'{"prompt":"abc|","stream":true}'
    with server.connect() as connection:
        connection.sendall(b"POST /completion HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head, _, events = read_all(connection).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert [json.loads(event[6:])["content"] for event in events.split(b"\n\n")[:-1]] == ["a", "b", "c", "", ""]


def test_a_stream_is_chunked_and_the_connection_goes_on(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(post("/completion", b'{"prompt":"ab|","stream":true}'))
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(65536)
        assert b"Transfer-Encoding: chunked\r\n" in data
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_response(connection)[0] == 200


def test_a_chunked_request_body_is_read(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"content', b'":"a"}'):
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")
        assert json.loads(read_response(connection)[2]) == {"tokens": [97]}


def test_a_client_that_waits_for_100_continue_gets_it(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(post("/tokenize", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 16"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"content":"ab"}')
        assert read_response(connection)[0] == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
    ],
)
def test_garbage_is_a_400_and_a_closed_connection(server: Any, garbage: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(garbage)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert error_of(answer.partition(b"\r\n\r\n")[2])["type"] == "invalid_request_error"
    assert server.get("/health") == {"status": "ok"}


def test_garbage_behind_a_request_does_not_spoil_its_answer(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(post("/completion", b'{"prompt":"abc|","stream":true}') + b"\x00garbage\r\n\r\n")
        answer = read_all(connection)
    stream, _, rest = answer.partition(b"0\r\n\r\n")
    assert stream.count(b"data: ") == 5
    assert rest.startswith(b"HTTP/1.1 400 ")


def test_a_huge_head_is_a_431(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-Filler: " + b"a" * 60000 + b"\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert "16384 bytes" in error_of(answer.partition(b"\r\n\r\n")[2])["message"]


@pytest.mark.parametrize("sends_body", [False, True])
def test_a_body_over_16_mib_is_a_413(server: Any, sends_body: bool) -> None:
    size = (16 << 20) + 1
    with server.connect() as connection:
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        if sends_body:
            connection.sendall(b" " * 1_000_000)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert "16777216 bytes" in error_of(answer.partition(b"\r\n\r\n")[2])["message"]


def test_a_body_of_16_mib_is_read(server: Any) -> None:
    filler = b" " * ((16 << 20) - 16)
    status, _, body = server.exchange("POST", "/tokenize", b'{"content":"ab"}' + filler)
    assert (status, json.loads(body)) == (200, {"tokens": [97, 98]})


def test_a_slow_loris_gets_a_408_after_10_s_and_holds_up_nobody(server: Any) -> None:
    start = time.monotonic()
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        for _ in range(30):
            try:
                connection.sendall(b"X-a: b\r\n")
            except OSError:
                break
            assert server.get("/health") == {"status": "ok"}
            time.sleep(0.5)
            if time.monotonic() - start > 11:
                break
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 9.5 < time.monotonic() - start < 14


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/", 404),
        ("POST", "/completions", 404),
        ("GET", "/completion", 405),
        ("PUT", "/completion", 405),
        ("POST", "/health", 405),
        ("DELETE", "/slots", 405),
        ("GET", "/slots/0", 405),
    ],
)
def test_unknown_routes_and_wrong_methods_get_json_errors(server: Any, method: str, path: str, status: int) -> None:
    found, headers, body = server.exchange(method, path)
    assert found == status
    error = error_of(body)
    assert error["code"] == status
    assert error["message"]
    assert ("allow" in headers) == (status == 405)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "line 1, column 1: it is empty"),
        (b'{"prompt":', "line 1, column 11"),
        (b'{"prompt":"a",\n "n_predict": x}', "line 2, column 15"),
        (b'{"prompt":"a"} x', "line 1, column 16"),
        (b'{"prompt":"\xff"}', "line 1, column 12"),
        (b'{"prompt":"\\ud83d"}', "line 1, column"),
        (b"[1]", "must be a JSON object, got an array"),
        (b"3", "must be a JSON object, got an integer"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 32 levels"),
        (b"[" * 100000, "nested deeper than 32 levels"),
    ],
)
def test_a_body_that_is_not_json_is_a_400_with_its_place(server: Any, body: bytes, words: str) -> None:
    status, _, answer = server.exchange("POST", "/completion", body)
    assert status == 400
    assert words in error_of(answer)["message"]


def test_a_client_that_goes_away_frees_its_slot(server: Any) -> None:
    connection = server.begin("/completion", prompt=[*([260] * 150), ord("|")], stream=True)
    server.wait_for(lambda: server.busy_slots() == 1)
    connection.close()
    start = time.monotonic()
    server.wait_for(lambda: server.busy_slots() == 0)
    # The step under way, 151 tokens of 20 ms, which the library does not break off for this token.
    assert time.monotonic() - start < 8
    assert b"assay:requests_cancelled_total 1\n" in server.exchange("GET", "/metrics")[2]


def test_a_step_that_serves_nobody_any_more_is_broken_off(server: Any) -> None:
    for streams in (True, False):
        connection = server.begin("/completion", prompt=[262, ord("|")], stream=streams)
        server.wait_for(lambda: server.busy_slots() == 1)
        connection.close()
        server.wait_for(lambda: server.busy_slots() == 0, seconds=2)
    assert server.post("/completion", prompt="ok|")["content"] == "ok"


def test_a_waiting_request_whose_client_goes_away_never_gets_a_slot(server: Any) -> None:
    first = server.begin("/completion", prompt=[262, ord("|")], stream=True)
    server.wait_for(lambda: server.busy_slots() == 1)
    second = server.begin("/completion", prompt="abc|", stream=True)
    deferred = lambda: b"requests_deferred 1.0" in server.exchange("GET", "/metrics")[2]  # noqa: E731
    server.wait_for(deferred)
    second.close()
    server.wait_for(lambda: not deferred())
    first.close()
    server.wait_for(lambda: server.busy_slots() == 0)
    assert b"assay:requests_done_total 0\n" in server.exchange("GET", "/metrics")[2]


def test_a_client_that_reads_nothing_is_dropped_and_holds_up_nobody(server: Any) -> None:
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect((server.host, server.port))
    # Each event has 256 alternatives, about 14 kB: more than 4 MiB plus the kernel's buffers in a few seconds.
    body = json.dumps({"prompt": "a" * 3000 + "|", "n_probs": 256, "stream": True}).encode()
    lazy.sendall(post("/completion", body))
    server.wait_for(lambda: any(line["event"] == "client_dropped" for line in server.log_lines()), seconds=60)
    server.wait_for(lambda: server.busy_slots() == 0)
    assert server.post("/completion", prompt="ok|")["content"] == "ok"
    lazy.close()


def test_a_slow_client_within_the_limit_gets_every_event(server: Any) -> None:
    body = json.dumps({"prompt": "a" * 400 + "|", "n_probs": 32, "stream": True}).encode()
    with server.connect() as connection:
        connection.sendall(post("/completion", body, "Connection: close"))
        time.sleep(1)
        assert server.busy_slots() == 0
        data = read_all(connection)
    assert data.count(b"data: ") == 402


def test_many_connections_at_once_are_served(server: Any) -> None:
    connections = [server.connect() for _ in range(200)]
    for connection in connections:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert {read_response(connection)[0] for connection in connections} == {200}
    for connection in connections:
        connection.close()


KEY = "sesame-0123456789"


def test_a_key_guards_all_but_health_and_models(start_scripted: Callable[..., Any], scripted_folder: Any) -> None:
    server = start_scripted("--model", str(scripted_folder / "model"), "--api-key", KEY)
    for path in ("/health", "/v1/models"):
        assert server.exchange("GET", path)[0] == 200
    for method, path in (
        ("GET", "/props"),
        ("GET", "/slots"),
        ("GET", "/metrics"),
        ("POST", "/completion"),
        ("GET", "/nope"),
    ):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Bearer {KEY}x"},
            {"Authorization": KEY},
            {"X-Api-Key": KEY[:-1]},
        ):
            status, found, body = server.exchange(method, path, b"{}" if method == "POST" else None, headers)
            assert status == 401
            assert error_of(body) == {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
            assert found["www-authenticate"] == "Bearer"
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"X-Api-Key": KEY}):
        assert server.exchange("GET", "/props", None, headers)[0] == 200
    assert server.exchange("POST", "/completion", {"prompt": "a|"}, {"X-Api-Key": KEY})[0] == 200


def test_the_key_is_shown_nowhere(start_scripted: Callable[..., Any], scripted_folder: Any) -> None:
    server = start_scripted("--model", str(scripted_folder / "model"), environment={"API_KEY": KEY})
    assert server.exchange("GET", "/props")[0] == 401
    flagged = start_scripted("--model", str(scripted_folder / "model"), "--api-key", KEY)
    flagged.exchange("POST", "/completion", b"{", {"Authorization": f"Bearer {KEY}"})
    assert KEY.encode() not in Path(f"/proc/{flagged.process.pid}/cmdline").read_bytes()
    shown = (
        flagged.exchange("GET", "/props", None, {"X-Api-Key": KEY})[2]
        + flagged.log.read_bytes()
        + server.log.read_bytes()
    )
    assert KEY.encode() not in shown


def test_a_refused_client_with_a_large_body_still_reads_the_answer(
    start_scripted: Callable[..., Any], scripted_folder: Any
) -> None:
    server = start_scripted("--model", str(scripted_folder / "model"), "--api-key", KEY)
    status, _, body = server.exchange("POST", "/completion", b" " * 4_000_000)
    assert (status, error_of(body)["code"]) == (401, 401)
