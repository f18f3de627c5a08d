"""Rows of one exchange: the request, each socket read, each event, each token, each number that the server gave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any, Final, Literal, cast

from protocols.canonical import sha256_hex
from protocols.measurements import RequestMeasurement
from recorder.derive import DerivedRequest, derive_request
from recorder.http1 import Response, parse_response
from recorder.load_files import Exchange
from recorder.row_blocks import AllRows, Block, RowBlocks
from recorder.row_values import optional_text, plain_text
from recorder.wire import EndReason, Wire, read_wire

Kind = Literal["native", "openai"]
STREAM_KINDS: Final = frozenset({"native", "openai"})

_LEAST_INTEGER: Final = -(2**63)
_MOST_INTEGER: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class ReadExchange:
    """One exchange read back from its wire file. ``derived`` is None for plain HTTP."""

    exchange: Exchange
    wire: Wire
    response: Response
    derived: DerivedRequest | None

    @property
    def is_measured(self) -> bool:
        """Whether gates see it: a stream of a workload."""
        return self.derived is not None and self.exchange.workload is not None

    def body(self) -> bytes:
        """Return the request body as it was sent."""
        return self.wire.request.partition(b"\r\n\r\n")[2]

    def measurement(self) -> RequestMeasurement:
        """Return what gates see. Only for a measured exchange."""
        if self.derived is None or self.exchange.workload is None:
            raise ValueError(f"{self.exchange.name} is not measured")
        return self.derived.measurement(
            workload=self.exchange.workload, repeat=self.exchange.repeat, is_warmup=self.exchange.is_warmup
        )

    def plain_outcome(self) -> str:
        """Return how a plain HTTP exchange ended, in the words of a measured one."""
        if self.response.status is None:
            return "refused" if self.wire.end_reason == EndReason.REFUSED else "stream_error"
        if not 200 <= self.response.status < 300:
            return "http_error"
        return "ok" if self.response.is_complete or self.wire.end_reason == EndReason.CLOSED else "truncated"


def read_exchange(exchange: Exchange, content: bytes) -> ReadExchange:
    """Read one exchange from the content of its wire file. Never raises."""
    wire = read_wire(content)
    response = parse_response(wire.reads)
    derived = derive_request(wire, cast("Kind", exchange.kind), response) if exchange.kind in STREAM_KINDS else None
    return ReadExchange(exchange=exchange, wire=wire, response=response, derived=derived)


def exchange_rows(read: ReadExchange, *, entry_seq: int, blob_sha256: str) -> AllRows:
    """Derive every row of one exchange."""
    key = {"entry_seq": entry_seq, "request": read.exchange.number}
    reads = read.wire.reads
    rows: AllRows = {
        "request": [key | _request_row(read) | {"blob_sha256": blob_sha256}],
        "http_header": [
            key | {"ordinal": ordinal, "name": plain_text(name), "value": plain_text(value)}
            for ordinal, (name, value) in enumerate(read.response.headers)
        ],
        "socket_read": _block(key, t_ns=[one.t_ns for one in reads], data=[one.data for one in reads]),
    }
    if read.derived is not None:
        _add_stream_rows(rows, key, read.derived)
    return rows


def _request_row(read: ReadExchange) -> dict[str, Any]:
    derived, exchange, body = read.derived, read.exchange, read.body()
    row: dict[str, Any] = {
        "name": plain_text(exchange.name),
        "route": plain_text(exchange.route),
        "kind": exchange.kind,
        "workload": exchange.workload,
        "repeat": exchange.repeat,
        "is_warmup": int(exchange.is_warmup),
        "body_sha256": sha256_hex(body),
        "body_bytes": len(body),
        "http_status": read.response.status,
        "sent_ns": read.wire.sent_ns,
        "headers_ns": read.response.headers_ns,
        "end_ns": read.wire.end_ns,
        "end_reason": optional_text(read.wire.end_reason),
        "is_cut": int(read.wire.is_cut),
    }
    if derived is None:
        return row | dict.fromkeys(_DERIVED_COLUMNS) | {"outcome": read.plain_outcome(), "text": ""}
    values = {name: getattr(derived, name) for name in _DERIVED_COLUMNS if hasattr(derived, name)}
    return (
        row
        | values
        | {
            "outcome": derived.outcome,
            "client_prefill_ns": derived.ttft_ns,
            "reason": optional_text(derived.reason),
            "error_text": optional_text(derived.error_text),
            "stop_reason": optional_text(derived.stop_reason),
            "model": optional_text(derived.model),
            "text": plain_text(derived.text),
            "settings_json": optional_text(derived.settings_json),
            "timings_json": optional_text(derived.timings_json),
        }
    )


_DERIVED_COLUMNS: Final = (
    "reason_code",
    "reason",
    "error_text",
    "first_token_ns",
    "last_token_ns",
    "done_ns",
    "ttft_ns",
    "e2e_ns",
    "client_prefill_ns",
    "client_generation_ns",
    "server_prefill_ns",
    "server_generation_ns",
    "prompt_tokens",
    "prompt_tokens_evaluated",
    "cached_tokens",
    "generated_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "stop_reason",
    "model",
    "settings_json",
    "timings_json",
)


def _block(key: dict[str, int], **columns: Sequence[object]) -> RowBlocks:
    """Return the rows of one request in one table, numbered in order."""
    size = len(next(iter(columns.values())))
    return RowBlocks([Block(key, {"ordinal": range(size), **columns})] if size else [])


def _add_stream_rows(rows: AllRows, key: dict[str, int], derived: DerivedRequest) -> None:
    events = derived.events
    rows["sse_event"] = _block(
        key,
        t_ns=events.t_ns,
        read_ordinal=events.read_index,
        kind=events.roles,
        # A JSON document is one event without framing: its bytes are the body, which the reads hold.
        data=events.data if derived.is_stream else [b""] * len(events),
    )
    places = [row for row, ids in enumerate(events.ids) for _ in ids]
    rows["token"] = _block(
        key,
        token_id=[*chain.from_iterable(events.ids)],
        event_ordinal=places,
        t_ns=[events.t_ns[row] for row in places],
    )
    rows["timing"] = [key | row for row in _timing_rows(derived.timings_json)]
    rows["work_counter"] = [
        key | {"name": plain_text(name), "value": value} for name, value in sorted((derived.work or {}).items())
    ]
    rows["request_flag"] = [
        key
        | {"ordinal": ordinal, "code": flag.code, "expected": _bounded(flag.expected), "found": _bounded(flag.found)}
        for ordinal, flag in enumerate(derived.flags)
    ]


def _bounded(value: int | None) -> int | None:
    return None if value is None else max(_LEAST_INTEGER, min(_MOST_INTEGER, value))


def _timing_rows(timings_json: str | None) -> list[dict[str, Any]]:
    if timings_json is None:
        return []
    try:
        timings = json.loads(timings_json, parse_float=Decimal, parse_int=Decimal, parse_constant=str)
    except (ValueError, ArithmeticError):
        return []
    rows: list[dict[str, Any]] = []
    for name, value in sorted(timings.items()) if isinstance(timings, dict) else ():
        is_number = isinstance(value, Decimal)
        number = float(value) if is_number else None
        text = str(value) if is_number or isinstance(value, str) else json.dumps(value, default=str)
        rows.append({"name": plain_text(name), "value": number, "text": plain_text(text)})
    return rows
