"""Mistakes that users of other measuring tools reported, each as a small stream of our own.

The number is that of the complaint in the project's list; the upstream report is named with it. Every test
states the right time to the first token, number of tokens and outcome.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from recorder.derive import DerivedRequest, derive_request
from recorder.wire import Wire, read_wire

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
MS = 1_000_000
ROLE = {"role": "assistant", "content": ""}


def native(events, **options) -> DerivedRequest:
    return derive_request(S.exchange(events, **options), "native")


def openai(events, **options) -> DerivedRequest:
    return derive_request(S.exchange(events, **options), "openai")


def raw(reads: list[tuple[int, bytes]], kind: str = "native") -> DerivedRequest:
    """An event stream without chunks: reads are (ms, bytes), the head comes with the first millisecond."""
    wire = read_wire(S.record([(1 * MS, S.head()), *((ms * MS, data) for ms, data in reads)], end=("closed", 10**10)))
    return derive_request(wire, kind)


def assert_is(request: DerivedRequest, *, ttft_ms: int | None, tokens: int | None, outcome: str = "ok") -> None:
    assert request.ttft_ns == (None if ttft_ms is None else ttft_ms * MS)
    assert request.generated_tokens == tokens
    assert request.outcome == outcome


def usage(tokens: int, prompt: int = 4) -> dict[str, object]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": tokens + prompt}}


def chat_of(texts: list[tuple[int, str]], *, total: int, tail_ms: int = 1) -> list[tuple[int, bytes]]:
    """A whole chat: role at 2 ms, texts, finish reason, usage, [DONE]."""
    last = texts[-1][0] if texts else 2
    events = [(2, S.chat(ROLE)), *((ms, S.chat({"content": text})) for ms, text in texts)]
    return [
        *events,
        (last + 1, S.chat({}, finish="stop")),
        (last + 1 + tail_ms, S.chat(None, **usage(total))),
        (last + 2 + tail_ms, S.DONE),
    ]


def test_01_a_role_only_chunk_is_not_the_first_token() -> None:
    """vllm 3768."""
    assert_is(openai(chat_of([(80, "Hi"), (90, "!")], total=2)), ttft_ms=80, tokens=2)


def test_02_a_role_chunk_sent_at_accept_neither_is_the_ttft_nor_makes_it_an_itl() -> None:
    """ROCm/ATOM 1710."""
    request = openai(chat_of([(500, "a"), (510, "b"), (520, "c")], total=3))
    assert_is(request, ttft_ms=500, tokens=3)
    assert request.itl_ns == (10 * MS, 10 * MS)


def test_03_a_prelude_a_keepalive_and_frames_cut_inside_json_do_not_move_the_ttft() -> None:
    """sglang 29251."""
    event = S.token(11, "a", 1)
    reads = [
        (2, b": keepalive\n\n"),
        (3, b"event: prelude\n\n"),
        (40, event[:17]),
        (60, event[17:]),
        (70, S.token(12, "b", 2)),
        (71, S.final(2)),
    ]
    assert_is(raw(reads), ttft_ms=60, tokens=2)


def test_04_the_final_usage_chunk_does_not_overwrite_the_ttft() -> None:
    """sgl genai-bench 44."""
    assert_is(openai(chat_of([(30, "a"), (40, "b")], total=2, tail_ms=500)), ttft_ms=30, tokens=2)


def test_05_a_trailing_usage_chunk_extends_nothing() -> None:
    """vllm 55508."""
    early, late = (openai(chat_of([(30, "a"), (40, "b")], total=2, tail_ms=tail)) for tail in (1, 900))
    assert early.e2e_ns == late.e2e_ns == 41 * MS
    assert early.client_generation_ns == late.client_generation_ns == 10 * MS
    assert_is(late, ttft_ms=30, tokens=2)


def test_06_times_are_those_of_the_reads_an_error_event_is_an_error_and_201_is_a_success() -> None:
    """tugot17/tokenomics 16. Reasoning tokens are inside the completion count and are not counted again."""
    together = raw([(50, S.token(1, "a", 1) + S.token(2, "b", 2)), (60, S.final(2))])
    assert [event.t_ns for event in together.token_events] == [50 * MS, 50 * MS]
    assert_is(together, ttft_ms=50, tokens=2)
    failed = openai([(10, S.chat({"content": "a"})), (20, b'event: error\ndata: {"message":"boom"}\n\n')])
    assert_is(failed, ttft_ms=10, tokens=None, outcome="stream_error")
    assert failed.error_text == "boom"
    details = usage(3) | {"timings": None}
    details["usage"]["completion_tokens_details"] = {"reasoning_tokens": 2}
    thinking = openai(
        [(10, S.chat({"reasoning_content": "h"})), (20, S.chat({"reasoning_content": "m"})), (30, S.chat({"content": "x"})),
         (31, S.chat({}, finish="stop")), (32, S.chat(None, **details)), (33, S.DONE)]
    )  # fmt: skip
    assert_is(thinking, ttft_ms=10, tokens=3)
    created = [
        (1, S.chunked_head(201)),
        *((ms * MS, S.chunk(data)) for ms, data in S.good_events()),
        (40 * MS, S.LAST_CHUNK),
    ]
    assert_is(derive_request(read_wire(S.record(created)), "native"), ttft_ms=10, tokens=3)


def test_07_an_error_inside_a_200_is_no_success_and_has_no_ttft() -> None:
    """guidellm 743."""
    request = openai([(5, S.sse({"error": {"message": "out of memory", "code": 500}})), (6, S.DONE)])
    assert_is(request, ttft_ms=None, tokens=None, outcome="stream_error")
    assert request.reason_code == "server_error"
    assert request.error_text == "out of memory"


def test_08_bare_colon_comments_break_nothing() -> None:
    """llama.cpp 24013 (a ping every 30 s), ollama 16443, mistral-vibe 762 and 794, coder 28185."""
    reads = [
        (2, b":\n\n"),
        (10, S.token(1, "a", 1)),
        (15, b":\n"),
        (16, b": ping\n\n"),
        (20, S.token(2, "b", 2)),
        (21, S.final(2)),
    ]
    request = raw(reads)
    assert_is(request, ttft_ms=10, tokens=2)
    assert (request.counts.comments, request.flags) == (3, ())


def test_09_a_comment_with_a_blank_line_dispatches_no_empty_event() -> None:
    """openai-python 2722."""
    request = raw([(2, b": hello\n\n\n\n"), (10, S.token(1, "a", 1)), (11, S.final(1))])
    assert [event.role for event in request.events] == ["token", "final"]
    assert_is(request, ttft_ms=10, tokens=1)


@pytest.mark.parametrize(
    "done", [b"data: [DONE]\r\n\r\n", b"data: [DONE] \n\n", b"data:[DONE]\n\n", b"data: [DONE]\r\r", b"data: [DONE]"]
)
def test_10_done_is_known_in_every_spelling(done: bytes) -> None:
    """mistral-vibe 770 and 793, ogx 4744."""
    request = openai([*chat_of([(10, "a")], total=1)[:-1], (14, done)])
    assert_is(request, ttft_ms=10, tokens=1)
    assert (request.events[-1].role, request.counts.unparsable, request.flags) == ("done", 0, ())


def test_11_a_character_split_over_chunks_is_whole_and_unchanged() -> None:
    """vllm 38717, 38732 and 50868."""
    event = S.token(1, "X", 1).replace(b"X", "é😀".encode())
    for cut in range(1, len(event)):
        request = raw([(10, event[:cut]), (20, event[cut:]), (21, S.final(1))])
        assert request.text == "é😀"
        assert_is(request, ttft_ms=20, tokens=1)


def test_12_a_server_that_splits_a_character_over_events_loses_no_token() -> None:
    """llama.cpp 28926."""
    smile = "😀".encode()
    request = native(
        [
            (10, S.token(1, "X", 1).replace(b"X", smile[:3])),
            (20, S.token(2, "X", 2).replace(b"X", smile[3:])),
            (21, S.final(2)),
        ]
    )
    assert_is(request, ttft_ms=10, tokens=2)
    assert request.token_ids == (1, 2)
    assert "invalid_utf8" in {flag.code for flag in request.flags}


def test_13_a_network_read_is_not_a_line() -> None:
    """tau2-bench 503."""
    whole = b"".join(data for _, data in S.good_events())
    single_bytes = raw([(10 + index, whole[index : index + 1]) for index in range(len(whole))])
    one_read = raw([(10, whole)])
    assert single_bytes.token_ids == one_read.token_ids == (11, 12, 13)
    assert_is(one_read, ttft_ms=10, tokens=3)
    first = len(S.good_events()[0][1])
    assert_is(single_bytes, ttft_ms=10 + first - 1, tokens=3)


def test_14_a_stream_without_content_is_a_record_without_ttft() -> None:
    """tensorzero 4961."""
    request = openai([(2, S.chat(ROLE)), (3, S.chat({}, finish="stop")), (4, S.DONE)])
    assert_is(request, ttft_ms=None, tokens=None, outcome="stream_error")
    assert request.reason_code == "no_tokens"
    assert request.measurement(workload="w", repeat=1, is_warmup=False).e2e_ns == 3 * MS


def test_15_an_error_body_is_kept() -> None:
    """amd/gaia 3501. As a body, as an event, and as the field that llama-server once used."""
    body = json.dumps(
        {"error": {"code": 400, "message": "context too small", "type": "exceed_context_size_error"}}
    ).encode()
    reads = [(3 * MS, S.head(400, "application/json", f"Content-Length: {len(body)}") + body)]
    refused = derive_request(read_wire(S.record(reads)), "native")
    assert_is(refused, ttft_ms=None, tokens=None, outcome="http_error")
    assert (refused.http_status, refused.error_text) == (400, "context too small")
    field = raw([(10, S.token(1, "a", 1)), (20, b'error: {"code":500,"message":"slot died"}\n\n')])
    assert_is(field, ttft_ms=10, tokens=1, outcome="stream_error")
    assert field.error_text == "slot died"
    text = raw([(3, S.sse({"error": "plain words"}))])
    assert (text.error_text, text.outcome) == ("plain words", "stream_error")


def test_16_chunks_of_speculative_decoding_are_not_tokens() -> None:
    """llama-benchy 11: 5.51 instead of 25.16 tokens/s."""
    events = [
        (10, S.token(1, "a", 1)),
        (20, S.sse({"content": "bcd", "tokens": [2, 3, 4], "tokens_predicted": 4})),
        (30, S.sse({"content": "efgh", "tokens": [5, 6, 7, 8], "tokens_predicted": 8})),
        (31, S.final(8, timings=S.TIMINGS | {"predicted_n": 8, "draft_n": 9, "draft_n_accepted": 5})),
    ]
    request = native(events)
    assert_is(request, ttft_ms=10, tokens=8)
    assert (request.client_generation_ns, request.tpot_ns) == (20 * MS, 20 * MS / 7)
    assert (request.drafted_tokens, request.accepted_tokens) == (9, 5)
    assert request.itl_ns is None


def test_17_deltas_are_never_tokenised_again() -> None:
    """llama-benchy 18: "Hel" and "lo" are one token."""
    request = openai(chat_of([(10, "Hel"), (20, "lo")], total=1))
    assert_is(request, ttft_ms=10, tokens=1)
    assert request.tpot_ns is None


def test_18_peaks_are_not_made_from_chunks() -> None:
    """vllm 50677, sglang 26826. Gaps of events are offered, gaps of tokens are not."""
    request = openai(chat_of([(10, "one two three"), (11, " four"), (40, " five six seven")], total=7))
    assert_is(request, ttft_ms=10, tokens=7)
    assert (request.itl_ns, request.event_gaps_ns) == (None, (1 * MS, 29 * MS))


def test_19_a_200_without_a_token_is_no_success() -> None:
    """sglang 40555."""
    request = openai([(2, S.chat(ROLE)), (3, S.chat({}, finish="stop")), (4, S.chat(None, **usage(0))), (5, S.DONE)])
    assert_is(request, ttft_ms=None, tokens=0, outcome="stream_error")


def test_20_the_ratio_of_events_to_tokens_is_there() -> None:
    """paiml/probar 27."""
    assert openai(chat_of([(10, "a b"), (20, "c d")], total=4)).events_per_token == 0.5
    request = openai(chat_of([(10, "a"), (20, "b")], total=2))
    assert request.events_per_token == 1.0
    assert_is(request, ttft_ms=10, tokens=2)


def test_21_tokens_that_hide_in_the_first_event_make_no_rate() -> None:
    """FastDeploy 8113."""
    events = [
        (50, S.sse({"content": "abc", "tokens": [1, 2, 3], "tokens_predicted": 3})),
        (60, S.token(4, "d", 4)),
        (61, S.final(4)),
    ]
    request = native(events)
    assert_is(request, ttft_ms=50, tokens=4)
    assert request.first_event_tokens == 3
    assert (request.client_generation_ns, request.tpot_ns, request.itl_ns) == (None, None, None)
    assert "first_event_holds_tokens" in {flag.code for flag in request.flags}


def test_22_the_servers_prompt_count_holds_and_repeated_usage_is_not_added_up() -> None:
    """guidellm 75, ogx 5122."""
    events = [
        (2, S.chat(ROLE, **usage(0, 31))),
        (10, S.chat({"content": "a"}, **usage(1, 31))),
        (20, S.chat({"content": "b"}, **usage(2, 31))),
        (21, S.chat({}, finish="stop", **usage(2, 31))),
        (22, S.chat(None, **usage(2, 31))),
        (23, S.DONE),
    ]
    request = openai(events)
    assert_is(request, ttft_ms=10, tokens=2)
    assert request.prompt_tokens == 31
    assert request.flags == ()


def test_23_without_ids_there_are_no_ids() -> None:
    """sglang 30917, sparkinfer 925: text is never tokenised back into ids."""
    request = openai(chat_of([(10, "a"), (20, "b")], total=2))
    assert_is(request, ttft_ms=10, tokens=2)
    assert request.token_ids is None
    assert request.measurement(workload="w", repeat=1, is_warmup=False).token_ids is None


def test_25_accepted_drafts_counted_past_the_stop_are_flagged_and_not_mended() -> None:
    """mlx-vlm 2324."""
    timings = S.TIMINGS | {"predicted_n": 3, "draft_n": 8, "draft_n_accepted": 5}
    request = native([*S.good_events()[:3], (31, S.final(3, timings=timings))])
    assert_is(request, ttft_ms=10, tokens=3)
    assert (request.drafted_tokens, request.accepted_tokens) == (8, 5)
    assert ("accepted_exceeds_generated", 3, 5) in request.flags


def test_26_generation_time_booked_as_prefill_is_flagged() -> None:
    """mlxcel 1592: 95 000 tokens/s."""
    events = [
        (10, S.token(1, "a", 1)),
        (110, S.token(2, "b", 2)),
        (111, S.final(2, timings=S.TIMINGS | {"prompt_ms": 110.0, "predicted_ms": 0.02})),
    ]
    request = native(events)
    assert {flag.code for flag in request.flags} >= {"prefill_disagreement", "generation_disagreement"}


def test_a_request_that_was_never_answered_is_still_a_record() -> None:
    wire = Wire(request=S.REQUEST, sent_ns=None, reads=(), end_ns=5, end_reason="refused", is_cut=False)
    assert_is(derive_request(wire, "native"), ttft_ms=None, tokens=None, outcome="refused")
