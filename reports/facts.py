"""From evidence to typed facts with their provenance: every number of a report enters here, and nowhere else.

Facts are read from the evidence database and checked against the ledger: a load that the ledger knows and the tables
lack is an error, because a report that silently leaves a load out would be a lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from protocols.measurements import Arm
from protocols.schema import OpenAIEngine, Protocol
from protocols.start_failures import LoadEnding, arms_that_do_not_start
from reports.machine import ClockView, MachineFact


@dataclass(frozen=True, kw_only=True)
class WorkloadFact:
    """One workload in one load. Rates are tokens per second over the measured requests; None where undefined."""

    workload: str
    requests: int
    outcome: str
    """`ok`, or the outcome of the first request that was not."""
    clock: str | None
    """Whose times the rates rest on: `server`, `client`, or None without any."""
    prefill_rate: float | None
    generation_rate: float | None
    ttft_ns: int | None
    """Mean time to first token of the measured requests."""
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int | None
    timings_disagree: bool
    most_cached_tokens: int | None = None
    """Most prompt tokens that one of the measured requests took from the cache; None where the engine does not say."""


@dataclass(frozen=True, kw_only=True)
class TelemetryFact:
    """What was sampled while a load served its requests."""

    samples: int
    missed_ticks: int
    period_ms: int
    covers_requests: bool
    """Whether sampling began before the first request and ended after the last."""
    sampler_cpu_pct: float | None
    """CPU time of the sampler itself, in percent of one core."""
    host_cpu_busy_pct: float | None
    """Busy CPU time of the whole host, in percent of all cores."""
    engine_cpu_pct: float | None
    """CPU time of the engine's process tree, in percent of one core."""
    peak_rss_bytes: int | None
    cpu_clock_mhz: float | None
    cpu_temp_c: float | None
    energy_j: float | None


@dataclass(frozen=True, kw_only=True)
class LoadFact:
    """One load, or a position that was not run (`state` None). `entry_seq` is the ledger entry that sealed it."""

    index: int
    label: str
    arm: Arm
    block: int | None
    is_burn_in: bool
    attempt: int
    state: str | None
    reason: str | None
    is_abandoned: bool
    entry_seq: int | None
    opened_utc_ns: int | None
    duration_ns: int | None
    workloads: tuple[WorkloadFact, ...]
    telemetry: TelemetryFact | None
    machine: MachineFact = field(default_factory=MachineFact)


@dataclass(frozen=True, kw_only=True)
class GateFact:
    """One gate as it was recorded, or as it would be judged now where no verdict is recorded."""

    id: str
    kind: str
    status: str
    required: bool
    reason: str
    threshold: str | None
    margin: str | None
    inputs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class VerdictFact:
    """The verdict. `entry_seq` is the ledger entry that holds it; None where it is only what the gates say now."""

    status: str
    reason: str
    exit_code: int
    entry_seq: int | None


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """One file of a build."""

    name: str
    bytes: int
    sha256: str
    build_id: str | None


@dataclass(frozen=True, kw_only=True)
class ArmFact:
    """What an arm is."""

    arm: Arm
    kind: str
    is_fresh: bool
    layout_salt: int | None
    faults: tuple[str, ...]
    settings: Mapping[str, str | int | bool | None]
    files: tuple[FileFact, ...]


FileSide = Literal["both", "baseline", "candidate"]


@dataclass(frozen=True, kw_only=True)
class ArmDifference:
    """What is not the same in both arms: names of files, and (name, baseline's, candidate's) of settings."""

    changed_files: tuple[str, ...]
    only_baseline: tuple[str, ...]
    only_candidate: tuple[str, ...]
    same_files: tuple[str, ...]
    settings: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class ModelFact:
    """The model under both arms."""

    sha256: str
    bytes: int
    name: str | None
    architecture: str | None
    parameters: int | None
    tokenizer_sha256: str | None
    chat_template_sha256: str | None


@dataclass(frozen=True, kw_only=True)
class ProviderFact:
    """One source of telemetry: present, partial or absent, and why."""

    name: str
    state: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class DiagnosticFact:
    """One look with a profiler after the timing, from its receipt."""

    diagnostic: str
    tool: str
    arm: str
    status: str
    outcome: str
    reason: str | None
    rows: int
    numbers: Mapping[str, int | str]
    cached_tokens: int | None
    tool_version: str | None


@dataclass(frozen=True, kw_only=True)
class FindingFact:
    """One finding of the preflight."""

    id: str
    effect: str
    found: str | None
    expected: str
    message: str


@dataclass(frozen=True, kw_only=True)
class EarlierFact:
    """One campaign that asked the same question before, as it stood when this one was locked.

    ``title`` is its protocol's, ``state`` judged, cancelled, interrupted or not finished, ``candidate`` a short name
    of its files: equal for equal builds.
    """

    campaign_id: str
    title: str
    locked_utc_ns: int
    candidate: str
    state: str
    verdicts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a report says, before it is put into words."""

    campaign_id: str
    protocol: Protocol
    protocol_file_sha256: str
    lock_sha256: str
    locked_utc_ns: int
    seed_commitment: str | None
    verdict: VerdictFact
    gates: tuple[GateFact, ...]
    loads: tuple[LoadFact, ...]
    arms: tuple[ArmFact, ...]
    difference: ArmDifference
    model: ModelFact | None
    host: Mapping[str, str | int | bool | None]
    versions: Mapping[str, str]
    preflight: tuple[FindingFact, ...]
    providers: tuple[ProviderFact, ...]
    interruptions: tuple[str, ...]
    clock_views: tuple[ClockView, ...] = ()
    diagnostics: tuple[DiagnosticFact, ...] = ()
    earlier: tuple[EarlierFact, ...] = ()

    def stated_models(self) -> dict[str, str]:
        """Return the model name that each endpoint is asked for, by arm; nothing where Assay started every engine."""
        engines = {arm.arm: self.protocol.arm(arm.arm).engine for arm in self.arms}
        return {arm: engine.model for arm, engine in engines.items() if isinstance(engine, OpenAIEngine)}

    def arms_that_do_not_start(self) -> tuple[str, ...]:
        """Return the arms whose engine ended at its start, without one complete load: resuming cannot help."""
        return arms_that_do_not_start(LoadEnding(one.arm, one.state, one.reason) for one in self.loads if one.attempt)

    @property
    def is_recorded(self) -> bool:
        """Whether the verdict is a record, and not only what the gates say now."""
        return self.verdict.entry_seq is not None
