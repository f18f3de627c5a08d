"""The raw client against real sockets: what arrives, when, and why it ended."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.client import ExchangeEnd, build_request, exchange
from protocols.errors import EngineError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = build_request("POST", "/completion", "127.0.0.1", {}, b"{}")
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


@dataclass
class Record:
    """Keeps what the client hands over."""

    sent: list[int] = field(default_factory=list)
    reads: list[tuple[int, bytes]] = field(default_factory=list)

    def on_sent(self, t_ns: int) -> None:
        self.sent.append(t_ns)

    def on_read(self, t_ns: int, data: bytes) -> None:
        self.reads.append((t_ns, data))

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data in self.reads)


def talk(
    handler: Handler, request: bytes = REQUEST, *, total_s: float = 10, idle_s: float = 10
) -> tuple[ExchangeEnd, Record]:
    async def run() -> tuple[ExchangeEnd, Record]:
        record = Record()
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        end = await exchange("127.0.0.1", port, request, record, total_s=total_s, idle_s=idle_s)
        server.close()
        return end, record

    return asyncio.run(run())


def answer(*parts: bytes | float, close: bool = True) -> Handler:
    """Return a handler that reads the head of the request, then sends bytes and sleeps for numbers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for part in parts:
                if isinstance(part, bytes):
                    writer.write(part)
                    await writer.drain()
                else:
                    await asyncio.sleep(part)
            if not close:
                await asyncio.sleep(60)
        except ConnectionError:
            pass
        finally:
            writer.close()

    return handle


@pytest.mark.parametrize("message", [WHOLE, CHUNKED])
def test_a_whole_answer_ends_the_exchange_while_the_connection_stays_open(message: bytes) -> None:
    before = time.monotonic_ns()
    end, record = talk(answer(message, close=False))
    assert (end.reason, end.detail) == ("complete", None)
    assert record.data == message
    assert [end.sent_ns] == record.sent
    assert before <= record.sent[0] <= record.reads[0][0] <= end.end_ns <= time.monotonic_ns()
    assert end.end_ns == record.reads[-1][0]


def test_an_answer_without_length_ends_with_the_connection() -> None:
    end, record = talk(answer(b"HTTP/1.1 200 OK\r\n\r\nall of it"))
    assert end.reason == "complete"
    assert record.data.endswith(b"all of it")


def test_each_read_is_stamped_when_it_arrives() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    end, record = talk(answer(head, 0.1, b"5\r\nhello\r\n", 0.1, b"0\r\n\r\n"))
    assert end.reason == "complete"
    assert [data for _, data in record.reads] == [head, b"5\r\nhello\r\n", b"0\r\n\r\n"]
    stamps = [t_ns for t_ns, _ in record.reads]
    assert all(later - earlier > 80_000_000 for earlier, later in pairwise(stamps))


@pytest.mark.parametrize(
    "message",
    [
        WHOLE[:-1],
        CHUNKED[:-2],
        b"HTTP/1.1 200 OK\r\nConte",
        b"",
    ],
)
def test_a_connection_closed_early_is_closed_and_keeps_what_came(message: bytes) -> None:
    end, record = talk(answer(message))
    assert (end.reason, end.detail) == ("closed", "before the answer was whole")
    assert record.data == message


def test_a_reset_is_a_reason_and_keeps_what_came() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE[:-2])
        await writer.drain()
        await asyncio.sleep(0.1)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    end, record = talk(handle)
    assert end.reason == "reset"
    assert record.data == WHOLE[:-2]


def test_nobody_listening_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        end = asyncio.run(exchange("127.0.0.1", port, REQUEST, Record(), total_s=5, idle_s=5))
    assert (end.reason, end.sent_ns) == ("refused", None)
    assert "refused" in str(end.detail).lower()


def test_a_host_that_has_no_address_is_refused() -> None:
    end = asyncio.run(exchange("no-such-host.invalid", 80, REQUEST, Record(), total_s=30, idle_s=5))
    assert (end.reason, end.sent_ns) == ("refused", None)


def test_silence_ends_at_the_idle_limit_and_each_byte_renews_it() -> None:
    started = time.monotonic()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces: list[bytes | float] = [head]
    for _ in range(4):
        pieces += [0.2, b"1\r\nx\r\n"]
    end, record = talk(answer(*pieces, close=False), idle_s=0.5)
    assert end.reason == "idle_timeout"
    assert record.data.count(b"x") == 4
    assert 1.2 <= time.monotonic() - started < 5


def test_a_slow_trickle_ends_at_the_total_limit() -> None:
    pieces: list[bytes | float] = [b"HTTP/1.1 200 OK\r\n\r\n"]
    for _ in range(50):
        pieces += [0.05, b"x"]
    end, record = talk(answer(*pieces), total_s=0.5, idle_s=5)
    assert end.reason == "total_timeout"
    assert 0 < record.data.count(b"x") < 50


def test_a_server_that_never_accepts_ends_at_a_limit() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        end = asyncio.run(exchange("127.0.0.1", port, REQUEST, Record(), total_s=0.3, idle_s=5))
    assert end.reason == "total_timeout"


@pytest.mark.parametrize(
    "junk",
    [
        b"hello there\r\n",
        b"\x00\xff\x00\xff",
        b"HTTP/9.9 999999 \r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\nz",
    ],
)
def test_what_is_not_http_ends_at_once_and_is_kept(junk: bytes) -> None:
    end, record = talk(answer(junk, close=False))
    assert end.reason == "error"
    assert str(end.detail).startswith("the answer is not HTTP")
    assert record.data == junk


def test_an_informational_answer_is_not_the_answer() -> None:
    end, record = talk(answer(b"HTTP/1.1 100 Continue\r\n\r\n", 0.1, WHOLE, close=False))
    assert end.reason == "complete"
    assert record.data.endswith(b"hello")


def test_bytes_behind_a_whole_answer_change_nothing() -> None:
    message = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhelloEXTRA"
    end, record = talk(answer(message, close=False))
    assert end.reason == "complete"
    assert record.data == message


def test_a_large_request_counts_as_sent_when_its_last_byte_is_handed_over() -> None:
    body = b"x" * 30_000_000
    request = build_request("POST", "/completion", "127.0.0.1", {}, body)
    received: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        received.append(len(await reader.readexactly(len(body))))
        writer.write(WHOLE)
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()

    started = time.monotonic_ns()
    end, record = talk(handle, request)
    assert (end.reason, received) == ("complete", [len(body)])
    assert len(record.sent) == 1
    assert record.sent[0] - started > 250_000_000  # the server began to read the body after 0.3 s
    assert record.sent[0] < record.reads[0][0]


def test_an_answer_before_the_request_is_sent_has_no_sent_stamp() -> None:
    request = build_request("POST", "/completion", "127.0.0.1", {}, b"x" * 30_000_000)
    end, record = talk(answer(WHOLE, close=False), request)
    assert (end.reason, end.sent_ns, record.sent) == ("complete", None, [])


def test_what_the_sink_raises_reaches_the_caller() -> None:
    class Full(Record):
        def on_read(self, t_ns: int, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    async def run() -> None:
        server = await asyncio.start_server(answer(WHOLE), "127.0.0.1", 0)
        await exchange("127.0.0.1", server.sockets[0].getsockname()[1], REQUEST, Full(), total_s=5, idle_s=5)

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(run())


def test_a_cancelled_exchange_cuts_the_connection() -> None:
    async def run() -> bytes:
        gone: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            try:
                rest = await reader.read()
            except ConnectionError:
                rest = b"reset"
            gone.set_result(rest)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        task = asyncio.create_task(exchange("127.0.0.1", port, REQUEST, Record(), total_s=30, idle_s=30))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.wait_for(gone, 5)

    assert asyncio.run(run()) in {b"", b"reset"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=1, max_size=80), max_size=4))
def test_whatever_a_server_sends_is_handed_over_byte_by_byte(parts: list[bytes]) -> None:
    end, record = talk(answer(b"HTTP/1.1 200 OK\r\n", *parts))
    assert end.reason in {"complete", "closed", "error", "reset"}
    whole = b"HTTP/1.1 200 OK\r\n" + b"".join(parts)
    assert whole.startswith(record.data)
    if end.reason == "closed":
        assert record.data == whole


def test_a_request_has_the_bytes_that_http_asks_for() -> None:
    assert build_request("POST", "/completion", "127.0.0.1:80", {"Accept": "text/event-stream"}, b'{"n":1}') == (
        b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAccept: text/event-stream\r\n"
        b'Content-Type: application/json\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{"n":1}'
    )
    assert build_request("GET", "/props", "h", {"connection": "keep-alive"}, None) == (
        b"GET /props HTTP/1.1\r\nHost: h\r\nconnection: keep-alive\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("route", "headers"),
    [
        ("/a b", {}),
        ("/a\r\nX: y", {}),
        ("/a", {"X": "y\r\nZ: q"}),
        ("/a", {"X\n": "y"}),
        ("/a", {"X": "Ω"}),
        ("/a", {"Content-Length": "3"}),
        ("/a", {"transfer-encoding": "chunked"}),
    ],
)
def test_a_request_that_would_break_its_framing_is_refused(route: str, headers: dict[str, str]) -> None:
    with pytest.raises(EngineError):
        build_request("POST", route, "h", headers, b"{}")
