"""Adds up the events of one answer: ids in order, text, final documents, and what looked odd on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final, overload

import msgspec

from recorder.consistency import Flag
from recorder.exact_json import count_of
from recorder.sse import Stream
from recorder.stream_events import DONE, ERROR, FINAL, TOKEN, Decode, Decoded, DecodeRun, PlainRun, Role, seen_as

_ONE_BY_ONE: Final = 4
"""So many last events of a stream are looked at alone: final event, counts, ``[DONE]``."""
_RUN: Final = 1000
"""So many events are tried as a run of plain token events at once."""


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """One event with its role. ``token_ids`` is empty where the event carries none."""

    index: int
    t_ns: int
    read_index: int
    role: Role
    size_bytes: int
    token_ids: tuple[int, ...] = ()
    text: str = ""


class Events(Sequence[StreamEvent]):
    """The events of an answer in order, in columns: a stream has too many to make an object of each."""

    def __init__(self) -> None:
        self.t_ns: list[int] = []
        self.read_index: list[int] = []
        self.roles: list[Role] = []
        self.data: list[bytes] = []
        self.ids: list[tuple[int, ...]] = []
        self.texts: list[str] = []

    def add(self, t_ns: int, read_index: int, role: Role, data: bytes, ids: tuple[int, ...], text: str) -> None:
        """Put one event behind the others."""
        self.t_ns.append(t_ns)
        self.read_index.append(read_index)
        self.roles.append(role)
        self.data.append(data)
        self.ids.append(ids)
        self.texts.append(text)

    def add_tokens(self, stream: Stream, start: int, run: PlainRun) -> None:
        """Put plain token events behind the others: those of a stream from this row on."""
        stop = start + len(run.texts)
        self.t_ns += stream.t_ns[start:stop]
        self.read_index += stream.read_index[start:stop]
        self.roles += [TOKEN] * len(run.texts)
        self.data += stream.data[start:stop]
        self.ids += run.ids
        self.texts += run.texts

    def __len__(self) -> int:
        return len(self.t_ns)

    @overload
    def __getitem__(self, place: int) -> StreamEvent: ...
    @overload
    def __getitem__(self, place: slice) -> list[StreamEvent]: ...
    def __getitem__(self, place: int | slice) -> StreamEvent | list[StreamEvent]:
        rows = range(len(self))[place]
        return self._row(rows) if isinstance(rows, int) else [self._row(row) for row in rows]

    def _row(self, row: int) -> StreamEvent:
        size = len(self.data[row])
        return StreamEvent(
            row, self.t_ns[row], self.read_index[row], self.roles[row], size, self.ids[row], self.texts[row]
        )

    def __eq__(self, other: object) -> bool:
        return self[:] == other[:] if isinstance(other, Events) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Tally:
    """Takes events one by one. What it holds afterwards is read by derive.py.

    ``ids`` are in order; ``first_count`` is how many tokens the first token event stands for, where that
    is known; ``roles`` counts the events that are no plain tokens; ``final`` and ``usage`` are the documents
    that hold the counts.
    """

    def __init__(self, decode: Decode, decode_run: DecodeRun) -> None:
        self._decode = decode
        self._decode_run = decode_run
        self.events = Events()
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.errors: list[str] = []
        self.faults: Counter[str] = Counter()
        self.roles: Counter[Role] = Counter()
        self.flags: list[Flag] = []
        self.final: dict[str, Any] | None = None
        self.final_data = b""
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, Any] | None = None
        self.timings_holder: dict[str, Any] = {}
        self.timings_data = b""
        self.done_ns: int | None = None
        self.first_count: int | None = None
        self._has_done = False
        self._is_open = True
        self._running_differs = False
        self._usage_tokens: int | None = None

    def add(self, stream: Stream) -> None:
        """Take the events of a stream."""
        row, end = 0, len(stream.data) - _ONE_BY_ONE
        while row < len(stream.data):
            # The first token is always looked at alone, and so is everything in what turns out to be no run.
            has_begun = bool(self.ids or self.texts)
            size = max(1, min(_RUN, end - row)) if has_begun else 1
            run = self._plain_run(stream, row, size) if size > 1 and self._is_open and not stream.names else None
            if run is None:
                self._add_rows(stream, row, row + size)
            else:
                self.events.add_tokens(stream, row, run)
                self.ids += chain.from_iterable(run.ids)
                self.texts += filter(None, run.texts)
            row += size

    def _plain_run(self, stream: Stream, row: int, size: int) -> PlainRun | None:
        """Return events as a run if each of them continues the count of ids, or none has ids and each has text."""
        run = self._decode_run(stream.data[row : row + size])
        if run is None:
            return None
        if any(run.ids):
            counts = [*accumulate(map(len, run.ids), initial=len(self.ids))][1:]
            return run if self.ids and all(run.ids) and counts == run.running else None
        return run if all(run.texts) else None

    def _add_rows(self, stream: Stream, start: int, stop: int) -> None:
        last = len(stream.data) - 1 if stream.is_cut else -1
        for row in range(start, stop):
            data = stream.data[row]
            name = stream.names.get(row, "message")
            seen = seen_as(self._decode(data), data, name, is_terminated=row != last)
            self.add_decoded(seen, data, stream.t_ns[row], stream.read_index[row])

    def add_decoded(self, decoded: Decoded, data: bytes, t_ns: int, read_index: int) -> None:
        """Take an event that was read already."""
        role = decoded.role
        ids, text = decoded.ids, decoded.text or decoded.reasoning
        if self._has_done and role != DONE:
            self.faults["events_after_done"] += 1
        if role in {TOKEN, FINAL}:
            ids = self._take_tokens(decoded)
        self.roles[role] += 1
        self.events.add(t_ns, read_index, role, data, ids, text)
        if role == FINAL:
            self._take_final(decoded, data, t_ns)
        elif role == DONE:
            self._has_done = True
        elif role == ERROR:
            self.errors.append(decoded.error or "")
        self._is_open = self.final is None and not self._has_done
        for fault in decoded.faults:
            self.faults[fault] += 1
        if decoded.document is not None:
            self._take_counts(decoded.document, data)

    def _take_tokens(self, decoded: Decoded) -> tuple[int, ...]:
        ids = decoded.ids
        is_late = self.final is not None
        if is_late and (ids or decoded.text or decoded.reasoning):
            self.faults["ids_after_end"] += 1
        is_repeat = decoded.running is None or decoded.running == len(self.ids)
        if decoded.role == FINAL and ids and is_repeat and ids == tuple(self.ids):
            # Some servers list everything again at the end; those are not new tokens.
            self.flags.append(Flag("ids_repeated_in_final", None, len(ids)))
            ids = ()
        if decoded.text:
            self.texts.append(decoded.text)
        if decoded.reasoning:
            self.reasonings.append(decoded.reasoning)
        if ids:
            if not self.ids:
                self.first_count = decoded.running or len(ids)
            self.ids.extend(ids)
            if decoded.running is not None and decoded.running != len(self.ids) and not self._running_differs:
                self._running_differs = True
                self.flags.append(Flag("running_count_differs", decoded.running, len(self.ids)))
        return ids

    def _take_final(self, decoded: Decoded, data: bytes, t_ns: int) -> None:
        if self.final is None:
            self.final, self.final_data, self.done_ns = decoded.document, data, t_ns
            return
        first, other = (count_of(one.get("tokens_predicted")).value for one in (self.final, decoded.document or {}))
        if first != other:
            self.flags.append(Flag("finals_differ", first, other))

    def _take_counts(self, document: dict[str, Any], data: bytes) -> None:
        timings, usage = document.get("timings"), document.get("usage")
        if isinstance(timings, dict):
            self.timings, self.timings_holder, self.timings_data = timings, document, data
        if not isinstance(usage, dict):
            return
        tokens = count_of(usage.get("completion_tokens")).value
        if tokens is not None and self._usage_tokens is not None and tokens < self._usage_tokens:
            self.flags.append(Flag("usage_decreased", self._usage_tokens, tokens))
        self._usage_tokens = tokens if tokens is not None else self._usage_tokens
        # Usage is a running total: the last one counts, and they are never added up.
        self.usage = usage
