"""Reads the facts of one campaign: tables from the evidence database, protocol and lock from the ledger's blobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from protocols.errors import EvidenceError
from protocols.gates import evaluate_gates
from protocols.lock import ArmIdentity, Lock, LockedModel
from protocols.measurements import ARMS, LoadMeasurement, RequestMeasurement
from protocols.metrics import choose_clock, load_rate, measured_requests, metric_ns, timing_disagreement
from protocols.schedule import expand_schedule
from protocols.schema import Workload
from protocols.verdicts import combine
from protocols.vocabulary import Metric
from recorder.attempts import earlier_attempts
from recorder.campaign_state import CampaignState, read_campaigns
from recorder.db import Database
from recorder.measure import locked_calibrations, protocol_of_source
from recorder.store import DATABASE, LOCK, Store
from recorder.store_lock import is_held
from reports.facts import (
    ArmDifference,
    ArmFact,
    DiagnosticFact,
    EarlierFact,
    Facts,
    FileFact,
    FindingFact,
    GateFact,
    LoadFact,
    ModelFact,
    ProviderFact,
    VerdictFact,
    WorkloadFact,
)
from reports.machine import LoadRates, MachineFact, clock_views, machine_facts
from reports.tables import Tables
from reports.telemetry import telemetry_facts

METRICS: tuple[Metric, ...] = ("prefill_rate", "generation_rate")


def collect_facts(root: Path, campaign: str) -> Facts:
    """Read the facts of a campaign (`latest`, a full name, or a unique beginning of one).

    Raises EvidenceError where the evidence cannot be read, or where the tables lack what the ledger has.
    """
    with Store.open(root, read_only=True) as store, open_tables(root) as tables:
        campaign_id = store.resolve_campaign(campaign)
        return _Collector(store, tables, campaign_id).facts()


@contextmanager
def open_tables(root: Path) -> Iterator[Tables]:
    """Open the evidence database for queries; nothing is written."""
    database = Database.open_read_only(root / DATABASE, is_live=is_held(root / LOCK))
    try:
        with database.reading() as connection:
            yield Tables(connection)
    finally:
        database.close()


class _Collector:
    """Reads one campaign."""

    def __init__(self, store: Store, tables: Tables, campaign_id: str) -> None:
        self._store = store
        self._tables = tables
        self._campaign_id = campaign_id
        self._state: CampaignState = read_campaigns(store.entries())[campaign_id]
        self._lock: Lock = store.lock_of(campaign_id)
        self._machine = machine_facts(tables, campaign_id)
        self._protocol = protocol_of_source(store.protocol_of(campaign_id))

    def facts(self) -> Facts:
        gates, verdict = self._judgement()
        loads = tuple(self._loads())
        return Facts(
            campaign_id=self._campaign_id,
            protocol=self._protocol,
            protocol_file_sha256=self._state.locked.text("protocol_file_sha256"),
            lock_sha256=self._state.lock_sha256,
            locked_utc_ns=self._state.locked.utc_ns,
            seed_commitment=self._lock.seed_commitment,
            verdict=verdict,
            gates=gates,
            loads=loads,
            arms=tuple(_arm(name, self._lock.arms[name]) for name in ARMS),
            difference=_difference(self._lock.arms["baseline"], self._lock.arms["candidate"]),
            model=_model(self._lock.model),
            host=dict(self._lock.host),
            versions=dict(self._lock.versions),
            preflight=tuple(self._preflight()),
            providers=tuple(self._providers()),
            diagnostics=tuple(self._diagnostics()),
            clock_views=clock_views(
                [_rates(load) for load in loads if load.state == "COMPLETE" and not load.is_burn_in]
            ),
            interruptions=tuple(
                str(row["reason"] or "no reason given")
                for row in self._tables.campaign_events(self._campaign_id)
                if row["kind"] == "campaign.interrupted"
            ),
            earlier=tuple(self._earlier()),
        )

    def _earlier(self) -> Iterator[EarlierFact]:
        for one in earlier_attempts(self._store, self._campaign_id):
            yield EarlierFact(
                campaign_id=one.campaign_id,
                title=protocol_of_source(self._store.protocol_of(one.campaign_id)).title,
                locked_utc_ns=one.locked_utc_ns,
                candidate=one.candidate,
                state=one.state,
                verdicts=one.verdicts,
            )

    def _judgement(self) -> tuple[tuple[GateFact, ...], VerdictFact]:
        """Return the newest recorded judgement, or what the gates say now where none is recorded."""
        if self._state.verdicts:
            entry_seq = self._state.verdicts[-1].seq
            rows, verdict = self._tables.gate_results(entry_seq), self._tables.verdict(entry_seq)
            gates = tuple(
                GateFact(
                    id=row["gate_id"],
                    kind=row["kind"],
                    status=row["status"],
                    required=bool(row["is_required"]),
                    reason=row["reason"],
                    threshold=row["threshold"],
                    margin=row["margin"],
                    inputs=json.loads(row["inputs_json"]),
                )
                for row in rows
            )
            return gates, VerdictFact(
                status=verdict["status"],
                reason=verdict["reason"],
                exit_code=int(verdict["exit_code"]),
                entry_seq=entry_seq,
            )
        measurements = self._store.measurements(self._campaign_id)
        results = evaluate_gates(
            self._protocol,
            measurements,
            calibrations=locked_calibrations(self._lock),
            levels=self._lock.levels(),
        )
        now = combine(results)
        gates = tuple(GateFact(**result.payload()) for result in results)  # type: ignore[arg-type]
        return gates, VerdictFact(status=now.status, reason=now.reason, exit_code=now.exit_code, entry_seq=None)

    def _loads(self) -> Iterator[LoadFact]:
        rows = {str(row["load_id"]): row for row in self._tables.loads(self._campaign_id)}
        missing = self._state.loads.keys() - rows.keys()
        if missing:
            raise EvidenceError(
                f"the ledger has loads that the tables lack: {', '.join(sorted(missing))}",
                where=self._campaign_id,
                hint="the database is behind the ledger: `assay resume` brings it up, `assay audit` names the place",
            )
        requests = self._tables.requests(self._campaign_id)
        watched = telemetry_facts(
            self._tables,
            self._campaign_id,
            period_ms=self._protocol.telemetry.period_ms,
            ticks_per_s=_integer(self._lock.host.get("clock_ticks_per_s")),
        )
        by_index: dict[int, list[Mapping[str, Any]]] = {}
        for row in rows.values():
            by_index.setdefault(int(row["position"]), []).append(row)
        for place in expand_schedule(self._protocol.schedule):
            for row in by_index.get(place.index, []):
                seq: int | None = None if row["seal_seq"] is None else int(row["seal_seq"])
                measured = _measurement(row, requests.get(seq, ()) if seq is not None else ())
                yield LoadFact(
                    index=place.index,
                    label=place.label,
                    arm=place.arm,
                    block=place.block,
                    is_burn_in=place.is_burn_in,
                    attempt=int(row["attempt"]),
                    state=row["state"] if seq is not None else "OPEN",
                    reason=row["reason"] if seq is not None else "it was never sealed: `assay resume` does that",
                    is_abandoned=bool(row["is_abandoned"]) if seq is not None else False,
                    entry_seq=seq,
                    opened_utc_ns=int(row["opened_utc_ns"]),
                    duration_ns=int(row["sealed_ns"] - row["opened_ns"]) if seq is not None else None,
                    workloads=tuple(_workload(measured, workload) for workload in self._protocol.workloads),
                    telemetry=watched.get(seq) if seq is not None else None,
                    machine=self._machine.get(seq, MachineFact()) if seq is not None else MachineFact(),
                )
            if place.index not in by_index:
                yield LoadFact(
                    index=place.index,
                    label=place.label,
                    arm=place.arm,
                    block=place.block,
                    is_burn_in=place.is_burn_in,
                    attempt=0,
                    state=None,
                    reason=None,
                    is_abandoned=False,
                    entry_seq=None,
                    opened_utc_ns=None,
                    duration_ns=None,
                    workloads=(),
                    telemetry=None,
                )

    def _preflight(self) -> Iterator[FindingFact]:
        for row in self._tables.preflight(self._campaign_id):
            finding = json.loads(row["finding_json"])
            found = finding["found"]
            yield FindingFact(
                id=finding["id"],
                effect=finding["effect"],
                found=None if found is None else str(found),
                expected=finding["expected"],
                message=finding["message"],
            )

    def _diagnostics(self) -> Iterator[DiagnosticFact]:
        for row in self._tables.profiler_receipts(self._campaign_id):
            receipt = json.loads(row["payload_json"])
            yield DiagnosticFact(**{name: receipt[name] for name in DiagnosticFact.__dataclass_fields__})

    def _providers(self) -> Iterator[ProviderFact]:
        """Yield what the telemetry of the newest watched load found on this host."""
        for row in self._tables.telemetry_probes(self._campaign_id):
            probe = json.loads(row["fields_json"])
            yield ProviderFact(name=probe["provider"], state=probe["state"], reason=probe["reason"])


def _rates(load: LoadFact) -> LoadRates:
    rates: dict[tuple[str, Literal["prefill", "generation"]], float] = {}
    for one in load.workloads:
        if one.prefill_rate is not None:
            rates[one.workload, "prefill"] = one.prefill_rate
        if one.generation_rate is not None:
            rates[one.workload, "generation"] = one.generation_rate
    return LoadRates(arm=load.arm, machine=load.machine, rates=rates)


def _measurement(row: Mapping[str, Any], requests: tuple[RequestMeasurement, ...]) -> LoadMeasurement:
    return LoadMeasurement(
        index=int(row["position"]),
        label=row["label"],
        arm=row["arm"],
        block=None if row["block"] is None else int(row["block"]),
        is_burn_in=bool(row["is_burn_in"]),
        state=None,
        requests=requests,
    )


def _workload(load: LoadMeasurement, workload: Workload) -> WorkloadFact:
    measured = measured_requests(load, workload.id)
    answered = [request for request in measured if request.outcome == "ok"]
    failed = [
        request.outcome for request in load.requests if request.workload == workload.id and request.outcome != "ok"
    ]
    clocks = {metric: choose_clock([load], workload.id, metric) for metric in METRICS}
    rates = {metric: load_rate(load, workload.id, metric, clock) if clock else None for metric, clock in clocks.items()}
    cached = [request.cached_tokens for request in answered if request.cached_tokens is not None]
    first_times = [request.ttft_ns for request in answered if request.ttft_ns is not None]
    prefill, generation = rates["prefill_rate"], rates["generation_rate"]
    return WorkloadFact(
        workload=workload.id,
        requests=len(answered),
        outcome=failed[0] if failed else "ok" if len(answered) == workload.repeats else "not sent",
        clock=clocks["generation_rate"] or clocks["prefill_rate"],
        prefill_rate=prefill.rate if prefill else None,
        generation_rate=generation.rate if generation else None,
        ttft_ns=round(sum(first_times) / len(first_times)) if first_times else None,
        prompt_tokens=_common([request.prompt_tokens for request in answered]),
        cached_tokens=_common([request.cached_tokens for request in answered]),
        generated_tokens=_common([request.generated_tokens for request in answered]),
        most_cached_tokens=max(cached, default=None),
        timings_disagree=any(
            timing_disagreement(metric_ns(request, metric, "server"), metric_ns(request, metric, "client"))
            for request in answered
            for metric in METRICS
        ),
    )


def _common(values: list[int | None]) -> int | None:
    """Return the one value that all requests share, or None where they differ or there is none."""
    return values[0] if values and len(set(values)) == 1 else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _arm(name: Any, arm: ArmIdentity) -> ArmFact:  # noqa: ANN401 - one of the two literals
    return ArmFact(
        arm=name,
        kind=arm.kind,
        is_fresh=arm.is_fresh,
        layout_salt=arm.layout_salt,
        faults=arm.faults,
        settings=dict(arm.settings),
        files=tuple(
            FileFact(name=file.name, bytes=file.bytes, sha256=file.sha256, build_id=file.build_id) for file in arm.files
        ),
    )


def _model(locked: LockedModel | None) -> ModelFact | None:
    if locked is None:
        return None
    return ModelFact(**{key: getattr(locked.model, key) for key in ModelFact.__dataclass_fields__})


def _difference(baseline: ArmIdentity, candidate: ArmIdentity) -> ArmDifference:
    left = {file.name: file.sha256 for file in baseline.files}
    right = {file.name: file.sha256 for file in candidate.files}
    both = sorted(left.keys() & right.keys())
    names = sorted(baseline.settings.keys() | candidate.settings.keys())
    settings = [(name, baseline.settings.get(name), candidate.settings.get(name)) for name in names]
    return ArmDifference(
        changed_files=tuple(name for name in both if left[name] != right[name]),
        only_baseline=tuple(sorted(left.keys() - right.keys())),
        only_candidate=tuple(sorted(right.keys() - left.keys())),
        same_files=tuple(name for name in both if left[name] == right[name]),
        settings=tuple((name, str(one), str(other)) for name, one, other in settings if one != other),
    )
