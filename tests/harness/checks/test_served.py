"""Each check over a server: a sound build passes, a faulty one or a scripted engine does not, and what lacks is named."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from qwen_faulty import built

from harness.checks import capacity

FAKE = "{kind: llama-server, path: engines/fake_engine.py}"


def test_every_slot_gives_its_own_codes_back_and_a_leak_is_found(
    prepared: Any, outcome: Any, recall_model: Any
) -> None:
    check = "kind: served_recall, distance_tokens: 400, rounds: 2, kv_mode: unified"
    made = prepared(check, model=recall_model, faulty=built("qwen-position", "position-only-blocks"))
    sound = outcome(made, "baseline")
    assert (sound.status, sound.inputs["recalled"]) == ("PASS", 8), sound.reason
    assert outcome(made).status == "FAIL"


def test_an_engine_that_ignores_its_prompt_recalls_nothing(prepared: Any, outcome: Any, recall_model: Any) -> None:
    made = prepared("kind: served_recall, distance_tokens: 400, rounds: 1", model=recall_model, candidate=FAKE)
    found = outcome(made)
    assert (found.status, "codes lost" in found.reason) == ("FAIL", True), found.reason


def test_a_killed_server_gets_its_slot_back_from_the_file_alone(prepared: Any, outcome: Any) -> None:
    found = outcome(prepared("kind: restart, prompt_tokens: 40, generated_tokens: 4"))
    assert (found.status, found.inputs["killed_by"]) == ("PASS", "SIGKILL"), found.reason
    assert found.inputs["cached_tokens"]["cold"] == 0
    assert found.inputs["cached_tokens"]["restored"] >= 40


def test_a_server_that_saves_no_slots_fails_the_restart(prepared: Any, outcome: Any) -> None:
    found = outcome(prepared("kind: restart, prompt_tokens: 40", candidate=FAKE))
    assert (found.status, "save: status 404" in found.reason) == ("FAIL", True), found.reason


def test_the_whole_context_is_served_and_one_token_more_is_refused(prepared: Any, outcome: Any) -> None:
    found = outcome(prepared("kind: capacity, generated_tokens: 4, memory_floor_mib: 1"))
    assert found.status == "PASS", found.reason
    assert (found.inputs["prompt_tokens"], found.inputs["over_status"]) == (252, 400)


def test_a_server_is_stopped_where_memory_falls_below_the_floor(
    prepared: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([4000, 4000])
    monkeypatch.setattr(capacity, "available_mib", lambda: next(free, 100))
    monkeypatch.setattr(capacity, "PERIOD_S", 0.0)
    found = outcome(prepared("kind: capacity, memory_floor_mib: 512", context=4000))
    assert (found.status, "100 MiB of memory were available" in found.reason) == ("FAIL", True), found.reason


def test_a_host_below_the_floor_is_not_asked(prepared: Any, outcome: Any) -> None:
    found = outcome(prepared("kind: capacity, memory_floor_mib: 2000000000"))
    assert (found.status, "below the floor of 2000000000" in found.reason) == ("NOT_RUN", True), found.reason


def test_stored_tokens_are_compared_with_those_of_a_fresh_server(prepared: Any, outcome: Any, world: Any) -> None:
    ids = runpy.run_path(str(world.engine))["tokens_for"](list(range(1, 33)), 3)
    check = "kind: stored_reference, workload: cold, tokens: {}"
    assert outcome(prepared(check.format(ids), candidate=FAKE)).status == "PASS"
    changed = outcome(prepared(check.format([*ids[:2], 9]), candidate=FAKE))
    assert changed.reason == f"Token 2 is {ids[2]}, and the reference has 9."


@pytest.mark.parametrize(
    ("check", "lack"),
    [
        ("kind: restart, prompt_tokens: 40", "no server that we start ourselves"),
        ("kind: mapping_grid", "no library of its own to load"),
        ("kind: smoke", "no build that `assay engine pack` takes"),
    ],
)
def test_an_endpoint_is_not_run_and_the_unmet_need_is_named(
    prepared: Any, outcome: Any, world: Any, check: str, lack: str
) -> None:
    made = prepared(check)
    endpoint = made.protocol.arms.candidate.model_copy(
        update={"engine": made.protocol.arms.candidate.engine.model_copy(update={"kind": "openai"})}
    )
    arms = made.protocol.arms.model_copy(update={"candidate": endpoint})
    object.__setattr__(made.loaded, "protocol", made.protocol.model_copy(update={"arms": arms}))
    assert lack in outcome(made).reason
