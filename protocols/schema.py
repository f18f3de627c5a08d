"""The protocol as a person writes it: frozen models, unknown keys refused, no coercion.

`load.py` reads YAML into these models. Values that need more than one key to judge (schedules that cannot decide, gates
that name unknown workloads) are judged in `semantics.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from protocols.canonical import canonical_bytes, sha256_hex
from protocols.check_schema import Check
from protocols.engine_schema import BundledEngine, EngineReference, FolderEngine, LlamaServerEngine, OpenAIEngine
from protocols.gate_schema import (
    ColdCacheGate,
    CompletenessGate,
    EqualCountersGate,
    EqualWorkGate,
    ExactTokensGate,
    Gate,
    LossGate,
    MirrorGapGate,
    ScreenLossGate,
)
from protocols.measurements import Arm as ArmName
from protocols.schedule_schema import BlocksSchedule, ExplicitSchedule, Schedule
from protocols.vocabulary import (
    MOST_THREADS,
    FileName,
    HostReading,
    Identifier,
    KvMode,
    KvType,
    Line,
    Metric,
    Part,
    PlainDecimal,
    ProfilerTool,
    Route,
    Sha256,
    Text,
    VerdictStatus,
    WorkField,
)

__all__ = [
    "FORMAT_VERSION",
    "Arm",
    "Arms",
    "BlocksSchedule",
    "BundledEngine",
    "ColdCacheGate",
    "CompletenessGate",
    "Diagnostic",
    "EngineReference",
    "EqualCountersGate",
    "EqualWorkGate",
    "ExactTokensGate",
    "ExplicitSchedule",
    "FileName",
    "FileReference",
    "FolderEngine",
    "Gate",
    "Identifier",
    "Limits",
    "LlamaServerEngine",
    "LossGate",
    "Metric",
    "MirrorGapGate",
    "ModelReference",
    "OpenAIEngine",
    "Part",
    "PlainDecimal",
    "Protocol",
    "Schedule",
    "ScreenLossGate",
    "Settings",
    "SettingsOverride",
    "Sha256",
    "Telemetry",
    "ValidityRule",
    "VerdictStatus",
    "Warmup",
    "WorkField",
    "Workload",
    "json_schema",
]

FORMAT_VERSION = 1
"""The protocol format that this version of Assay reads (`assay: 1`)."""


class FileReference(Part):
    """A file of the user's own, relative to the protocol file."""

    path: FileName
    """Path of the file; a relative one starts at the protocol's folder."""


class ModelReference(Part):
    """The model under both arms: a name that `assay model fetch` knows, or a GGUF file."""

    name: Identifier | None = None
    """Name of a model that `assay model fetch` can get; one of name and path is given."""
    path: FileName | None = None
    """GGUF file; a relative path starts at the protocol's folder."""
    draft: FileReference | None = None
    """Draft model for speculative decoding."""
    ple_table: FileReference | None = None
    """Per-layer embedding table that stands in a file of its own."""
    tokenizer: FileReference | None = None
    """Tokenizer file, where it is not the one inside the GGUF."""
    chat_template: FileReference | None = None
    """Chat template file, where it is not the one inside the GGUF."""


QWEN_SETTINGS = frozenset({"drafts", "draft_kv_type", "draft_vocabulary_tokens", "ple_cache_mib"})
"""Settings that only the bundled engine knows, for models of qwen4exp."""


class Settings(Part):
    """What an engine is told at its start; the same for both arms unless an arm overrides it."""

    context_tokens: int = Field(ge=1, le=16_777_216)
    """Context of one slot, in tokens."""
    slots: int = Field(default=1, ge=1, le=1024)
    """Requests that are served at once."""
    threads: int = Field(default=2, ge=1, le=MOST_THREADS)
    """Threads for generation, and for prefill unless threads_batch says otherwise."""
    threads_batch: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """Threads for prefill; null means the same as threads."""
    ubatch_tokens: int = Field(default=512, ge=1, le=8192)
    """Most tokens of one prefill step."""
    kv_type: KvType = "f16"
    """Number format of the key and value cache."""
    kv_mode: KvMode = "split"
    """One cache a slot (split) or one for all slots (unified)."""
    gpu_layers: int = Field(default=0, ge=0, le=100_000)
    """Layers that are placed on a GPU."""
    mmap: bool = True
    """Whether the model file is mapped (true) or read (false)."""
    drafts: int = Field(default=0, ge=0, le=6)
    """Most tokens that the model's own draft block drafts at a time, with one slot; 0 means no drafts."""
    draft_kv_type: KvType = "f16"
    """Number format of the drafts' cache."""
    draft_vocabulary_tokens: int = Field(default=0, ge=0, le=1 << 30)
    """Drafts are among so many first ids of the vocabulary; 0 means among all."""
    ple_cache_mib: int = Field(default=64, ge=1, le=1 << 20)
    """Decoded pages of the n-gram table that stay in memory, in MiB."""
    LATER: ClassVar[frozenset[str]] = QWEN_SETTINGS


class SettingsOverride(Part):
    """Settings of one arm that differ from the protocol's; the difference is shown in every report."""

    context_tokens: int | None = Field(default=None, ge=1, le=16_777_216)
    """See settings.context_tokens; null keeps the protocol's value."""
    slots: int | None = Field(default=None, ge=1, le=1024)
    """See settings.slots."""
    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """See settings.threads."""
    threads_batch: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """See settings.threads_batch."""
    ubatch_tokens: int | None = Field(default=None, ge=1, le=8192)
    """See settings.ubatch_tokens."""
    kv_type: KvType | None = None
    """See settings.kv_type."""
    kv_mode: KvMode | None = None
    """See settings.kv_mode."""
    gpu_layers: int | None = Field(default=None, ge=0, le=100_000)
    """See settings.gpu_layers."""
    mmap: bool | None = None
    """See settings.mmap."""
    drafts: int | None = Field(default=None, ge=0, le=6)
    """See settings.drafts."""
    draft_kv_type: KvType | None = None
    """See settings.draft_kv_type."""
    draft_vocabulary_tokens: int | None = Field(default=None, ge=0, le=1 << 30)
    """See settings.draft_vocabulary_tokens."""
    ple_cache_mib: int | None = Field(default=None, ge=1, le=1 << 20)
    """See settings.ple_cache_mib."""
    LATER: ClassVar[frozenset[str]] = QWEN_SETTINGS


EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
EnvironmentValue = Annotated[str, StringConstraints(max_length=4096)]


class Arm(Part):
    """One fixed engine with its settings."""

    engine: EngineReference
    """Which engine."""
    settings: SettingsOverride | None = None
    """Settings that differ from the protocol's."""
    environment: dict[EnvironmentName, EnvironmentValue] = Field(default_factory=dict)
    """Environment of the engine, besides the fixed allowlist; never secrets."""


class Arms(Part):
    """The two engines that are compared."""

    baseline: Arm
    """The engine in use today."""
    candidate: Arm
    """The engine that may replace it."""


class Warmup(Part):
    """Requests that are sent and recorded before the measured ones, and excluded from measurement by rule."""

    request: FileName
    """Body, as in workloads.request."""
    repeats: int = Field(default=1, ge=1, le=100)
    """How often it is sent."""


class Workload(Part):
    """One frozen request, sent to every load."""

    id: Identifier
    """Name that gates use."""
    route: Route
    """Where the body is posted."""
    warmup: Warmup | None = None
    """What is sent first and not measured."""
    request: FileName
    """Body, byte for byte: a file beside the protocol, else among the bundled requests."""
    prompt_tokens: int = Field(ge=1, le=16_777_216)
    """Exact length of the prompt, checked in every load."""
    generated_tokens: int = Field(ge=1, le=16_777_216)
    """Exact number of tokens that are generated, checked in every load."""
    repeats: int = Field(default=1, ge=1, le=10_000)
    """Measured requests of one load; they are pooled to one number a load."""


class Limits(Part):
    """Time limits: what passes them ends as a recorded failure."""

    load_s: int = Field(default=120, ge=1, le=86_400)
    """Seconds until a fresh engine must be ready."""
    request_s: int = Field(default=300, ge=1, le=86_400)
    """Seconds for one request."""
    idle_s: int = Field(default=60, ge=1, le=86_400)
    """Seconds without a byte inside a request."""
    campaign_min: int = Field(default=60, ge=1, le=10_080)
    """Minutes for the whole campaign."""
    loads: int | None = Field(default=None, ge=1, le=10_000)
    """Most fresh loads that may be started, burn-in and repeated ones included; null means no limit."""
    looks_min: int | None = Field(default=None, ge=1, le=10_080)
    """Minutes in which a further look must end, at the pace so far, or it is not begun; null means no limit."""
    LATER: ClassVar[frozenset[str]] = frozenset({"loads", "looks_min"})


class Telemetry(Part):
    """How often the host is sampled."""

    period_ms: int = Field(default=250, ge=50, le=60_000)
    """Milliseconds between samples."""
    off_in: ArmName | None = None
    """Arm whose loads run without sampling, to measure what sampling costs; null samples every load alike."""
    LATER: ClassVar[frozenset[str]] = frozenset({"off_in"})


def _refuse_boolean(value: object) -> object:
    """Refuse `true`, which Python counts as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("literal_error", "Input should be 1", {"expected": "1"})
    return value


class Diagnostic(Part):
    """A look with a profiler after the timing is over, in a load of its own; no gate sees it."""

    id: Identifier
    """Name of the receipt."""
    tool: ProfilerTool
    """Which profiler, and how: attached to the running engine, or around its start."""
    arms: Annotated[tuple[ArmName, ...], Field(strict=False, min_length=1, max_length=2)] = ("baseline", "candidate")
    """Arms that are looked at, each in a fresh process."""
    route: Route
    """Where the body is posted."""
    request: FileName
    """Body; it is sent once to fill the cache, and once more while the profiler looks."""
    generated_tokens: int = Field(ge=1, le=16_777_216)
    """Exact number of tokens that it generates."""
    minimum_cached_tokens: int = Field(default=0, ge=0, le=16_777_216)
    """Prompt tokens that the second answer must take from the cache; fewer make the diagnostic NOT_RUN."""
    limit_s: int = Field(default=60, ge=1, le=3600)
    """Seconds for the profiler."""


class ValidityRule(Part):
    """A rule about the host during a load. A load that breaks it takes its whole block out of the loss, unseen."""

    reading: HostReading
    """What is counted from the first sample of a load to the last."""
    most: int = Field(ge=0, le=2**53 - 1)
    """Largest count that leaves the load valid."""


class Protocol(Part):
    """The prespecified plan of one campaign."""

    assay: Annotated[Literal[1], BeforeValidator(_refuse_boolean)]
    """Version of the protocol format."""
    id: Identifier
    """Name of the protocol."""
    title: Line
    """One line for people."""
    claim: Literal["non_inferiority", "screen"]
    """What may be said at best: that the candidate is not slower by the margin, or only a screen."""
    purpose: Text
    """Why the campaign is done."""
    model: ModelReference = ModelReference()
    """The model that both arms serve; needed unless both are endpoints, whose files nobody here can know."""
    settings: Settings
    """Settings of both arms."""
    arms: Arms
    """The two engines."""
    schedule: Schedule
    """Order of the fresh loads."""
    sigma: Literal["loads", "calibrated"] = "loads"
    """Where the noise of a load comes from: this campaign's loads, or calibrated A/A loads of this host."""
    workloads: Annotated[tuple[Workload, ...], Field(strict=False, min_length=1, max_length=64)]
    """Requests that every load serves."""
    checks: Annotated[tuple[Check, ...], Field(strict=False, max_length=64)] = ()
    """What is done to each engine in process, and what must be equal afterwards."""
    limits: Limits = Limits()
    """Time limits."""
    telemetry: Telemetry = Telemetry()
    """Sampling of the host."""
    validity: Annotated[tuple[ValidityRule, ...], Field(strict=False, max_length=32)] = ()
    """Rules about the host that make a block invalid, fixed before anything is measured."""
    diagnostics: Annotated[tuple[Diagnostic, ...], Field(strict=False, max_length=16)] = ()
    """Profilers that look at the engines after the last load."""
    gates: Annotated[tuple[Gate, ...], Field(strict=False, min_length=1, max_length=256)]
    """Rules that make the verdict."""
    margin_reason: Text | None = None
    """How the margins were chosen; needed where a loss gate stands."""
    expect: VerdictStatus | None = None
    """For controls: the verdict that this protocol must get."""
    LATER: ClassVar[frozenset[str]] = frozenset({"checks", "diagnostics", "model", "validity"})

    def arm(self, name: ArmName) -> Arm:
        """Return the arm of that name."""
        return self.arms.baseline if name == "baseline" else self.arms.candidate

    def settings_of(self, name: ArmName) -> Settings:
        """Return the settings in effect for one arm: the protocol's, with the arm's own on top."""
        override = self.arm(name).settings
        if override is None:
            return self.settings
        changes = {key: value for key, value in override.model_dump().items() if value is not None}
        return self.settings.model_copy(update=changes)

    def workload(self, workload_id: str) -> Workload:
        """Return the workload of that id; KeyError where there is none."""
        for workload in self.workloads:
            if workload.id == workload_id:
                return workload
        raise KeyError(workload_id)

    def check(self, check_id: str) -> Check:
        """Return the check of that id; KeyError where there is none."""
        for check in self.checks:
            if check.id == check_id:
                return check
        raise KeyError(check_id)

    def request_references(self) -> tuple[str, ...]:
        """Return every request file that workloads and diagnostics name, without repeats, in order."""
        references: list[str] = []
        for workload in self.workloads:
            if workload.warmup is not None:
                references.append(workload.warmup.request)
            references.append(workload.request)
        references += [diagnostic.request for diagnostic in self.diagnostics]
        return tuple(dict.fromkeys(references))

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes of the whole protocol with every default filled in."""
        return canonical_bytes(self.model_dump(mode="json"))

    def sha256(self) -> str:
        """Return the SHA-256 of `canonical()`."""
        return sha256_hex(self.canonical())


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a protocol file, for editors and other tools."""
    schema = Protocol.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Assay protocol"
    return schema
