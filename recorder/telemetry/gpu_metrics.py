"""The binary table ``gpu_metrics`` of the amdgpu driver: one read is one coherent snapshot of the firmware.

A table begins with its size (u16), format revision and content revision (u8 each), little endian; members follow with
the alignment of C. Layouts: ``drivers/gpu/drm/amd/include/kgd_pp_interface.h`` of the kernel, structs gpu_metrics_v1_0
to v1_3, v2_0 to v2_4, v3_0. A member whose bits are all set is not supported: the driver fills the table with ones
before it writes. Any other revision, or a size that is not the revision's, decodes to nothing; the bytes are kept.

What is left out on purpose: powers of v2.4 and the system and STAPM powers of v3.0 are mW in 16 bits and cannot say
more than 65.535 W; temperatures, powers and loads of v2.0 to v2.3 have units that differ by chip and stand nowhere.
Values whose unit the header does not settle (load in v3.0, throttle residencies, the energy accumulator of v1) keep
the firmware's number, unit ``raw``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from recorder.telemetry.sample import Domain, FieldSpec, Kind

HEADER_BYTES: Final = 4
_SIZES: Final = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
_MAX_INTEGER: Final = 2**63 - 1

_V1_TEMPERATURES: Final = "u16 edge u16 hotspot u16 mem u16 vrgfx u16 vrsoc u16 vrmem"
_V1_LOADS: Final = "u16 gfx_activity u16 umc_activity u16 mm_activity"
_V1_CLOCKS: Final = "u16*7 average_clocks u16*7 current_clocks u32 throttle_status u16 fan"
_V1_LINKS: Final = "u16 link_width u16 link_speed u16 padding u32 gfx_activity_acc u32 mem_activity_acc u16*4 hbm"
_V1_1: Final = f"{_V1_TEMPERATURES} {_V1_LOADS} u16 socket_power u64 energy u64 clock_counter {_V1_CLOCKS} {_V1_LINKS}"
_V1_2: Final = f"{_V1_1} u64 firmware_time"
_V2_TEMPERATURES: Final = "u16 gfx_temp u16 soc_temp u16*8 core_temp u16*2 l3_temp"
_V2_LOADS: Final = "u16 gfx_activity u16 mm_activity"
_V2_REST: Final = (
    "u16*4 powers u16*8 core_power u16*6 average_clocks u16*6 current_clocks u16*8 core_clocks u16*2 l3_clocks "
    "u32 throttle_status u16 fan"
)
_V2_1: Final = f"{_V2_TEMPERATURES} {_V2_LOADS} u64 clock_counter {_V2_REST} u16*3 padding"
_V2_2: Final = f"{_V2_1} u64 indep_throttle_status"
_V2_3: Final = f"{_V2_2} u16*12 average_temp"

LAYOUTS: Final[Mapping[tuple[int, int], str]] = {
    (1, 0): f"u64 clock_counter {_V1_TEMPERATURES} {_V1_LOADS} u16 socket_power u32 energy {_V1_CLOCKS} u8*2 links",
    (1, 1): _V1_1,
    (1, 2): _V1_2,
    (1, 3): f"{_V1_2} u16*3 voltages u16 padding1 u64 indep_throttle_status",
    (2, 0): f"u64 clock_counter {_V2_TEMPERATURES} {_V2_LOADS} {_V2_REST} u16 padding",
    (2, 1): _V2_1,
    (2, 2): _V2_2,
    (2, 3): _V2_3,
    (2, 4): f"{_V2_3} u16*3 voltages u16*3 currents",
    (3, 0): (
        "u16 gfx_temp u16 soc_temp u16*16 core_temp u16 skin_temp u16 gfx_activity u16 vcn_activity "
        "u16*8 ipu_activity u16*16 c0_activity u16*4 bandwidths u64 clock_counter u32 socket_power u16 ipu_power "
        "u32 apu_power u32 gfx_power u32 dgpu_power u32 all_core_power u16*16 core_power u16 sys_power u16 stapm_limit "
        "u16 stapm_now u16 gfxclk u16 socclk u16 vpeclk u16 ipuclk u16 fclk u16 vclk u16 uclk u16 mpipuclk "
        "u16*16 core_clocks u16 core_maxfreq u16 gfx_maxfreq u32 prochot u32 spl u32 fppt u32 sppt u32 thm_core "
        "u32 thm_gfx u32 thm_soc u32 filter_alpha"
    ),
}
"""Members of each revision behind the header, as pairs of type and name; ``u16*8`` is an array."""


class Member(NamedTuple):
    """Where a member stands."""

    offset: int
    bytes: int


class Quantity(NamedTuple):
    """What a member becomes: ``raw * scale`` in the unit of the field's name."""

    member: str
    name: str
    unit: str
    scale: int = 1
    kind: Kind = "gauge"
    domain: Domain = "gfx"
    place: int = 0


_CLOCK_COUNTER: Final = Quantity("clock_counter", "smu_boot_time_ns", "ns", kind="counter")
_INDEPENDENT: Final = Quantity("indep_throttle_status", "throttle_bits", "code", kind="state")
_DEPENDENT: Final = Quantity("throttle_status", "throttle_chip_bits", "code", kind="state")
_FIRMWARE_TIME: Final = Quantity("firmware_time", "smu_firmware_time_ns", "ns", 10, "counter")
_AVERAGE_CLOCK: Final = Quantity("average_clocks", "smu_gfx_clock_hz", "hz", 1_000_000)
_CURRENT_CLOCK: Final = Quantity("current_clocks", "smu_gfx_clock_now_hz", "hz", 1_000_000)
_V1: Final = (
    _CLOCK_COUNTER,
    Quantity("edge", "smu_temp_edge_mc", "mc", 1000),
    Quantity("hotspot", "smu_temp_junction_mc", "mc", 1000),
    Quantity("mem", "smu_temp_mem_mc", "mc", 1000),
    Quantity("gfx_activity", "smu_gfx_busy_ppm", "ppm", 10_000),
    Quantity("umc_activity", "smu_mem_busy_ppm", "ppm", 10_000),
    Quantity("socket_power", "smu_board_power_uw", "uw", 1_000_000, domain="board"),
    Quantity("energy", "smu_energy_raw", "raw", kind="counter", domain="board"),
    _AVERAGE_CLOCK,
    _CURRENT_CLOCK,
    Quantity("current_clocks", "smu_mem_clock_hz", "hz", 1_000_000, place=2),
    _DEPENDENT,
)
_V2: Final = (_CLOCK_COUNTER, _AVERAGE_CLOCK, _CURRENT_CLOCK, _DEPENDENT)
_V3: Final = (
    _CLOCK_COUNTER,
    Quantity("gfx_temp", "smu_temp_gfx_mc", "mc", 10),
    Quantity("soc_temp", "smu_temp_soc_mc", "mc", 10),
    Quantity("skin_temp", "smu_temp_skin_mc", "mc", 10),
    Quantity("gfx_activity", "smu_gfx_activity_raw", "raw"),
    Quantity("bandwidths", "smu_dram_read_mb_per_s", "mb_per_s", domain="socket"),
    Quantity("bandwidths", "smu_dram_write_mb_per_s", "mb_per_s", domain="socket", place=1),
    Quantity("socket_power", "smu_socket_power_uw", "uw", 1000, domain="socket"),
    Quantity("apu_power", "smu_apu_power_uw", "uw", 1000, domain="socket"),
    Quantity("gfx_power", "smu_gfx_power_uw", "uw", 1000),
    Quantity("all_core_power", "smu_core_power_uw", "uw", 1000, domain="package"),
    Quantity("gfxclk", "smu_gfx_clock_hz", "hz", 1_000_000),
    Quantity("uclk", "smu_mem_clock_hz", "hz", 1_000_000),
    Quantity("fclk", "smu_fabric_clock_hz", "hz", 1_000_000),
    Quantity("gfx_maxfreq", "gfx_clock_limit_hz", "hz", 1_000_000),
    *(
        Quantity(member, f"throttle_{member}_raw", "raw", kind="counter")
        for member in ("prochot", "spl", "fppt", "sppt", "thm_core", "thm_gfx", "thm_soc")
    ),
    Quantity("filter_alpha", "smu_filter_time_us", "us"),
)
QUANTITIES: Final[Mapping[tuple[int, int], tuple[Quantity, ...]]] = {
    (1, 0): _V1,
    (1, 1): _V1,
    (1, 2): (*_V1, _FIRMWARE_TIME),
    (1, 3): (*_V1, _FIRMWARE_TIME, _INDEPENDENT),
    (2, 0): _V2,
    (2, 1): _V2,
    (2, 2): (*_V2, _INDEPENDENT),
    (2, 3): (*_V2, _INDEPENDENT),
    (2, 4): (
        *_V2,
        _INDEPENDENT,
        Quantity("gfx_temp", "smu_temp_gfx_mc", "mc", 10),
        Quantity("soc_temp", "smu_temp_soc_mc", "mc", 10),
        Quantity("gfx_activity", "smu_gfx_busy_ppm", "ppm", 100),
    ),
    (3, 0): _V3,
}
RAW_PREFIX: Final = "gpu_metrics@"
"""Begins the name under which the bytes of a table are kept with a sample; behind it stands the device."""
DECODED: Final = frozenset(quantity.name for quantities in QUANTITIES.values() for quantity in quantities)
"""Names of all fields that come from such a table, and from nothing else."""
FILTERED: Final = frozenset(quantity.name for quantity in _V3 if quantity.kind == "gauge")
"""Names whose values of v3.0 the firmware filters with the time constant ``smu_filter_time_us``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """One decoded table. A value is None where the driver says that it is not supported.

    revision  (format, content); None for a table that is shorter than its header
    problem   why nothing was decoded; None where something was
    """

    revision: tuple[int, int] | None
    values: Mapping[str, int | None]
    problem: str | None = None


def fields_of(revision: tuple[int, int], path: str, instance: str) -> Mapping[str, FieldSpec]:
    """Return the fields of a revision by name, for the table of one device that is read from this path."""
    return {
        quantity.name: FieldSpec(
            name=quantity.name,
            unit=quantity.unit,
            kind=quantity.kind,
            domain=quantity.domain,
            source=f"{path} v{revision[0]}.{revision[1]} {quantity.member}",
            instance=instance,
            resolution=quantity.scale if quantity.scale > 1 else None,
        )
        for quantity in QUANTITIES[revision]
    }


@cache
def layout(revision: tuple[int, int]) -> tuple[Mapping[str, Member], int]:
    """Return where each member of a known revision stands, and the size of the table in bytes."""
    members: dict[str, Member] = {}
    offset, widest = HEADER_BYTES, 1
    words = LAYOUTS[revision].split()
    for kind, name in zip(words[::2], words[1::2], strict=True):
        type_name, _, count = kind.partition("*")
        size = _SIZES[type_name]
        widest = max(widest, size)
        offset = -(-offset // size) * size
        members[name] = Member(offset, size)
        offset += size * int(count or 1)
    return members, -(-offset // widest) * widest


def decode(data: bytes) -> Metrics:
    """Decode one table. Never raises: what is no known table gives no values, and the reason."""
    if len(data) < HEADER_BYTES:
        return Metrics(revision=None, values={}, problem=f"{len(data)} bytes are too few for a header")
    size, revision = int.from_bytes(data[:2], "little"), (data[2], data[3])
    if revision not in LAYOUTS:
        return Metrics(revision=revision, values={}, problem=f"revision v{revision[0]}.{revision[1]} is not known")
    members, expected = layout(revision)
    if not size == len(data) == expected:
        problem = f"v{revision[0]}.{revision[1]} has {expected} bytes; the header says {size}, {len(data)} were read"
        return Metrics(revision=revision, values={}, problem=problem)
    return Metrics(
        revision=revision,
        values={quantity.name: _value(data, members[quantity.member], quantity) for quantity in QUANTITIES[revision]},
    )


def _value(data: bytes, member: Member, quantity: Quantity) -> int | None:
    start = member.offset + quantity.place * member.bytes
    raw = int.from_bytes(data[start : start + member.bytes], "little")
    value = raw * quantity.scale
    return None if raw == (1 << 8 * member.bytes) - 1 or value > _MAX_INTEGER else value


_THROTTLES: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (
    ("power", tuple(range(8))),
    ("current", tuple(range(16, 24))),
    ("thermal", tuple(range(32, 46))),
    ("prochot", (46, 47)),
)


def throttle_causes(bits: int) -> tuple[str, ...]:
    """Return the groups of causes that stand in ``throttle_bits``: power, current, thermal, prochot, other.

    Bits as ``SMU_THROTTLER_*`` in the kernel's amdgpu_smu.h: 0 to 7 package power limits, 16 to 23 currents, 32 to 45
    temperatures and regulators, 46 and 47 PROCHOT.
    """
    known = 0
    found = []
    for name, places in _THROTTLES:
        mask = sum(1 << place for place in places)
        known |= mask
        if bits & mask:
            found.append(name)
    if bits & ~known:
        found.append("other")
    return tuple(found)
