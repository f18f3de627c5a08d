"""What stands beside the losses of a report, and decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from protocols.companions import holm, two_sided_p
from protocols.schedule import expand_schedule
from protocols.stats import fit_loss
from reports.companions import companion_lines, observations_of
from reports.facts import Facts
from reports.markdown import render_markdown

Change = Callable[..., Facts]


def inputs_of(facts: Facts, metric: str, loss: float) -> dict[str, Any]:
    """Return a loss gate's inputs with rates of every load: a loss, and a little noise that is stated here."""
    loads = [
        {
            "index": place.index,
            "arm": place.arm,
            "block": place.block,
            "rate": repr(100 * (1 - loss * (place.arm == "candidate")) * (1 + 0.001 * math.sin(7 * place.index))),
        }
        for place in expand_schedule(facts.protocol.schedule)
        if not place.is_burn_in
    ]
    fit = fit_loss(observations_of(loads))
    assert fit.standard_error is not None
    return {
        "workload": "cold-512",
        "metric": metric,
        "loads": loads,
        "beta": repr(fit.beta),
        "standard_error_pct": repr(100 * fit.standard_error),
        "df": fit.df,
    }


def with_losses(facts: Facts, with_gate: Change, prefill: float, generation: float) -> Facts:
    changed = with_gate(facts, "prefill-loss", inputs=inputs_of(facts, "prefill_rate", prefill))
    return with_gate(changed, "generation-loss", inputs=inputs_of(facts, "generation_rate", generation))


def test_the_coins_of_the_protocol_give_an_exact_test(passed: Facts, with_gate: Change) -> None:
    lines = companion_lines(with_losses(passed, with_gate, 0.0, 0.05))
    (line,) = [line for line in lines if line.startswith("generation-loss:")]
    assert "so large a loss comes in 25 % of cases if there is none" in line
    assert "2 blocks never give less than 25 %, so it shows nothing here" in line


def test_an_order_without_coins_has_no_such_test(passed: Facts, with_gate: Change) -> None:
    schedule = passed.protocol.schedule.model_copy(update={"order": "abba"})
    fixed = replace(passed, protocol=passed.protocol.model_copy(update={"schedule": schedule}))
    lines = companion_lines(with_losses(fixed, with_gate, 0.0, 0.05))
    assert len(lines) == 1
    assert lines[0].startswith("Which of the 2 metrics moved")


def test_the_metric_that_moved_is_named_with_its_corrected_p(passed: Facts, with_gate: Change) -> None:
    facts = with_losses(passed, with_gate, 0.0, 0.05)
    p_values = {
        gate.id: two_sided_p(
            float(gate.inputs["beta"]), float(gate.inputs["standard_error_pct"]) / 100, int(gate.inputs["df"])
        )
        for gate in facts.gates
        if gate.kind == "loss"
    }
    line = companion_lines(facts)[-1]
    expected = holm(p_values)["generation-loss"]
    assert line.endswith(f"(Holm, 5 % over all): generation rate of cold-512 (p = {expected:.3g}).")
    assert companion_lines(with_losses(passed, with_gate, 0.0, 0.0))[-1].endswith("none shows a change.")


def test_the_report_shows_them_below_the_losses(passed: Facts, with_gate: Change, loss_inputs: Any) -> None:
    inputs = {**loss_inputs("generation_rate", 5, 4, 6), **inputs_of(passed, "generation_rate", 0.05)}
    text = render_markdown(with_gate(passed, "generation-loss", inputs=inputs))
    assert "Beside the losses, deciding nothing:" in text
    assert "Beside the losses" not in render_markdown(passed)
