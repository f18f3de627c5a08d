"""Adds up the events of one answer: ids in order, text, final documents, and what looked odd on the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from recorder.consistency import Flag
from recorder.exact_json import count_of
from recorder.sse import Stream
from recorder.stream_events import DONE, ERROR, FINAL, TOKEN, Decode, Decoded, Role, seen_as


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """One event with its role. ``token_ids`` is empty where the event carries none."""

    index: int
    t_ns: int
    read_index: int
    role: Role
    size_bytes: int
    token_ids: tuple[int, ...] = ()
    text: str = ""


class Tally:
    """Takes events one by one. What it holds afterwards is read by derive.py.

    ``ids`` are in order; ``first_count`` is how many tokens the first token event stands for, where that
    is known; ``roles`` counts the events that are no plain tokens; ``final`` and ``usage`` are the documents
    that hold the counts.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self.events: list[StreamEvent] = []
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
        decode, ids, names = self._decode, self.ids, stream.names
        keep, keep_text = self.events.append, self.texts.append
        last = len(stream.data) - 1 if stream.is_cut else -1
        is_usual = not names
        for row, (data, t_ns, read_index) in enumerate(zip(stream.data, stream.t_ns, stream.read_index, strict=True)):
            decoded = decode(data)
            found, text = decoded.ids, decoded.text
            # The common case, spelled out: one more token event, with ids that continue the count or without ids.
            if (
                is_usual
                and decoded.role is TOKEN
                and decoded.document is None
                and ((ids and decoded.running == len(ids) + len(found)) if found else text)
                and not decoded.reasoning
                and not decoded.faults
                and row != last
            ):
                ids += found
                if text:
                    keep_text(text)
                keep(StreamEvent(row, t_ns, read_index, TOKEN, len(data), found, text))
                continue
            seen = seen_as(decoded, data, names.get(row, "message"), is_terminated=row != last)
            self.add_decoded(seen, data, t_ns, read_index)
            is_usual = self._is_open and not names

    def add_decoded(self, decoded: Decoded, data: bytes, t_ns: int, read_index: int) -> None:
        """Take an event that was read already."""
        role = decoded.role
        ids, text = decoded.ids, decoded.text or decoded.reasoning
        if self._has_done and role != DONE:
            self.faults["events_after_done"] += 1
        if role in {TOKEN, FINAL}:
            ids = self._take_tokens(decoded)
        self.roles[role] += 1
        self.events.append(StreamEvent(len(self.events), t_ns, read_index, role, len(data), ids, text))
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
