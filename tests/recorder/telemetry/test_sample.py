"""Fields, readings and samples."""

from __future__ import annotations

import pytest

from recorder.telemetry.sample import FieldSpec, Reading, Sample

POWER = FieldSpec(name="socket_power_uw", unit="uw", kind="gauge", domain="socket", source="x")


def test_a_value_is_there_exactly_when_the_status_is_ok() -> None:
    assert Reading(field=POWER, raw=0).raw == 0
    assert Reading(field=POWER, raw=None, status="denied").raw is None
    with pytest.raises(ValueError, match="socket_power_uw"):
        Reading(field=POWER, raw=None)
    with pytest.raises(ValueError, match="status error"):
        Reading(field=POWER, raw=0, status="error")


def test_the_key_of_a_field_holds_its_instance() -> None:
    assert POWER.key == "socket_power_uw"
    assert (
        FieldSpec(name="a_hz", unit="hz", kind="gauge", domain="host", source="x", instance="policy3").key
        == "a_hz@policy3"
    )


def test_a_sample_stands_for_the_middle_of_its_reads() -> None:
    assert Sample(tick=0, deadline_ns=0, t_begin_ns=10, t_end_ns=15, readings=()).t_mid_ns == 12
