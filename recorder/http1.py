"""One HTTP/1.1 response, read from recorded socket reads.

The parser is httptools (llhttp). It is fed read by read, so that each piece of the body has the time of
the read that brought it. A whole chunked answer is fed at once instead, which is several times faster, where
the place of each chunk follows from the sizes alone; both ways give the same. Interim responses (100 Continue)
are counted and passed over. Nothing is ever raised: a response that breaks the rules ends with ``problem`` set,
and what was read before stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import httptools

from recorder.body import Body, BodyPiece
from recorder.wire import Read

Framing = Literal["chunked", "length", "close", "none"]

_BODILESS: Final = frozenset({204, 304})
_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK_BYTES: Final = len(b"0\r\n\r\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One response as far as it came.

    status       None if no status line came
    headers      in order, names in lower case; bytes that are not Latin-1 cannot occur
    interim      status codes of interim responses that came before
    headers_ns   time of the read that completed the headers
    body         transfer coding removed, with the read that brought each byte
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
    body: Body
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
    """Receives httptools callbacks; attributes are read between reads. A context manager that gives its parser.

    Parser and collector hold each other. At the end the collector lets go, so that the bytes of a message are freed
    with it: left to the cycle finder, those of several large messages would wait for it.
    """

    def __init__(self, take: Callable[[bytes], None] | None = None) -> None:
        self.headers: list[tuple[str, str]] = []
        self.interim: list[int] = []
        self.status: int | None = None
        self.has_headers = False
        self.is_done = False
        self.pieces: list[bytes] = []
        self._parser: httptools.HttpResponseParser | None = None
        if take is not None:
            self.on_body = take  # type: ignore[method-assign,assignment]

    def __enter__(self) -> httptools.HttpResponseParser:
        self._parser = httptools.HttpResponseParser(self)  # looks up the callbacks now
        return self._parser

    def __exit__(self, *_: object) -> None:
        self._parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_headers:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self.is_done or self._parser is None:
            return
        status = self._parser.get_status_code()
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
    return _parse_at_once(reads) or parse_by_reads(reads)


def _parse_at_once(reads: Sequence[Read]) -> Response | None:
    """Read a whole chunked response in one go; None for any other, and where chunks hold more than sizes and data."""
    data = b"".join([read.data for read in reads])
    chunks: list[bytes] = []
    collector = _Collector(take=chunks.append)  # for each chunk, no call but this one
    try:
        with collector as parser:
            parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = tuple(collector.headers)
    if not collector.is_done or collector.interim or _framing(collector.status, headers) != "chunked":
        return None
    # A chunk is its size in hex, a line end, the data, a line end. A longer size line (an extension, leading zeros) or
    # a trailer anywhere makes the whole longer than these sums, and then their places are not known.
    head_bytes = data.find(_HEAD_END) + len(_HEAD_END)
    sizes = [len(chunk) for chunk in chunks]
    stops = list(accumulate([size + (size.bit_length() + 3) // 4 + 4 for size in sizes], initial=head_bytes))
    if stops[-1] + _LAST_CHUNK_BYTES != len(data):
        return None
    read_stops = list(accumulate([len(read.data) for read in reads]))
    return Response(
        status=collector.status,
        headers=headers,
        interim=(),
        headers_ns=reads[bisect_left(read_stops, head_bytes)].t_ns,
        body=_placed(b"".join(chunks), sizes, stops[1:], reads, read_stops),
        framing="chunked",
        is_complete=True,
        end_ns=reads[bisect_left(read_stops, len(data))].t_ns,
        problem=_coding_problem(headers),
        extra_bytes=0,
    )


def _placed(data: bytes, sizes: list[int], stops: list[int], reads: Sequence[Read], read_stops: list[int]) -> Body:
    """Say which read brought which bytes of the body, from where each chunk and each read stops in the answer."""
    if not stops:
        return Body(data=b"", ends=[], t_ns=[], read_index=[])
    first, last = bisect_left(read_stops, stops[0]), bisect_left(read_stops, stops[-1])
    starts_clean = first == 0 or read_stops[first - 1] <= stops[0] - 2 - sizes[0]
    if starts_clean and [*read_stops[first:last], stops[-1]] == stops:
        # The usual case: each chunk came with a read of its own.
        ends, rows = list(accumulate(sizes)), list(range(first, last + 1))
    else:
        ends, rows = _split_over_reads(sizes, stops, read_stops)
    return Body(data=data, ends=ends, t_ns=[reads[row].t_ns for row in rows], read_index=rows)


def _split_over_reads(sizes: list[int], stops: list[int], read_stops: list[int]) -> tuple[list[int], list[int]]:
    ends: list[int] = []
    rows: list[int] = []
    done = total = chunk = 0
    for row, read_stop in enumerate(read_stops):
        while chunk < len(sizes) and stops[chunk] <= read_stop:
            total += sizes[chunk]
            chunk += 1
        came = total
        if chunk < len(sizes) and (more := read_stop - (stops[chunk] - 2 - sizes[chunk])) > 0:
            # The chunk goes on in the next read: this one had that many bytes of it, its closing line end aside.
            came += min(more, sizes[chunk])
        if came > done:
            ends.append(came)
            rows.append(row)
            done = came
    return ends, rows


def parse_by_reads(reads: Sequence[Read]) -> Response:
    """Read the final response read by read, whatever it looks like. Never raises."""
    collector = _Collector()
    with collector as parser:
        return _read_by_reads(reads, collector, parser.feed_data)


def _read_by_reads(reads: Sequence[Read], collector: _Collector, feed: Callable[[bytes], None]) -> Response:
    body: list[BodyPiece] = []
    headers_ns: int | None = None
    end_ns: int | None = None
    problem: str | None = None
    extra_bytes = 0
    for index, read in enumerate(reads):
        if collector.is_done or problem is not None:
            extra_bytes += len(read.data)
            continue
        try:
            feed(read.data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Whatever stands behind a whole message in the same read is the next message's problem.
            if not collector.is_done:
                problem = f"read {index}: {type(error).__name__}: {error}"
        if headers_ns is None and collector.has_headers:
            headers_ns = read.t_ns
        pieces = collector.pieces
        if pieces:
            body.append(BodyPiece(read.t_ns, pieces[0] if len(pieces) == 1 else b"".join(pieces), index))
            pieces.clear()
        if collector.is_done:
            end_ns = read.t_ns
    headers = tuple(collector.headers)
    return Response(
        status=collector.status,
        headers=headers,
        interim=tuple(collector.interim),
        headers_ns=headers_ns,
        body=Body.of(body),
        framing=_framing(collector.status, headers),
        is_complete=collector.is_done,
        end_ns=end_ns,
        problem=problem or _coding_problem(headers),
        extra_bytes=extra_bytes,
    )


def _coding_problem(headers: Sequence[tuple[str, str]]) -> str | None:
    coding = next((value for key, value in headers if key == "content-encoding"), "identity").strip().lower()
    if coding in {"identity", ""}:
        return None
    return f"the body has content coding {coding!r}, which was not asked for and is not read"


def _framing(status: int | None, headers: Sequence[tuple[str, str]]) -> Framing:
    if status is None or status in _BODILESS:
        return "none"
    names = dict(headers)
    if names.get("transfer-encoding", "").lower().endswith("chunked"):
        return "chunked"
    return "length" if "content-length" in names else "close"
