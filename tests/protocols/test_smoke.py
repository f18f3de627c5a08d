"""The rows of a smoke, and the reading of its reference: every way in which a host can show something else."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.checks.answers import Answer
from protocols.errors import ProtocolError
from protocols.lock import FileIdentity, ModelIdentity
from protocols.smoke import (
    PromptIds,
    SmokeRun,
    SmokeSight,
    first_difference,
    judge_smoke,
    smoke_exit_code,
    smoke_status,
)
from protocols.smoke_reference import MAX_BYTES, SmokeDevice, SmokeReference, read_smoke_reference

A, B = "a" * 64, "b" * 64


def document(**changes: Any) -> dict[str, Any]:
    return {
        "assay_smoke": 1,
        "protocol": "pair",
        "arm": "candidate",
        "kind": "build",
        "files": [{"name": "server", "bytes": 3, "sha256": A}, {"name": "lib.so", "bytes": 3, "sha256": B}],
        "model": {"sha256": A, "bytes": 9},
        "settings": {"context_tokens": 64, "slots": 2},
        "load_s": 5,
        "request_s": 5,
        "device": {"processor": "CPU one", "gpus": ["gfx1151"], "is_engine_on_gpu": False},
        "cases": [
            {
                "id": "short",
                "prompt": "x",
                "prompt_tokens": [1, 2],
                "reply_tokens": [3, 4, 5],
                "drafted_tokens": 6,
                "accepted_tokens": 2,
            }
        ],
        **changes,
    }


REFERENCE = SmokeReference.model_validate(document())


def answer(**changes: Any) -> Answer:
    made = Answer(name="short", status=200, content="", tokens=(3, 4, 5), cached=0, evaluated=2, drafted=6, accepted=2)
    return replace(made, **changes)


RUN = SmokeRun(
    ready_ms=7,
    context_tokens=64,
    slots=2,
    is_on_gpu=False,
    prompts={"short": PromptIds((1, 2))},
    answers={"short": answer()},
)
SIGHT = SmokeSight(files=REFERENCE.files, arguments=(), model=REFERENCE.model, device=REFERENCE.device, run=RUN)


def not_passed(sight: SmokeSight, **more: Any) -> dict[str, tuple[str, str | None]]:
    """Return status and reason of every row that is no PASS."""
    rows = judge_smoke(REFERENCE, sight, **more)
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: (row.status, row.reason) for row in rows if row.status != "PASS"}


def test_a_host_that_shows_the_same_passes_every_row() -> None:
    rows = judge_smoke(REFERENCE, SIGHT)
    assert [row.name for row in rows] == [
        "file lib.so",
        "file server",
        "model",
        "device",
        "start",
        "mapped files",
        "context",
        "slots",
        "engine on a GPU",
        "short: prompt ids",
        "short: reply ids",
        "short: drafts",
        "end",
    ]
    assert (smoke_status(rows), smoke_exit_code(rows, RUN)) == ("PASS", 0)


def with_run(**changes: Any) -> SmokeSight:
    return replace(SIGHT, run=replace(RUN, **changes))


@pytest.mark.parametrize(
    ("sight", "row", "reason"),
    [
        (with_run(context_tokens=32), "context", None),
        (with_run(slots=1), "slots", None),
        (with_run(is_on_gpu=True), "engine on a GPU", None),
        (with_run(mapping_problems=("lib.so is another one",)), "mapped files", "lib.so is another one"),
        (with_run(prompts={"short": PromptIds((1,))}), "short: prompt ids", "id 1 is nothing, and the reference has 2"),
        (with_run(prompts={"short": PromptIds((), "none came")}), "short: prompt ids", "none came"),
        (
            with_run(answers={"short": answer(tokens=(3, 9, 5))}),
            "short: reply ids",
            "id 1 is 9, and the reference has 4",
        ),
        (
            with_run(answers={"short": answer(tokens=(3, 4, 5, 6))}),
            "short: reply ids",
            "id 3 is 6, and the reference has nothing",
        ),
        (with_run(answers={"short": answer(drafted=7)}), "short: drafts", None),
        (with_run(answers={"short": answer(accepted=3)}), "short: drafts", None),
        (with_run(stop_problem="killed"), "end", None),
        (replace(SIGHT, model=ModelIdentity(sha256=B, bytes=9)), "model", None),
        (replace(SIGHT, arguments=("--fast",)), "arguments", "name each with --argument"),
        (replace(SIGHT, files=REFERENCE.files[:1]), "file lib.so", "the engine here has no such file"),
        (
            replace(SIGHT, files=(*REFERENCE.files, FileIdentity(name="more", bytes=1, sha256=A))),
            "file more",
            "the reference has no such file",
        ),
        (
            replace(SIGHT, files=(REFERENCE.files[0], FileIdentity(name="lib.so", bytes=3, sha256=A))),
            "file lib.so",
            None,
        ),
        (
            replace(SIGHT, device=SmokeDevice(processor="CPU two")),
            "device",
            "another device; --any-device asks for the rest alone",
        ),
    ],
)
def test_each_difference_fails_its_own_row_and_no_other(sight: SmokeSight, row: str, reason: str | None) -> None:
    assert not_passed(sight) == {row: ("FAIL", reason)}
    assert smoke_exit_code(judge_smoke(REFERENCE, sight), sight.run) == 1


def test_another_device_can_be_left_out_and_counts_then_for_nothing() -> None:
    sight = replace(SIGHT, device=SmokeDevice(processor="CPU two"))
    assert not_passed(sight, any_device=True) == {"device": ("NOT_RUN", "not asked for: --any-device")}
    assert smoke_exit_code(judge_smoke(REFERENCE, sight, any_device=True), RUN) == 0
    assert not_passed(SIGHT, any_device=True) == {}


def test_a_device_without_a_name_is_not_run() -> None:
    sight = replace(SIGHT, device=SmokeDevice())
    assert not_passed(sight) == {"device": ("NOT_RUN", "this host does not name its device")}
    assert smoke_exit_code(judge_smoke(REFERENCE, sight), RUN) == 3


def test_the_gpus_are_compared_where_layers_lie_on_one() -> None:
    reference = SmokeReference.model_validate(document(settings={"context_tokens": 64, "slots": 2, "gpu_layers": 9}))
    same = replace(SIGHT, device=SmokeDevice(processor="CPU two", gpus=("gfx1151",)))
    other = replace(SIGHT, device=SmokeDevice(processor="CPU one", gpus=("gfx1100",)))
    found = [[row.status for row in judge_smoke(reference, one) if row.name == "device"] for one in (same, other)]
    assert found == [["PASS"], ["FAIL"]]


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"context_tokens": None}, {"context"}),
        ({"answers": {"short": answer(tokens=None)}}, {"short: reply ids"}),
        ({"answers": {"short": answer(drafted=None)}}, {"short: drafts"}),
    ],
)
def test_what_the_engine_does_not_state_is_not_run_and_never_passes(changes: dict[str, Any], rows: set[str]) -> None:
    sight = with_run(**changes)
    found = not_passed(sight)
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(rows, "NOT_RUN")
    assert smoke_exit_code(judge_smoke(REFERENCE, sight), sight.run) == 3


def test_an_engine_that_does_not_start_is_said_once_and_ends_with_5() -> None:
    sight = replace(SIGHT, run=SmokeRun(start_problem="no GPU"))
    rows = judge_smoke(REFERENCE, sight)
    assert {row.name: row.reason for row in rows if row.status == "FAIL"} == {"start": "no GPU"}
    assert {row.reason for row in rows if row.status == "NOT_RUN"} == {"the engine never ran"}
    assert smoke_exit_code(rows, sight.run) == 5


def test_an_engine_that_dies_fails_what_it_did_not_answer_and_ends_with_5() -> None:
    run = replace(RUN, answers={"short": answer(tokens=None, problem="no answer")}, own_end="signal SIGKILL")
    found = not_passed(replace(SIGHT, run=run))
    assert found["short: reply ids"] == ("FAIL", "no answer")
    assert found["short: drafts"] == ("NOT_RUN", "there is no reply")
    assert found["end"] == ("FAIL", None)
    assert smoke_exit_code(judge_smoke(REFERENCE, replace(SIGHT, run=run)), run) == 5


def test_over_another_model_nothing_is_started() -> None:
    sight = replace(SIGHT, model=ModelIdentity(sha256=B, bytes=9), run=None)
    rows = judge_smoke(REFERENCE, sight)
    assert [row.name for row in rows if row.status == "FAIL"] == ["model"]
    assert {row.reason for row in rows if row.status == "NOT_RUN"} == {"not started: the model is another one"}
    assert smoke_exit_code(rows, None) == 1


@pytest.mark.parametrize(
    ("one", "other", "place"), [((1, 2), (1, 2), None), ((), (1,), 0), ((1, 2), (1,), 1), ((1, 2), (3, 2), 0)]
)
def test_the_first_difference_of_two_lists(one: tuple[int, ...], other: tuple[int, ...], place: int | None) -> None:
    assert first_difference(one, other) == place


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    path.write_bytes(REFERENCE.file_bytes())
    assert read_smoke_reference(path) == (REFERENCE, REFERENCE.file_bytes())


def test_the_smallest_and_the_largest_id_of_a_token_are_ids(tmp_path: Path) -> None:
    ids = [0, 2**31 - 1]
    path = tmp_path / "reference.json"
    path.write_text(changed(lambda value: value["cases"][0].update(reply_tokens=ids)))
    assert [*read_smoke_reference(path)[0].cases[0].reply_tokens] == ids


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    value = document()
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not readable"),
        ("[]", "not a JSON object"),
        ("[" * 200_000, "nested too deep"),
        ('{"assay_smoke": 1, "assay_smoke": 1}', "a key stands twice"),
        ('{"assay_smoke": NaN}', "NaN is not JSON"),
        ("{}", "no number assay_smoke"),
        ('{"assay_smoke": true}', "no number assay_smoke"),
        ('{"assay_smoke": 2}', "has the format 2, and this Assay reads 1"),
        (f'{{"assay_smoke": {"9" * 400}}}', "has the format 9999"),
        (f'{{"assay_smoke": {"9" * 5000}}}', "not readable"),
        (changed(lambda v: v.update(more=1)), "more: Extra inputs"),
        (changed(lambda v: v.pop("model")), "model: Field required"),
        (changed(lambda v: v.update(cases=[])), "cases: Tuple should have at least 1 item"),
        (changed(lambda v: v["cases"][0]["reply_tokens"].append(-1)), "cases[0].reply_tokens[3]"),
        (changed(lambda v: v["cases"][0]["reply_tokens"].append(2**31)), "cases[0].reply_tokens[3]"),
        (changed(lambda v: v["cases"][0].update(reply_tokens=["3"])), "cases[0].reply_tokens[0]"),
        (changed(lambda v: v["cases"][0].update(reply_tokens=[1] * 63)), "longer than the context of 64"),
        (changed(lambda v: v["cases"][0].update(accepted_tokens=7)), "accepts more tokens than it drafts"),
        (changed(lambda v: v["cases"][0].update(accepted_tokens=None)), "and not both"),
        (changed(lambda v: v["cases"].append(v["cases"][0])), "a case is named twice"),
        (changed(lambda v: v["files"].append(v["files"][0])), "a file is named twice"),
        (changed(lambda v: v["files"][0].update(name="../server")), "files[0].name"),
        (changed(lambda v: v["files"][0].update(sha256="A" * 64)), "files[0].sha256"),
        (changed(lambda v: v["files"][0].update(name="\ud800")), "valid string"),
        (changed(lambda v: v["cases"][0].update(prompt="\ud800")), "cases[0].prompt"),
        (changed(lambda v: v["settings"].update(threads=10**9)), "settings.threads"),
        (changed(lambda v: v["device"].update(processor="x\u202ey")), "invisible character U+202E"),
        (changed(lambda v: v.update(environment={"LD_PRELOAD": "x.so"})), "environment: Extra inputs"),
    ],
)
def test_what_is_no_reference_is_refused_with_the_place(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    path.write_text(text)
    with pytest.raises(ProtocolError) as error:
        read_smoke_reference(path)
    shown = "\n".join(error.value.lines())
    assert words in shown
    assert str(path) in shown


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "no plain file"), (".", "no plain file"), ("none", "No such file")):
        with pytest.raises(ProtocolError, match=words):
            read_smoke_reference(tmp_path / name)
    with pytest.raises(ProtocolError, match="cannot be read"):
        read_smoke_reference(Path("\0"))
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MAX_BYTES + 1)
    with pytest.raises(ProtocolError, match="expected at most"):
        read_smoke_reference(tmp_path / "large")


FILE = REFERENCE.file_bytes()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.binary(max_size=200)
    | st.tuples(st.integers(0, len(FILE) - 1), st.binary(min_size=1, max_size=4)).map(
        lambda change: FILE[: change[0]] + change[1] + FILE[change[0] + 1 :]
    )
    | st.tuples(st.sampled_from(sorted(document())), JSON).map(
        lambda change: json.dumps(document() | {change[0]: change[1]}).encode()
    )
)
def test_arbitrary_bytes_are_a_reference_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.json"
    path.write_bytes(data)
    with contextlib.suppress(ProtocolError):
        found, read = read_smoke_reference(path)
        assert read == data
        assert SmokeReference.model_validate(json.loads(found.file_bytes())) == found
