"""Requirements: what each way to end, and each number in the output, is judged as; lists that cannot hold are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from protocols.check_rules import judge_check
from protocols.checks.requirements import MAX_OUTPUT_BYTES, RequirementsCheck
from protocols.errors import EvidenceError, ProtocolError
from protocols.load import LoadedProtocol
from protocols.measurements import CheckObservation

Edit = Callable[..., LoadedProtocol]


def check_of(**changes: Any) -> RequirementsCheck:
    one = {"id": "one", "run": ["./run"], "limit_s": 7, **changes}
    return RequirementsCheck.model_validate({"kind": "requirements", "id": "c", "requirements": [one]})


def left(output: bytes = b"", **changes: Any) -> CheckObservation:
    row = {"id": "one", "exit_code": 0, "signal": None, "is_timed_out": False, "is_too_long": False, **changes}
    return CheckObservation(
        check="c", arm="candidate", state="COMPLETE", facts={"requirements": [row]}, outputs={"one": output}
    )


NUMBER = {"after": "ppl:", "least": "10", "most": "12.5"}


@pytest.mark.parametrize(
    ("check", "found", "status", "reason"),
    [
        ({}, left(), "PASS", "exit code 0"),
        ({}, left(exit_code=1), "FAIL", "exit code 1, expected 0"),
        ({"exit_code": 3}, left(exit_code=3), "PASS", "exit code 3"),
        ({"exit_code": 3}, left(), "FAIL", "exit code 0, expected 3"),
        ({}, left(exit_code=None, signal=11), "FAIL", "ended by signal 11"),
        ({}, left(exit_code=None, signal=9, is_timed_out=True), "FAIL", "ended after 7 s"),
        ({}, left(exit_code=None, signal=9, is_too_long=True), "FAIL", f"ended after more than {MAX_OUTPUT_BYTES} bytes of output"),
        ({}, left(exit_code=None, changed=["run"]), "FAIL", "not what is locked: run"),
        ({}, left(exit_code=None, gone=["run", "data"]), "FAIL", "a locked file is gone: run and data"),
        ({}, left(unmet="there is no program x on this host"), "NOT_RUN", "there is no program x on this host"),
        ({"not_run_exit_code": 77}, left(exit_code=77), "NOT_RUN", "exit code 77 says that it could not test"),
        ({}, left(exit_code=77), "FAIL", "exit code 77, expected 0"),
        ({"number": NUMBER}, left(b"ppl: 11.25 over 9"), "PASS", "ppl: 11.25"),
        ({"number": NUMBER}, left(b"ppl: 10"), "PASS", "ppl: 10"),
        ({"number": NUMBER}, left(b"ppl: 12.5\n"), "PASS", "ppl: 12.5"),
        ({"number": NUMBER}, left(b"ppl: 1.1e1"), "PASS", "ppl: 1.1e1"),
        ({"number": NUMBER}, left(b"ppl: 9.9999"), "FAIL", "ppl: 9.9999 is below 10"),
        ({"number": NUMBER}, left(b"ppl: 12.50000000000000000001"), "FAIL", "ppl: 12.50000000000000000001 is above 12.5"),
        ({"number": NUMBER}, left(b"ppl: -11"), "FAIL", "ppl: -11 is below 10"),
        ({"number": NUMBER}, left(b"ppl: 11\nppl: 13"), "FAIL", "ppl: 13 is above 12.5"),
        ({"number": NUMBER}, left(b"ppl: nan"), "FAIL", 'the output has no number behind "ppl:"'),
        ({"number": NUMBER}, left(b"ppl: 11x"), "FAIL", 'the output has no number behind "ppl:"'),
        ({"number": NUMBER}, left(b"ppl: 1e99999"), "FAIL", 'the output has no number behind "ppl:"'),
        ({"number": NUMBER}, left(b"\xff\xfe 11"), "FAIL", 'the output has no number behind "ppl:"'),
        ({"number": NUMBER}, left(b"ppl: 11", exit_code=1), "FAIL", "exit code 1, expected 0"),
        ({"number": {"after": "n", "least": "0"}}, left(b"n1e9999"), "PASS", "n 1e9999"),
    ],
)  # fmt: skip
def test_each_end_and_each_number_is_judged(
    check: dict[str, Any], found: CheckObservation, status: str, reason: str
) -> None:
    outcome = judge_check(check_of(**check), found)
    (row,) = outcome.inputs["requirements"]
    assert (outcome.status, row["status"], row["reason"]) == (status, status, reason)
    assert reason in outcome.reason or status == "PASS"


def test_the_list_is_what_its_worst_requirement_is() -> None:
    ones = [{"id": name, "run": ["./run"], "limit_s": 1} for name in ("a", "b", "c")]
    check = RequirementsCheck.model_validate({"kind": "requirements", "id": "c", "requirements": ones})
    good = {"exit_code": 0, "signal": None, "is_timed_out": False, "is_too_long": False}

    def judged(*rows: dict[str, Any]) -> Any:
        facts: Any = {"requirements": [{"id": name, **row} for name, row in zip("abc", rows, strict=True)]}
        return judge_check(check, CheckObservation(check="c", arm="candidate", state="COMPLETE", facts=facts))

    assert judged(good, good, good)[:2] == ("PASS", "3 of 3 requirements hold.")
    assert judged(good, {"unmet": "no tool"}, good)[:2] == (
        "NOT_RUN",
        "2 of 3 requirements hold; not tested: b (no tool).",
    )
    assert judged(good | {"exit_code": 2}, {"unmet": "no tool"}, good)[:2] == (
        "FAIL",
        "1 of 3 requirements hold; not met: a (exit code 2, expected 0); not tested: b (no tool).",
    )


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"requirements": []},
        {"requirements": [{}]},
        {"requirements": [{"id": "other"}]},
        {"requirements": [{"id": "one", "exit_code": "0", "is_timed_out": False, "is_too_long": False}]},
        {"requirements": [{"id": "one", "exit_code": 0, "is_too_long": False}]},
        {"requirements": [{"id": "one", "exit_code": 0, "is_timed_out": 0, "is_too_long": False}]},
    ],
)
def test_what_a_run_never_leaves_is_no_evidence(facts: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError):
        judge_check(check_of(), CheckObservation(check="c", arm="candidate", state="COMPLETE", facts=facts))


def test_a_number_without_its_output_is_no_evidence() -> None:
    found = CheckObservation(check="c", arm="candidate", state="COMPLETE", facts=left().facts)
    with pytest.raises(EvidenceError):
        judge_check(check_of(number=NUMBER), found)


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("run: [], limit_s: 1", "requirements[0].run: found an empty list"),
        ("run: ./run, limit_s: 1", "requirements[0].run"),
        ("run: [x], limit_s: 0", "requirements[0].limit_s: found the number 0"),
        ("run: [x]", "limit_s"),
        ("run: [x], limit_s: 1, exit_code: 256", "requirements[0].exit_code: found the number 256"),
        ("run: [x], limit_s: 1, exit-code: 1", "exit-code"),
        ("run: [x, '{modell}'], limit_s: 1", "requirements[0].run[1]: found the unknown placeholder {modell}, expected one of {assay}, {folder}, {here}, {model}; write {model}"),
        ("run: [x, '{assay}'], limit_s: 1", "requirements[0].run[1]: found {assay} within the words"),
        ("run: ['{assay}/x'], limit_s: 1", "requirements[0].run[0]: found {assay} within the words"),
        ("run: [x], limit_s: 1, not_run_exit_code: 0", "requirements[0].not_run_exit_code: found 0 for both"),
        ("run: [x], limit_s: 1, number: {after: ppl}", "requirements[0].number: found neither least nor most"),
        ('run: [x], limit_s: 1, number: {after: ppl, least: "2", most: "1"}', "requirements[0].number.least: found least 2 above most 1"),
        ("run: [x], limit_s: 1, number: {after: ppl, most: 1e-2}", "requirements[0].number.most"),
        ("run: [x], limit_s: 1}, {id: r, run: [x], limit_s: 1", "requirements: found the id r 2 times"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_hold_is_refused_at_its_key(edited: Edit, requirement: str, words: str) -> None:
    limits, gates = "limits: {load_s: 120", "gates:\n"
    check = f"checks:\n  - {{id: c, kind: requirements, requirements: [{{id: r, {requirement}}}]}}\n\n{limits}"
    with pytest.raises(ProtocolError) as caught:
        edited((limits, check), (gates, f"{gates}  - {{id: g, kind: check, check: c}}\n"))
    found = caught.value.lines()
    assert any(words in line and "edited.yaml:" in line for line in found), found


@pytest.mark.parametrize(
    ("word", "is_word"), [("x", True), ("x" * 4096, True), ("x" * 4097, False), ("", False), ("a\0b", False)]
)
def test_a_word_has_one_to_4096_characters_and_no_nul(word: str, is_word: bool) -> None:
    if is_word:
        assert check_of(run=["./run", word]).requirements[0].run[1] == word
    else:
        with pytest.raises(ValidationError):
            check_of(run=["./run", word])
