"""What a recorded exchange means."""

from __future__ import annotations

import json
import runpy
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recorder.derive import DerivedRequest, derive_request
from recorder.exact_json import count_of, counters_of, ns_of_ms, parse_exact
from recorder.wire import Read, Wire, read_wire

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"
MS = 1_000_000


def native(events, **options) -> DerivedRequest:
    return derive_request(S.exchange(events, **options), "native")


def openai(events, **options) -> DerivedRequest:
    return derive_request(S.exchange(events, **options), "openai")


def codes(request: DerivedRequest) -> set[str]:
    return {flag.code for flag in request.flags}


def flag(request: DerivedRequest, code: str) -> tuple[int | None, int | None]:
    return next((one.expected, one.found) for one in request.flags if one.code == code)


def captured(name: str) -> DerivedRequest:
    kind = "native" if name.startswith("native") else "openai"
    return derive_request(read_wire((GOLDEN / f"{name}.wire").read_bytes()), kind)


# --- the good case -----------------------------------------------------------------------------------------------


def test_a_good_native_stream_gives_every_number() -> None:
    request = native(S.good_events())
    assert (request.outcome, request.reason_code, request.flags) == ("ok", None, ())
    assert request.token_ids == (11, 12, 13)
    assert request.has_all_ids
    assert request.text == "abc"
    assert (request.ttft_ns, request.e2e_ns, request.client_generation_ns) == (10 * MS, 31 * MS, 20 * MS)
    assert request.itl_ns == request.event_gaps_ns == (10 * MS, 10 * MS)
    assert request.tpot_ns == 10 * MS
    assert request.events_per_token == 1.0
    assert (request.server_prefill_ns, request.server_generation_ns) == (10 * MS, 20 * MS)
    assert (request.prompt_tokens, request.prompt_tokens_evaluated, request.cached_tokens) == (5, 5, 0)
    assert (request.generated_tokens, request.drafted_tokens, request.accepted_tokens) == (3, None, None)
    assert request.stop_reason == "limit"
    assert request.settings_json == '{"temperature":0.0}'
    assert request.model == "m"
    assert [event.role for event in request.events] == ["token", "token", "token", "final"]
    assert [event.read_index for event in request.events] == [1, 2, 3, 4]


def test_the_measurement_holds_the_same_numbers() -> None:
    work = {"n_graphs": 3, "n_flops": 2**52}
    events = [*S.good_events()[:3], (31, S.final(work=work))]
    measured = native(events).measurement(workload="cold", repeat=2, is_warmup=True)
    assert (measured.workload, measured.repeat, measured.is_warmup, measured.outcome) == ("cold", 2, True, "ok")
    assert measured.token_ids == (11, 12, 13)
    assert (measured.client_prefill_ns, measured.client_generation_ns) == (10 * MS, 20 * MS)
    assert (measured.ttft_ns, measured.e2e_ns) == (10 * MS, 31 * MS)
    assert measured.work == work


def test_counters_may_stand_beside_the_usage_of_an_openai_stream() -> None:
    counts = {
        "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        "timings": S.TIMINGS | {"predicted_n": 1},
        "work": {"n_graphs": 4},
    }
    events = [
        (10, S.text_chunk("a")),
        (20, S.text_chunk("", finish="stop")),
        (21, S.sse({"choices": []} | counts)),
        (22, S.DONE),
    ]
    request = openai(events)
    assert (request.work, request.server_prefill_ns, request.flags) == ({"n_graphs": 4}, 10 * MS, ())


def test_draft_counts_come_from_the_timings() -> None:
    timings = S.TIMINGS | {"draft_n": 4, "draft_n_accepted": 2}
    request = native([*S.good_events()[:3], (31, S.final(timings=timings))])
    assert (request.drafted_tokens, request.accepted_tokens) == (4, 2)


def test_a_json_document_instead_of_a_stream_gives_ids_and_counts_but_no_token_times() -> None:
    document = json.loads(S.final()[6:]) | {"tokens": [11, 12, 13], "content": "abc"}
    body = json.dumps(document).encode()
    reads = [(5 * MS, S.head(200, "application/json", f"Content-Length: {len(body)}") + body[:20]), (9 * MS, body[20:])]
    request = derive_request(read_wire(S.record(reads)), "native")
    assert (request.outcome, request.is_stream) == ("ok", False)
    assert request.token_ids == (11, 12, 13)
    assert (request.ttft_ns, request.client_generation_ns, request.itl_ns) == (None, None, None)
    assert request.e2e_ns == 9 * MS
    assert (request.server_generation_ns, request.text) == (20 * MS, "abc")


def test_the_terminating_chunk_may_come_with_the_last_event_or_after_it() -> None:
    events = S.good_events()
    together = S.exchange(events[:3], ends=False)
    joined = Wire(
        request=b"",
        sent_ns=0,
        reads=(*together.reads, Read(31 * MS, S.chunk(events[3][1]) + S.LAST_CHUNK)),
        end_ns=1,
        end_reason="complete",
        is_cut=False,
    )
    assert derive_request(joined, "native").events == native(events).events


# --- what real servers sent --------------------------------------------------------------------------------------

REAL = {
    # outcome, ids, generated, prompt, evaluated, cached, stop reason and flags of each capture
    "native": ("ok", 16, 16, 5, 5, 0, "limit", set()),
    "native_plain": ("ok", 8, 8, 5, 1, 4, "limit", set()),
    "native_progress": ("ok", 6, 6, 5, 1, 4, "limit", set()),
    "native_stop": ("ok", 10, 10, 9, 9, 0, "word", set()),
    "native_emoji": (
        "ok", 4, 12, 10, 10, 0, "limit",
        {"ids_lost", "running_count_differs", "first_event_holds_tokens", "prefill_disagreement"},
    ),
    "chat": ("ok", None, 8, 31, 31, 0, "length", set()),
    "chat_ids": ("ok", None, 4, 31, 1, 30, "length", set()),
    "chat_plain": ("ok", None, 8, 31, 1, 30, "length", set()),
    "oai": ("ok", None, 8, 5, 1, 4, "length", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_captures_of_llama_server_are_read_as_they_were_meant(name: str) -> None:
    """Recorded from llama-server 10434 with SmolLM2."""
    request = captured(name)
    outcome, ids, generated, prompt, evaluated, cached, stop, flags = REAL[name]
    assert (request.outcome, codes(request)) == (outcome, flags)
    assert (None if request.token_ids is None else len(request.token_ids)) == ids
    assert (request.generated_tokens, request.prompt_tokens) == (generated, prompt)
    assert (request.prompt_tokens_evaluated, request.cached_tokens, request.stop_reason) == (evaluated, cached, stop)


def test_a_progress_report_with_a_token_field_is_no_token() -> None:
    """llama-server sends ``"tokens":[0]`` with each progress report."""
    request = captured("native_progress")
    assert [event.role for event in request.events][:3] == ["progress", "progress", "token"]
    assert request.token_ids[0] == 7042
    assert request.first_token_ns == request.events[2].t_ns


def test_a_token_before_anything_was_generated_is_none_even_without_a_progress_report() -> None:
    request = native([(2, S.token(0, "", 0)), *S.good_events()])
    assert (request.outcome, request.token_ids, request.flags) == ("ok", (11, 12, 13), ())
    assert request.ttft_ns == 10 * MS


def test_a_server_that_swallows_ids_of_split_characters_gives_no_ids_to_the_gates() -> None:
    """llama-server sends only the last id of a character that took several tokens."""
    request = captured("native_emoji")
    assert flag(request, "ids_lost") == (12, 4)
    assert request.measurement(workload="w", repeat=1, is_warmup=False).token_ids is None
    # The first event stands for three tokens: (n - 1) / time would be too fast.
    assert request.first_event_tokens == 3
    assert request.client_generation_ns is None
    assert request.itl_ns is None


def test_tokens_of_a_held_back_stop_string_are_tokens_without_text() -> None:
    request = captured("native_stop")
    assert request.token_ids[-3:] == (41, 216, 33)
    assert request.text == " 6 7 "
    assert request.last_token_ns == request.events[9].t_ns


# --- first token ----------------------------------------------------------------------------------------------------


def test_the_first_token_of_a_chat_is_its_first_text() -> None:
    events = [
        (2, S.chat({"role": "assistant", "content": None})),
        (3, S.chat({"role": "assistant", "content": ""})),
        (4, b": ping\n\n"),
        (40, S.chat({"content": "Hi"})),
        (50, S.chat({"content": "!"})),
        (55, S.chat({}, finish="stop")),
        (60, S.chat(None, usage={"prompt_tokens": 4, "completion_tokens": 2})),
        (61, S.DONE),
    ]
    request = openai(events)
    assert (request.outcome, request.flags) == ("ok", ())
    assert (request.ttft_ns, request.client_generation_ns, request.e2e_ns) == (40 * MS, 10 * MS, 55 * MS)
    assert (request.token_ids, request.generated_tokens, request.prompt_tokens) == (None, 2, 4)
    assert request.counts.comments == 1
    assert [event.role for event in request.events] == ["role", "role", "token", "token", "final", "usage", "done"]


def test_ids_in_openai_chunks_are_read() -> None:
    events = [
        (10, S.sse({"choices": [{"index": 0, "text": "a", "token_ids": [1, 2]}]})),
        (20, S.sse({"choices": [{"index": 0, "text": "b", "token_ids": [3], "finish_reason": "length"}]})),
        (21, S.sse({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 1}})),
        (22, S.DONE),
    ]
    request = openai(events)
    assert (request.token_ids, request.outcome) == ((1, 2, 3), "ok")
    assert codes(request) == {"first_event_holds_tokens"}
    assert request.last_token_ns == 20 * MS


def test_ids_that_stand_in_the_verbose_part_of_plain_chunks_are_read() -> None:
    events = [
        (ms, S.chat({"content": text}, __verbose={"tokens": [token_id], "content": text}))
        for ms, text, token_id in ((10, "a", 7), (20, "b", 8))
    ]
    request = openai(
        [*events, (21, S.chat({}, finish="stop")), (22, S.chat(None, usage={"completion_tokens": 2})), (23, S.DONE)]
    )
    assert (request.token_ids, request.has_all_ids, request.outcome) == ((7, 8), True, "ok")


def test_reasoning_and_tool_calls_are_generated_tokens() -> None:
    call = {"tool_calls": [{"function": {"arguments": "{}"}}]}
    events = [
        (10, S.chat({"reasoning_content": "hm"})),
        (20, S.chat(call)),
        (30, S.chat({}, finish="tool_calls")),
        (31, S.DONE),
    ]
    request = openai(events)
    assert (request.first_token_ns, request.last_token_ns) == (10 * MS, 20 * MS)
    assert request.reasoning_text.startswith("hm")
    assert request.text == ""


def test_a_stream_without_ids_counts_by_the_servers_word_only() -> None:
    events = [
        (10, S.sse({"content": "a", "stop": False})),
        (20, S.sse({"content": "bc", "stop": False})),
        (30, S.final()),
    ]
    request = native(events)
    assert (request.token_ids, request.generated_tokens) == (None, 3)
    assert flag(request, "events_are_not_tokens") == (3, 2)
    assert (request.itl_ns, request.event_gaps_ns) == (None, (10 * MS,))


def test_ids_that_come_only_in_the_final_event_are_ids_but_no_time_line() -> None:
    events = [(10, S.sse({"content": "a"})), (20, S.sse({"content": "b"})), (30, S.final(2, tokens=[7, 8]))]
    request = native(events)
    assert request.token_ids == (7, 8)
    assert (request.first_token_ns, request.last_token_ns) == (10 * MS, 20 * MS)


def test_the_final_event_may_carry_the_last_token() -> None:
    events = [(10, S.token(1, "a", 1)), (20, S.final(2, tokens=[2], content="b"))]
    request = native(events)
    assert (request.token_ids, request.text, request.outcome, request.flags) == ((1, 2), "ab", "ok", ())
    assert request.last_token_ns == 20 * MS


def test_a_last_token_equal_to_the_first_is_not_taken_for_a_repeated_list() -> None:
    request = native([(10, S.token(5, "a", 1)), (20, S.final(2, tokens=[5]))])
    assert (request.token_ids, request.outcome) == ((5, 5), "ok")


def test_a_final_event_that_lists_all_ids_again_adds_none() -> None:
    events = [(10, S.token(1, "a", 1)), (20, S.token(2, "b", 2)), (21, S.final(2, tokens=[1, 2]))]
    request = native(events)
    assert request.token_ids == (1, 2)
    assert codes(request) == {"ids_repeated_in_final"}


# --- contradictions ------------------------------------------------------------------------------------------------


def test_a_lost_id_is_seen_and_the_ids_are_not_used() -> None:
    events = S.good_events()
    request = native([events[0], *events[2:]])
    assert (request.outcome, request.has_all_ids) == ("ok", False)
    assert flag(request, "ids_lost") == (3, 2)
    assert flag(request, "running_count_differs") == (3, 2)


def test_a_doubled_id_makes_the_stream_an_error() -> None:
    events = S.good_events()
    request = native([*events[:2], events[1], *events[2:]])
    assert (request.outcome, request.reason_code) == ("stream_error", "ids_doubled")
    assert flag(request, "ids_doubled") == (3, 4)
    assert flag(request, "running_count_differs") == (2, 3)


def test_a_lost_and_a_doubled_id_do_not_cancel_out() -> None:
    events = [(10, S.token(11, "a", 1)), (20, S.token(11, "a", 1)), (30, S.token(13, "c", 3)), (31, S.final())]
    request = native(events)
    assert not request.has_all_ids
    assert flag(request, "running_count_differs") == (1, 2)


def test_tokens_behind_the_final_event_are_an_error() -> None:
    request = native([*S.good_events(), (40, S.token(14, "d", 4))])
    assert (request.outcome, request.reason_code) == ("stream_error", "ids_after_end")
    assert request.e2e_ns == 31 * MS


def test_two_final_events_are_flagged_and_an_error_where_they_differ() -> None:
    twice = native([*S.good_events(), (40, S.final())])
    assert (twice.outcome, codes(twice)) == ("ok", {"duplicate_final"})
    assert twice.e2e_ns == 31 * MS
    other = native([*S.good_events(), (40, S.final(4))])
    assert (other.outcome, other.reason_code) == ("stream_error", "finals_differ")


@pytest.mark.parametrize("token_id", [-1, 2**31, 1.5, "7", True, None, [1]])
def test_ids_that_are_no_ids_are_an_error(token_id: object) -> None:
    events = [(10, S.token(11, "a", 1)), (20, S.sse({"content": "b", "tokens": [12, token_id]})), (30, S.final(3))]
    request = native(events)
    assert (request.outcome, request.reason_code) == ("stream_error", "id_out_of_range")
    assert request.token_ids == (11, 12)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("NaN", True), ("Infinity", True), ("-1", True), ("1e400", True), ('"3"', True), ("true", True), ("null", False)],
)
def test_a_count_or_timing_that_is_no_number_is_absent_and_flagged(text: str, fault: bool) -> None:
    final = S.final().replace(b'"predicted_n":3', b'"predicted_n":' + text.encode())
    final = final.replace(b'"prompt_ms":10.0', b'"prompt_ms":' + text.encode())
    request = native([*S.good_events()[:3], (31, final)])
    assert request.server_prefill_ns is None
    assert request.token_ids == (11, 12, 13)
    assert codes(request) == ({"count_faulty", "timing_faulty"} if fault else set())
    assert request.outcome == "ok"
    assert request.server_generation_ns == 20 * MS


def test_counts_that_contradict_each_other_are_flagged() -> None:
    timings = S.TIMINGS | {"cache_n": 2, "draft_n": 2, "draft_n_accepted": 4}
    request = native([*S.good_events()[:3], (31, S.final(timings=timings))])
    assert flag(request, "prompt_counts_disagree") == (5, 7)
    assert flag(request, "accepted_exceeds_drafted") == (2, 4)
    assert flag(request, "accepted_exceeds_generated") == (3, 4)
    assert request.outcome == "ok"


def test_server_and_client_times_that_differ_are_flagged() -> None:
    slow = native(
        [*S.good_events()[:3], (31, S.final(timings=S.TIMINGS | {"predicted_ms": 40.000001, "prompt_ms": 0.1}))]
    )
    assert codes(slow) == {"generation_disagreement"}
    assert flag(slow, "generation_disagreement") == (40_000_001, 20 * MS)
    within = native([*S.good_events()[:3], (31, S.final(timings=S.TIMINGS | {"predicted_ms": 40.0}))])
    assert within.flags == ()


# --- endings ----------------------------------------------------------------------------------------------------


def test_every_outcome_has_its_code() -> None:
    good = S.good_events()
    cases = {
        ("refused", "connection_refused"): Wire(
            request=b"x", sent_ns=None, reads=(), end_ns=1, end_reason="refused", is_cut=False
        ),
        ("truncated", "no_response"): Wire(
            request=b"x", sent_ns=0, reads=(), end_ns=1, end_reason="closed", is_cut=False
        ),
        ("timeout", "total_timeout"): S.exchange(good[:2], ends=False, end="total_timeout"),
        ("timeout", "idle_timeout"): S.exchange(good[:2], ends=False, end="idle_timeout"),
        ("cancelled", "cancelled"): S.exchange(good[:2], ends=False, end="cancelled"),
        ("truncated", "body_cut"): S.exchange(good[:2], ends=False, end="reset"),
        ("truncated", "no_final_event"): S.exchange(good[:2]),
        ("stream_error", "http_malformed"): read_wire(S.record([(1, b"blah")])),
        ("http_error", "http_status"): read_wire(
            S.record([(1, S.head(500, "text/plain", "Content-Length: 2") + b"no")])
        ),
        ("stream_error", "unusable_document"): read_wire(
            S.record([(1, S.head(200, "application/json", "Content-Length: 2") + b"[]")])
        ),
        ("stream_error", "unparsable_events"): S.exchange([(1, b"data: {oops\n\n")]),
        ("stream_error", "server_error"): S.exchange([*good[:1], (11, S.sse({"error": {"message": "boom"}}))]),
    }
    for (outcome, code), wire in cases.items():
        request = derive_request(wire, "native")
        assert (request.outcome, request.reason_code) == (outcome, code)
        assert request.reason


def test_a_recording_that_was_cut_is_truncated_at_every_byte() -> None:
    reads = [
        (1, S.chunked_head()),
        *((ms * MS, S.chunk(data)) for ms, data in S.good_events()),
        (32 * MS, S.LAST_CHUNK),
    ]
    whole = S.record(reads)
    seen: set[int] = set()
    for length in range(len(whole)):
        request = derive_request(read_wire(whole[:length]), "native")
        assert (request.outcome, request.reason_code) == ("truncated", "recording_cut")
        assert request.token_ids in {None, (11,), (11, 12), (11, 12, 13)}
        seen.add(len(request.token_ids or ()))
    assert seen == {0, 1, 2, 3}


def test_an_early_end_keeps_the_tokens_that_came() -> None:
    request = native(S.good_events()[:2])
    assert (request.token_ids, request.generated_tokens, request.e2e_ns) == ((11, 12), 2, None)


def test_an_answer_without_a_token_is_no_success_unless_none_was_asked_for() -> None:
    request = native([(5, S.final(0))])
    assert (request.outcome, request.reason_code) == ("stream_error", "no_tokens")
    assert request.ttft_ns is None
    asked = native([(5, S.final(0))], request=b'POST / HTTP/1.1\r\n\r\n{"n_predict":0}')
    assert asked.outcome == "ok"


def test_every_2xx_status_is_a_success() -> None:
    reads = (
        [(1, S.chunked_head(201))]
        + [(ms * MS, S.chunk(data)) for ms, data in S.good_events()]
        + [(40 * MS, S.LAST_CHUNK)]
    )
    assert derive_request(read_wire(S.record(reads)), "native").outcome == "ok"


def test_a_body_without_length_ends_with_the_connection() -> None:
    reads = [(1, S.head())] + [(ms * MS, data) for ms, data in S.good_events()]
    for reason in ("complete", "closed"):
        assert derive_request(read_wire(S.record(reads, end=(reason, 10**9))), "native").outcome == "ok"
    broken = derive_request(read_wire(S.record(reads, end=("reset", 10**9))), "native")
    assert (broken.outcome, broken.reason_code) == ("truncated", "body_cut")


def test_an_unterminated_final_event_is_counted_and_ends_nothing() -> None:
    events = S.good_events()
    request = native([*events[:3], (31, events[3][1].rstrip(b"\n"))])
    assert (request.outcome, request.reason_code) == ("truncated", "no_final_event")
    assert request.counts.unterminated == 1
    assert request.generated_tokens == 3


def test_an_unterminated_token_is_never_a_token() -> None:
    request = native([(10, S.token(11, "a", 1)), (20, S.token(12, "b", 2).rstrip(b"\n"))])
    assert request.token_ids == (11,)
    assert request.events[-1].role == "unterminated"


def test_an_unterminated_done_is_accepted() -> None:
    events = [(10, S.chat({"content": "a"})), (20, S.chat({}, finish="stop")), (21, b"data: [DONE]")]
    request = openai(events)
    assert (request.outcome, request.flags, request.counts.unterminated) == ("ok", (), 0)


def test_an_unreadable_event_is_forgiven_only_where_the_counts_prove_that_nothing_is_missing() -> None:
    good = S.good_events()
    harmless = native([*good[:2], (25, b"data: what?\n\n"), *good[2:]])
    assert (harmless.outcome, codes(harmless), harmless.counts.unparsable) == ("ok", {"unparsable_events"}, 1)
    harmful = native([*good[:1], (25, b"data: what?\n\n"), *good[2:]])
    assert (harmful.outcome, harmful.reason_code) == ("stream_error", "unparsable_events")


def test_an_openai_stream_without_done_or_without_finish_reason_is_flagged() -> None:
    text = (10, S.text_chunk("a"))
    assert codes(openai([text, (20, S.text_chunk("", finish="stop"))])) == {"missing_done"}
    without = openai([text, (20, S.DONE)])
    assert (without.outcome, codes(without), without.e2e_ns) == ("ok", {"no_finish_reason"}, None)
    assert codes(openai([text, (20, S.text_chunk("", finish="stop")), (21, S.DONE), (22, S.text_chunk("x"))])) >= {
        "events_after_done",
        "ids_after_end",
    }


def test_a_stream_under_a_wrong_content_type_is_read_and_flagged() -> None:
    reads = [(1, S.head(200, None))] + [(ms * MS, data) for ms, data in S.good_events()]
    request = derive_request(read_wire(S.record(reads)), "native")
    assert (request.outcome, codes(request)) == ("ok", {"unexpected_content_type"})


# --- text that is not UTF-8 -------------------------------------------------------------------------------------


def test_a_character_that_the_server_splits_over_events_loses_no_id() -> None:
    smile = "😀".encode()
    events = [
        (10, S.token(1, "X", 1).replace(b"X", smile[:2])),
        (20, S.token(2, "X", 2).replace(b"X", smile[2:])),
        (30, S.final(2)),
    ]
    request = native(events)
    assert (request.outcome, request.token_ids) == ("ok", (1, 2))
    assert flag(request, "invalid_utf8") == (None, 2)
    assert request.text.encode("utf-8", "surrogateescape").decode() == "😀"


# --- exact numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("21.0005", 21_000_500),
        ("0.0000005", 0),
        ("0.0000015", 2),
        ("0.0000025", 2),
        ("0.00000250000000000000000000000000000000001", 3),
        ("359.351", 359_351_000),
        ("1e3", 1_000_000_000),
        ("1e12", 10**18),
        ("7", 7_000_000),
        ("0", 0),
        ("-0.0", 0),
    ],
)
def test_milliseconds_become_nanoseconds_from_their_decimal_text_halves_to_even(text: str, ns: int) -> None:
    assert ns_of_ms(parse_exact(text.encode())) == (ns, None)


@given(st.decimals(min_value=0, max_value=10**9, allow_nan=False, places=9))
def test_the_conversion_is_within_half_a_nanosecond(ms: Decimal) -> None:
    ns = ns_of_ms(ms).value
    assert abs(Decimal(ns) - ms * 10**6) <= Decimal("0.5")


def test_numbers_that_cannot_be_believed_have_a_fault() -> None:
    assert [count_of(value).fault for value in (-1, 2**31, 1.0, True, "1", Decimal("NaN"), None, 7)] == [
        "negative", "huge", "not_a_number", "not_a_number", "not_a_number", "not_finite", None, None,
    ]  # fmt: skip
    assert [ns_of_ms(value).fault for value in (Decimal(-1), Decimal("1e13"), "1", Decimal("Infinity"), True)] == [
        "negative", "huge", "not_a_number", "not_finite", "not_a_number",
    ]  # fmt: skip
    assert counters_of({"a": 1, "b": -1, "c": True, "d": "x", "e": 2**53}) == {"a": 1}
    assert counters_of([1]) is None


# --- properties -------------------------------------------------------------------------------------------------

BODY = b"".join(data for _, data in S.good_events())
MESSAGE = S.chunked_head() + b"".join(S.chunk(data) for _, data in S.good_events()) + S.LAST_CHUNK


@given(st.lists(st.integers(0, len(MESSAGE)), max_size=20))
@example(cuts=list(range(len(MESSAGE))))
def test_any_split_into_reads_gives_the_same_request_but_for_its_times(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(MESSAGE)]
    reads = [(1000 + index, MESSAGE[a:b]) for index, (a, b) in enumerate(pairwise(borders))]
    request = derive_request(read_wire(S.record(reads)), "native")
    whole = derive_request(read_wire(S.record([(1000, MESSAGE)])), "native")
    assert (request.token_ids, request.outcome, request.text) == ((11, 12, 13), "ok", "abc")
    assert [(event.role, event.token_ids, event.size_bytes) for event in request.events] == [
        (event.role, event.token_ids, event.size_bytes) for event in whole.events
    ]
    # Each event is stamped with the read that brought its last byte.
    for event, (_, data) in zip(request.events, S.good_events(), strict=True):
        place = MESSAGE.index(data) + len(data)
        read = next(index for index, border in enumerate(borders[1:]) if border >= place)
        assert (event.t_ns, event.read_index) == (1000 + read, read)


JUNK = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([S.chunked_head(), S.head(), S.head(500), S.LAST_CHUNK, S.DONE, *(data for _, data in S.good_events())]),
    st.sampled_from([b"data: ", b"data: " + b"[" * 5000 + b"\n\n", b'data: {"tokens":' + b"9" * 5000 + b"}\n\n"]),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tokens", "stop", "timings", "usage", "error", "index", "message", "__verbose",
                 "generation_settings", "text", "finish_reason", "prompt_ms", "predicted_n", "tool_calls", "work", "token_ids"]
            ),
            inner,
            max_size=4,
        ),
        max_leaves=12,
    ).map(lambda value: f"data: {json.dumps(value)}\n\n".encode()),
)  # fmt: skip


@given(
    st.lists(JUNK, max_size=6),
    st.sampled_from(["native", "openai"]),
    st.booleans(),
    st.sampled_from(["closed", "idle_timeout", "?"]),
)
def test_arbitrary_bytes_never_raise(parts: list[bytes], kind: str, has_head: bool, end: str) -> None:
    reads = [(index, data) for index, data in enumerate([S.head(), *parts] if has_head else parts)]
    request = derive_request(read_wire(S.record(reads, end=(end, 10**6))), kind)
    assert (request.outcome == "ok") == (request.reason_code is None)
    measured = request.measurement(workload="w", repeat=1, is_warmup=False)
    assert all(value is None or value >= 0 for value in (measured.server_prefill_ns, measured.generated_tokens))
    assert request.itl_ns is None or len(request.itl_ns) == max(len(request.token_events) - 1, 0)
    assert request.tpot_ns is None or request.tpot_ns >= 0


def test_the_shortcut_for_plain_tokens_gives_what_the_long_way_gives() -> None:
    """The same stream with an unknown member in each event that forces nothing, and with one that forces the exact path."""
    plain = native(S.good_events())
    events = [(ms, data.replace(b'"id_slot":0', b'"id_slot":0,"prompt_progress":{}')) for ms, data in S.good_events()]
    long = native(events)
    assert [(event.role, event.token_ids, event.text, event.t_ns) for event in long.events] == [
        (event.role, event.token_ids, event.text, event.t_ns) for event in plain.events
    ]
    assert (long.outcome, long.flags) == (plain.outcome, plain.flags)


@pytest.mark.parametrize("kind", ["native", "openai"])
def test_reports_of_a_long_prefill_are_no_tokens(kind: str) -> None:
    """As engine-server writes them, between the head and the first token: rates and gaps are those of the stream without."""
    native_shape = {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": 0, "tokens_predicted": 0}
    shape = native_shape if kind == "native" else {"choices": [], "id": "x", "object": "text_completion"}
    events = S.good_events()
    if kind == "openai":
        texts = [(10, S.text_chunk("a")), (20, S.text_chunk("b"))]
        last = S.text_chunk("", finish="length", timings=S.TIMINGS | {"predicted_n": 2}, usage={"completion_tokens": 2})
        events = [*texts, (30, last), (31, S.DONE)]
    progress = [
        (ms, S.sse(shape | {"timings": {"cache_n": 0, "prompt_n": n, "prompt_ms": float(ms), "predicted_n": 0},
                            "prompt_progress": {"total": 5, "cache": 0, "processed": n, "time_ms": ms}}))
        for ms, n in ((1, 0), (4, 3), (8, 5))
    ]  # fmt: skip
    plain, reported = (derive_request(S.exchange(one), kind) for one in (events, [*progress, *events]))
    assert [event.role for event in reported.events[:3]] == ["progress"] * 3
    assert [(event.t_ns, event.token_ids, event.text) for event in reported.token_events] == [
        (event.t_ns, event.token_ids, event.text) for event in plain.token_events
    ]
    assert (reported.outcome, reported.flags, reported.timings_json) == ("ok", plain.flags, plain.timings_json)
    assert (reported.itl_ns, reported.tpot_ns, reported.ttft_ns) == (plain.itl_ns, plain.tpot_ns, plain.ttft_ns)


@pytest.mark.parametrize("kind", ["native", "openai"])
@pytest.mark.parametrize(
    "place", ['{"error":%s}', '{"stop":true,"timings":%s}', '{"stop":true,"generation_settings":{"a":%s},"x":NaN}']
)
def test_json_that_is_nested_too_deeply_never_raises(kind: str, place: str) -> None:
    for depth in (100, 400, 700, 900, 950, 990, 1100, 100_000):
        data = (place % ("[" * depth + "]" * depth)).encode()
        assert derive_request(S.exchange([(1, b"data: " + data + b"\n\n")]), kind).outcome != "ok"
