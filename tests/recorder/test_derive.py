"""What a recorded exchange means: the good case, what real servers sent, and which event is the first token."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from recorder.derive import DerivedRequest, derive_request
from recorder.wire import Read, Wire, read_wire

S = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("streams.py"))))
native, openai, codes, flag = S.native, S.openai, S.codes, S.flag
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"
MS = 1_000_000


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
