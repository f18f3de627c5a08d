"""Server-sent events from raw bytes, by the WHATWG event-stream rules.

1. One byte order mark at the start is dropped, also if it is split over reads.
2. A line ends with LF, CR LF or CR. A CR ends its line at once; an LF that follows, in the same read
   or the next, belongs to it.
3. An empty line dispatches the event; without a ``data`` field there is nothing to dispatch.
4. A line that begins with a colon is a comment (servers use them as pings).
5. A field's value begins behind the first colon, less one space. A line without a colon is a field
   with an empty value.
6. ``data`` lines are joined with LF. ``event`` names the event. ``id`` and ``retry`` change nothing
   here. Any other field is ignored by the standard; here it is counted, and the first are kept.
7. An event that the end of the stream cuts off is discarded by the standard. Here it is kept, marked
   as not terminated, and counted.

Data stays bytes. A character that is split over reads, chunks or even events is never decoded in parts.
An event's time is that of the read that brought the last byte it needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from recorder.body import Body

_BOM: Final = b"\xef\xbb\xbf"
_KEPT_LINES: Final = 100
# One-line events, each with the line end before it. Both match at line starts only, so that their cost is linear.
_PLAIN_EVENTS: Final = re.compile(rb"\ndata: (.*+)\n(?=\n)")
_PLAIN_CRLF_EVENTS: Final = re.compile(rb"\ndata: (.*)\r\n(?=\r\n)")


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: time (monotonic, ns) and number of the read that completed it, data, name."""

    t_ns: int
    data: bytes
    event: str = "message"
    is_terminated: bool = True
    read_index: int = 0


class IgnoredLine(NamedTuple):
    """A line with a field that the standard does not know."""

    t_ns: int
    line: bytes
    read_index: int


@dataclass(slots=True)
class Stream:
    """The events of a body in order, in columns, and what stood beside them.

    ``data``, ``t_ns`` and ``read_index`` have one row for each event; ``names`` has the name of those that are not
    ``message``. ``is_cut`` says that the end of the stream cut the last event off. ``comments`` and ``ignored`` count
    lines, ``kept_lines`` holds the first ignored ones, ``bare_frames`` counts blank lines with nothing to dispatch.
    """

    data: list[bytes] = field(default_factory=list)
    t_ns: list[int] = field(default_factory=list)
    read_index: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    is_cut: bool = False
    comments: int = 0
    ignored: int = 0
    bare_frames: int = 0
    kept_lines: list[IgnoredLine] = field(default_factory=list)

    def events(self) -> list[Event]:
        """Return the events one by one."""
        last = len(self.data) - 1
        return [
            Event(t_ns, data, self.names.get(row, "message"), not (self.is_cut and row == last), read_index)
            for row, (data, t_ns, read_index) in enumerate(zip(self.data, self.t_ns, self.read_index, strict=True))
        ]

    def add_frame(self, frame: bytes, t_ns: int, read_index: int, *, is_terminated: bool = True) -> None:
        """Read the lines of one frame, all line ends already LF, and add its event if it has one."""
        name = b""
        data: list[bytes] = []
        for line in frame.split(b"\n"):
            label, colon, value = line.partition(b":")
            if not label:
                self.comments += bool(colon)
                # A blank line inside a frame can only come first: it had nothing to dispatch.
                self.bare_frames += not colon and is_terminated
                continue
            value = value.removeprefix(b" ")
            if label == b"data":
                data.append(value)
            elif label == b"event":
                name = value
            elif label not in {b"id", b"retry"}:
                self.ignored += 1
                if len(self.kept_lines) < _KEPT_LINES:
                    self.kept_lines.append(IgnoredLine(t_ns, line, read_index))
        if not data:
            return
        if name and name != b"message":
            self.names[len(self.data)] = name.decode("utf-8", "replace")
        self.data.append(b"\n".join(data))
        self.t_ns.append(t_ns)
        self.read_index.append(read_index)
        self.is_cut = not is_terminated


class EventStreamReader:
    """Turns pieces of a body into the events of ``stream``. Feed every piece, then close."""

    def __init__(self) -> None:
        self.stream: Final = Stream()
        self._start: bytes | None = b""
        self._parts: list[bytes] = []
        self._ends_with_lf = False
        self._ends_with_cr = False
        self._last_t_ns = 0
        self._last_read = 0

    def feed(self, t_ns: int, data: bytes, read_index: int = 0) -> None:
        """Take a piece, and add the events that it completes."""
        self._last_t_ns, self._last_read = t_ns, read_index
        if self._start is not None:
            data = self._without_bom(data)
        if self._ends_with_cr and data:
            self._ends_with_cr = False
            if data[0] == 0x0A:
                data = data[1:]
        if b"\r" in data:
            self._ends_with_cr = data[-1] == 0x0D
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return
        completes = b"\n\n" in data or (self._ends_with_lf and data[0] == 0x0A)
        self._ends_with_lf = data[-1] == 0x0A
        self._parts.append(data)
        if not completes:
            return
        *frames, rest = b"".join(self._parts).split(b"\n\n")
        self._parts = [rest] if rest else []
        for frame in frames:
            self.stream.add_frame(frame, t_ns, read_index)

    def close(self) -> None:
        """Add the event that the end of the stream cut off, if there was one. It was never dispatched."""
        rest = (self._start or b"") + b"".join(self._parts)
        self._start, self._parts = None, []
        if rest:
            # A line that no line end completes is part of what was cut; a comment or a bare blank is not an event.
            self.stream.add_frame(rest, self._last_t_ns, self._last_read, is_terminated=False)

    def _without_bom(self, data: bytes) -> bytes:
        start = (self._start or b"") + data
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(_BOM)


def read_stream(body: Body) -> Stream:
    """Read a whole body. Same result as `read_by_pieces`, several times faster where lines end with LF alone."""
    if body.data.startswith(_BOM):
        return read_by_pieces(body)
    if b"\r" in body.data:
        return _plain_stream(body, _PLAIN_CRLF_EVENTS, line_end=b"\r\n") or read_by_pieces(body)
    return _plain_stream(body, _PLAIN_EVENTS, line_end=b"\n") or _stream_of_frames(body)


def _plain_stream(body: Body, pattern: re.Pattern[bytes], *, line_end: bytes) -> Stream | None:
    """Read a body of nothing but one-line events ``data: ...``; None for any other."""
    data = pattern.findall(b"\n" + body.data)
    frame_bytes = len(b"data: ") + 2 * len(line_end)
    lasts = list(accumulate([len(one) + frame_bytes for one in data]))
    if not lasts or lasts[-1] != len(body.data):
        return None  # something stands between the events, or behind them
    if line_end != b"\n" and body.data.count(b"\r") != 2 * len(data):
        return None  # a CR inside what looks like one line ends that line
    if lasts == body.ends:
        return Stream(data, [*body.t_ns], [*body.read_index])
    rows, row, ends = [], 0, body.ends
    spare = len(line_end) - 1  # the LF behind the CR that completes an event
    for last in lasts:
        while ends[row] < last - spare:
            row += 1
        rows.append(row)
    return Stream(data, [body.t_ns[row] for row in rows], [body.read_index[row] for row in rows])


def _stream_of_frames(body: Body) -> Stream:
    """Cut a body at blank lines as one text; an event's time is found by the place of its last byte."""
    stream = Stream()
    keep, stamp, place = stream.data.append, stream.t_ns.append, stream.read_index.append
    last, row, ends, t_ns, read_index = 0, 0, body.ends, body.t_ns, body.read_index
    *frames, rest = body.data.split(b"\n\n")
    for frame in frames:
        last += len(frame) + 2
        while ends[row] < last:
            row += 1
        if frame.startswith(b"data: ") and b"\n" not in frame:  # nearly all of them
            keep(frame[6:])
            stamp(t_ns[row])
            place(read_index[row])
        else:
            stream.add_frame(frame, t_ns[row], read_index[row])
    if rest:
        stream.add_frame(rest, body.t_ns[-1], body.read_index[-1], is_terminated=False)
    return stream


def read_by_pieces(body: Body) -> Stream:
    """Read a whole body piece by piece, whatever its line ends are."""
    reader = EventStreamReader()
    for t_ns, data, read_index in body.pieces():
        reader.feed(t_ns, data, read_index)
    reader.close()
    return reader.stream


def is_done(data: bytes) -> bool:
    """Say whether an event's data is ``[DONE]``, white space around it aside."""
    return data.strip() == b"[DONE]"
