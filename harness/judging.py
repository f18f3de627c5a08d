"""From recorded evidence to a verdict and a report: read back, judged, recorded."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.errors import EvidenceError
from protocols.gates import GateResult, blocks_wanted, evaluate_gates
from protocols.schema import Protocol
from protocols.verdicts import Verdict, combine
from recorder.attestation import envelope, verdict_statement
from recorder.campaign import CampaignRecorder
from recorder.campaign_state import read_campaigns
from recorder.keys import Signer
from recorder.measure import locked_calibrations, protocol_of_source
from recorder.merkle import leaf_hash, root_of
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


def rejudge(store: Store, campaign_id: str) -> Judgement:
    """Judge stored evidence again and record that beside the older verdict, with a report of its own.

    Raises EvidenceError where the campaign was cancelled or still has an open load.
    """
    recorder = store.campaign_recorder(campaign_id)
    state = read_campaigns(store.entries())[recorder.campaign_id]
    if state.is_cancelled or state.open_loads():
        what = "was cancelled" if state.is_cancelled else "has an open load"
        raise EvidenceError(f"campaign {recorder.campaign_id} {what}: there is nothing to judge")
    judgement = record_judgement(store, recorder, protocol_of_source(store.protocol_of(recorder.campaign_id)))
    record_report(store, recorder)
    return judgement


def attested_verdict(store: Store, campaign_id: str, signer: Signer) -> bytes:
    """Return the newest recorded verdict of a campaign as a signed in-toto test result.

    Raises EvidenceError where there is none.
    """
    recorded = store.verdict_of(campaign_id)
    if recorded is None:
        raise EvidenceError("there is no verdict to attest", where=campaign_id, hint="`assay judge` records one")
    gates, verdict = recorded
    entries = store.entries()
    head = f"{len(entries)}:{root_of([leaf_hash(entry.line) for entry in entries]).hex()}"
    payload = verdict_statement(
        campaign_id=campaign_id,
        lock=store.lock_of(campaign_id),
        protocol_file_sha256=read_campaigns(entries)[campaign_id].locked.text("protocol_file_sha256"),
        verdict=verdict,
        gates=gates,
        head=head,
    )
    return envelope(payload, signer)


def record_report(store: Store, recorder: CampaignRecorder) -> Facts:
    """Render the report of a campaign from what is recorded, record it, and return its facts."""
    facts = collect_facts(store.root, recorder.campaign_id)
    recorder.record_report(render_report(facts) | campaign_figures(store.root, recorder.campaign_id))
    return facts


def render_report(facts: Facts) -> dict[str, bytes]:
    """Return the report's files by name."""
    return {REPORT_MARKDOWN: render_markdown(facts).encode(), REPORT_JSON: render_json(facts)}
