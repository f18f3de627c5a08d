"""From recorded evidence to a verdict and a report: read back, judged, recorded."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.gates import GateResult, blocks_wanted, evaluate_gates
from protocols.schema import Protocol
from protocols.verdicts import Verdict, combine
from recorder.campaign import CampaignRecorder
from recorder.measure import locked_calibrations
from recorder.store import Store
from reports.collect import collect_facts
from reports.facts import Facts
from reports.figures import campaign_figures
from reports.json_report import render_json
from reports.markdown import render_markdown

REPORT_MARKDOWN = "report.md"
REPORT_JSON = "report.json"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the gates say about a campaign as it stands."""

    results: tuple[GateResult, ...]
    verdict: Verdict


def judge(store: Store, campaign_id: str, protocol: Protocol) -> Judgement:
    """Evaluate the locked gates over the recorded evidence. Nothing is recorded."""
    lock = store.lock_of(campaign_id)
    results = evaluate_gates(
        protocol,
        store.measurements(campaign_id),
        calibrations=locked_calibrations(lock),
        levels=lock.levels(),
    )
    return Judgement(results=results, verdict=combine(results))


def wanted_blocks(store: Store, campaign_id: str, protocol: Protocol) -> int | None:
    """Return how many blocks must be complete before a campaign with looks is judged; None where it is decided."""
    lock = store.lock_of(campaign_id)
    return blocks_wanted(
        protocol,
        store.measurements(campaign_id),
        calibrations=locked_calibrations(lock),
        levels=lock.levels(),
    )


def record_judgement(store: Store, recorder: CampaignRecorder, protocol: Protocol) -> Judgement:
    """Judge a campaign and record the verdict."""
    judgement = judge(store, recorder.campaign_id, protocol)
    recorder.record_verdict(judgement.results, judgement.verdict)
    return judgement


def record_report(store: Store, recorder: CampaignRecorder) -> Facts:
    """Render the report of a campaign from what is recorded, record it, and return its facts."""
    facts = collect_facts(store.root, recorder.campaign_id)
    recorder.record_report(render_report(facts) | campaign_figures(store.root, recorder.campaign_id))
    return facts


def render_report(facts: Facts) -> dict[str, bytes]:
    """Return the report's files by name."""
    return {REPORT_MARKDOWN: render_markdown(facts).encode(), REPORT_JSON: render_json(facts)}
