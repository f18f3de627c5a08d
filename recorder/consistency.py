"""Whether the parts of one request's answer agree, and what the exchange's outcome is.

Flag codes (closed list; a flag alone does not change the outcome):

========================== ================================================================== ==========
code                       meaning                                                            numbers
========================== ================================================================== ==========
ids_lost                   fewer ids in the stream than the server says it generated          said, seen
ids_doubled                more ids than that                                                 said, seen
running_count_differs      first event where the server's running count is not ours           said, seen
ids_repeated_in_final      the final event repeats ids that had already come                  -, repeated
ids_after_end              ids or text behind the final event                                 -, events
duplicate_final            more than one final event                                          1, seen
finals_differ              ... and they do not give the same counts                           first, other
id_out_of_range            token ids that are no ids                                          -, events
wrong_type                 members of the wrong type                                          -, events
invalid_utf8               events whose bytes are not UTF-8                                   -, events
several_choices            events of other choices, not read                                  -, events
unparsable_events          events that are not JSON of a known form                           -, events
unterminated_event         the stream ended inside an event                                   -, 1
events_after_done          events behind ``[DONE]``                                           -, events
missing_done               no ``[DONE]`` at the end of an OpenAI stream
no_finish_reason           ``[DONE]`` without a finish reason before it
usage_decreased            a later usage chunk counts less than an earlier one                first, other
counts_disagree            usage and timings count generated tokens differently               usage, timings
prompt_counts_disagree     prompt tokens are not evaluated plus cached                        total, sum
count_faulty               a count that is negative, huge, not finite or not a number         -, counts
timing_faulty              a timing of that kind                                              -, timings
accepted_exceeds_drafted   more drafts accepted than made                                     drafted, acc.
accepted_exceeds_generated drafts counted past the stop                                       gener., acc.
first_event_holds_tokens   tokens hide inside the TTFT                                        1, tokens
events_are_not_tokens      no ids, and events are not as many as tokens                       tokens, events
prefill_disagreement       server and client prefill times differ by over max(2 %, 20 ms)     server, client
generation_disagreement    the same for generation                                            server, client
wire_damaged               the recording breaks its own framing                               -, problems
time_steps_back            a later read has an earlier time
unexpected_content_type    neither an event stream nor JSON
extra_bytes                bytes behind the end of the HTTP message                           0, bytes
========================== ================================================================== ==========
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from recorder.exact_json import Number

Outcome = str


class Flag(NamedTuple):
    """Something that does not add up. ``code`` is from the list above; no free text."""

    code: str
    expected: int | None = None
    found: int | None = None


class Ending(NamedTuple):
    """How an exchange ended: outcome, reason code (closed list), reason as a sentence without server text."""

    outcome: Outcome
    code: str | None = None
    reason: str | None = None


OK: Final = Ending("ok")

_BY_END: Final[dict[str, Ending]] = {
    "refused": Ending("refused", "connection_refused", "no connection could be made"),
    "total_timeout": Ending("timeout", "total_timeout", "the time limit of the request passed"),
    "idle_timeout": Ending("timeout", "idle_timeout", "the server sent nothing for longer than the idle limit"),
    "cancelled": Ending("cancelled", "cancelled", "the request was given up"),
}


class Numbers(NamedTuple):
    """Every number that the server gave, faults included, before any is believed."""

    prompt_tokens: Number
    prompt_tokens_evaluated: Number
    cached_tokens: Number
    generated_tokens: Number
    usage_generated: Number
    drafted_tokens: Number
    accepted_tokens: Number
    prefill_ns: Number
    generation_ns: Number


def number_flags(numbers: Numbers) -> Iterator[Flag]:
    """Compare the server's numbers with each other."""
    timings = (numbers.prefill_ns, numbers.generation_ns)
    faulty = sum(number.fault is not None for number in numbers)
    faulty_timings = sum(number.fault is not None for number in timings)
    if faulty > faulty_timings:
        yield Flag("count_faulty", None, faulty - faulty_timings)
    if faulty_timings:
        yield Flag("timing_faulty", None, faulty_timings)
    usage, counted = numbers.usage_generated.value, numbers.generated_tokens.value
    if usage is not None and counted is not None and usage != counted:
        yield Flag("counts_disagree", usage, counted)
    total, evaluated, cached = (
        numbers.prompt_tokens.value,
        numbers.prompt_tokens_evaluated.value,
        numbers.cached_tokens.value,
    )
    if total is not None and evaluated is not None and cached is not None and total != evaluated + cached:
        yield Flag("prompt_counts_disagree", total, evaluated + cached)
    drafted, accepted = numbers.drafted_tokens.value, numbers.accepted_tokens.value
    if accepted is not None:
        if drafted is not None and accepted > drafted:
            yield Flag("accepted_exceeds_drafted", drafted, accepted)
        if counted is not None and accepted > counted:
            yield Flag("accepted_exceeds_generated", counted, accepted)


class Facts(NamedTuple):
    """What decides the outcome. ``asked_for_none`` says that the request wanted no tokens."""

    status: int | None
    end_reason: str | None
    is_cut: bool
    has_reads: bool
    http_problem: bool
    body_is_whole: bool
    has_error: bool
    has_end: bool
    is_usable: bool
    has_tokens: bool
    asked_for_none: bool
    codes: frozenset[str]
    ids_are_complete: bool


def ending_of(facts: Facts) -> Ending:
    """Return the outcome. The first rule that applies decides.

    1. no connection  2. an HTTP status that is not 2xx  3. an answer that is not HTTP  4. an error inside
    the answer  5. a limit passed, or given up  6. the answer or its recording stops early  7. the answer
    contradicts itself  8. nothing was generated.
    """
    by_end = _BY_END.get(facts.end_reason or "")
    if by_end is not None and by_end.outcome == "refused" and not facts.has_reads:
        return by_end
    if facts.status is not None and not 200 <= facts.status < 300:
        return Ending("http_error", "http_status", f"the server answered with HTTP status {facts.status}")
    if facts.http_problem:
        return Ending("stream_error", "http_malformed", "the answer breaks the rules of HTTP")
    if facts.has_error:
        return Ending("stream_error", "server_error", "the server reported an error inside its answer")
    if by_end is not None:
        return by_end
    return _early_end(facts) or _contradiction(facts) or OK


def _early_end(facts: Facts) -> Ending | None:
    if facts.is_cut:
        return Ending("truncated", "recording_cut", "the recording stops before the end of the exchange")
    if facts.status is None:
        return Ending("truncated", "no_response", "the connection ended without an answer")
    if not facts.body_is_whole:
        return Ending("truncated", "body_cut", "the connection ended in the middle of the answer")
    if not facts.is_usable:
        return Ending("stream_error", "unusable_document", "the answer is not a document of a known form")
    if not facts.has_end:
        if "unparsable_events" in facts.codes:
            return Ending("stream_error", "unparsable_events", "the stream holds events that cannot be read")
        return Ending("truncated", "no_final_event", "the stream ended without its final event")
    return None


def _contradiction(facts: Facts) -> Ending | None:
    codes = facts.codes
    if "id_out_of_range" in codes:
        return Ending("stream_error", "id_out_of_range", "the stream holds token ids that are no ids")
    if "ids_after_end" in codes:
        return Ending("stream_error", "ids_after_end", "tokens came behind the final event")
    if "finals_differ" in codes:
        return Ending("stream_error", "finals_differ", "two final events contradict each other")
    if "ids_doubled" in codes:
        return Ending("stream_error", "ids_doubled", "the stream holds more token ids than were generated")
    if "unparsable_events" in codes and not facts.ids_are_complete:
        return Ending("stream_error", "unparsable_events", "the stream holds events that cannot be read")
    if not facts.has_tokens and not facts.asked_for_none:
        return Ending("stream_error", "no_tokens", "the server answered without a token")
    return None
