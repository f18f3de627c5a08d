"""The names of the known faults are those that the build file accepts."""

from __future__ import annotations

import re

import pytest

from engine.build import BuildSpec, build_engine
from engine.faults import fault_values, known_faults, value_problem
from protocols.errors import EngineError


def test_the_build_file_names_the_same_faults() -> None:
    with pytest.raises(EngineError) as caught:
        build_engine(BuildSpec(name="no-such-fault", faults=("no-such-fault",)))
    listed = re.sub(r"=[^,]*", "", str(caught.value).partition("Known: ")[2]).split(",")[:-1]  # the last may be cut
    assert {name.strip() for name in listed} <= known_faults()
    assert len(listed) > 10


@pytest.mark.parametrize("name", ["slow-decode", "norm-65535", "position-only-blocks", "bound-262140"])
def test_the_first_and_the_last_of_each_kind_are_known(name: str) -> None:
    assert name in known_faults()


def test_numbers_of_faults_are_checked_against_what_the_build_takes() -> None:
    assert {name: value[1:] for name, value in fault_values().items()} == {
        "slow-decode": (1, 95),
        "slow-prefill-after": (1, 16_777_216),
    }
    for fault in ("leak", "slow-decode=1", "slow-decode=95"):
        assert value_problem(fault) is None
    for fault in ("leak=1", "slow-decode", "slow-decode=0", "slow-decode=96"):
        assert value_problem(fault) is not None
