"""The queries of a report, each one answered by the evidence database alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import pandas as pd

from protocols.measurements import RequestMeasurement

Row = Mapping[str, Any]

_LOADS = """
SELECT l.load_id, l.position, l.label, l.arm, l.block, l.is_burn_in, l.attempt, l.opened_ns, l.opened_utc_ns,
       s.entry_seq AS seal_seq, s.state, s.reason, s.is_abandoned, s.sealed_ns
FROM load l LEFT JOIN load_seal s ON s.load_id = l.load_id
WHERE l.campaign_id = :campaign ORDER BY l.entry_seq
"""
_REQUESTS = """
SELECT r.* FROM request r JOIN load_seal s ON s.entry_seq = r.entry_seq
WHERE s.campaign_id = :campaign AND r.workload IS NOT NULL ORDER BY r.entry_seq, r.request
"""
_SPANS = """
SELECT r.entry_seq, min(r.sent_ns) AS first_ns, max(r.end_ns) AS last_ns
FROM request r JOIN load_seal s ON s.entry_seq = r.entry_seq
WHERE s.campaign_id = :campaign AND r.workload IS NOT NULL GROUP BY r.entry_seq
"""
_SAMPLES = """
SELECT t.entry_seq, t.sample, t.t_begin_ns, t.t_end_ns, t.cpu_ns, t.missed_ticks
FROM telemetry_sample t JOIN load_seal s ON s.entry_seq = t.entry_seq
WHERE s.campaign_id = :campaign ORDER BY t.entry_seq, t.sample
"""
_READINGS = """
SELECT v.entry_seq, v.sample, f.name, f.instance, v.raw
FROM telemetry_reading v
JOIN telemetry_field f ON f.entry_seq = v.entry_seq AND f.field = v.field
JOIN load_seal s ON s.entry_seq = v.entry_seq
WHERE s.campaign_id = :campaign AND v.status = 'ok' ORDER BY v.entry_seq, v.sample
"""
_PROBES = """
SELECT e.fields_json FROM load_event e
WHERE e.event = 'telemetry.probe' AND e.entry_seq = (
    SELECT max(o.entry_seq) FROM load_event o JOIN load_seal s ON s.entry_seq = o.entry_seq
    WHERE s.campaign_id = :campaign AND o.event = 'telemetry.probe'
) ORDER BY e.ordinal
"""
_PROFILERS = """
SELECT payload_json FROM receipt WHERE campaign_id = :campaign AND kind LIKE 'profiler.%' ORDER BY entry_seq
"""
_COUNTS = (
    "prompt_tokens",
    "prompt_tokens_evaluated",
    "cached_tokens",
    "generated_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "server_prefill_ns",
    "server_generation_ns",
    "client_prefill_ns",
    "client_generation_ns",
    "ttft_ns",
    "e2e_ns",
)


class Span(NamedTuple):
    """When the first request of a load was sent and when its last one ended (monotonic, ns)."""

    first_ns: int
    last_ns: int


def _counts(row: Row) -> dict[str, Any]:
    return {name: None if row[name] is None else int(row[name]) for name in _COUNTS}


class Tables:
    """Queries over one open connection of the database."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - only the recorder knows the database library
        self._connection = connection

    def frame(self, query: str, **parameters: str | int) -> pd.DataFrame:
        """Return the answer to a query as a frame; integers stay exact, NULL is missing."""
        return pd.read_sql_query(query, self._connection, params=parameters, dtype_backend="numpy_nullable")

    def rows(self, query: str, **parameters: str | int) -> list[Row]:
        """Return the answer to a query as plain rows, NULL as None."""
        frame = self.frame(query, **parameters)
        return cast("list[Row]", frame.astype(object).where(frame.notna(), None).to_dict("records"))

    def loads(self, campaign: str) -> list[Row]:
        """Return every load of a campaign with its seal, in the order in which they were opened."""
        return self.rows(_LOADS, campaign=campaign)

    def requests(self, campaign: str) -> dict[int, tuple[RequestMeasurement, ...]]:
        """Return the workload requests of each sealed load, by the ledger entry that sealed it."""
        found: dict[int, list[RequestMeasurement]] = {}
        for row in self.rows(_REQUESTS, campaign=campaign):
            found.setdefault(int(row["entry_seq"]), []).append(
                RequestMeasurement(
                    workload=row["workload"],
                    repeat=int(row["repeat"]),
                    is_warmup=bool(row["is_warmup"]),
                    outcome=row["outcome"],
                    stop_reason=row["stop_reason"],
                    **_counts(row),
                )
            )
        return {seq: tuple(requests) for seq, requests in found.items()}

    def request_spans(self, campaign: str) -> dict[int, Span]:
        """Return the time of the requests of each load that sent one whole, by the ledger entry that sealed it."""
        return {
            int(row["entry_seq"]): Span(int(row["first_ns"]), int(row["last_ns"]))
            for row in self.rows(_SPANS, campaign=campaign)
            if row["first_ns"] is not None and row["last_ns"] is not None
        }

    def samples(self, campaign: str) -> pd.DataFrame:
        """Return every telemetry sample of a campaign."""
        return self.frame(_SAMPLES, campaign=campaign)

    def readings(self, campaign: str) -> pd.DataFrame:
        """Return every good telemetry reading of a campaign with its field's name."""
        return self.frame(_READINGS, campaign=campaign)

    def campaign_events(self, campaign: str) -> list[Row]:
        """Return interruptions and resumptions in order."""
        return self.rows(
            "SELECT kind, reason FROM campaign_event WHERE campaign_id = :campaign ORDER BY entry_seq",
            campaign=campaign,
        )

    def preflight(self, campaign: str) -> list[Row]:
        """Return the findings of the newest preflight."""
        query = (
            "SELECT finding_json FROM preflight_finding WHERE campaign_id = :campaign AND entry_seq = "
            "(SELECT max(entry_seq) FROM preflight_finding WHERE campaign_id = :campaign) ORDER BY ordinal"
        )
        return self.rows(query, campaign=campaign)

    def telemetry_probes(self, campaign: str) -> list[Row]:
        """Return what each telemetry source found in the newest load that was watched."""
        return self.rows(_PROBES, campaign=campaign)

    def profiler_receipts(self, campaign: str) -> list[Row]:
        """Return the receipts of profilers, in order."""
        return self.rows(_PROFILERS, campaign=campaign)

    def gate_results(self, entry_seq: int) -> list[Row]:
        """Return the gate results that a ledger entry holds."""
        return self.rows("SELECT * FROM gate_result WHERE entry_seq = :seq ORDER BY ordinal", seq=entry_seq)

    def verdict(self, entry_seq: int) -> Row:
        """Return the verdict that a ledger entry holds."""
        return self.rows("SELECT status, reason, exit_code FROM verdict WHERE entry_seq = :seq", seq=entry_seq)[0]
