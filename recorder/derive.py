"""What one recorded exchange means: token ids, times, counts, and how it ended.

Everything here is a pure function of the recorded bytes; the audit calls the same functions again.

Times (monotonic ns; an event's time is that of the read that completed it):

=============== ==============================================================================
sent_ns         the last request byte was handed to the socket
headers_ns      the read that completed the response headers
first_token_ns  first event with token ids; where a stream has no ids at all, first event with text.
                Never a role chunk, a progress report, a comment, a usage chunk or an error.
last_token_ns   last such event
done_ns         the event that says that generation is over (native ``stop: true``, OpenAI
                ``finish_reason``). A usage chunk, ``[DONE]`` or the close of the connection behind
                it extends nothing.
=============== ==============================================================================

TTFT is first_token - sent, E2E is done - sent, TPOT is (last - first) / (n - 1). ITL exists only
where each event carries exactly one token; an event is never called a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple, cast

from protocols.measurements import Outcome, RequestMeasurement
from recorder.answer import (
    Answer,
    answer_flags,
    asked_for_none,
    body_is_whole,
    member_text,
    names_of,
    numbers_of,
    read_answer,
    stop_reason,
    text_or_none,
    timing_flags,
    token_flags,
)
from recorder.consistency import Ending, Facts, Flag, ending_of, number_flags
from recorder.exact_json import counters_of
from recorder.http1 import Response, parse_response
from recorder.stream_events import (
    DONE,
    ERROR,
    FINAL,
    TOKEN,
    UNPARSABLE,
    UNTERMINATED,
    decode_native,
    decode_native_run,
    decode_openai,
    decode_openai_run,
)
from recorder.stream_tally import Events, StreamEvent, Tally
from recorder.wire import Wire

Kind = Literal["native", "openai"]

_DECODERS: Final = {"native": (decode_native, decode_native_run), "openai": (decode_openai, decode_openai_run)}
_ERROR_TEXT_CHARACTERS: Final = 64 * 1024
_TOKEN_ROLES: Final = (TOKEN, FINAL)


class StreamCounts(NamedTuple):
    """What the answer carried beside its tokens."""

    events: int = 0
    comments: int = 0
    unparsable: int = 0
    unterminated: int = 0
    ignored_lines: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DerivedRequest:
    """One request as the recorded bytes tell it.

    kind                   ``native`` or ``openai``
    outcome                ok, http_error, stream_error, truncated, timeout, refused or cancelled
    reason_code            why it is not ``ok`` (closed list, no free text); None for ``ok``
    reason                 the same as a sentence, without text from the server
    error_text             the server's own error text. Free text: blobs and tables only, never the ledger
    http_status            None if no status line came
    is_stream              an event stream; False for one JSON document; None if neither came
    sent_ns .. end_ns      see the module text; None where it did not happen
    token_ids              ids in order as the answer carried them; None where it carried none
    has_all_ids            the ids are as many as the server says it generated
    first_event_tokens     how many tokens the first token event stands for; None if unknown
    events                 every event in order
    text, reasoning_text   what was generated. Free text
    prompt_tokens          tokens of the whole prompt
    prompt_tokens_evaluated  those computed for this request (the rest came from the cache)
    cached_tokens          those taken from the cache
    generated_tokens       by the server's count, else by the ids; events are never counted as tokens
    drafted_tokens, accepted_tokens   speculative decoding; None where the server does not say
    stop_reason            ``eos``, ``limit``, ``word`` (native), ``stop``, ``length`` (OpenAI), as sent
    server_prefill_ns, server_generation_ns   the server's own timings, from the decimal text
    work                   the engine's work counters; None where it has none
    settings_json          effective ``generation_settings``, the JSON text as sent, or None
    timings_json           the ``timings`` object, likewise
    model                  model name that the server reports. Free text
    ignored_fields         request fields that the server says it ignored
    counts                 events, comments, unparsable and unterminated ones
    flags                  what does not add up (codes: consistency.py)
    """

    kind: Kind
    outcome: Outcome
    reason_code: str | None
    reason: str | None
    error_text: str | None
    http_status: int | None
    is_stream: bool | None
    sent_ns: int | None
    headers_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    done_ns: int | None
    end_ns: int | None
    token_ids: tuple[int, ...] | None
    has_all_ids: bool
    first_event_tokens: int | None
    events: Events
    text: str
    reasoning_text: str
    prompt_tokens: int | None
    prompt_tokens_evaluated: int | None
    cached_tokens: int | None
    generated_tokens: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    stop_reason: str | None
    server_prefill_ns: int | None
    server_generation_ns: int | None
    work: Mapping[str, int] | None
    settings_json: str | None
    timings_json: str | None
    model: str | None
    ignored_fields: tuple[str, ...]
    counts: StreamCounts
    flags: tuple[Flag, ...]

    @property
    def token_events(self) -> tuple[StreamEvent, ...]:
        """The events that brought tokens: by ids where the stream has any, else by text."""
        return tuple(self.events[row] for row in _token_rows(self.events)) if self.is_stream else ()

    @property
    def ttft_ns(self) -> int | None:
        """Sent to first token event; also the client's prefill time."""
        return _difference(self.sent_ns, self.first_token_ns)

    @property
    def e2e_ns(self) -> int | None:
        """Sent to the end of generation."""
        return _difference(self.sent_ns, self.done_ns)

    @property
    def client_generation_ns(self) -> int | None:
        """First to last token event; None where the first event stands for several tokens.

        The time then lacks those tokens' share, and (n - 1) / time would be too fast.
        """
        if self.first_event_tokens not in {None, 1}:
            return None
        return _difference(self.first_token_ns, self.last_token_ns)

    @property
    def tpot_ns(self) -> float | None:
        """Mean time of a token after the first."""
        time_ns, n = self.client_generation_ns, self.generated_tokens
        return None if time_ns is None or n is None or n < 2 else time_ns / (n - 1)

    @property
    def event_gaps_ns(self) -> tuple[int, ...]:
        """Gaps between consecutive token events. They are gaps of events, not of tokens."""
        return tuple(after.t_ns - before.t_ns for before, after in pairwise(self.token_events))

    @property
    def itl_ns(self) -> tuple[int, ...] | None:
        """Gaps between consecutive tokens; None where an event may hold more or less than one."""
        events = self.token_events
        if any(event.token_ids for event in events):
            is_single = self.has_all_ids and all(len(event.token_ids) == 1 for event in events)
        else:
            is_single = bool(events) and len(events) == self.generated_tokens
        return self.event_gaps_ns if is_single else None

    @property
    def events_per_token(self) -> float | None:
        """1.0 where each event is one token; per-event percentiles say nothing about tokens elsewhere."""
        return len(self.token_events) / self.generated_tokens if self.generated_tokens else None

    def measurement(self, *, workload: str, repeat: int, is_warmup: bool) -> RequestMeasurement:
        """Return the plain measurement that gates read. Incomplete ids are no ids."""
        return RequestMeasurement(
            workload=workload,
            repeat=repeat,
            is_warmup=is_warmup,
            outcome=self.outcome,
            token_ids=self.token_ids if self.has_all_ids else None,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_evaluated=self.prompt_tokens_evaluated,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            stop_reason=self.stop_reason,
            server_prefill_ns=self.server_prefill_ns,
            server_generation_ns=self.server_generation_ns,
            client_prefill_ns=self.ttft_ns,
            client_generation_ns=self.client_generation_ns,
            ttft_ns=self.ttft_ns,
            e2e_ns=self.e2e_ns,
            work=self.work,
            flags=tuple(dict.fromkeys(flag.code for flag in self.flags)),
            text_sha256=hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest(),
        )


def derive_request(wire: Wire, kind: Kind, response: Response | None = None) -> DerivedRequest:
    """Derive everything that one exchange says. Never raises, whatever the bytes are.

    ``response`` is ``parse_response(wire.reads)``, for a caller that has it already.
    """
    response = response or parse_response(wire.reads)
    tally = Tally(*_DECODERS[kind])
    answer = read_answer(response, tally, kind)
    numbers = numbers_of(tally)
    counted = numbers.generated_tokens.value
    if counted is None:
        counted = numbers.usage_generated.value
    ids = tuple(tally.ids) or None
    has_all_ids = (
        ids is not None
        and counted in {None, len(ids)}
        and not tally.faults["id_out_of_range"]
        and not any(flag.code == "running_count_differs" for flag in tally.flags)
    )
    events = tally.events
    token_rows = _token_rows(events) if answer.is_stream else ()
    first_ns, last_ns = (events.t_ns[token_rows[0]], events.t_ns[token_rows[-1]]) if token_rows else (None, None)
    first_count = tally.first_count if token_rows and events.ids[token_rows[0]] else None
    is_single = first_count in {None, 1}
    flags = (
        *tally.flags,
        *answer_flags(wire, response, tally, answer, kind),
        *token_flags(tally, counted, len(token_rows) if answer.is_stream else None, first_count),
        *number_flags(numbers),
        *timing_flags(
            numbers, _difference(wire.sent_ns, first_ns), _difference(first_ns, last_ns) if is_single else None
        ),
    )
    ending = _ending(wire, response, tally, answer, flags, ids_are_complete=has_all_ids)
    final = tally.final or {}
    verbose = final.get("__verbose")
    detail, path = (verbose, ("__verbose",)) if isinstance(verbose, dict) else (final, ())
    return DerivedRequest(
        kind=kind,
        outcome=cast("Outcome", ending.outcome),
        reason_code=ending.code,
        reason=ending.reason,
        error_text="\n".join(tally.errors)[:_ERROR_TEXT_CHARACTERS] if tally.errors else None,
        http_status=response.status,
        is_stream=answer.is_stream,
        sent_ns=wire.sent_ns,
        headers_ns=response.headers_ns,
        first_token_ns=first_ns,
        last_token_ns=last_ns,
        done_ns=tally.done_ns,
        end_ns=wire.end_ns,
        token_ids=ids,
        has_all_ids=has_all_ids,
        first_event_tokens=first_count,
        events=events,
        text="".join(tally.texts),
        reasoning_text="".join(tally.reasonings),
        prompt_tokens=numbers.prompt_tokens.value,
        prompt_tokens_evaluated=numbers.prompt_tokens_evaluated.value,
        cached_tokens=numbers.cached_tokens.value,
        generated_tokens=counted if counted is not None or ids is None else len(ids),
        drafted_tokens=numbers.drafted_tokens.value,
        accepted_tokens=numbers.accepted_tokens.value,
        stop_reason=stop_reason(final),
        server_prefill_ns=numbers.prefill_ns.value,
        server_generation_ns=numbers.generation_ns.value,
        work=counters_of(detail.get("work") or final.get("work") or tally.timings_holder.get("work")),
        settings_json=member_text(tally.final_data, detail, "generation_settings", *path),
        timings_json=member_text(tally.timings_data, tally.timings_holder, "timings"),
        model=text_or_none(final.get("model")),
        ignored_fields=names_of(detail.get("ignored_fields")),
        counts=StreamCounts(
            events=len(events),
            comments=answer.comments,
            unparsable=tally.roles[UNPARSABLE],
            unterminated=tally.roles[UNTERMINATED],
            ignored_lines=answer.ignored_lines,
        ),
        flags=flags,
    )


def _token_rows(events: Events) -> Sequence[int]:
    """Return which events brought tokens: by ids where those came along the way, else by text."""
    may = [role in _TOKEN_ROLES for role in events.roles]
    with_ids = [row for row, (ids, is_token) in enumerate(zip(events.ids, may, strict=True)) if ids and is_token]
    if len(with_ids) > 1 or (with_ids and events.roles[with_ids[0]] != FINAL):
        return with_ids
    # All ids in the final event are a list, not a time line.
    with_text = [row for row, (text, is_token) in enumerate(zip(events.texts, may, strict=True)) if text and is_token]
    return with_text if len(with_text) > 1 or not with_ids else with_ids


def _ending(
    wire: Wire, response: Response, tally: Tally, answer: Answer, flags: Sequence[Flag], *, ids_are_complete: bool
) -> Ending:
    has_tokens = bool(tally.ids or tally.texts or tally.reasonings)
    return ending_of(
        Facts(
            status=response.status,
            end_reason=wire.end_reason,
            is_cut=wire.is_cut,
            has_reads=bool(wire.reads),
            http_problem=response.problem is not None,
            body_is_whole=body_is_whole(wire, response),
            has_error=bool(tally.roles[ERROR]),
            has_end=tally.final is not None or bool(tally.roles[DONE]),
            is_usable=answer.is_usable,
            has_tokens=has_tokens,
            asked_for_none=not has_tokens and asked_for_none(wire.request),
            codes=frozenset(flag.code for flag in flags),
            ids_are_complete=ids_are_complete,
        )
    )


def _difference(start_ns: int | None, end_ns: int | None) -> int | None:
    return None if start_ns is None or end_ns is None else end_ns - start_ns
