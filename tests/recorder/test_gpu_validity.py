"""Rules about the host over telemetry of a real H200: kept as recorded, broken where its readings are changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from protocols.gate_schema import MirrorGapGate
from protocols.gates import evaluate_gates
from protocols.results import GateResult
from protocols.schema import Protocol, ValidityRule
from protocols.verdicts import combine
from recorder.campaign_state import read_campaigns
from recorder.importing import import_bundle
from recorder.load_files import SAMPLES, parse_samples
from recorder.measure import measure_campaign, protocol_of_source
from recorder.store import Store

BUNDLE = Path(__file__).parents[1] / "evidence" / "h200-smollm2.assay.tar.zst"
LABEL = "C4"
"""A load of the second block, whose telemetry is changed."""

MIRROR = MirrorGapGate(
    id="mirror", kind="mirror_gap", workload="cold-1024", metric="generation_rate", limit_pp=Decimal(3), required=False
)

Lines = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The campaign of the bundle, with a way to judge it under other rules and with changed telemetry of one load."""

    store: Store
    campaign: str
    protocol: Protocol
    samples_sha256: str

    def judge(
        self, rules: list[tuple[str, int]], change: Callable[[Lines], None] | None = None
    ) -> dict[str, GateResult]:
        """Evaluate every gate by id."""
        validity = tuple(ValidityRule(reading=reading, most=most) for reading, most in rules)  # type: ignore[arg-type]
        gates = (*self.protocol.gates, MIRROR)
        protocol = self.protocol.model_copy(update={"validity": validity, "gates": gates})

        def read(sha256: str) -> bytes:
            data = self.store.blobs.read(sha256)
            if change is None or sha256 != self.samples_sha256:
                return data
            lines = [json.loads(line) for line in data.splitlines()]
            change(lines)
            return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

        state, lock = read_campaigns(self.store.entries())[self.campaign], self.store.lock_of(self.campaign)
        measured = measure_campaign(state, lock, read, protocol=protocol)
        return {result.id: result for result in evaluate_gates(protocol, measured)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    root = tmp_path_factory.mktemp("h200") / "store"
    with Store.open(root, create=True) as store:
        folder = root / import_bundle(store, BUNDLE).folder
    with Store.open(folder, read_only=True) as store:
        campaign = store.resolve_campaign("latest")
        state = read_campaigns(store.entries())[campaign]
        lock = store.lock_of(campaign)
        index = next(place.index for place in lock.schedule if place.label == LABEL)
        sealed = next(load.sealed for load in state.loads.values() if load.index == index)
        assert sealed is not None
        yield Recorded(
            store=store,
            campaign=campaign,
            protocol=protocol_of_source(store.protocol_of(campaign)),
            samples_sha256=next(str(one["sha256"]) for one in sealed.blobs() if one["name"] == SAMPLES),
        )


def fields_of(lines: Lines) -> list[str]:
    return [line["field"]["name"] for line in lines if "field" in line]


def set_readings(name: str, value: Callable[[int, int], int]) -> Callable[[Lines], None]:
    """Change the readings of a field: `value` gets the number of the reading and what was recorded."""

    def change(lines: Lines) -> None:
        place, seen = fields_of(lines).index(name), 0
        for line in lines:
            for reading in line.get("readings", ()):
                if reading[0] == place and reading[1] is not None:
                    reading[1] = value(seen, reading[1])
                    seen += 1
        assert seen > 4

    return change


def fail_reading(name: str, number: int) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        place = fields_of(lines).index(name)
        readings = [one for line in lines for one in line.get("readings", ()) if one[0] == place and one[1] is not None]
        readings[number][1:] = [None, "error"]

    return change


EVERY = [
    ("thermal_throttle_events", 0), ("power_throttle_events", 0), ("throttle_events", 0), ("foreign_gpu_processes", 0),
    ("clock_collapses", 0), ("engine_major_faults", 0), ("swap_in_pages", 0), ("swap_out_pages", 0), ("oom_kills", 0),
    ("memory_pressure_permille", 0), ("io_pressure_permille", 10), ("memory_used_permille", 968),
    ("engine_runq_wait_permille", 10), ("longest_sample_gap_ms", 750),
]  # fmt: skip


def test_a_quiet_gpu_keeps_every_rule_and_one_without_a_sensor_is_named(recorded: Recorded) -> None:
    results = recorded.judge([*EVERY, ("cpus_off_performance_governor", 0), ("profile_changes", 0)])
    assert combine(list(results.values())).status == "PASS"
    for gate in ("prefill-loss", "generation-loss", "mirror"):
        inputs = results[gate].inputs
        assert inputs["invalid_blocks"] == []
        assert inputs["unchecked_readings"] == ["cpus_off_performance_governor", "profile_changes"]
        assert "could not be checked here: CPU clock policies" in results[gate].reason
        assert "(in no load)" in results[gate].reason


BREAKS = [
    ("thermal_throttle_events", "clock_event_bits", lambda n, old: old | 32 if n in (4, 5) else old),
    ("thermal_throttle_events", "event_hw_thermal_ns", lambda n, old: old + 1000 * (n > 5)),
    ("power_throttle_events", "clock_event_bits", lambda n, old: old | 4 if n == 6 else old),
    ("power_throttle_events", "event_power_cap_ns", lambda n, old: old + (n > 3)),
    ("foreign_gpu_processes", "gpu_foreign_process_count", lambda n, old: 1 if n == 3 else old),
    ("engine_major_faults", "proc_majflt_count", lambda n, old: old + n // 5),
    ("swap_in_pages", "swap_in_pages", lambda n, old: old + n // 5),
    ("memory_used_permille", "mem_available_bytes", lambda n, old: old // 100 if n == 4 else old),
]


@pytest.mark.parametrize(("reading", "field", "value"), BREAKS, ids=[f"{one[0]}-{one[1]}" for one in BREAKS])
def test_a_reading_over_the_most_takes_its_whole_block_out_and_is_shown_both_ways(
    recorded: Recorded, reading: str, field: str, value: Callable[[int, int], int]
) -> None:
    results = recorded.judge(EVERY, set_readings(field, value))
    loss = results["generation-loss"]
    (invalid,) = loss.inputs["invalid_blocks"]  # type: ignore[misc, union-attr]
    assert invalid["block"] == 2  # type: ignore[index, call-overload]
    assert loss.inputs["n_candidate"] == 2
    assert loss.status == "INCONCLUSIVE"  # one block of four loads is left
    whole = loss.inputs["all_blocks"]
    assert isinstance(whole, dict)
    assert (whole["n_candidate"], whole["decision"]) == (4, "PASS")
    assert "With every block the loss would be" in loss.reason
    assert "With every block the largest gap would be" in results["mirror"].reason
    # Without this rule (and the one of all throttling) nothing is broken: it is this very reading that counts.
    others = [rule for rule in EVERY if rule[0] not in {reading, "throttle_events"}]
    assert recorded.judge(others, set_readings(field, value))["generation-loss"].inputs["invalid_blocks"] == []


def test_a_clock_that_collapses_within_a_generation_breaks_its_rule(recorded: Recorded) -> None:
    def broken(first: int) -> list[Any]:
        def change(lines: Lines) -> None:
            set_readings("gfx_busy_ppm", lambda _n, _old: 990_000)(lines)
            set_readings("gfx_clock_hz", lambda n, old: old // 2 if first <= n < first + 5 else old)(lines)

        inputs = recorded.judge([("clock_collapses", 0)], change)["generation-loss"].inputs
        return [one["block"] for one in inputs["invalid_blocks"]]  # type: ignore[index, call-overload, union-attr]

    assert broken(21) == [2]
    assert broken(100) == []


def test_a_read_that_failed_once_leaves_its_rule_open_in_that_load_only(recorded: Recorded) -> None:
    results = recorded.judge(EVERY, fail_reading("clock_event_bits", 3))
    inputs = results["generation-loss"].inputs
    throttles = ["thermal_throttle_events", "power_throttle_events", "throttle_events"]
    assert inputs["unchecked_loads"] == {reading: [LABEL] for reading in throttles}
    assert inputs["invalid_blocks"] == []
    assert f"(not in {LABEL})" in results["generation-loss"].reason
    assert results["generation-loss"].status == "PASS"


def test_what_was_seen_breaks_a_rule_even_where_a_read_failed(recorded: Recorded) -> None:
    def both(lines: Lines) -> None:
        set_readings("clock_event_bits", lambda n, old: 32 if n == 9 else old)(lines)
        fail_reading("clock_event_bits", 3)(lines)

    inputs = recorded.judge([("thermal_throttle_events", 0)], both)["generation-loss"].inputs
    assert [one["block"] for one in inputs["invalid_blocks"]] == [2]  # type: ignore[index, call-overload, union-attr]
    assert inputs["unchecked_readings"] == []


def test_the_changed_samples_are_those_of_the_load(recorded: Recorded) -> None:
    assert len(parse_samples(recorded.store.blobs.read(recorded.samples_sha256)).samples) > 20
