"""Which requests a load sends, and what ends it."""

from __future__ import annotations

import gc
from typing import Any

from engine.client import ExchangeEnd
from harness.preparation import prepare
from harness.requests import Step, _ended, _quiet_collector, workload_steps
from protocols.load import load_protocol

STEP = Step(
    name="cold.1",
    method="POST",
    route="/completion",
    kind="native",
    workload="cold",
    repeat=1,
    is_warmup=False,
    body=b"{}",
    total_s=5,
    idle_s=2,
)


def test_warm_ups_of_a_workload_come_before_its_measured_requests(world: Any, as_user_of: Any) -> None:
    as_user_of(world)
    path = world.protocol()
    text = path.read_text().replace("warmup: {request: warm.json}", "warmup: {request: warm.json, repeats: 2}")
    path.write_text(text.replace("generated_tokens: 24}", "generated_tokens: 24, repeats: 3}"))
    prepared = prepare(load_protocol(path), base=world.root, cache=world.root, log=lambda _: None)
    steps = list(workload_steps(prepared))
    assert [step.name for step in steps] == ["cold.warmup-1", "cold.warmup-2", "cold.1", "cold.2", "cold.3"]
    assert [step.is_warmup for step in steps] == [True, True, False, False, False]
    assert [step.repeat for step in steps] == [1, 2, 1, 2, 3]
    assert {step.body for step in steps[2:]} == {(world.root / "cold.json").read_bytes()}, (
        "bodies are sent byte for byte"
    )


def test_the_end_of_an_exchange_is_told_in_words() -> None:
    def words(reason: Any, detail: str | None = None) -> str:
        return _ended(ExchangeEnd(reason=reason, sent_ns=1, end_ns=2, detail=detail), STEP)

    assert words("idle_timeout") == "nothing came for 2 s"
    assert words("total_timeout").startswith("it took longer than 5 s")
    assert words("refused", "Connection refused") == "no connection could be made: Connection refused"


def test_the_garbage_collector_rests_while_a_request_is_measured() -> None:
    assert gc.isenabled()
    with _quiet_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
