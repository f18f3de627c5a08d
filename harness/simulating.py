"""What `assay simulate` says: how often a design passes, fails and stays open, on hosts with stated habits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness.console import Console, table
from protocols.decision import LossRule
from protocols.errors import ProtocolError
from protocols.load import load_protocol
from protocols.looks import looks_of
from protocols.schema import BlocksSchedule, LossGate
from protocols.simulate import HOSTS, Characteristics, Design, Host, lower_limit, simulate, upper_limit
from reports import style

LEAST_CAMPAIGNS: Final = 100
TOLERATED: Final = 1.2
"""How many times its level a chance of error may be, by its 95 % limit, to count as promised."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is simulated: one design, on some hosts, at no loss, at the margin and at twice the margin."""

    name: str
    design: Design
    hosts: tuple[str, ...]
    noise: float | None
    campaigns: int
    seed: int

    def losses(self) -> tuple[float, float, float]:
        """Return the true losses that are simulated, as fractions."""
        margin = self.design.rule.margin
        return 0.0, margin, min(2 * margin, 0.9)


def design_of(schedule: BlocksSchedule, *, margin: float, alpha: float, equivalence: bool = False) -> Design:
    """Return the design that a schedule and a loss gate promise."""
    rule = LossRule(
        margin=margin,
        alpha=alpha,
        equivalence=equivalence,
        looks=looks_of(schedule, alpha),
        stopping=schedule.stopping,
    )
    order = None if schedule.order == "coin" else {"abba": "ACCA", "baab": "CAAC"}[schedule.order] * schedule.blocks
    return Design(blocks=schedule.blocks, rule=rule, burn_in=schedule.burn_in, order=order)


def protocol_design(path: Path) -> tuple[str, Design]:
    """Return the name and the design of a protocol's first required loss gate. ProtocolError where it has none."""
    protocol = load_protocol(path).protocol
    gate = next((one for one in protocol.gates if isinstance(one, LossGate) and one.required), None)
    if gate is None or not isinstance(protocol.schedule, BlocksSchedule):
        raise ProtocolError(
            "nothing can be simulated: the protocol has no required loss gate over blocks",
            where=str(path),
            hint="a schedule of kind blocks and a gate of kind loss are needed",
        )
    design = design_of(
        protocol.schedule,
        margin=float(gate.margin_pct / 100),
        alpha=float(gate.alpha),
        equivalence=gate.equivalence,
    )
    return f"{protocol.id}, gate {gate.id}", design


def answer(question: Question) -> list[tuple[str, tuple[Characteristics, ...]]]:
    """Simulate every cell of a question."""
    return [
        (
            name,
            tuple(
                simulate(_host(question, name), question.design, loss, campaigns=question.campaigns, seed=question.seed)
                for loss in question.losses()
            ),
        )
        for name in question.hosts
    ]


def _host(question: Question, name: str) -> Host:
    host = HOSTS[name]
    return host if question.noise is None else replace(host, noise=question.noise)


def simulated_document(question: Question, cells: Sequence[tuple[str, tuple[Characteristics, ...]]]) -> dict[str, Any]:
    """Return everything as one JSON document."""
    return {
        "design": question.name,
        "rule": asdict(question.design.rule),
        "blocks": question.design.blocks,
        "burn_in": question.design.burn_in,
        "seed": question.seed,
        "cells": [{"host": name, **asdict(_host(question, name)), **asdict(one)} for name, row in cells for one in row],
    }


def show_simulated(
    console: Console, question: Question, cells: Sequence[tuple[str, tuple[Characteristics, ...]]]
) -> None:
    """Print a table for a person: what may go wrong first, then what the design finds."""
    margin = style.percent(100 * question.design.rule.margin)
    twice = style.percent(100 * question.losses()[2])
    console.show(
        f"{question.name}: {question.campaigns:,} made-up campaigns a cell, margin {margin}",
        "",
        table(
            (
                "host",
                "no loss: PASS",
                "FAIL",
                "loss found",
                "loads",
                f"loss {margin}: PASS",
                "FAIL",
                f"loss {twice}: FAIL",
                "PASS",
            ),
            [(name, *_cells(row)) for name, row in cells],
        ),
        "",
        *_words(question, cells),
    )


def _cells(row: tuple[Characteristics, ...]) -> tuple[str, ...]:
    none, margin, twice = row
    shares = (
        none.share(none.passed),
        none.share(none.failed),
        none.share(none.detected),
        none.loads,
        margin.share(margin.passed),
        margin.share(margin.failed),
        twice.share(twice.failed),
        twice.share(twice.passed),
    )
    return tuple(f"{value:.1f}" if place == 3 else f"{value:.4f}" for place, value in enumerate(shares))


def _words(question: Question, cells: Sequence[tuple[str, tuple[Characteristics, ...]]]) -> list[str]:
    alpha = question.design.rule.alpha
    most = max(max(row[1].passed, row[1].failed) for _, row in cells)
    worst, least = upper_limit(most, question.campaigns), lower_limit(most, question.campaigns)
    weakest = min(cells, key=lambda cell: cell[1][0].passed)
    power = weakest[1][0].share(weakest[1][0].passed)
    if worst <= TOLERATED * alpha:
        held = f"as promised ({alpha:g})"
    elif least <= TOLERATED * alpha:
        held = f"which so few campaigns do not tell from the promised {alpha:g}: simulate more"
    else:
        held = f"MORE than the promised {alpha:g}: do not trust it there"
    lines = [
        "Shares of campaigns that ended so; loss found: even the lower bound of the loss is above zero.",
        f"A loss of exactly the margin passes, and fails, with a chance of at most {worst:.3f} (95 % limit), {held}.",
        f"Without any loss it passes with a chance of {power:.2f} or more; least on the host '{weakest[0]}'.",
    ]
    if power < 0.8:
        lines.append("next: more blocks, looks that may add some, or a quieter host; `assay plan` names the cheapest.")
    return lines
