"""Builds with known faults that several tests share: the same name and faults are the same build."""

from __future__ import annotations

import pytest

from engine.build import BuildSpec, EngineBuild, build_engine
from protocols.errors import EngineError

# Faults that do not touch each other's checks share a build; a fault recompiles its own file only.
SEPARATE = (
    "copy-loses-index-keys",
    "norm-65535",
    "state-loses-positions",
    "draft-accepts-wrong",
    "slot-leaks-cache",
)


def built(name: str, *faults: str) -> EngineBuild:
    """Return a build that other tests use under this name as well."""
    try:
        return build_engine(BuildSpec(name=name, layout_salt=1, faults=faults))
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
