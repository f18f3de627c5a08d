"""What a telemetry sample is: fields with units, readings with a status, samples with their times.

Values are integers in the unit that the field's name ends with; a value that is not there is None and
never 0, -1 or the last value again. Three facts are kept apart: a field that no provider describes was
never promised; ``unsupported`` and ``denied`` say that this host does not give it; ``error`` says that
one read failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Kind = Literal["gauge", "counter", "state"]
Domain = Literal["gfx", "socket", "board", "package", "process", "host"]
Status = Literal["ok", "unsupported", "denied", "error", "not_due"]

STATUSES: Final[tuple[Status, ...]] = ("ok", "unsupported", "denied", "error", "not_due")


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldSpec:
    """One quantity of one thing.

    name        ``<subject>_<quantity>_<unit>``, for example ``socket_power_uw``
    instance    which one, where a host has several (a PCI address, ``policy3``); else empty
    unit        unit of the integer: ``hz``, ``uw``, ``uj``, ``mc`` (m degrees C), ``ppm``, ``bytes``,
                ``ns``, ``us``, ``ticks``, ``count``, ``pages``, ``milli`` (thousandths), ``mb_per_s``, ``code``,
                ``raw`` (a number whose unit its source does not settle)
    kind        gauge (value now), counter (only differences mean something), state (a code)
    domain      what the quantity covers; power of different domains is never added
    source      the file or call that gives it
    window_us   averaging window of the sensor in us; None if it is instantaneous or unknown
    update_us   the sensor's own update period in us, where it is known and longer than a read takes
    resolution  smallest step of the integer; None if unknown
    modulus     for kind ``counter``: the value at which it wraps to 0; None if it does not
    states      for kind ``state``: the text of each code, by index
    """

    name: str
    unit: str
    kind: Kind
    domain: Domain
    source: str
    instance: str = ""
    window_us: int | None = None
    update_us: int | None = None
    resolution: int | None = None
    modulus: int | None = None
    states: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Unique text within a load: ``name`` or ``name@instance``."""
        return f"{self.name}@{self.instance}" if self.instance else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One field at one tick. ``raw`` is None exactly when ``status`` is not ``ok``."""

    field: FieldSpec
    raw: int | None
    status: Status = "ok"

    def __post_init__(self) -> None:
        if (self.raw is None) == (self.status == "ok"):
            raise ValueError(f"{self.field.key}: status {self.status} does not fit the value {self.raw}")


class RawRead(NamedTuple):
    """The bytes that readings were decoded from, kept so that they can be decoded again."""

    source: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """All readings of one tick, or those that were taken between two at the edge of a phase.

    tick          number of the deadline; a jump says that ticks were missed
    deadline_ns   when the tick was due (monotonic)
    t_begin_ns    before the first read;  t_end_ns  after the last
    cpu_ns        CPU time that this tick cost the sampler's own thread
    missed_ticks  deadlines that passed since the sample before, without a sample
    raws          bytes that some readings were decoded from
    is_edge       taken where a phase began or ended: ``deadline_ns`` is when that was said, ``tick`` the tick before
    """

    tick: int
    deadline_ns: int
    t_begin_ns: int
    t_end_ns: int
    readings: tuple[Reading, ...]
    cpu_ns: int = 0
    missed_ticks: int = 0
    raws: tuple[RawRead, ...] = ()
    is_edge: bool = False

    @property
    def t_mid_ns(self) -> int:
        """The time that a reading of this sample stands for."""
        return (self.t_begin_ns + self.t_end_ns) // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceIdentity:
    """What is known about a device, from the kernel or its driver, never from a log line."""

    kind: str
    identifier: str
    facts: Mapping[str, str | int | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeReport:
    """What a provider found on this host.

    state   present (all described fields answered), partial, or absent
    reason  why it is not ``present``; a sentence
    refused the reason of each candidate or field that cannot be used here, by name
    """

    provider: str
    state: Literal["present", "partial", "absent"]
    reason: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
