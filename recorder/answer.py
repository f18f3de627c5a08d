"""Reads one HTTP answer into a tally: an event stream, one JSON document, or an error body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from protocols.metrics import timing_disagreement
from recorder.consistency import Flag, Numbers
from recorder.exact_json import Number, count_of, ns_of_ms, parse_exact
from recorder.http1 import Response
from recorder.sse import read_stream
from recorder.stream_events import (
    DONE,
    ERROR,
    FINAL,
    UNPARSABLE,
    UNTERMINATED,
    Decoded,
    decode_native,
    decode_openai,
    error_text,
)
from recorder.stream_tally import Tally
from recorder.wire import EndReason, Wire

_ABSENT: Final = Number(None, None)
_STREAM_TYPES: Final = frozenset({"text/event-stream"})
_JSON_TYPES: Final = frozenset({"application/json"})
_LEGACY_STOPS: Final = (("stopped_eos", "eos"), ("stopped_word", "word"), ("stopped_limit", "limit"))
_LIMIT_NAMES: Final = ("n_predict", "max_tokens", "max_completion_tokens")


class Answer(NamedTuple):
    """The form of an answer. ``is_stream`` is None where nothing usable came."""

    is_stream: bool | None
    is_usable: bool
    comments: int = 0
    ignored_lines: int = 0
    is_odd_type: bool = False


def read_answer(response: Response, tally: Tally, kind: str) -> Answer:
    """Read the body of a response into the tally. Never raises."""
    if response.status is None:
        return Answer(is_stream=None, is_usable=False)
    is_success = 200 <= response.status < 300
    start = response.body.data[:4096].lstrip()[:1]
    is_odd = response.media_type not in _STREAM_TYPES | _JSON_TYPES and bool(response.body.data)
    if response.media_type in _STREAM_TYPES or (is_odd and is_success and start != b"{"):
        return _read_stream(response, tally)._replace(is_odd_type=is_odd and is_success)
    return _read_document(response, tally, kind, is_success=is_success)._replace(is_odd_type=is_odd and is_success)


def _read_stream(response: Response, tally: Tally) -> Answer:
    stream = read_stream(response.body)
    tally.add(stream)
    for line in stream.kept_lines:
        # llama-server once sent errors as a field of their own, which the standard ignores.
        name, _, value = line.line.partition(b":")
        if name == b"error":
            tally.errors.append(error_text_of(value))
            tally.roles[ERROR] += 1
    return Answer(is_stream=True, is_usable=True, comments=stream.comments, ignored_lines=stream.ignored)


def _read_document(response: Response, tally: Tally, kind: str, *, is_success: bool) -> Answer:
    body, data = response.body, response.body.data
    if not is_success:
        if data:
            tally.errors.append(error_text_of(data))
        return Answer(is_stream=False, is_usable=True)
    if not data:
        return Answer(is_stream=None, is_usable=False)
    decoded: Decoded = (decode_native if kind == "native" else decode_openai)(data)
    tally.add_decoded(decoded, data, body.t_ns[-1], body.read_index[-1])
    return Answer(is_stream=False, is_usable=decoded.role in {FINAL, ERROR})


def error_text_of(data: bytes) -> str:
    """Return what an error body says: its message where it is JSON, else its text."""
    try:
        document = parse_exact(data)
    except ValueError:
        return data.decode("utf-8", "replace").strip()
    if isinstance(document, dict) and document.get("error") is not None:
        return error_text(document["error"])
    return error_text(document)


def body_is_whole(wire: Wire, response: Response) -> bool:
    """Say whether the answer ended as its framing promises."""
    if response.is_complete:
        return True
    has_ended = wire.end_reason in {EndReason.COMPLETE, EndReason.CLOSED}
    return response.framing in {"close", "none"} and response.headers_ns is not None and has_ended


def numbers_of(tally: Tally) -> Numbers:
    """Collect what the server counted and timed: timings first, then usage, then the final event."""
    final = tally.final or {}
    timings, usage = tally.timings or {}, tally.usage or {}
    details = usage.get("prompt_tokens_details")
    cached = _first(timings.get("cache_n"), details.get("cached_tokens") if isinstance(details, dict) else None)
    total = _first(final.get("tokens_evaluated"), usage.get("prompt_tokens"))
    evaluated = count_of(timings.get("prompt_n"))
    if evaluated == _ABSENT and total.value is not None and cached.value is not None and cached.value <= total.value:
        evaluated = Number(total.value - cached.value, None)
    if total == _ABSENT and evaluated.value is not None and cached.value is not None:
        total = Number(evaluated.value + cached.value, None)
    return Numbers(
        prompt_tokens=total,
        prompt_tokens_evaluated=evaluated,
        cached_tokens=cached,
        generated_tokens=_first(timings.get("predicted_n"), final.get("tokens_predicted")),
        usage_generated=count_of(usage.get("completion_tokens")),
        drafted_tokens=count_of(timings.get("draft_n")),
        accepted_tokens=count_of(timings.get("draft_n_accepted")),
        prefill_ns=ns_of_ms(timings.get("prompt_ms")),
        generation_ns=ns_of_ms(timings.get("predicted_ms")),
    )


def _first(*values: object) -> Number:
    return next((count_of(value) for value in values if value is not None), _ABSENT)


def answer_flags(wire: Wire, response: Response, tally: Tally, answer: Answer, kind: str) -> Iterator[Flag]:
    """Name what is odd about the recording, the message and the events."""
    steps_back = sum("time steps back" in problem for problem in wire.problems)
    if len(wire.problems) > steps_back:
        yield Flag("wire_damaged", None, len(wire.problems) - steps_back)
    if steps_back:
        yield Flag("time_steps_back", None, steps_back)
    if response.extra_bytes:
        yield Flag("extra_bytes", 0, response.extra_bytes)
    if answer.is_odd_type:
        yield Flag("unexpected_content_type")
    yield from (Flag(code, None, count) for code, count in sorted(tally.faults.items()))
    if answer.is_stream:
        yield from _stream_flags(tally, kind)


def _stream_flags(tally: Tally, kind: str) -> Iterator[Flag]:
    if tally.roles[UNPARSABLE]:
        yield Flag("unparsable_events", None, tally.roles[UNPARSABLE])
    if tally.roles[UNTERMINATED]:
        yield Flag("unterminated_event", None, tally.roles[UNTERMINATED])
    if tally.roles[FINAL] > 1:
        yield Flag("duplicate_final", 1, tally.roles[FINAL])
    if kind == "openai" and not tally.roles[ERROR]:
        if tally.final is not None and not tally.roles[DONE]:
            yield Flag("missing_done")
        if tally.final is None and tally.roles[DONE]:
            yield Flag("no_finish_reason")


def token_flags(tally: Tally, counted: int | None, token_events: int | None, first_count: int | None) -> Iterator[Flag]:
    """Compare the ids and the token events with the server's count."""
    seen = len(tally.ids)
    if seen and counted is not None and seen < counted:
        yield Flag("ids_lost", counted, seen)
    if seen and counted is not None and seen > counted:
        yield Flag("ids_doubled", counted, seen)
    if first_count is not None and first_count > 1 and token_events is not None:
        yield Flag("first_event_holds_tokens", 1, first_count)
    if not seen and counted is not None and token_events is not None and token_events != counted:
        yield Flag("events_are_not_tokens", counted, token_events)


def timing_flags(numbers: Numbers, client_prefill_ns: int | None, client_generation_ns: int | None) -> Iterator[Flag]:
    """Compare the server's times with the client's."""
    if timing_disagreement(numbers.prefill_ns.value, client_prefill_ns):
        yield Flag("prefill_disagreement", numbers.prefill_ns.value, client_prefill_ns)
    if timing_disagreement(numbers.generation_ns.value, client_generation_ns):
        yield Flag("generation_disagreement", numbers.generation_ns.value, client_generation_ns)


def asked_for_none(request: bytes) -> bool:
    """Say whether the request itself wanted no tokens (prefill only)."""
    _, _, body = request.partition(b"\r\n\r\n")
    try:
        document = parse_exact(body)
    except ValueError:
        return False
    return isinstance(document, dict) and any(count_of(document.get(name)).value == 0 for name in _LIMIT_NAMES)


def stop_reason(final: Mapping[str, Any]) -> str | None:
    """Return why generation ended, as the server says it."""
    named = text_or_none(final.get("stop_type"))
    if named is not None:
        return named
    choices = final.get("choices")
    if isinstance(choices, list):
        reasons = (one.get("finish_reason") for one in choices if isinstance(one, dict))
        return next((reason for reason in reasons if isinstance(reason, str)), None)
    return next((text for name, text in _LEGACY_STOPS if final.get(name) is True), None)


def member_text(data: bytes, holder: Mapping[str, Any], name: str, *path: str) -> str | None:
    """Return the JSON text of one member as it was sent; re-written only where the whole is not strict JSON."""
    if not isinstance(holder.get(name), dict):
        return None
    try:
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        for step in path:
            members = msgspec.json.decode(members[step], type=dict[str, msgspec.Raw])
        return bytes(members[name]).decode()
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError):
        return json.dumps(holder[name], default=str)


def text_or_none(value: object) -> str | None:
    """Return a text, or None for anything else."""
    return value if isinstance(value, str) else None


def names_of(value: object) -> tuple[str, ...]:
    """Return the texts of a list."""
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
