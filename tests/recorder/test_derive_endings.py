"""Answers that contradict themselves, and how an exchange ended."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from recorder.derive import derive_request
from recorder.wire import Wire, read_wire

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
native, openai, codes, flag = S.native, S.openai, S.codes, S.flag
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"
MS = 1_000_000


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
