"""Sentences beside the losses that decide nothing: the randomisation test, and which metrics moved."""

from __future__ import annotations

from typing import Any

from protocols.companions import RandomisationTest, holm, randomisation_test, two_sided_p
from protocols.schema import BlocksSchedule
from protocols.stats import Observation
from reports.facts import Facts, GateFact

MOVED = 0.05
"""Chance of naming any metric that did not move, over all of them."""
_WORDS = {"prefill_rate": "prefill rate", "generation_rate": "generation rate"}


def companion_lines(facts: Facts) -> tuple[str, ...]:
    """Return the sentences of all loss gates that computed a loss; empty where there is none."""
    computed = [gate for gate in facts.gates if gate.kind == "loss" and "loads" in gate.inputs]
    lines = [line for gate in computed if (line := _randomisation(gate, facts)) is not None]
    return (*lines, *_moved(computed))


def _randomisation(gate: GateFact, facts: Facts) -> str | None:
    schedule = facts.protocol.schedule
    if not isinstance(schedule, BlocksSchedule) or schedule.order != "coin" or gate.margin is None:
        return None
    test = randomisation_test(observations_of(gate.inputs["loads"]), float(gate.margin) / 100)
    if test is None:
        return None
    return (
        f"{gate.id}: by the committed coins alone, whatever the noise, so large a loss comes in "
        f"{share_words(test.p_loss)} if there is none, and so small a one in {share_words(test.p_margin)} if it is the "
        f"margin; {least_words(test)}."
    )


def share_words(chance: float) -> str:
    """Return a chance as a share of cases, for somebody who never heard of a p-value."""
    return f"{100 * chance:.3g} % of cases"


def least_words(test: RandomisationTest) -> str:
    """Return what so many blocks can show at best by their coins."""
    blocks = "1 block never gives" if test.blocks == 1 else f"{test.blocks} blocks never give"
    least = f"{100 * test.p_least:.3g} %"
    return f"{blocks} less than {least}" + ("" if test.p_least < MOVED else ", so it shows nothing here")


def observations_of(loads: list[dict[str, Any]]) -> list[Observation]:
    """Return the loads that a loss gate recorded as it saw them."""
    return [
        Observation(
            index=int(load["index"]),
            is_candidate=load["arm"] == "candidate",
            rate=float(load["rate"]),
            block=load["block"],
        )
        for load in loads
    ]


def _moved(gates: list[GateFact]) -> list[str]:
    p_values = {
        f"{_WORDS[gate.inputs['metric']]} of {gate.inputs['workload']}": two_sided_p(
            float(gate.inputs["beta"]), float(gate.inputs["standard_error_pct"]) / 100, int(gate.inputs["df"])
        )
        for gate in gates
        if gate.inputs.get("standard_error_pct") is not None
    }
    if len(p_values) < 2:
        return []
    adjusted = holm(p_values)
    moved = [f"{name} (p = {p:.3g})" for name, p in adjusted.items() if p < MOVED]
    named = ", ".join(moved) if moved else "none shows a change"
    return [f"Which of the {len(adjusted)} metrics moved, either way (Holm, {100 * MOVED:g} % over all): {named}."]
