"""The audit of the judgement: what was promised, sent and concluded, forged with the key in hand, and named exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from audit_faults import rechained, replaced_blob

from recorder.audit import AuditResult, audit_store
from recorder.audit_judgement import differences
from recorder.store import Store

Change = Callable[[dict], None]


def forged(root: Path, synthetic, kind: str, change: Change) -> AuditResult:
    """Change the payload of each entry of one kind; everything is chained and signed anew."""

    def apply(_seq: int, found: str, payload: dict) -> dict:
        if found == kind:
            change(payload)
        return payload

    rechained(root, apply, synthetic.SIGNER)
    return audit_store(root)


def of_check(result: AuditResult, check: str) -> list[tuple[str | None, str, str | None, str | None]]:
    return [(one.field, one.message, one.expected, one.found) for one in result.findings if one.check == check]


# --- the verdict ---------------------------------------------------------------------------------------------------


def test_a_status_and_an_exit_code_beside_the_verdict_are_those_of_the_verdict(store_root: Path, synthetic):
    result = forged(store_root, synthetic, "verdict.recorded", lambda one: one.update(status="PASS", exit_code=0))
    assert of_check(result, "verdict") == [
        ("payload.status", "not what the gates give", "SCREEN_ONLY", "PASS"),
        ("payload.exit_code", "not what the gates give", "3", "0"),
    ]
    assert of_check(result, "gates") == []


def test_the_short_results_beside_the_verdict_are_those_of_the_gates(store_root: Path, synthetic):
    result = forged(store_root, synthetic, "verdict.recorded", lambda one: one["gates"][0].update(status="FAIL"))
    (one,) = of_check(result, "gates")
    assert one[:2] == ("payload.gates", "not the recorded results")
    assert of_check(result, "verdict") == []


def test_a_gate_that_was_left_out_of_the_results_is_missed(store_root: Path, synthetic):
    def without_the_last(data: bytes) -> bytes:
        detail = json.loads(data)
        detail["results"].pop()
        return json.dumps(detail, separators=(",", ":")).encode()

    result = forged(
        store_root,
        synthetic,
        "verdict.recorded",
        lambda one: replaced_blob(store_root, one, "detail", without_the_last),
    )
    ids = ["complete", "tokens", "work", "counters", "loss", "mirror"]
    assert of_check(result, "gates") == [("gates", "not the locked gates", repr(ids), repr(ids[:-1]))]


@pytest.fixture
def twice(store_root: Path, synthetic) -> tuple[Path, list[int]]:
    """A store whose campaign was judged again, and where its verdicts stand."""
    with synthetic.open_store(store_root) as store:
        synthetic.judge(store, store.campaign_recorder("latest"))
        return store_root, [entry.seq for entry in store.entries() if entry.kind == "verdict.recorded"]


def test_a_verdict_after_another_one_must_link_to_it(twice: tuple[Path, list[int]], synthetic):
    root, (first, second) = twice
    assert audit_store(root).findings == ()
    result = forged(root, synthetic, "verdict.recorded", lambda one: one.pop("rejudges", None))
    (one,) = [one for one in result.findings if one.check == "verdict"]
    assert (one.entry, one.field, one.expected, one.found) == (second, "payload.rejudges", str(first), None)
    assert one.message == "it must link to the verdict before it"


def test_the_first_verdict_links_to_none(store_root: Path, synthetic):
    result = forged(store_root, synthetic, "verdict.recorded", lambda one: one.update(rejudges=0))
    assert ("payload.rejudges", "there is no verdict before it", None, None) in of_check(result, "verdict")


# --- what was locked and what was sent -----------------------------------------------------------------------------


def test_a_request_to_another_route_than_the_locked_one_is_found(store_root: Path, synthetic):
    def elsewhere(data: bytes) -> bytes:
        return data.replace(b"POST /completion HTTP", b"POST /cOmpletion HTTP")

    result = forged(
        store_root, synthetic, "load.sealed", lambda one: replaced_blob(store_root, one, "exchange", elsewhere)
    )
    found = [one for one in result.findings if one.check == "requests"]
    assert {(one.message, one.expected, one.found) for one in found} == {
        ("not the locked route", "/completion", "/cOmpletion")
    }
    assert len(found) == 4 * 2, "the warm-up and the measured request of each load"
    assert all(str(one.field).endswith("route") for one in found)


def test_another_body_than_the_locked_one_is_found_in_each_measured_request(store_root: Path, synthetic):
    def other(data: bytes) -> bytes:
        return data.replace(b'"prompt":[1,2,3]', b'"prompt":[1,2,4]')

    result = forged(store_root, synthetic, "load.sealed", lambda one: replaced_blob(store_root, one, "exchange", other))
    found = [one for one in result.findings if one.check == "requests"]
    assert {one.message for one in found} == {"not the locked request requests/tiny.json"}
    assert len(found) == 4
    assert all(str(one.field).endswith("body") for one in found)


def test_a_text_that_the_lock_does_not_name_is_found(store_root: Path, synthetic):
    def rename(payload: dict) -> None:
        for item in payload["blobs"]:
            if item["name"] == "host.name":
                item["name"] = "host.nane"

    result = forged(store_root, synthetic, "campaign.locked", rename)
    (one,) = [one for one in result.findings if one.check == "promises"]
    assert (one.message, str(one.field).rpartition(", ")[2]) == ("the lock and what it froze differ", "text_blobs")
    assert "host.nane" in str(one.expected)
    assert "host.name" in str(one.found)


@pytest.mark.parametrize("chosen", [None, "latest"])
def test_the_lock_that_was_kept_elsewhere_is_compared_member_by_member(store_root: Path, chosen: str | None):
    with Store.open(store_root, read_only=True) as store:
        lock = json.loads(store.lock_of("latest").lock_bytes())
        where = f"lock of {store.campaigns()[-1].campaign_id}"

    def against(**changes: object) -> list[tuple[str | None, str, str | None, str | None]]:
        kept = json.dumps(lock | changes).encode()
        return of_check(audit_store(store_root, campaign=chosen, against=kept), "against")

    assert against() == []
    assert against(protocol_id="other") == [
        (f"{where}.protocol_id", "not what was promised", "other", lock["protocol_id"])
    ]
    assert against(more=1) == [(f"{where}.more", "not what was promised", "1", None)]


# --- how values are compared ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "found", "named"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, 1, [("", {"a": 1}, 1)]),
        (1, {"a": 1}, [("", 1, {"a": 1})]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, [(".a.b[1]", 2, 3)]),
        ([1], [1, 2], [("", [1], [1, 2])]),
        ([1], "1", [("", [1], "1")]),
        ({"a": 1}, {}, [(".a", 1, None)]),
        ({}, {"b": 1, "a": 1}, [(".a", None, 1), (".b", None, 1)]),
        (1, 1.0, [("", 1, 1.0)]),
        (True, 1, [("", True, 1)]),
        ("0", "1e-13", [("", "0", "1e-13")]),
        ("2.0", "2", []),
        ("a", "b", [("", "a", "b")]),
        ({"reason": "x", "n": 1}, {"reason": "y", "n": 1}, [(".reason", "x", "y")]),
        ({"reason": "x", "n": "0.1"}, {"reason": "y", "n": "0.1000000000000001"}, []),
        ({"reason": "x", "n": 1}, {"reason": "y", "n": 2}, [(".n", 1, 2)]),
    ],
)
def test_values_are_compared_by_type_and_place_and_reals_by_their_value(expected: object, found: object, named: list):
    assert [*differences(expected, found)] == named
