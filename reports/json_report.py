"""The report as one JSON document: the facts and sentences of the Markdown report, with every digit. No arithmetic."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from reports.claims import claims_of, control_lines, explanation, headline, limits_of, not_measured
from reports.facts import Facts

FORMAT = "assay.report.v1"


def report_document(facts: Facts) -> dict[str, Any]:
    """Return the report as plain JSON values."""
    return {
        "format": FORMAT,
        "campaign": facts.campaign_id,
        "protocol": {
            "id": facts.protocol.id,
            "title": facts.protocol.title,
            "claim": facts.protocol.claim,
            "expect": facts.protocol.expect,
            "file_sha256": facts.protocol_file_sha256,
        },
        "lock_sha256": facts.lock_sha256,
        "locked_utc_ns": str(facts.locked_utc_ns),
        "seed_commitment": facts.seed_commitment,
        "is_recorded": facts.is_recorded,
        "verdict": asdict(facts.verdict),
        "headline": headline(facts),
        "explanation": explanation(facts),
        "control": list(control_lines(facts)),
        "claims": [asdict(claim) for claim in claims_of(facts)],
        "gates": [asdict(gate) for gate in facts.gates],
        "loads": [asdict(load) for load in facts.loads],
        "arms": [asdict(arm) for arm in facts.arms],
        "difference": asdict(facts.difference),
        "model": None if facts.model is None else asdict(facts.model),
        "stated_models": facts.stated_models(),
        "host": dict(facts.host),
        "preflight": [asdict(finding) for finding in facts.preflight],
        "telemetry_sources": [asdict(provider) for provider in facts.providers],
        "clock_views": [asdict(view) for view in facts.clock_views],
        "diagnostics": [asdict(diagnostic) for diagnostic in facts.diagnostics],
        "earlier": [asdict(one) | {"locked_utc_ns": str(one.locked_utc_ns)} for one in facts.earlier],
        "interruptions": list(facts.interruptions),
        "not_measured": list(not_measured(facts)),
        "limits": list(limits_of(facts)),
        "versions": dict(facts.versions),
    }


def render_json(facts: Facts) -> bytes:
    """Return the report's file."""
    text = json.dumps(report_document(facts), indent=2, ensure_ascii=False, allow_nan=False, sort_keys=True)
    return text.encode() + b"\n"
