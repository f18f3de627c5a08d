"""The names of the known faults are those that the build file accepts."""

from __future__ import annotations

import pytest

from engine.build import BuildSpec, build_engine
from engine.faults import known_faults
from protocols.errors import EngineError


def test_the_build_file_names_the_same_faults() -> None:
    with pytest.raises(EngineError) as caught:
        build_engine(BuildSpec(name="no-such-fault", faults=("no-such-fault",)))
    text = str(caught.value)
    assert known_faults()
    assert all(name in text for name in known_faults()), text
    assert text.count("-65535") == 1
