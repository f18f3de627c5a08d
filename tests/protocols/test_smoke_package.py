"""A build out of its package, judged from what was recorded: every row that can break, and no record that is forged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from protocols.check_rules import judge_check
from protocols.checks.base import CheckOutcome
from protocols.checks.smoke import SmokeCheck
from protocols.errors import EvidenceError
from protocols.measurements import CheckObservation
from protocols.smoke import SmokeRun, SmokeSight
from protocols.smoke_cases import SmokePrompt, recorded_prompt
from protocols.smoke_exchanges import RecordedRun, recorded_run
from protocols.smoke_package import REFERENCE, SeenEngine, seen_payload
from protocols.smoke_reference import new_smoke_reference

A, B, C = "a" * 64, "b" * 64, "c" * 64
CHECK = SmokeCheck(kind="smoke", id="c")
PROPS = {
    "default_generation_settings": {"n_ctx": 64},
    "total_slots": 1,
    "memory_plan": {"device_bytes": 0},
}
ENGINE: dict[str, Any] = {
    "files": [{"name": "lib.so", "bytes": 3, "sha256": B}, {"name": "server", "bytes": 3, "sha256": A}],
    "model": {"sha256": C, "bytes": 9},
    "device": {"processor": "CPU", "gpus": [], "is_engine_on_gpu": False},
}


def exchange(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "status": 200, "body": json.dumps(value)}


def reply(name: str, tokens: list[int], drafted: int = 4) -> dict[str, Any]:
    return exchange(name, {"content": "x", "tokens": tokens, "timings": {"draft_n": drafted, "draft_n_accepted": 1}})


def run_of(*names: str) -> dict[str, Any]:
    rows = [exchange("/props", PROPS), exchange("text/tokenize", {"tokens": [7, 8]})]
    rows += [reply(name, [3, 4, 5]) for name in names]
    return RecordedRun(ready_ms=9, exchanges=tuple(rows)).payload()


REFERENCE_DATA = new_smoke_reference(
    protocol="pair",
    arm="candidate",
    kind="build",
    settings={"context_tokens": 64, "slots": 1},
    load_s=5,
    request_s=5,
    cases=[
        {"id": "ids", "prompt_tokens": [1, 2], "reply_tokens": [3, 4, 5], "drafted_tokens": 4, "accepted_tokens": 1},
        {
            "id": "text",
            "prompt": "hello",
            "prompt_tokens": [7, 8],
            "reply_tokens": [3, 4, 5],
            "drafted_tokens": 4,
            "accepted_tokens": 1,
        },
    ],
    **ENGINE,
).file_bytes()
FACTS: dict[str, Any] = {
    "asked": [
        SmokePrompt("ids", None, (1, 2), 3, 2).payload(),
        SmokePrompt("text", "hello", None, 3, 2).payload(),
    ],
    "written": {**ENGINE, "run": run_of("ids", "ids/2", "text", "text/2")},
    "package": {"archive_sha256": A, "files": 3, "content_bytes": 600},
    "unpacked": {
        **ENGINE,
        "run": run_of("ids", "text"),
        "mapped": [
            {"name": "server", "sha256": A, "place": "package"},
            {"name": "lib.so", "sha256": B, "place": "package"},
            {"name": "libc.so.6", "sha256": C, "place": "host"},
        ],
        "from_original": [],
    },
    "left_processes": 0,
    "is_folder_left": False,
}


def judged(change: Callable[[dict[str, Any]], object] = lambda _: None, data: bytes = REFERENCE_DATA) -> CheckOutcome:
    facts = json.loads(json.dumps(FACTS))
    change(facts)
    outputs = {REFERENCE: data}
    return judge_check(
        CHECK, CheckObservation(check="c", arm="candidate", state="COMPLETE", facts=facts, outputs=outputs)
    )


def broken(outcome: CheckOutcome) -> dict[str, str]:
    rows: Any = outcome.inputs["rows"]
    return {row["name"]: row["status"] for row in rows if row["status"] != "PASS"}


def test_a_package_that_shows_the_same_passes_and_says_what_it_does_not_show() -> None:
    found = judged()
    assert found.status == "PASS", found.reason
    assert found.reason == (
        "The package of this build (3 files, 600 bytes), unpacked elsewhere, does what the build does on this host: all 18 "
        "rows hold; another host is asked by `assay smoke --reference`."
    )


def answers(facts: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = (one for one in facts["unpacked"]["run"]["exchanges"] if one["name"] == name)
    return row  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda facts: facts["unpacked"]["files"].pop(), "file server"),
        (lambda facts: facts["unpacked"]["files"][0].update(sha256=C), "file lib.so"),
        (lambda facts: facts["unpacked"]["files"].insert(0, {"name": "lib.so", "bytes": 3, "sha256": C}), "file lib.so"),
        (lambda facts: facts["unpacked"]["files"].append({"name": "lib.so", "bytes": 3, "sha256": C}), "file lib.so"),
        (lambda facts: facts["unpacked"]["model"].update(sha256=A), "model"),
        (lambda facts: facts["unpacked"]["device"].update(processor="another"), "device"),
        (lambda facts: facts["unpacked"]["run"].update(mapping_problems=["lib.so is another one"]), "mapped files"),
        (lambda facts: answers(facts, "/props").update(body=json.dumps(PROPS | {"total_slots": 2})), "slots"),
        (lambda facts: answers(facts, "text/tokenize").update(body='{"tokens": [7, 9]}'), "text: prompt ids"),
        (lambda facts: answers(facts, "ids").update(reply("ids", [3, 4, 6])), "ids: reply ids"),
        (lambda facts: answers(facts, "ids").update(reply("ids", [3, 4, 5], 5)), "ids: drafts"),
        (lambda facts: facts["unpacked"]["run"].update(own_end="signal SIGSEGV"), "end"),
        (lambda facts: facts["unpacked"]["run"].update(stop_problem="killed"), "end"),
        (lambda facts: facts["unpacked"]["mapped"][1].update(place="original"), "without its first folder"),
        (lambda facts: facts["unpacked"].update(from_original=["share/table.bin"]), "without its first folder"),
        (lambda facts: facts["unpacked"]["mapped"][1].update(sha256=C), "runs the package"),
        (lambda facts: facts["unpacked"].update(mapped=facts["unpacked"]["mapped"][2:]), "runs the package"),
        (lambda facts: facts.update(left_processes=1), "left behind"),
        (lambda facts: facts.update(is_folder_left=True), "left behind"),
    ],
)  # fmt: skip
def test_each_difference_fails_its_own_row_and_no_other(change: Any, row: str) -> None:
    found = judged(change)
    assert (found.status, broken(found)) == ("FAIL", {row: "FAIL"})
    assert row in found.reason


def test_a_library_of_the_host_beside_the_package_is_named_and_no_failure() -> None:
    found = judged(lambda facts: facts["unpacked"]["mapped"][2].update(place="elsewhere"))
    (row,) = (one for one in found.inputs["rows"] if one["name"] == "runs the package")  # type: ignore[union-attr, index, call-overload]
    assert (found.status, row["reason"]) == ("PASS", "beside the package, from this host: libc.so.6")


def test_an_unpacked_engine_that_does_not_start_fails_once_and_shows_nothing_else() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["unpacked"].update(run=RecordedRun(start_problem="no such library").payload(), mapped=[])

    found = judged(change)
    statuses = broken(found)
    assert [name for name, status in statuses.items() if status == "FAIL"] == ["start"]
    assert {"runs the package", "without its first folder", "context", "ids: reply ids"} < statuses.keys()
    assert (found.status, "start (no such library)" in found.reason) == ("FAIL", True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda facts: facts["written"]["run"]["exchanges"][3].update(reply("ids/2", [3, 9, 5])),
            "No reference can be made of this engine: ids: asked again, it gives another token at 1.",
        ),
        (
            lambda facts: facts["written"]["run"]["exchanges"][3].update(reply("ids/2", [3, 4, 5], 6)),
            "No reference can be made of this engine: ids: asked again, it gives other drafts.",
        ),
        (
            lambda facts: facts["written"]["run"].update(own_end="signal SIGKILL"),
            "No reference can be made of this engine: it ended by itself: signal SIGKILL.",
        ),
        (
            lambda facts: facts["asked"][0].update(n_tokens=4),
            "No reference can be made of this engine: ids: the reply has 3 tokens, and 4 were asked for.",
        ),
        (
            lambda facts: facts["asked"][0].update(n_prompt=3),
            "No reference can be made of this engine: ids: the engine makes 2 tokens of the prompt, and the protocol states 3.",
        ),
        (lambda facts: facts.update(reference_problem="the parts do not fit"), "The parts do not fit."),
        (
            lambda facts: facts.update(package_problem="lib.so differs from the build's receipt"),
            "The build does not come out of its package: lib.so differs from the build's receipt.",
        ),
    ],
)
def test_a_build_without_a_reference_or_a_package_fails_in_words(change: Any, words: str) -> None:
    found = judged(change)
    assert (found.status, found.reason) == ("FAIL", words)


def forged(**changes: Any) -> bytes:
    return json.dumps({**json.loads(REFERENCE_DATA), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"no reference",
        forged(cases=json.loads(REFERENCE_DATA)["cases"][:1]),
        forged(files=json.loads(REFERENCE_DATA)["files"][:1]),
        forged(model={"sha256": A, "bytes": 9}),
        forged(device={"processor": "another"}),
    ],
)
def test_a_reference_that_its_engine_did_not_show_is_no_evidence(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        judged(data=data)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.pop("asked"),
        lambda facts: facts["asked"][0].update(ids=None),
        lambda facts: facts["asked"][0].update(ids=["1"]),
        lambda facts: facts.pop("written"),
        lambda facts: facts["written"].pop("run"),
        lambda facts: facts["written"].update(files=[{"name": "x"}]),
        lambda facts: facts["written"]["run"]["exchanges"].append(reply("ids", [1])),
        lambda facts: facts["written"]["run"]["exchanges"].pop(3),
        lambda facts: facts["unpacked"]["run"]["exchanges"].append("none"),
        lambda facts: facts["unpacked"]["run"].update(ready_ms="9"),
        lambda facts: facts["unpacked"]["run"].update(own_end=9),
        lambda facts: facts["unpacked"]["run"].update(mapping_problems=[9]),
        lambda facts: facts["unpacked"].pop("mapped"),
        lambda facts: facts["unpacked"].pop("from_original"),
        lambda facts: facts["unpacked"]["mapped"][0].update(place="somewhere"),
        lambda facts: facts.pop("unpacked"),
        lambda facts: facts.pop("package"),
        lambda facts: facts.pop("left_processes"),
        lambda facts: facts.pop("is_folder_left"),
    ],
)
def test_a_record_of_another_form_is_no_evidence(change: Any) -> None:
    with pytest.raises(EvidenceError):
        judged(change)


def test_what_is_recorded_of_a_start_is_read_again_as_it_was() -> None:
    run = recorded_run(FACTS["unpacked"]["run"])
    assert recorded_run(json.loads(json.dumps(run.payload()))) == run
    read = run.read()
    assert (read.context_tokens, read.slots, read.is_on_gpu, read.ready_ms) == (64, 1, False, 9)
    assert (read.prompts["text"].ids, read.answers.keys()) == ((7, 8), {"ids", "text"})
    broken_props = RecordedRun(exchanges=({"name": "/props", "status": 500, "body": "{}"},)).read()
    assert broken_props == SmokeRun()
    for one in (SmokePrompt("a", "text", None, 3, 2), SmokePrompt("a", None, (1, 2), 3, 2)):
        assert recorded_prompt(json.loads(json.dumps(one.payload()))) == one
    seen = SeenEngine.model_validate(ENGINE)
    sight = SmokeSight(files=seen.files, arguments=(), model=seen.model, device=seen.device, run=None)
    assert SeenEngine.model_validate({name: seen_payload(sight, run)[name] for name in ENGINE}) == seen
