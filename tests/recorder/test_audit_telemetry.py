"""Readings that were decoded from a table are decoded again: whoever changes one, with the key in hand, is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recorder.audit import AuditResult, audit_store
from recorder.audit_telemetry import _described, _field_problems, sample_problems
from recorder.bundle import unpack_bundle, write_bundle
from recorder.redaction import parse_rule
from recorder.telemetry.gpu_metrics import RAW_PREFIX, decode, fields_of, layout
from recorder.telemetry.provider import readings_of
from recorder.telemetry.sample import FieldSpec, RawRead, Reading, Sample

BDF = "0000:c5:00.0"
PATH = "/sys/class/drm/card0/device/gpu_metrics"
REVISION = (3, 0)
ABSENT = "spl"  # a member that this driver does not support
FIELDS = {name: one for name, one in fields_of(REVISION, PATH, BDF).items() if name != f"throttle_{ABSENT}_raw"}
OTHER = FieldSpec(name="rss_bytes", unit="bytes", kind="gauge", domain="process", source="/proc/PID/status")


def table(tick: int) -> bytes:
    """A table of v3.0 in which each member has another number, and one is not supported."""
    members, size = layout(REVISION)
    data = bytearray(size)
    data[:4] = size.to_bytes(2, "little") + bytes(REVISION)
    for number, (name, (offset, width)) in enumerate(members.items(), start=1):
        value = (1 << 8 * width) - 1 if name == ABSENT else (number * 3 + tick) % 251
        data[offset : offset + width] = value.to_bytes(width, "little")
    return bytes(data)


def samples(count: int = 4) -> list[Sample]:
    """What the sampler makes: whole tables, one that could not be read, and the edge of a phase."""
    found = []
    for tick in range(count):
        data = None if tick == 2 else table(tick)
        values = {} if data is None else decode(data).values
        found.append(
            Sample(
                tick=tick,
                deadline_ns=10**9 + tick * 250_000_000,
                t_begin_ns=10**9 + tick * 250_000_000 + 10,
                t_end_ns=10**9 + tick * 250_000_000 + 900,
                readings=(Reading(field=OTHER, raw=5), *readings_of(FIELDS, values)),
                raws=() if data is None else (RawRead(f"{RAW_PREFIX}{BDF}", data),),
            )
        )
    edge = replace(
        found[-1], deadline_ns=found[-1].deadline_ns + 10, readings=found[-1].readings[:1], raws=(), is_edge=True
    )
    return [*found, edge]


def record(root: Path, synthetic, taken: list[Sample]) -> None:
    """One load with these samples, recorded and signed like any other."""
    with synthetic.open_store(root) as store:
        load = store.begin_campaign(**synthetic.lock_parts()).open_load(synthetic.positions()[0])
        for sample in taken:
            load.sample(sample)
        load.seal(state="COMPLETE", reason=None)


def audited(root: Path, synthetic) -> AuditResult:
    return audit_store(root, trusted_keys=[synthetic.SIGNER.public()])


def test_what_the_sampler_made_holds(tmp_path: Path, synthetic):
    record(tmp_path / "s", synthetic, samples())
    result = audited(tmp_path / "s", synthetic)
    assert (result.findings, result.trust) == ((), "VERIFIED")
    assert result.counts["decoded_readings"] == 4 * len(FIELDS)
    assert len(FIELDS) == 22
    assert result.checks[-1].label == "telemetry"


def changed(number: int, **parts: object) -> Callable[[list[Sample]], list[Sample]]:
    return lambda taken: [replace(one, **parts) if row == number else one for row, one in enumerate(taken)]


def with_reading(
    number: int, name: str, change: Callable[[Reading], Reading | None]
) -> Callable[[list[Sample]], list[Sample]]:
    def apply(taken: list[Sample]) -> list[Sample]:
        readings = [change(one) if one.field.name == name else one for one in taken[number].readings]
        return changed(number, readings=tuple(one for one in readings if one is not None))(taken)

    return apply


def with_field(name: str, **parts: object) -> Callable[[list[Sample]], list[Sample]]:
    """Another description of a field, in every sample."""

    def apply(taken: list[Sample]) -> list[Sample]:
        for number in range(len(taken)):
            taken = with_reading(number, name, lambda one: replace(one, field=replace(one.field, **parts)))(taken)
        return taken

    return apply


def flipped(place: int) -> bytes:
    data = bytearray(table(1))
    data[place] ^= 1
    return bytes(data)


POWER = "smu_socket_power_uw"
POWER_AT = layout(REVISION)[0]["socket_power"].offset
RAW = f"{RAW_PREFIX}{BDF}"
FORGERIES = {
    "a lower power": (with_reading(1, POWER, lambda one: replace(one, raw=one.raw - 1000)), "sample 1, " + POWER, "not what the bytes give"),
    "another power in the bytes": (changed(1, raws=(RawRead(RAW, flipped(POWER_AT)),)), "sample 1, " + POWER, "not what the bytes give"),
    "bytes of another tick": (changed(1, raws=(RawRead(RAW, table(0)),)), "sample 1, ", "not what the bytes give"),
    "bytes cut short": (changed(1, raws=(RawRead(RAW, table(1)[:-1]),)), "sample 1, ", "not what the bytes give"),
    "bytes of another revision": (changed(1, raws=(RawRead(RAW, flipped(3)),)), "sample 1, ", "not what the bytes give"),
    "bytes left out": (changed(1, raws=()), "sample 1, ", "the bytes that it was decoded from are missing"),
    "bytes under another name": (changed(1, raws=(RawRead("table", table(1)),)), "sample 1, ", "are missing"),
    "bytes of another device": (changed(1, raws=(RawRead(RAW_PREFIX + "0000:01:00.0", table(1)),)), "sample 1, ", "are missing"),
    "a value as an error": (with_reading(1, POWER, lambda one: replace(one, raw=None, status="error")), "sample 1, " + POWER, "not what the bytes give"),
    "a value where none was read": (with_reading(2, POWER, lambda one: replace(one, raw=7, status="ok")), "sample 2, " + POWER, "are missing"),
    "a value at the edge of a phase": (changed(4, readings=(Reading(field=FIELDS[POWER], raw=7),)), "sample 4, " + POWER, "are missing"),
    "a reading left out": (with_reading(1, POWER, lambda _: None), "sample 1, " + POWER, "the reading is missing"),
    "another unit": (with_field(POWER, unit="mw"), "field " + POWER, "not the field that its table has"),
    "another domain": (with_field(POWER, domain="gfx"), "field " + POWER, "not the field that its table has"),
    "another member": (with_field(POWER, source=f"{PATH} v3.0 apu_power"), "field " + POWER, "not the field that its table has"),
    "another source": (with_field(POWER, source="made up"), "field " + POWER, "not the field that its table has"),
    "another device": (with_field(POWER, instance="0000:01:00.0"), "sample 1, " + POWER, "are missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_samples_that_their_bytes_do_not_give_are_found_and_named(fast_path: Path, synthetic, name: str):
    change, place, message = FORGERIES[name]
    record(fast_path / "s", synthetic, change(samples()))
    result = audited(fast_path / "s", synthetic)
    assert {one.check for one in result.findings} == {"telemetry"}
    assert any(place in one.place and message in one.message for one in result.findings), result.findings[:3]
    assert "samples.jsonl" in result.findings[0].place
    assert result.trust == "SELF_CONSISTENT"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (with_reading(1, POWER, lambda one: replace(one, raw=one.raw - 1000)), lambda value: (value, value - 1000)),
        (with_reading(1, POWER, lambda one: replace(one, raw=None, status="error")), lambda value: (value, "error")),
        (with_reading(1, POWER, lambda _: None), lambda value: (value, None)),
        (with_reading(2, POWER, lambda one: replace(one, raw=7, status="ok")), lambda _: (None, 7)),
    ],
)
def test_what_the_bytes_give_and_what_stands_there_is_shown(change, shown):
    (problem,) = sample_problems([*FIELDS.values()], change(samples()))
    assert (problem.expected, problem.found) == shown(decode(table(1)).values[POWER])


@pytest.mark.parametrize(
    ("source", "is_known"),
    [
        (f"{PATH} v3.0 socket_power", True),
        (f"{PATH} v3.99 socket_power", False),
        (f"{PATH} v3 socket_power", False),
        ("made up", False),
    ],
)
def test_a_field_of_an_unknown_table_is_described_by_none(source: str, is_known: bool):
    field = replace(FIELDS[POWER], source=source)
    assert _described(field) == (FIELDS[POWER] if is_known else None)
    problems = [*_field_problems([field])]
    assert [one.place for one in problems] == ([] if is_known else [f"field {field.key}"])
    assert all((one.expected, one.found) == (None, field) for one in problems)


def test_a_table_or_a_reading_that_stands_there_twice_is_found():
    """No store can be made with one, but nothing keeps a bundle without a database from being forged so."""
    twice = [
        changed(1, raws=(RawRead(RAW, table(0)), RawRead(RAW, table(1)))),
        changed(1, readings=(Reading(field=FIELDS[POWER], raw=1), *samples()[1].readings)),
    ]
    for change in twice:
        problems = [*sample_problems([*FIELDS.values()], change(samples()))]
        assert problems[0].message == "a reading or a table stands there twice"


def test_a_bundle_says_what_stays_unproven_where_the_samples_were_left_out(tmp_path: Path, synthetic):
    record(tmp_path / "s", synthetic, samples())
    made = write_bundle(tmp_path / "s", tmp_path / "b.zst", rules=[parse_rule("telemetry")])
    assert made.left_out == 1
    unpack_bundle(made.path, tmp_path / "u")
    result = audited(tmp_path / "u", synthetic)
    assert result.findings == ()
    assert any("the samples of" in point and "cannot be checked" in point for point in result.open_points)


def test_every_bit_of_a_decoded_member_counts():
    """Else a change of the bytes could stay without a change of a value."""
    members, _ = layout(REVISION)
    before = decode(table(1)).values
    bits = [8 * members["gfxclk"].offset + bit for bit in range(16)] + [8 * POWER_AT + bit for bit in range(32)]
    for bit in bits:
        data = bytearray(table(1))
        data[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(data)).values != before
