"""What was measured, as plain data: the only input of the gates.

A recorder derives these objects from raw bytes, and an audit derives them again. Absence is `None`, never zero. Times
are nanoseconds of a monotonic clock, counts are tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from protocols.canonical import JsonValue
from protocols.errors import EvidenceError

Arm = Literal["baseline", "candidate"]
Outcome = Literal["ok", "http_error", "stream_error", "truncated", "timeout", "refused", "cancelled"]
LoadState = Literal["COMPLETE", "PARTIAL", "INVALID"]
CheckState = Literal["COMPLETE", "NOT_RUN", "FAILED"]

ARMS: tuple[Arm, Arm] = ("baseline", "candidate")


@dataclass(frozen=True, kw_only=True)
class RequestMeasurement:
    """One request to one load.

    `flags` are the codes of what does not add up in the reply, `text_sha256` is of its text in UTF-8. `server_*` times
    are those that the engine reports; `client_*` times are ours: prefill from the request's last sent byte to the first
    token event, generation from the first to the last token event. `work` holds the engine's exact work counters, or
    None where the engine has none.
    """

    workload: str
    repeat: int
    is_warmup: bool
    outcome: Outcome
    token_ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    prompt_tokens_evaluated: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    stop_reason: str | None = None
    server_prefill_ns: int | None = None
    server_generation_ns: int | None = None
    client_prefill_ns: int | None = None
    client_generation_ns: int | None = None
    ttft_ns: int | None = None
    e2e_ns: int | None = None
    work: Mapping[str, int] | None = None
    flags: tuple[str, ...] = ()
    text_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoadMeasurement:
    """One fresh engine process and its requests. `index` is its place in the schedule, from 0, burn-in included."""

    index: int
    label: str
    arm: Arm
    block: int | None
    is_burn_in: bool
    state: LoadState | None
    """None where the load was never started."""
    reason: str | None = None
    requests: tuple[RequestMeasurement, ...] = ()
    host: Mapping[str, int] | None = None
    """Counts of the host over the load's time, by the names of `vocabulary.HostReading`; None without telemetry."""
    host_partial: frozenset[str] = frozenset()
    """Counts of `host` that are known for a part of that time only: they are at least what they say."""


class Block(NamedTuple):
    """Logits of `rows` steps over `columns` token ids: little-endian float32, row by row."""

    rows: int
    columns: int
    data: bytes


def _no_block(name: str) -> Block:
    raise EvidenceError(f"the check left no block {name}")


@dataclass(frozen=True, kw_only=True)
class CheckObservation:
    """What one check left of one arm.

    `state` is NOT_RUN where the arm lacks a capability, and FAILED where the engine refused a step or ended; `reason`
    says which. `facts` is plain JSON. `read_block` returns a named block of logits. `outputs` is what programs wrote,
    and what the check made for others to take, by name.
    """

    check: str
    arm: Arm
    state: CheckState
    reason: str | None = None
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    read_block: Callable[[str], Block] = field(default=_no_block, repr=False, compare=False)
    outputs: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class CampaignMeasurements:
    """Every load and check of one campaign. A load that was started again may stand here twice, a check only once."""

    loads: tuple[LoadMeasurement, ...]
    checks: tuple[CheckObservation, ...] = ()

    def check(self, check: str, arm: Arm) -> CheckObservation | None:
        """Return what a check left of an arm, None where it was not run."""
        return next((one for one in self.checks if (one.check, one.arm) == (check, arm)), None)
