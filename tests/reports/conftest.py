"""Made-up facts of a whole campaign: every number is stated here, so that golden files never depend on a clock or a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols.load import library_protocol, load_protocol
from protocols.schedule import expand_schedule
from protocols.schedule_schema import BlocksSchedule
from reports.facts import (
    ArmDifference,
    ArmFact,
    Facts,
    FileFact,
    FindingFact,
    GateFact,
    LoadFact,
    ModelFact,
    ProviderFact,
    TelemetryFact,
    VerdictFact,
    WorkloadFact,
)

TELEMETRY = TelemetryFact(
    samples=57,
    missed_ticks=0,
    period_ms=250,
    covers_requests=True,
    sampler_cpu_pct=0.8,
    host_cpu_busy_pct=97.4,
    engine_cpu_pct=193.1,
    peak_rss_bytes=231_000_000,
    cpu_clock_mhz=None,
    cpu_temp_c=None,
    energy_j=None,
)


def loss_inputs(metric: str, loss: float, low: float, high: float) -> dict[str, Any]:
    return {
        "metric": metric,
        "loss_pct": str(loss),
        "loss_low_pct": str(low),
        "loss_high_pct": str(high),
        "n_baseline": 4,
        "n_candidate": 4,
        "alpha": "0.05",
        "drift_pct_per_load": "-0.123456",
        "sigma_pct": "2.5",
        "sigma_of_these_loads_pct": "2.5",
        "client_loss_pct": "0.7",
        "is_noisier_than_calibration": False,
        "limits": [],
    }


def gate(gate_id: str, kind: str, status: str, reason: str, **more: Any) -> GateFact:
    values = {"required": True, "threshold": None, "margin": None, "inputs": {}} | more
    return GateFact(id=gate_id, kind=kind, status=status, reason=reason, **values)


def loads(protocol: Any) -> tuple[LoadFact, ...]:
    made = []
    for number, place in enumerate(expand_schedule(protocol.schedule)):
        fact = WorkloadFact(
            workload="cold-512",
            requests=1,
            outcome="ok",
            clock="server",
            prefill_rate=471.25 + number,
            generation_rate=144.5 - number / 10,
            ttft_ns=1_086_000_000 + number,
            prompt_tokens=512,
            cached_tokens=0,
            generated_tokens=128,
            timings_disagree=False,
            most_cached_tokens=0,
        )
        made.append(
            LoadFact(
                index=place.index,
                label=place.label,
                arm=place.arm,
                block=place.block,
                is_burn_in=place.is_burn_in,
                attempt=1,
                state="COMPLETE",
                reason=None,
                is_abandoned=False,
                entry_seq=10 + 3 * number,
                opened_utc_ns=1_795_000_000_000_000_000 + number * 10**10,
                duration_ns=6_400_000_000,
                workloads=(fact,),
                telemetry=TELEMETRY,
            )
        )
    return tuple(made)


def arm(name: Any, salt: int, digit: str, faults: tuple[str, ...] = ()) -> ArmFact:
    return ArmFact(
        arm=name,
        kind="bundled",
        is_fresh=True,
        layout_salt=salt,
        faults=faults,
        settings={"threads": 2, "kv_type": "f16"},
        files=(
            FileFact(name="engine-server", bytes=1_234_567, sha256="a" * 64, build_id="0123456789abcdef"),
            FileFact(name="libassay-engine.so", bytes=345_678, sha256=digit * 64, build_id=digit * 40),
        ),
    )


def make_facts(name: str) -> Facts:
    protocol = load_protocol(library_protocol(name)).protocol
    changes = {
        "purpose": "To see a report.",
        "margin_reason": "It is a test.",
        "schedule": BlocksSchedule(kind="blocks", blocks=2, seed=20261129),
        "validity": (),
        "limits": protocol.limits.model_copy(update={"looks_min": None}),
    }
    protocol = protocol.model_copy(update=changes)
    faults = ("slow-decode=30",) if protocol.expect else ()
    return Facts(
        campaign_id=f"{name}-20261129T120000Z-abc123",
        protocol=protocol,
        protocol_file_sha256="d" * 64,
        lock_sha256="e" * 64,
        locked_utc_ns=1_795_953_600_000_000_000,
        seed_commitment="f" * 64,
        verdict=VerdictFact(status="PASS", reason="All 6 required gates passed.", exit_code=0, entry_seq=42),
        gates=(
            gate("complete", "completeness", "PASS", "All 9 loads are complete."),
            gate("tokens", "exact_tokens", "PASS", "All 8 outputs are the same token ids."),
            gate("work", "equal_work", "PASS", "The token counts are the same in all 8 requests."),
            gate("counters", "equal_counters", "PASS", "The work counters are the same in all 8 requests."),
            gate(
                "prefill-loss",
                "loss",
                "PASS",
                "The candidate's prefill rate is 0.51 % lower; the loss is at most 2.31 %.",
                margin="10",
                inputs=loss_inputs("prefill_rate", 0.51, -1.3, 2.31),
            ),
            gate(
                "generation-loss",
                "loss",
                "PASS",
                "The candidate's generation rate is 0.20 % higher; the loss is at most 1.90 %.",
                margin="10",
                inputs=loss_inputs("generation_rate", -0.2, -2.2, 1.9),
            ),
            gate("mirror", "mirror_gap", "PASS", "The largest gap is 1.2 points.", required=False, threshold="3"),
        ),
        loads=loads(protocol),
        arms=(arm("baseline", 1, "b"), arm("candidate", 2, "c", faults)),
        difference=ArmDifference(
            changed_files=("libassay-engine.so",),
            only_baseline=(),
            only_candidate=(),
            same_files=("engine-server",),
            settings=(),
        ),
        model=ModelFact(
            sha256="9" * 64,
            bytes=98_362_432,
            name="Smollm2 135M | 8k",
            architecture="llama",
            parameters=134_515_008,
            tokenizer_sha256="7" * 64,
            chat_template_sha256=None,
        ),
        host={"cpu_model": "A CPU", "cpu_logical_count": 2, "cpu_boost": None},
        versions={"assay": "0.1.0", "python": "3.11.7"},
        preflight=(
            FindingFact(
                id="governor", effect="record", found=None, expected="performance", message="shows no governor"
            ),
            FindingFact(id="load_average", effect="warn", found="1.40", expected="below 1", message="other work runs"),
        ),
        providers=(
            ProviderFact(name="host", state="present", reason=None),
            ProviderFact(name="gpu", state="absent", reason="no GPU telemetry on this host"),
        ),
        interruptions=(),
    )


@pytest.fixture
def passed() -> Facts:
    """Return a PASS of the bundled pair."""
    return make_facts("served-pair")


@pytest.fixture
def control() -> Facts:
    """Return a FAIL of the bundled control."""
    facts = make_facts("served-slow-control")
    return with_gate(
        replace(
            facts, verdict=VerdictFact(status="FAIL", reason="Failed: generation-loss.", exit_code=1, entry_seq=42)
        ),
        "generation-loss",
        status="FAIL",
        reason="The candidate's generation rate is 29.90 % lower; the loss is at least 28.75 %, above the margin of 10 %.",
        inputs=loss_inputs("generation_rate", 29.9, 28.75, 31.02),
    )


@pytest.fixture
def broken() -> Facts:
    """Return a campaign whose third load died, so that there is no verdict."""
    facts = make_facts("served-pair")
    whole = list(facts.loads)
    dead = replace(
        whole[2],
        state="PARTIAL",
        reason="the request cold-512.1 ended as truncated:\n the engine has ended",
        workloads=(replace(whole[2].workloads[0], outcome="truncated", generation_rate=None, generated_tokens=None),),
    )
    not_run = [
        replace(
            load,
            state=None,
            attempt=0,
            workloads=(),
            telemetry=None,
            entry_seq=None,
            opened_utc_ns=None,
            duration_ns=None,
        )
        for load in whole[3:]
    ]
    return replace(
        facts,
        loads=(*whole[:2], dead, *not_run),
        verdict=VerdictFact(status="INCONCLUSIVE", reason="Not decided: complete.", exit_code=3, entry_seq=None),
        gates=tuple(replace(one, status="INCONCLUSIVE", reason="Loads are missing.", inputs={}) for one in facts.gates),
        interruptions=("load A1 is PARTIAL: the engine has ended",),
    )


def with_gate(facts: Facts, gate_id: str, **changes: Any) -> Facts:
    return replace(facts, gates=tuple(replace(one, **changes) if one.id == gate_id else one for one in facts.gates))


@pytest.fixture(name="with_gate")
def with_gate_fixture() -> Callable[..., Facts]:
    """Return a function that changes one gate of some facts."""
    return with_gate


@pytest.fixture(name="loss_inputs")
def loss_inputs_fixture() -> Callable[..., dict[str, Any]]:
    """Return a function that makes the inputs of a loss gate."""
    return loss_inputs
