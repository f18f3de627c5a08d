"""Checks over a server: what the answers as they came must show, and which of them are no evidence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocols.check_rules import judge_check
from protocols.checks.answers import read_answer
from protocols.checks.capacity import CapacityCheck
from protocols.checks.restart import RestartCheck
from protocols.checks.served_recall import ServedRecallCheck
from protocols.checks.stored_reference import StoredReferenceCheck
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation

RECALL = ServedRecallCheck(kind="served_recall", id="c", distance_tokens=100, rounds=1)
RESTART = RestartCheck(kind="restart", id="c", prompt_tokens=20, generated_tokens=2)
CAPACITY = CapacityCheck(kind="capacity", id="c", context_tokens=64, generated_tokens=2)
REFERENCE = StoredReferenceCheck(kind="stored_reference", id="c", workload="w", tokens=(5, 6), drafted_tokens=4)


def body(content: str = "", tokens: tuple[int, ...] = (1, 2), **timings: int) -> str:
    return json.dumps({"content": content, "tokens": list(tokens), "stop": True, "timings": timings})


def stream(parts: list[str], **timings: int) -> str:
    events = [{"content": part, "tokens": [i], "stop": False} for i, part in enumerate(parts)]
    last = {"content": "", "tokens": [], "stop": True, "timings": timings}
    return "".join(f"data: {json.dumps(event)}\n\n" for event in [*events, last])


def row(name: str, text: str, status: int = 200) -> dict[str, Any]:
    return {"name": name, "status": status, "body": text}


def judged(check: Any, **facts: Any) -> Any:
    return judge_check(check, CheckObservation(check="c", arm="candidate", state="COMPLETE", facts=facts))


# ---------------------------------------------------------------------- answers


def test_a_streamed_answer_reads_like_a_whole_one() -> None:
    found = read_answer(row("a", stream(["x", "y"], cache_n=3, prompt_n=4, draft_n=2, draft_n_accepted=1)))
    assert (found.content, found.tokens, found.cached, found.evaluated) == ("xy", (0, 1), 3, 4)
    assert (found.drafted, found.accepted, found.problem) == (2, 1, None)


@pytest.mark.parametrize(
    ("status", "text", "problem"),
    [
        (500, "no\nmemory", "status 500: no memory"),
        (0, "no answer: ConnectionResetError", "status 0: no answer"),
        (200, "data: {}\n\ndata: {}\n\n", "the stream has no end"),
        (200, "data: nonsense", "no answer that can be read"),
        (200, "[1]", "no answer that can be read"),
        (200, "data:", "no answer that can be read"),
        (200, '{"timings": [1]}', "no answer that can be read"),
        (200, '{"tokens": [1e999]}', "no answer that can be read"),
        (200, '{"tokens": [1.5]}', "no answer that can be read"),
        (200, '{"tokens": [-1]}', "no answer that can be read"),
        (200, "[" * 100_000, "no answer that can be read"),
    ],
)
def test_what_is_no_whole_answer_says_why(status: int, text: str, problem: str) -> None:
    assert problem in str(read_answer(row("a", text, status)).problem)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("text", ["\u2028", "\x85", "\u2029 x"])
def test_a_line_separator_within_a_text_ends_no_event(text: str, end: str) -> None:
    event = json.dumps({"content": text, "tokens": [1], "stop": True}, ensure_ascii=False)
    found = read_answer(row("a", f"data: {event}{end}"))
    assert (found.content, found.tokens, found.problem) == (text, (1,), None)


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", 10**30])
def test_what_no_record_can_hold_is_no_count(count: Any) -> None:
    assert read_answer(row("a", body(cache_n=count))).cached is None


# ---------------------------------------------------------------------- recall


def conversation(**changes: Any) -> dict[str, Any]:
    """Facts of two conversations in two slots whose codes all come back."""
    answers = {
        "1.1 first": stream([" red", " fox"], cache_n=0),
        "1.2 first": body(" blue cat", cache_n=0),
        "1.1 follow-up": body(" tall oak", cache_n=105),
        "1.2 follow-up": stream([" wet", " dog"], cache_n=100),
    } | changes
    codes = {"1.1": [" red fox", " tall oak"], "1.2": [" blue cat", " wet dog"]}
    conversations = [
        {"name": name, "codes": code, "cached_first": [0, 1], "cached_follow_up": [100, 108]}
        for name, code in codes.items()
    ]
    return {"conversations": conversations, "exchanges": [row(name, text) for name, text in answers.items()]}


@pytest.mark.parametrize(
    "bounds", [[0], [0, 1, 2], [1, 0], [-1, 1], [False, True], [0, 1.0], ["0", "1"], [None, 1], []]
)
def test_bounds_of_the_cache_that_are_none_are_no_evidence(bounds: list[Any]) -> None:
    facts = conversation()
    facts["conversations"][0]["cached_first"] = bounds
    with pytest.raises(EvidenceError, match="no bounds of what the cache may give"):
        judged(RECALL, **facts)


def test_served_recall_passes_where_every_code_came_back() -> None:
    outcome = judged(RECALL, **conversation())
    assert (outcome.status, outcome.inputs["recalled"]) == ("PASS", 4), outcome.reason


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("1.1 first", stream([" red", " hen"], cache_n=0), "codes lost (round.slot turn): 1.1 first"),
        (
            "1.1 first",
            body(" red fox and blue cat", cache_n=0),
            "replies that give another conversation's code: 1.1 first",
        ),
        ("1.2 first", body(" blue cat", cache_n=2), "1.2 first took 2 tokens from the cache, expected 0 to 1"),
        (
            "1.2 follow-up",
            body(" wet dog", cache_n=0),
            "1.2 follow-up took 0 tokens from the cache, expected 100 to 108",
        ),
        ("1.1 follow-up", "data: {}\n\ndata: {}", "no whole answer: 1.1 follow-up: the stream has no end"),
    ],
)
def test_served_recall_names_what_went_wrong(name: str, answer: str, words: str) -> None:
    outcome = judged(RECALL, **conversation(**{name: answer}))
    assert (outcome.status, words in outcome.reason) == ("FAIL", True), outcome.reason


def test_a_cache_that_is_not_reused_may_be_allowed_and_one_that_holds_too_much_never_is() -> None:
    lax = RECALL.model_copy(update={"must_reuse": False})
    facts = conversation(**{"1.2 follow-up": body(" wet dog", cache_n=0)})
    assert (judged(RECALL, **facts).status, judged(lax, **facts).status) == ("FAIL", "PASS")
    assert judged(lax, **conversation(**{"1.2 first": body(" blue cat", cache_n=2)})).status == "FAIL"


def test_an_empty_code_is_no_evidence_because_every_reply_holds_it() -> None:
    facts = conversation()
    facts["conversations"][0]["codes"][0] = " "
    with pytest.raises(EvidenceError, match="no code"):
        judged(RECALL, **facts)


def test_a_conversation_that_is_missing_is_no_evidence() -> None:
    facts = conversation()
    with pytest.raises(EvidenceError, match="expected 2"):
        judged(RECALL, **facts | {"conversations": facts["conversations"][:1]})
    with pytest.raises(EvidenceError, match="recorded twice"):
        judged(RECALL, **facts | {"exchanges": [facts["exchanges"][0]] * 4})


@pytest.mark.parametrize("change", [{"codes": []}, {"codes": ["red", "oak", "dog"]}])
def test_facts_of_another_shape_are_no_evidence(change: dict[str, Any]) -> None:
    facts = conversation()
    facts["conversations"][0] |= change
    with pytest.raises(EvidenceError, match="the check c left has not the form"):
        judged(RECALL, **facts)


# ---------------------------------------------------------------------- restart


def restarted(**changes: str) -> dict[str, Any]:
    answers = {
        "prompt": body(cache_n=0), "save": body(), "continued": body(tokens=(7, 8), cache_n=20),
        "cold": body(tokens=(7, 8), cache_n=0), "erase": body(), "restore": body(),
        "restored": body(tokens=(7, 8), cache_n=20),
    } | changes  # fmt: skip
    return {"exchanges": [row(name, text) for name, text in answers.items()], "killed_by": "SIGKILL"}


def test_a_restart_passes_where_the_file_alone_brings_the_conversation_back() -> None:
    assert judged(RESTART, **restarted()).status == "PASS"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cold": body(tokens=(7, 8), cache_n=20)}, "had 20 tokens in a cache before anything was restored"),
        (
            {"restored": body(tokens=(7, 9), cache_n=20)},
            "the restored answer has other tokens than the uninterrupted one (token 1: 8 and 9)",
        ),
        ({"restored": body(tokens=(7, 8), cache_n=0)}, "the restored slot gave 0 tokens, expected 20 or more"),
        ({"restore": "nonsense"}, "restore: no answer that can be read"),
    ],
)
def test_a_restart_names_what_went_wrong(changes: dict[str, str], words: str) -> None:
    outcome = judged(RESTART, **restarted(**changes))
    assert (outcome.status, words in outcome.reason) == ("FAIL", True), outcome.reason


# ---------------------------------------------------------------------- capacity


def filled(**changes: Any) -> dict[str, Any]:
    return {
        "context_tokens": 64, "lowest_available_mib": 900, "was_stopped": False, "health_status": 200,
        "whole": row("whole", body(cache_n=0, prompt_n=62)), "over": row("over", "{}", 400),
    } | changes  # fmt: skip


def test_a_context_that_fills_passes() -> None:
    assert judged(CAPACITY, **filled()).status == "PASS"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"was_stopped": True, "lowest_available_mib": 100},
            "100 MiB of memory were available, and the floor is 512 MiB",
        ),
        ({"whole": row("whole", "no room", 500)}, "A prompt of 62 tokens was not served: status 500: no room"),
        ({"whole": row("whole", body(cache_n=0, prompt_n=61))}, "the engine counts 61 prompt tokens, 62 were sent"),
        ({"whole": row("whole", body(tokens=(1,), prompt_n=62))}, "1 tokens were generated, expected 2"),
        ({"over": row("over", body(), 200)}, "a prompt of 65 tokens got status 200, expected a refusal"),
        ({"health_status": 0}, "the server does not answer any more"),
        ({"lowest_available_mib": 511}, "511 MiB of memory were available, and the floor is 512 MiB"),
    ],
)
def test_capacity_names_what_went_wrong(changes: dict[str, Any], words: str) -> None:
    outcome = judged(CAPACITY, **filled(**changes))
    assert (outcome.status, words in outcome.reason) == ("FAIL", True), outcome.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"was_stopped": "no"}, "left no was_stopped"),
        ({"was_stopped": True}, "stopped at its floor of 512 MiB, and 900 MiB were available"),
        ({"context_tokens": 32}, "filled a context of 32 tokens, expected 64"),
    ],
)
def test_capacity_that_contradicts_itself_is_no_evidence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        judged(CAPACITY, **filled(**changes))


# ---------------------------------------------------------------------- stored reference


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (body(tokens=(5, 6, 7), draft_n=4), "PASS", "The first 2 tokens are those of the reference."),
        (body(tokens=(5, 7), draft_n=4), "FAIL", "Token 1 is 7, and the reference has 6."),
        (body(tokens=(5,), draft_n=4), "FAIL", "Token 1 is nothing, and the reference has 6."),
        (body(tokens=(5, 6), draft_n=3), "FAIL", "3 tokens were drafted, and the reference has 4."),
        (body(tokens=(5, 6)), "NOT_RUN", "the engine states no drafted tokens"),
        (body(tokens=()), "NOT_RUN", "The answer has no token ids."),
        ("nonsense", "FAIL", "The request was not answered"),
    ],
)
def test_a_stored_reference_is_compared_id_by_id_and_count_by_count(text: str, status: str, words: str) -> None:
    outcome = judged(REFERENCE, exchanges=[row("w", text)])
    assert (outcome.status, words in outcome.reason) == (status, True), outcome.reason
