"""The binary metrics table: tables packed from named values, one a revision, and bytes that are no table."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.telemetry.gpu_metrics import LAYOUTS, QUANTITIES, Metrics, decode, layout, throttle_causes

# Packed by hand from the kernel's structs, so that a wrong layout of ours cannot agree with itself.
V1_HEAD = "6H3HHQQ7H7HIH"
FORMATS = {
    (1, 0): "<HBB4xQ6H3HHI7H7HIHBB4x",
    (1, 1): f"<HBB{V1_HEAD}HHHII4H",
    (1, 2): f"<HBB{V1_HEAD}HHHII4HQ",
    (1, 3): f"<HBB{V1_HEAD}HHHII4HQ3HHQ",
    (2, 0): "<HBB4xQ2H8H2H2H4H8H6H6H8H2HIHH",
    (2, 1): "<HBB2H8H2H2HQ4H8H6H6H8H2HIH3H",
    (2, 2): "<HBB2H8H2H2HQ4H8H6H6H8H2HIH3HQ",
    (2, 3): "<HBB2H8H2H2HQ4H8H6H6H8H2HIH3HQ2H8H2H",
    (2, 4): "<HBB2H8H2H2HQ4H8H6H6H8H2HIH3HQ2H8H2H3H3H4x",
    (3, 0): "<HBBHH16HHHH8H16H4H2xQIH2xIIII16HHHH8H16HHH2x7II4x",
}
SIZES = {
    (1, 0): 80,
    (1, 1): 96,
    (1, 2): 104,
    (1, 3): 120,
    (2, 0): 120,
    (2, 1): 120,
    (2, 2): 128,
    (2, 3): 152,
    (2, 4): 168,
    (3, 0): 264,
}
"""Sizes that a C compiler gives for the kernel's structs."""


def pack(revision: tuple[int, int], *values: int) -> bytes:
    return struct.pack(FORMATS[revision], SIZES[revision], *revision, *values)


V1_LOADS_AND_TEMPERATURES = (61, 84, 72, 70, 60, 58, 97, 41, 0)
V1_CLOCKS = (2500, 1200, 1124, 0, 0, 0, 0, 2510, 1201, 1125, 0, 0, 0, 0, 0x20, 1500)
V2_TEMPERATURES = (6512, 6044, *range(8), 1, 2)
V2_REST = (1, 2, 3, 4, *range(8), 1600, 1000, 800, 801, 0, 0, 1605, 1001, 802, 803, 0, 0, *range(8), 5, 6, 0x40, 128)


def table(revision: tuple[int, int]) -> bytes:
    """A table of a revision with values that a real card could give."""
    if revision == (1, 0):
        return pack(revision, 10**12, *V1_LOADS_AND_TEMPERATURES, 303, 123456, *V1_CLOCKS, 16, 160)
    if revision[0] == 1:
        rest = {1: (), 2: (777,), 3: (777, 900, 950, 1000, 0, 1 << 36 | 1)}[revision[1]]
        common = (*V1_LOADS_AND_TEMPERATURES, 303, 1 << 40, 10**12, *V1_CLOCKS, 16, 160, 0, 1, 2, 40, 41, 42, 43)
        return pack(revision, *common, *rest)
    if revision == (2, 0):
        return pack(revision, 10**12, *V2_TEMPERATURES, 9800, 0, *V2_REST, 0)
    if revision[0] == 2:
        rest = {1: (), 2: (1 << 4,), 3: (1 << 4, *range(12)), 4: (1 << 4, *range(12), *range(6))}[revision[1]]
        return pack(revision, *V2_TEMPERATURES, 9800, 0, 10**12, *V2_REST, 0, 0, 0, *rest)
    return pack(
        revision,
        *(7123, 6901, *range(16), 4100),
        *(97, 0, *range(8), *range(16), 41_000, 2_000, 0, 0),
        *(10**12, 106_210, 500, 105_000, 71_000, 0, 21_000, *range(16), 65_000, 120, 120),
        *(2870, 1000, 0, 0, 2000, 0, 4000, 0, *range(16), 5000, 2900),
        *(0, 11, 12, 13, 14, 15, 16, 5_000),
    )


V1 = {
    "smu_boot_time_ns": 10**12,
    "smu_temp_edge_mc": 61_000,
    "smu_temp_junction_mc": 84_000,
    "smu_temp_mem_mc": 72_000,
    "smu_gfx_busy_ppm": 970_000,
    "smu_mem_busy_ppm": 410_000,
    "smu_board_power_uw": 303_000_000,
    "smu_energy_raw": 1 << 40,
    "smu_gfx_clock_hz": 2_500_000_000,
    "smu_gfx_clock_now_hz": 2_510_000_000,
    "smu_mem_clock_hz": 1_125_000_000,
    "throttle_chip_bits": 0x20,
}
V2 = {
    "smu_boot_time_ns": 10**12,
    "smu_gfx_clock_hz": 1_600_000_000,
    "smu_gfx_clock_now_hz": 1_605_000_000,
    "throttle_chip_bits": 0x40,
}
EXPECTED = {
    (1, 0): V1 | {"smu_energy_raw": 123456},
    (1, 1): V1,
    (1, 2): V1 | {"smu_firmware_time_ns": 7770},
    (1, 3): V1 | {"smu_firmware_time_ns": 7770, "throttle_bits": 1 << 36 | 1},
    (2, 0): V2,
    (2, 1): V2,
    (2, 2): V2 | {"throttle_bits": 16},
    (2, 3): V2 | {"throttle_bits": 16},
    (2, 4): V2
    | {"throttle_bits": 16, "smu_temp_gfx_mc": 65_120, "smu_temp_soc_mc": 60_440, "smu_gfx_busy_ppm": 980_000},
    (3, 0): {
        "smu_boot_time_ns": 10**12,
        "smu_temp_gfx_mc": 71_230,
        "smu_temp_soc_mc": 69_010,
        "smu_temp_skin_mc": 41_000,
        "smu_gfx_activity_raw": 97,
        "smu_dram_read_mb_per_s": 41_000,
        "smu_dram_write_mb_per_s": 2_000,
        "smu_socket_power_uw": 106_210_000,
        "smu_apu_power_uw": 105_000_000,
        "smu_gfx_power_uw": 71_000_000,
        "smu_core_power_uw": 21_000_000,
        "smu_gfx_clock_hz": 2_870_000_000,
        "smu_mem_clock_hz": 4_000_000_000,
        "smu_fabric_clock_hz": 2_000_000_000,
        "gfx_clock_limit_hz": 2_900_000_000,
        "throttle_prochot_raw": 0,
        "throttle_spl_raw": 11,
        "throttle_fppt_raw": 12,
        "throttle_sppt_raw": 13,
        "throttle_thm_core_raw": 14,
        "throttle_thm_gfx_raw": 15,
        "throttle_thm_soc_raw": 16,
        "smu_filter_time_us": 5_000,
    },
}


@pytest.mark.parametrize("revision", LAYOUTS)
def test_a_table_has_the_size_that_a_c_compiler_gives_it(revision) -> None:
    assert layout(revision)[1] == SIZES[revision] == struct.calcsize(FORMATS[revision])


@pytest.mark.parametrize("revision", LAYOUTS)
def test_a_table_is_read_in_its_units(revision) -> None:
    assert decode(table(revision)) == Metrics(revision=revision, values=EXPECTED[revision])


@pytest.mark.parametrize("revision", LAYOUTS)
def test_a_member_that_the_driver_never_wrote_has_no_value(revision) -> None:
    blank = table(revision)[:4] + b"\xff" * (SIZES[revision] - 4)
    assert decode(blank).values == dict.fromkeys(quantity.name for quantity in QUANTITIES[revision])


@pytest.mark.parametrize("revision", LAYOUTS)
def test_a_table_that_is_cut_or_longer_than_it_says_decodes_to_nothing(revision) -> None:
    whole = table(revision)
    for data in (whole[:-1], whole + b"\0", b"\x07\x00" + whole[2:]):
        found = decode(data)
        assert (found.revision, found.values) == (revision, {})
        assert f"has {SIZES[revision]} bytes" in (found.problem or "")


@pytest.mark.parametrize("revision", [(1, 4), (1, 8), (2, 5), (3, 1), (0, 0), (255, 255)])
def test_an_unknown_revision_decodes_to_nothing_and_is_named(revision) -> None:
    found = decode(struct.pack("<HBB", 264, *revision) + bytes(260))
    assert (found.revision, found.values) == (revision, {})
    assert found.problem == f"revision v{revision[0]}.{revision[1]} is not known"


@given(st.binary(max_size=512))
def test_arbitrary_bytes_never_break_the_decoder(data: bytes) -> None:
    found = decode(data)
    assert bool(found.values) == (found.problem is None)


@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_arbitrary_bytes_behind_a_right_header_give_every_promised_name(revision, data) -> None:
    body = data.draw(st.binary(min_size=SIZES[revision] - 4, max_size=SIZES[revision] - 4))
    found = decode(table(revision)[:4] + body)
    assert set(found.values) == {quantity.name for quantity in QUANTITIES[revision]}
    assert all(value is None or 0 <= value < 2**63 for value in found.values.values())


def test_power_of_a_socket_above_65_watts_does_not_overflow() -> None:
    """Regression of a known trap: 106 W in a 16 bit member of mW reads as 40.9 W."""
    assert decode(table((3, 0))).values["smu_socket_power_uw"] == 106_210_000
    sixteen_bit = {"sys_power", "stapm_limit", "stapm_now", "powers"}
    assert not sixteen_bit & {quantity.member for found in QUANTITIES.values() for quantity in found}


def test_throttle_bits_name_their_causes() -> None:
    assert throttle_causes(0) == ()
    assert throttle_causes(1 << 4) == ("power",)
    assert throttle_causes(1 << 16 | 1 << 36) == ("current", "thermal")
    assert throttle_causes(1 << 47 | 1 << 56) == ("prochot", "other")
