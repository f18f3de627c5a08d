"""Files of a load: events and samples as lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import EvidenceError
from recorder.load_files import (
    EventLine,
    Exchange,
    SampleWriter,
    encode_event,
    exchanges_of,
    parse_events,
    parse_samples,
    role_of,
)
from recorder.telemetry.sample import FieldSpec, RawRead, Reading, Sample

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(
        st.builds(EventLine, st.integers(0, 2**63), texts, st.dictionaries(texts, texts | st.integers() | st.none()))
    )
)
def test_events_come_back(events: list[EventLine]):
    assert parse_events(b"".join(encode_event(event) for event in events)) == tuple(events)


def test_an_event_cut_by_a_crash_is_left_out_and_those_before_it_stay():
    lines = encode_event(EventLine(1, "a", {})) + encode_event(EventLine(2, "b", {}))
    for cut in range(1, len(lines)):
        found = parse_events(lines[:cut])
        assert found == (() if cut < len(lines) // 2 else (EventLine(1, "a", {}),))


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"event":"x"}\n', b"\xff\n"])
def test_a_line_that_is_no_event_is_named(line: bytes):
    with pytest.raises(EvidenceError, match="line") as caught:
        parse_events(line)
    assert "line 1" in str(caught.value.where)


def test_an_exchange_is_announced_by_its_event():
    exchange = Exchange(
        number=3, name="n", file="wire/003-n.wire", route="/c", kind="native", workload=None, repeat=2, is_warmup=True
    )
    events = parse_events(encode_event(EventLine(1, "exchange.opened", exchange.fields())))
    assert exchanges_of(events) == (exchange,)
    with pytest.raises(EvidenceError):
        exchanges_of((EventLine(1, "exchange.opened", {"name": "n"}),))


def test_every_fact_of_a_field_and_the_bytes_of_a_sample_come_back():
    field = FieldSpec(
        name="package_energy_uj", instance="package-0", unit="uj", kind="counter", domain="package", source="x",
        window_us=1, update_us=2, resolution=3, modulus=4, states=("a", "b"),
    )  # fmt: skip
    times = {"deadline_ns": 5, "t_begin_ns": 6, "t_end_ns": 7, "cpu_ns": 8}
    samples = (
        Sample(tick=1, **times, readings=(Reading(field=field, raw=9),), raws=(RawRead("table", b"\x00\xff"),)),
        Sample(tick=1, **times, readings=(), is_edge=True),
    )
    writer = SampleWriter()
    found = parse_samples(b"".join(writer.encode(sample) for sample in samples))
    assert found == ((field,), samples, True)


def test_a_field_that_an_older_recorder_wrote_can_be_read():
    line = (
        b'{"number":0,"field":{"name":"x_count","instance":"","unit":"count","kind":"gauge","domain":"host",'
        b'"source":"x","window_us":null,"resolution":null,"states":[]}}\n'
    )
    (field,) = parse_samples(line).fields
    assert (field.name, field.modulus, field.update_us) == ("x_count", None, None)
    assert not parse_samples(line).knows_phases


def test_samples_come_back(synthetic):
    writer = SampleWriter()
    data = b"".join(writer.encode(sample) for sample in synthetic.samples(3))
    found = parse_samples(data)
    assert found.samples == tuple(synthetic.samples(3))
    assert found.fields == synthetic.SPECS
    assert data.count(b'"field"') == len(synthetic.SPECS), "a field is described once"


def test_a_reading_that_no_database_can_hold_is_an_error_and_not_a_wrong_number():
    spec = FieldSpec(name="x_count", unit="count", kind="counter", domain="host", source="s")
    sample = Sample(tick=0, deadline_ns=1, t_begin_ns=1, t_end_ns=2, readings=(Reading(field=spec, raw=2**64 - 1),))
    found = parse_samples(SampleWriter().encode(sample)).samples[0].readings[0]
    assert (found.raw, found.status) == (None, "error")


def test_a_field_read_twice_in_one_tick_is_refused():
    spec = FieldSpec(name="x_count", unit="count", kind="counter", domain="host", source="s")
    reading = Reading(field=spec, raw=1)
    sample = Sample(tick=0, deadline_ns=1, t_begin_ns=1, t_end_ns=2, readings=(reading, reading))
    with pytest.raises(ValueError, match="x_count"):
        SampleWriter().encode(sample)


@pytest.mark.parametrize("line", [b'{"tick":1}\n', b'{"field":{}}\n', b'{"field":{"name":"x"},"number":0}\n', b"{}\n"])
def test_a_line_that_is_no_sample_is_named(line: bytes):
    with pytest.raises(EvidenceError, match="line"):
        parse_samples(line)


def test_roles_follow_from_names():
    names = ("events.jsonl", "samples.jsonl", "wire/001-x.wire", "log/engine.log", "attachment/x", "else")
    assert [role_of(name) for name in names] == ["events", "telemetry", "exchange", "log", "attachment", "attachment"]
