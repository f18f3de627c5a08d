"""`assay judge`, `review`, `cancel`, `attempts`, `report --format`, `audit --attest`: commands and the records they leave."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from recorder.keys import parse_verifier_key


def test_a_campaign_is_judged_again_and_reviewed_and_everything_stays_visible(
    finished: Any, copy_of_finished: Path
) -> None:
    store = copy_of_finished
    ended = finished.run("judge", "--store", store, "--json")
    document = ended.json()
    assert (ended.code, document["older_verdicts"]) == (3, [document["status"]])
    said = ("--by", "A. Reader", "--statement", "read the raw streams", "--store", store)
    assert finished.run("review", "--override", "FAIL", *said).code == 0
    assert finished.run("review", "--agree", *said, "--json").json()["decision"] == "agrees"
    shown = finished.run("show", "--store", store, "--json").json()
    assert shown["verdict"]["status"] == document["status"]
    assert [one["status"] for one in shown["older_verdicts"]] == [document["status"]]
    assert [one["decision"] for one in shown["reviews"]] == ["overrides", "agrees"]
    text = finished.run("show", "--store", store).out
    assert "A. Reader overrides it with FAIL: read the raw streams" in text
    assert "older verdict: " in text
    assert finished.run("audit", "--store", store).code == 0


def test_a_review_says_one_thing(finished: Any, copy_of_finished: Path) -> None:
    said = ("--by", "A", "--statement", "x", "--store", copy_of_finished)
    assert finished.run("review", *said).code == 2
    assert finished.run("review", "--agree", "--override", "FAIL", *said).code == 2
    assert finished.run("review", "--override", "NONSENSE", *said).code == 2


def test_an_unfinished_campaign_is_cancelled_and_stays_an_attempt(world: Any) -> None:
    path = world.protocol(candidate=["--fault", "not-start"])
    assert world.run("run", path, "--store", world.store).code == 5
    assert world.run("cancel", "--store", world.store, "--reason", "it does not start").code == 0
    assert world.run("resume", "--store", world.store).code == 6
    assert world.run("judge", "--store", world.store).code == 6
    assert world.run("cancel", "--store", world.store, "--reason", "again").code == 6
    (one,) = world.run("attempts", "--store", world.store, "--json").json()["attempts"]
    assert (one["state"], one["verdict"]) == ("cancelled", None)
    assert "cancelled" in world.run("attempts", "--store", world.store).out
    assert world.run("audit", "--store", world.store).code == 0


def test_attempts_name_the_question(finished: Any) -> None:
    document = finished.run("attempts", "--store", finished.store, "--json").json()
    asked = [(one["workload"], one["metric"]) for one in document["questions"]]
    assert asked == [("cold", "exact"), ("cold", "generation_rate")]
    assert [one["state"] for one in document["attempts"]] == ["judged"]


def test_ci_reads_a_campaign_as_junit_and_ctrf(finished: Any, tmp_path: Path) -> None:
    assert finished.run("report", "--store", finished.store, "--format", "junit", "--out", tmp_path).code == 0
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases["tokens"] == []
    assert cases["verdict"] == ["skipped"]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), "0")
    printed = finished.run("report", "--store", finished.store, "--format", "ctrf").out
    results = json.loads(printed)["results"]
    assert results["summary"]["tests"] == len(cases)
    assert {one["name"]: one["status"] for one in results["tests"]}["verdict"] == "other"


def test_a_test_result_and_a_verification_summary_are_signed_with_the_users_key(finished: Any, tmp_path: Path) -> None:
    assert finished.run("report", "--store", finished.store, "--format", "in-toto", "--out", tmp_path).code == 0
    assert finished.run("audit", "--store", finished.store, "--attest", tmp_path / "summary.json").code == 0
    key = parse_verifier_key(finished.run("key", "show", "default").out.strip())
    for name, word in (("test-result.intoto.json", "FAILED"), ("summary.json", "PASSED")):
        value = json.loads((tmp_path / name).read_bytes())
        payload = base64.b64decode(value["payload"])
        kind = value["payloadType"].encode()
        message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        assert key.is_signature(base64.b64decode(value["signatures"][0]["sig"]), message)
        predicate = json.loads(payload)["predicate"]
        assert predicate.get("result", predicate.get("verificationResult")) == word
