"""Fixtures of the protocol tests: bundled protocols, and made-up campaigns with stated rates."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocols.canonical import canonical_bytes
from protocols.gates import evaluate_gates
from protocols.load import LIBRARY, LoadedProtocol, parse_protocol
from protocols.measurements import CampaignMeasurements, LoadMeasurement, RequestMeasurement
from protocols.results import GateResult
from protocols.schedule import Position, expand_schedule
from protocols.schema import Protocol

GOLDEN = Path(__file__).parent / "golden"
NS = 1_000_000_000


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def vectors() -> dict[str, dict[str, Any]]:
    rows = json.loads((GOLDEN / "vectors.json").read_text())["vectors"]
    return {row["id"]: row for row in rows}


@pytest.fixture(scope="session")
def served_pair(served_pair_text: str) -> LoadedProtocol:
    return parse_protocol(served_pair_text.encode(), LIBRARY / "served-pair.yaml")


@pytest.fixture(scope="session")
def served_pair_text() -> str:
    """The bundled pair, judged once after two blocks and without rules about the host: what a short protocol is."""
    text = (LIBRARY / "served-pair.yaml").read_text()
    for old, new in ((", blocks: 4, looks: [2, 3, 4]", ", blocks: 2"), (", looks_min: 2", "")):
        assert old in text
        text = text.replace(old, new)
    head, _, rest = text.partition("validity:\n")
    return head + "gates:" + rest.partition("gates:")[2]


@pytest.fixture(scope="session")
def edited(served_pair_text: str) -> Callable[..., LoadedProtocol]:
    """Load served-pair with parts of its text replaced; every replaced part must be there."""

    def load(*changes: tuple[str, str]) -> LoadedProtocol:
        text = served_pair_text
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return parse_protocol(text.encode(), LIBRARY / "edited.yaml")

    return load


@pytest.fixture(scope="session")
def make_campaign() -> Callable[..., CampaignMeasurements]:
    """Make a complete campaign of a protocol.

    `rates` gives (prefill, generation) tokens per second for each position; `edit_request` and `edit_load` may replace a
    measured request or a load.
    """

    def make(
        protocol: Protocol,
        rates: Callable[[Position], tuple[float, float]] | None = None,
        edit_request: Callable[[Position, RequestMeasurement], RequestMeasurement] | None = None,
        edit_load: Callable[[Position, LoadMeasurement], LoadMeasurement | None] | None = None,
    ) -> CampaignMeasurements:
        loads: list[LoadMeasurement] = []
        for position in expand_schedule(protocol.schedule):
            prefill, generation = (400.0, 100.0) if rates is None else rates(position)
            requests: list[RequestMeasurement] = []
            for workload in protocol.workloads:
                prefill_ns = round(workload.prompt_tokens / prefill * NS)
                generation_ns = round((workload.generated_tokens - 1) / generation * NS)
                measured = RequestMeasurement(
                    workload=workload.id,
                    repeat=0,
                    is_warmup=False,
                    outcome="ok",
                    token_ids=tuple(range(1000, 1000 + workload.generated_tokens)),
                    prompt_tokens=workload.prompt_tokens,
                    prompt_tokens_evaluated=workload.prompt_tokens,
                    cached_tokens=0,
                    generated_tokens=workload.generated_tokens,
                    drafted_tokens=0,
                    accepted_tokens=0,
                    stop_reason="limit",
                    server_prefill_ns=prefill_ns,
                    server_generation_ns=generation_ns,
                    client_prefill_ns=prefill_ns + 2_000_000,
                    client_generation_ns=generation_ns + 1_000_000,
                    ttft_ns=prefill_ns + 2_000_000,
                    e2e_ns=prefill_ns + generation_ns + 4_000_000,
                    work={"n_graphs": 129, "n_flops": 2**60},
                )
                requests.extend(
                    RequestMeasurement(workload=workload.id, repeat=repeat, is_warmup=True, outcome="ok")
                    for repeat in range(workload.warmup.repeats if workload.warmup else 0)
                )
                for repeat in range(workload.repeats):
                    one = RequestMeasurement(**{**vars(measured), "repeat": repeat})
                    requests.append(edit_request(position, one) if edit_request else one)
            load: LoadMeasurement | None = LoadMeasurement(
                index=position.index,
                label=position.label,
                arm=position.arm,
                block=position.block,
                is_burn_in=position.is_burn_in,
                state="COMPLETE",
                requests=tuple(requests),
            )
            if edit_load is not None and load is not None:
                load = edit_load(position, load)
            if load is not None:
                loads.append(load)
        return CampaignMeasurements(loads=tuple(loads))

    return make


@pytest.fixture(scope="session")
def judge() -> Callable[..., dict[str, GateResult]]:
    """Evaluate the gates of a campaign, check what every result must be, and return the results by id."""

    def evaluate(protocol: Protocol, campaign: CampaignMeasurements, **options: Any) -> dict[str, GateResult]:
        results = evaluate_gates(protocol, campaign, **options)
        for result in results:
            canonical_bytes(result.payload())
            assert result.reason.endswith(".")
        assert [result.id for result in results] == [gate.id for gate in protocol.gates]
        return {result.id: result for result in results}

    return evaluate


@pytest.fixture(scope="session")
def noisy() -> Callable[..., Callable[[Position], tuple[float, float]]]:
    """Make rates with normal noise, and a candidate that is faster or slower by a factor."""

    def make(seed: int, sigma: float, candidate: float = 1.0) -> Callable[[Position], tuple[float, float]]:
        noise = random.Random(seed)

        def rates(position: Position) -> tuple[float, float]:
            factor = candidate if position.arm == "candidate" else 1.0
            return 400 * factor * (1 + noise.gauss(0, sigma)), 100 * factor * (1 + noise.gauss(0, sigma))

        return rates

    return make
