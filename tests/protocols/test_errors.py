from __future__ import annotations

from protocols.errors import AssayError, EngineError, EvidenceError, HostError, Problem, ProtocolError


def test_every_family_has_its_own_exit_code_and_name() -> None:
    families = {error.family: error.exit_code for error in (ProtocolError, EngineError, HostError, EvidenceError)}
    assert families == {"protocol": 2, "engine": 5, "host": 5, "evidence": 6}
    assert all(issubclass(error, AssayError) for error in (ProtocolError, EngineError, HostError, EvidenceError))


def test_an_error_says_what_was_wrong_and_its_line_says_where_and_what_next() -> None:
    error = HostError("the disk is full", where="store", hint="free 2 GB")
    assert str(error) == "the disk is full"
    assert error.lines() == ("store: the disk is full; free 2 GB",)
    assert EngineError("it died").lines() == ("it died",)


def test_an_error_of_several_problems_has_a_line_for_each() -> None:
    problems = [Problem(where="a.yaml:2: id", message="bad"), Problem(where="a.yaml:9", message="worse", hint="fix it")]
    error = ProtocolError.from_problems("a.yaml", problems)
    assert error.lines() == ("a.yaml:2: id: bad", "a.yaml:9: worse; fix it")
    assert str(error) == "a.yaml has 2 problems; the first one is a.yaml:2: id: bad"
    assert str(ProtocolError.from_problems("a.yaml", problems[:1])) == "bad"
