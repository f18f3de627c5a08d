"""The order of a whole campaign, seen from outside (the fake engine's log) and from the evidence."""

from __future__ import annotations

import sqlite3
from itertools import groupby
from typing import Any


def rows(world: Any, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{world.store / 'assay.sqlite'}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def of_each_process(world: Any) -> list[list[dict[str, Any]]]:
    return [list(events) for _, events in groupby(world.order(), key=lambda one: one["pid"])]


def test_loads_run_in_schedule_order_and_never_at_once(finished: Any) -> None:
    loads = of_each_process(finished)
    assert [events[0]["arm"] for events in loads] == ["baseline", "candidate", "candidate", "baseline"]
    assert len({events[0]["pid"] for events in loads}) == 4
    assert all(events[0]["event"] == "start" and events[-1]["event"] == "term" for events in loads)


def test_each_load_is_asked_for_health_and_props_then_warms_up_then_measures_then_stops(finished: Any) -> None:
    for events in of_each_process(finished):
        names = [one.get("path") or one["event"] for one in events]
        # Readiness may ask for /health any number of times; the last one is the recorded request.
        first_props = names.index("/props")
        assert names[0] == "start"
        assert set(names[1:first_props]) == {"/health"}
        assert names[first_props:] == ["/props", "/completion", "answered", "/completion", "answered", "term"]
        answered = [(one["n_prompt"], one["n_generated"]) for one in events if one["event"] == "answered"]
        assert answered == [(8, 4), (32, 24)], "the warm-up comes first"


def test_the_evidence_tells_the_same_order(finished: Any) -> None:
    events = rows(finished, "SELECT entry_seq, event FROM load_event ORDER BY entry_seq, ordinal")
    for _, group in groupby(events, key=lambda row: row[0]):
        names = [name for _, name in group if not name.startswith("telemetry.probe")]
        assert names == [
            "engine.starting",
            "engine.ready",
            "telemetry.started",
            *["exchange.opened"] * 4,
            "client.watched",
            "telemetry.end",
            "engine.stopped",
        ]


def test_telemetry_brackets_every_request(finished: Any) -> None:
    spans = rows(
        finished,
        "SELECT s.label, (SELECT min(t_begin_ns) FROM telemetry_sample t WHERE t.entry_seq = e.entry_seq),"
        " min(r.sent_ns), max(r.end_ns), (SELECT max(o.t_ns) FROM load_event o WHERE o.entry_seq = e.entry_seq AND o.event = 'telemetry.end')"
        " FROM load s JOIN load_seal e ON e.load_id = s.load_id JOIN request r ON r.entry_seq = e.entry_seq GROUP BY s.label",
    )
    assert len(spans) == 4
    for label, first_sample, first_sent, last_end, telemetry_end in spans:
        assert first_sample < first_sent, label
        assert telemetry_end >= last_end, label


def test_warm_ups_are_recorded_and_marked(finished: Any) -> None:
    found = rows(finished, "SELECT is_warmup, count(*) FROM request WHERE workload = 'cold' GROUP BY is_warmup")
    assert dict(found) == {0: 4, 1: 4}


def test_props_and_health_are_recorded_through_the_same_client(finished: Any) -> None:
    assert rows(finished, "SELECT count(*) FROM props") == [(4,)]
    assert rows(
        finished, "SELECT http_status, count(*) FROM request WHERE route IN ('/health', '/props') GROUP BY 1"
    ) == [(200, 8)]


def test_every_load_keeps_what_its_process_mapped(finished: Any) -> None:
    names = rows(finished, "SELECT name, count(*) FROM attachment WHERE role = 'attachment' GROUP BY name")
    assert dict(names) == {"attachment/mapped-at-start.json": 4, "attachment/mapped-at-end.json": 4}


def test_every_engine_leaves_a_cleanup_receipt(finished: Any) -> None:
    found = rows(
        finished,
        "SELECT json_extract(fields_json, '$.exit_code'), json_extract(fields_json, '$.was_forced'),"
        " json_extract(fields_json, '$.leftover_processes') FROM load_event WHERE event = 'engine.stopped'",
    )
    assert found == [(0, 0, 0)] * 4


def test_a_fresh_campaign_audits_with_everything_held(finished: Any) -> None:
    ended = finished.run("audit", "--store", finished.store, "--json")
    assert ended.code == 0
    audit = ended.json()
    assert audit["is_sound"]
    assert not audit["is_partial"]
    assert audit["trust"] == "VERIFIED"
    assert {check["state"] for check in audit["checks"]} == {"held"}
    assert [check["number"] for check in audit["checks"]] == list(range(1, 21))


def test_two_equal_engines_pass_with_two_blocks(world: Any) -> None:
    path = world.protocol(schedule=world.BLOCKS, gates=world.EXACT_GATES + world.LOSS_GATE, claim="non_inferiority")
    ended = world.run("run", path, "--store", world.store, "--json")
    report = ended.json()
    assert (ended.code, report["verdict"]["status"]) == (0, "PASS"), ended.err
    assert [load["label"] for load in report["loads"]] == ["B0", "A1", "C1", "C2", "A2", "A3", "C3", "C4", "A4"]
    said = [
        claim["text"] for claim in report["claims"] if claim["kind"] == "may_say" and claim["gate"] == "generation-loss"
    ]
    assert said
    assert "is not lower than the baseline's by 10 % or more (95 % confidence)" in said[0]


def test_the_control_fails_and_shows_the_known_loss_beside_the_measured_one(world: Any) -> None:
    path = world.protocol(
        candidate=["--fault", "slow=30"],
        schedule=world.BLOCKS,
        gates=world.EXACT_GATES + world.LOSS_GATE,
        claim="non_inferiority",
        extra="expect: FAIL",
    )
    ended = world.run("run", path, "--store", world.store, "--json")
    report = ended.json()
    assert (ended.code, report["verdict"]["status"]) == (1, "FAIL"), ended.err
    loss = next(gate for gate in report["gates"] if gate["id"] == "generation-loss")["inputs"]["loss_pct"]
    assert abs(float(loss) - 30) < 1e-4, "times are whole nanoseconds"
    assert "Expected verdict: FAIL. Found: FAIL, as expected." in report["control"][0]
