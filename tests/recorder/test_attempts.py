"""Attempts: a rebuilt candidate, another host or another store does not start a clean slate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocols.load import library_protocol, load_protocol
from protocols.lock import Lock, parse_lock
from recorder.attempts import attempts_of, earlier_attempts, questions_of
from recorder.importing import import_bundle


def parts_with(synthetic, **changes: Any) -> dict[str, Any]:
    parts = synthetic.lock_parts()
    value = json.loads(parts["lock"])
    for path, new in changes.items():
        target = value
        *folders, last = path.split("__")
        for folder in folders:
            target = target[int(folder)] if folder.isdigit() else target[folder]
        target[last] = new
    parts["lock"] = Lock.model_validate_json(json.dumps(value)).lock_bytes()
    return parts


def campaign(root: Path, synthetic, at: int, **changes: Any) -> str:
    with synthetic.open_store(root, clock=synthetic.StepClock(at * 10**18)) as store:
        return str(store.begin_campaign(**parts_with(synthetic, **changes)).campaign_id)


def test_the_candidate_and_the_host_are_no_part_of_a_question(synthetic):
    protocol = synthetic.protocol_of()
    before = questions_of(parse_lock(synthetic.lock_parts()["lock"]), protocol)
    assert [(one.workload, one.metric) for one in before] == [
        ("tiny", "exact"),
        ("tiny", "generation_rate"),
    ]
    for changes in (
        {"arms__candidate__files__0__sha256": "d" * 64},
        {"host__cpu": "another"},
        {"arms__candidate__settings": {"context_tokens": 512}},
    ):
        assert questions_of(parse_lock(parts_with(synthetic, **changes)["lock"]), protocol) == before
    for changes in ({"arms__baseline__files__0__sha256": "d" * 64}, {"model__model__sha256": "d" * 64}):
        assert (
            questions_of(parse_lock(parts_with(synthetic, **changes)["lock"]), protocol)[0].digest != before[0].digest
        )


def test_every_campaign_of_the_question_is_listed_oldest_first(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    synthetic.run_campaign(root, clock=synthetic.StepClock(1 * 10**18))
    rebuilt = campaign(root, synthetic, 2, arms__candidate__files__0__sha256="d" * 64)
    moved = campaign(root, synthetic, 3, host__cpu="another")
    with synthetic.open_store(root, clock=synthetic.StepClock(4 * 10**18)) as store:
        store.campaign_recorder(moved).record_cancellation("no")
        store.campaign_recorder(rebuilt).record_interruption("power")
    questions, found = attempts_of(root, "latest")
    assert [one.metric for one in questions] == ["exact", "generation_rate"]
    assert [one.state for one in found] == ["judged", "interrupted", "cancelled"]
    assert [one.same for one in found] == ["digest", "digest", "campaign"]
    assert [one.verdicts for one in found] == [("SCREEN_ONLY",), (), ()]
    assert found[0].candidate != found[1].candidate


def test_another_baseline_under_the_same_protocol_name_counts_by_its_name(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    campaign(root, synthetic, 1, arms__baseline__files__0__sha256="d" * 64)
    campaign(root, synthetic, 2)
    assert [one.same for one in attempts_of(root, "latest")[1]] == ["name", "campaign"]


def test_another_model_under_another_name_is_another_question(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    synthetic.run_campaign(root, clock=synthetic.StepClock(1 * 10**18))
    _, found = attempts_of(root, "latest")
    assert len(found) == 1


def test_attempts_of_imported_bundles_count(tmp_path: Path, store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        folder = import_bundle(store, synthetic.foreign_bundle(tmp_path)).folder
    _, found = attempts_of(store_root, "latest")
    assert [Path(one.place).name for one in found] == [Path(folder).name, "store"]
    assert [one.verdict for one in found] == ["SCREEN_ONLY", "SCREEN_ONLY"]


def test_a_verdict_that_was_judged_again_shows_both(store_root: Path, synthetic):
    with synthetic.open_store(store_root) as store:
        synthetic.judge(store, store.campaign_recorder("latest"))
    _, (one,) = attempts_of(store_root, "latest")
    assert one.verdicts == ("SCREEN_ONLY", "SCREEN_ONLY")


def test_a_candidate_that_exact_work_rejected_meets_the_release_with_a_clock(synthetic):
    lock = parse_lock(synthetic.lock_parts()["lock"])
    asked = []
    for name in ("release-general-only", "release"):
        protocol = load_protocol(library_protocol(name)).protocol
        requests = {workload.request: workload.id.encode().hex().ljust(64, "0") for workload in protocol.workloads}
        changed = lock.model_copy(update={"requests": requests, "protocol_id": name})
        asked.append({(one.workload, one.metric): one.digest for one in questions_of(changed, protocol)})
    rejected, release = asked
    assert sorted(rejected) == [("long", "exact"), ("short", "exact")]
    assert rejected.items() <= release.items()
    assert ("long", "prefill_rate") in release


def test_what_was_tried_before_is_told_as_it_stood_at_the_lock(tmp_path: Path, synthetic):
    root = tmp_path / "s"
    rejected = synthetic.run_campaign(root, clock=synthetic.StepClock(1 * 10**18))
    renamed = campaign(root, synthetic, 2, protocol_id="another", arms__candidate__files__0__sha256="d" * 64)
    campaign(root, synthetic, 3, protocol_id="another", arms__baseline__files__0__sha256="d" * 64)
    own = campaign(root, synthetic, 4)
    campaign(root, synthetic, 5)
    with synthetic.open_store(root, clock=synthetic.StepClock(6 * 10**18)) as store:
        store.campaign_recorder(renamed).record_cancellation("no")
        found = earlier_attempts(store, own)
        assert earlier_attempts(store, rejected) == ()
    assert [(one.campaign_id, one.state, one.verdicts, one.same) for one in found] == [
        (rejected, "judged", ("SCREEN_ONLY",), "digest"),
        (renamed, "not finished", (), "digest"),
    ]
