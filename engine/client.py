"""Sends one HTTP request and hands every socket read upward, raw and stamped.

Timing window: `sent_ns` is taken when the last byte of the request has been
handed to the kernel; connecting is before it. Each read is stamped as the first
thing that happens in `data_received`, before anything looks at the bytes, and
goes to the sink as it came. Only then is the message looked at, to know when it
is over. The clock is the monotonic one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import httptools

from protocols.errors import EngineError

Reason = Literal["complete", "closed", "reset", "total_timeout", "idle_timeout", "refused", "error"]
_INFORMATIONAL: Final = range(100, 200)


class ReadSink(Protocol):
    """Where stamps and bytes go; called in order, inside the event loop."""

    def on_sent(self, t_ns: int) -> None:
        """Learn that the last byte of the request was handed to the kernel at `t_ns`."""

    def on_read(self, t_ns: int, data: bytes) -> None:
        """Take the bytes of one socket read, which arrived at `t_ns`."""


@dataclass(frozen=True, kw_only=True)
class ExchangeEnd:
    """Why and when (monotonic, ns) an exchange ended; `sent_ns` is None where the request never left whole.

    Reasons: `complete` the message was whole; `closed` the server closed the connection before that; `reset` the
    connection broke; `refused` no connection could be made; `total_timeout`, `idle_timeout` a limit passed;
    `error` the answer is not HTTP. `detail` says more where there is more to say.
    """

    reason: Reason
    sent_ns: int | None
    end_ns: int
    detail: str | None = None


def build_request(method: str, route: str, host: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Return the bytes of one HTTP/1.1 request that asks the server to close the connection afterwards.

    `host` is the Host header's value. Raises EngineError when a part would break the framing.
    """
    lines = [f"{method} {route} HTTP/1.1", f"Host: {host}"]
    names = {name.lower() for name in headers}
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        if "content-type" not in names:
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
    if "connection" not in names:
        lines.append("Connection: close")
    if "content-length" in names or "transfer-encoding" in names:
        raise EngineError("the length of a request is set from its body, not by a header")
    if any(character in line for line in lines for character in "\r\n\0") or " " in method or " " in route:
        raise EngineError("a request line or header holds a line break, a zero byte or a blank too many")
    try:
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    except UnicodeEncodeError as error:
        raise EngineError(f"a request header holds a character that HTTP cannot carry: {error.object!r}") from error
    return head + (body or b"")


async def exchange(
    host: str, port: int, request: bytes, sink: ReadSink, *, total_s: float, idle_s: float
) -> ExchangeEnd:
    """Send `request`, pass every read to `sink`, and return when the answer is over or a limit passes.

    `total_s` bounds everything from the first attempt to connect; `idle_s` bounds the wait for the next byte.
    Nothing that the server or the network does raises; what `sink` raises does, and a cancellation goes on after
    the connection is cut.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + total_s
    capture = _Capture(request, sink, deadline, idle_s)
    try:
        async with asyncio.timeout_at(deadline):
            await loop.create_connection(lambda: capture, host, port)
    except TimeoutError:
        return ExchangeEnd(reason="total_timeout", sent_ns=None, end_ns=time.monotonic_ns(), detail="while connecting")
    except OSError as error:
        # asyncio puts its own words into strerror; the number is the kernel's.
        detail = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        return ExchangeEnd(reason="refused", sent_ns=None, end_ns=time.monotonic_ns(), detail=detail)
    try:
        return await capture.finished
    finally:
        capture.cut()


class _Capture(asyncio.Protocol):
    """Stamps, hands on, then looks whether the message is over."""

    def __init__(self, request: bytes, sink: ReadSink, deadline: float, idle_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[ExchangeEnd] = self._loop.create_future()
        self._request = request
        self._sink = sink
        self._deadline = deadline
        self._idle_s = idle_s
        self._sent_ns: int | None = None
        self._transport: asyncio.Transport | None = None
        self._message = _Message()
        self._last_activity_ns = time.monotonic_ns()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what create_connection makes
        self._transport = transport
        self._last_activity_ns = time.monotonic_ns()
        self._arm_timer()
        # With both marks at zero, resume_writing tells when the kernel has taken the last byte.
        transport.set_write_buffer_limits(high=0, low=0)
        transport.write(self._request)
        if transport.get_write_buffer_size() == 0:
            self._mark_sent(time.monotonic_ns())

    def resume_writing(self) -> None:
        self._mark_sent(time.monotonic_ns())

    def data_received(self, data: bytes) -> None:
        t_ns = time.monotonic_ns()
        if self.finished.done():
            return
        try:
            self._sink.on_read(t_ns, data)
        except Exception as error:  # noqa: BLE001  # a full disk under the sink must reach the caller
            self._fail(error)
            return
        self._last_activity_ns = t_ns
        try:
            self._message.feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._message.is_whole:  # bytes after the end of a whole message change nothing
                self._finish("error", t_ns, f"the answer is not HTTP: {error}")
        if self._message.is_whole:
            self._finish("complete", t_ns)

    def eof_received(self) -> bool:
        if self._message.ends_with_connection:
            self._finish("complete", time.monotonic_ns())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        t_ns = time.monotonic_ns()
        if exc is not None:
            self._finish("reset", t_ns, getattr(exc, "strerror", None) or str(exc))
        else:
            self._finish("closed", t_ns, "before the answer was whole")

    def cut(self) -> None:
        """Stop the timer and drop the connection at once, unsent bytes included."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _mark_sent(self, t_ns: int) -> None:
        if self._sent_ns is None and not self.finished.done():
            self._sent_ns = self._last_activity_ns = t_ns
            try:
                self._sink.on_sent(t_ns)
            except Exception as error:  # noqa: BLE001  # see data_received
                self._fail(error)

    def _arm_timer(self) -> None:
        # One timer for both limits, moved only when it fires: a read costs no timer.
        # The loop's clock is the monotonic one, in seconds.
        self._timer = self._loop.call_at(min(self._idle_until(), self._deadline), self._on_timer)

    def _idle_until(self) -> float:
        return self._last_activity_ns / 1e9 + self._idle_s

    def _on_timer(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self._finish("total_timeout", time.monotonic_ns())
        elif now >= self._idle_until():
            self._finish("idle_timeout", time.monotonic_ns())
        else:
            self._arm_timer()

    def _finish(self, reason: Reason, t_ns: int, detail: str | None = None) -> None:
        if not self.finished.done():
            self.finished.set_result(ExchangeEnd(reason=reason, sent_ns=self._sent_ns, end_ns=t_ns, detail=detail))

    def _fail(self, error: Exception) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)


class _Message:
    """Knows when the final response is over; decodes nothing and keeps nothing."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._is_chunked_or_sized = False
        self._has_head = False
        self.is_whole = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of this message: no length, not chunked."""
        return self._has_head and not self._is_chunked_or_sized

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._is_chunked_or_sized = True

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() not in _INFORMATIONAL

    def on_message_complete(self) -> None:
        # An informational answer (100 Continue) is not the answer.
        self.is_whole = self.is_whole or self._has_head
        self._is_chunked_or_sized = self._is_chunked_or_sized and self._has_head
