"""One HTTP/1.1 response, read from recorded socket reads.

The parser is httptools (llhttp). It is fed read by read, so that each piece of the body has the time of
the read that brought it. Interim responses (100 Continue) are counted and passed over. Nothing is ever
raised: a response that breaks the rules ends with ``problem`` set, and what was read before stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import httptools

from recorder.wire import Read

Framing = Literal["chunked", "length", "close", "none"]

_BODILESS: Final = frozenset({204, 304})


class BodyPiece(NamedTuple):
    """Body bytes that one read brought, with its time (monotonic, ns) and its place among the reads."""

    t_ns: int
    data: bytes
    read_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One response as far as it came.

    status       None if no status line came
    headers      in order, names in lower case; bytes that are not Latin-1 cannot occur
    interim      status codes of interim responses that came before
    headers_ns   time of the read that completed the headers
    body         pieces in order, transfer coding removed
    framing      how the body's end is known; ``close`` means: by the end of the connection
    is_complete  the message ended as its framing says. With ``close``, whether the server finished is
                 for the caller to say, from the reason of the exchange's end.
    end_ns       time of the read that completed the message
    problem      what broke the rules, or None
    extra_bytes  bytes behind the end of the message, in later reads
    """

    status: int | None
    headers: tuple[tuple[str, str], ...]
    interim: tuple[int, ...]
    headers_ns: int | None
    body: tuple[BodyPiece, ...]
    framing: Framing
    is_complete: bool
    end_ns: int | None
    problem: str | None
    extra_bytes: int

    def header(self, name: str) -> str | None:
        """Return the first value of a header (name in lower case), or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def media_type(self) -> str:
        """Media type of the body in lower case, without parameters; empty if there is none."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()


class _Collector:
    """Receives httptools callbacks. Attributes are read by ``parse_response`` between reads."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[str, str]] = []
        self.interim: list[int] = []
        self.status: int | None = None
        self.has_headers = False
        self.is_done = False
        self.pieces: list[bytes] = []

    # httptools looks these names up.
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_headers:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self.is_done:
            return
        status = self.parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self.interim.append(status)
            self.headers.clear()
        else:
            self.status = status
            self.has_headers = True

    def on_body(self, data: bytes) -> None:
        if not self.is_done:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        if self.has_headers:
            self.is_done = True


def parse_response(reads: Sequence[Read]) -> Response:
    """Read the final response of one exchange from its socket reads. Never raises."""
    collector = _Collector()
    feed = collector.parser.feed_data
    body: list[BodyPiece] = []
    headers_ns: int | None = None
    end_ns: int | None = None
    problem: str | None = None
    extra_bytes = 0
    for index, (t_ns, data) in enumerate(reads):
        if collector.is_done or problem is not None:
            extra_bytes += len(data)
            continue
        try:
            feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Whatever stands behind a whole message in the same read is the next message's problem.
            if not collector.is_done:
                problem = f"read {index}: {type(error).__name__}: {error}"
        if headers_ns is None and collector.has_headers:
            headers_ns = t_ns
        pieces = collector.pieces
        if pieces:
            body.append(BodyPiece(t_ns, pieces[0] if len(pieces) == 1 else b"".join(pieces), index))
            pieces.clear()
        if collector.is_done:
            end_ns = t_ns
    headers = tuple(collector.headers)
    coding = next((value for key, value in headers if key == "content-encoding"), "identity").strip().lower()
    if problem is None and coding not in {"identity", ""}:
        problem = f"the body has content coding {coding!r}, which was not asked for and is not read"
    return Response(
        status=collector.status,
        headers=headers,
        interim=tuple(collector.interim),
        headers_ns=headers_ns,
        body=tuple(body),
        framing=_framing(collector.status, headers),
        is_complete=collector.is_done,
        end_ns=end_ns,
        problem=problem,
        extra_bytes=extra_bytes,
    )


def _framing(status: int | None, headers: Sequence[tuple[str, str]]) -> Framing:
    if status is None or status in _BODILESS:
        return "none"
    names = dict(headers)
    if names.get("transfer-encoding", "").lower().endswith("chunked"):
        return "chunked"
    return "length" if "content-length" in names else "close"
