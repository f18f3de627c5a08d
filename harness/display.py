"""The verdict panel and the tables of a campaign on the console: the same facts and sentences as the report."""

from __future__ import annotations

from pathlib import Path

from harness.console import Console, panel, table
from recorder.store import CampaignSummary
from reports import style
from reports.check_table import check_rows, check_summary
from reports.claims import claims_of, control_lines, explanation_lines, failed_loads, headline, untouched
from reports.earlier import earlier_lines
from reports.facts import Facts, LoadFact

SPEED_KINDS = frozenset({"loss", "screen_loss"})
TITLES = {"may_say": "may be said", "may_not_say": "may not be said", "next": "next"}


def show_verdict(console: Console, facts: Facts) -> None:
    """Print the panel with the verdict, then gates and loads."""
    status = facts.verdict.status if facts.is_recorded else "no verdict yet"
    lines = [headline(facts), *explanation_lines(facts), *control_lines(facts)]
    # What exact gates say stands in the table below; here are the sentences about speed, and what to do next.
    speed = {gate.id for gate in facts.gates if gate.kind in SPEED_KINDS}
    chosen = [
        claim for claim in claims_of(facts) if claim.kind == "next" or (claim.gate in speed and facts.is_recorded)
    ]
    if rows := check_rows(facts):
        lines += [*check_summary(rows), untouched(facts)]
    lines += earlier_lines(facts)
    lines += [f"{TITLES[claim.kind]}: {claim.text}" for claim in chosen]
    console.show(panel("Verdict", status, [line for line in lines if line]))
    console.show(
        table(
            ("gate", "status", "required", "reason"),
            [(gate.id, gate.status, "yes" if gate.required else "no", gate.reason) for gate in facts.gates],
        ),
        "",
        table(
            ("load", "arm", "state", "workload", "prefill tok/s", "generation tok/s", "TTFT ms"),
            [row for load in facts.loads for row in _load_rows(load)],
        ),
    )
    for load in failed_loads(facts):
        console.show("", f"{load.label} is {load.state}: {load.reason or 'no reason was recorded'}")


def _load_rows(load: LoadFact) -> list[tuple[str | None, ...]]:
    label = load.label if load.attempt <= 1 else f"{load.label}, try {load.attempt}"
    if not load.workloads:
        return [(label, load.arm, load.state or "not run", None, None, None, None)]
    return [
        (
            label,
            load.arm,
            load.state,
            one.workload if one.outcome == "ok" else f"{one.workload}: {one.outcome}",
            style.rate(one.prefill_rate),
            style.rate(one.generation_rate),
            style.milliseconds(one.ttft_ns),
        )
        for one in load.workloads
    ]


def show_files(console: Console, store: Path, facts: Facts) -> None:
    """Print where the report lies and what checks it."""
    folder = store / "campaigns" / facts.campaign_id
    console.show("", f"report: {folder / 'report.md'}", f"check it: assay audit --store {store}")


def _without_verdict(one: CampaignSummary) -> str:
    if one.arms_that_do_not_start:
        return f"{' and '.join(one.arms_that_do_not_start)} does not start"
    return "interrupted" if one.is_interrupted else "no verdict yet"


def show_campaigns(console: Console, campaigns: list[CampaignSummary]) -> None:
    """Print the list of campaigns."""
    rows = [
        (
            one.campaign_id,
            style.utc(one.locked_utc_ns),
            f"{one.complete_loads}/{one.places}",
            style.count(one.partial_loads),
            one.verdict or _without_verdict(one),
        )
        for one in campaigns
    ]
    if not rows:
        console.show("no campaign yet: `assay run served-pair`")
        return
    console.show(table(("campaign", "locked", "complete", "partial", "verdict"), rows))
