"""The ledger: form, chain, torn lines, faults."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical import canonical_bytes
from protocols.errors import EvidenceError, HostError
from recorder.files import Files
from recorder.ledger import (
    FIRST_PREV,
    KINDS,
    Ledger,
    encode_entry,
    is_torn_append,
    parse_entry,
    read_entries,
    split_torn,
)
from recorder.merkle import leaf_hash, root_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
payloads = st.dictionaries(texts, values, max_size=5)


@pytest.fixture
def clock(synthetic):
    return synthetic.StepClock()


def ledger_at(path: Path, clock, files: Files | None = None) -> Ledger:
    return Ledger(path, files=files or Files(), clock=clock)


def add(ledger: Ledger, kind: str = "load.opened", **payload):
    entry = ledger.next_entry(kind, payload, lock=None)
    ledger.append(entry)
    return entry


@given(payloads, st.sampled_from(sorted(KINDS)), st.integers(0, 2**63))
def test_an_entry_survives_writing_and_reading(payload, kind: str, utc_ns: int):
    entry = encode_entry(
        seq=5, kind=kind, lock="ab" * 32, prev=FIRST_PREV, utc_ns=utc_ns, monotonic_ns=7, payload=payload
    )
    assert parse_entry(entry.line, seq=5) == entry
    assert canonical_bytes(json.loads(entry.line)) == entry.line


def test_a_line_has_exactly_the_promised_form():
    entry = encode_entry(
        seq=0, kind="load.opened", lock=None, prev=FIRST_PREV, utc_ns=2**60, monotonic_ns=5, payload={"b": 1, "a": "é"}
    )
    assert entry.line.decode() == (
        '{"kind":"load.opened","lock":null,"monotonic_ns":"5","payload":{"a":"é","b":1},'
        f'"prev":"{"0" * 64}","seq":0,"utc_ns":"1152921504606846976"}}'
    )
    assert entry.sha256 == hashlib.sha256(entry.line).hexdigest()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_entry_or_refused(line: bytes):
    with contextlib.suppress(EvidenceError):
        assert parse_entry(line, seq=0).line == line


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('"seq":3', '"seq":4', "seq is 4"),
        ('"seq":3', '"seq":true', "seq"),
        ('"kind":"load.opened"', '"kind":"load.closed"', "kind"),
        ('"lock":null', '"lock":"ab"', "lock"),
        ('"monotonic_ns":"5"', '"monotonic_ns":"05"', "monotonic_ns"),
        ('"monotonic_ns":"5"', '"monotonic_ns":5', "monotonic_ns"),
        ('"payload":{}', '"payload":[]', "payload"),
        ('"prev":"0', '"prev":"x', "prev"),
        (',"utc_ns":"1"', "", "utc_ns"),
        ('"seq":3', '"seq": 3', "RFC 8785"),
        ('"seq":3', '"seq":3.0', "JSON"),
        ("}", "", "JSON"),
    ],
)
def test_each_member_of_a_line_must_have_its_form(old: str, new: str, word: str):
    line = encode_entry(
        seq=3, kind="load.opened", lock=None, prev=FIRST_PREV, utc_ns=1, monotonic_ns=5, payload={}
    ).line.decode()
    assert old in line
    with pytest.raises(EvidenceError, match=word):
        parse_entry(line.replace(old, new, 1).encode(), seq=3)


def test_floats_and_large_integers_are_refused(tmp_path: Path, clock):
    ledger = ledger_at(tmp_path / "l", clock)
    for value in (1.5, 2**53, float("nan")):
        with pytest.raises(EvidenceError):
            ledger.next_entry("load.opened", {"x": value}, lock=None)  # type: ignore[dict-item]


def test_entries_are_chained_and_reopened(tmp_path: Path, clock):
    path = tmp_path / "ledger.jsonl"
    ledger = ledger_at(path, clock)
    entries = [add(ledger, number=number) for number in range(9)]
    ledger.close()
    again = ledger_at(path, clock)
    assert again.entries() == tuple(entries)
    assert [entry.prev for entry in entries[1:]] == [entry.sha256 for entry in entries[:-1]]
    assert again.root() == root_of([leaf_hash(line) for line in path.read_bytes().splitlines()])
    assert add(again).seq == 9


def test_an_entry_is_on_the_disk_when_append_returns(tmp_path: Path, clock):
    ledger = ledger_at(tmp_path / "l", clock)
    entry = add(ledger)
    assert (tmp_path / "l").read_bytes() == entry.line + b"\n"


def test_an_entry_that_was_made_for_another_place_is_refused(tmp_path: Path, clock):
    ledger = ledger_at(tmp_path / "l", clock)
    entry = ledger.next_entry("load.opened", {}, lock=None)
    add(ledger)
    with pytest.raises(ValueError, match="cannot follow"):
        ledger.append(entry)


@pytest.mark.parametrize("seq", range(4))
def test_a_changed_entry_breaks_the_chain_at_the_next_one(tmp_path: Path, clock, seq: int):
    path = tmp_path / "l"
    ledger = ledger_at(path, clock)
    for _ in range(5):
        add(ledger, word="aaaa")
    lines = path.read_bytes().splitlines()
    lines[seq] = lines[seq].replace(b"aaaa", b"aaab")
    with pytest.raises(EvidenceError) as caught:
        list(read_entries(tuple(lines)))
    assert caught.value.where == f"ledger entry {seq + 1}"


@pytest.mark.parametrize("change", ["delete", "swap", "repeat", "insert"])
def test_lines_cannot_be_deleted_swapped_repeated_or_inserted(tmp_path: Path, clock, change: str):
    path = tmp_path / "l"
    ledger = ledger_at(path, clock)
    for number in range(5):
        add(ledger, number=number)
    lines = path.read_bytes().splitlines()
    if change == "delete":
        del lines[2]
    elif change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    elif change == "repeat":
        lines.insert(3, lines[2])
    else:
        forged = encode_entry(
            seq=2,
            kind="load.opened",
            lock=None,
            prev=hashlib.sha256(lines[1]).hexdigest(),
            utc_ns=1,
            monotonic_ns=1,
            payload={},
        )
        lines.insert(2, forged.line)
    with pytest.raises(EvidenceError):
        list(read_entries(tuple(lines)))


def test_a_torn_line_is_moved_aside_at_every_length(tmp_path: Path, clock):
    path = tmp_path / "ledger.jsonl"
    ledger = ledger_at(path, clock)
    first = add(ledger, text="é€")
    second = add(ledger, text="é€")
    ledger.close()
    for length in range(1, len(second.line) + 1):
        path.write_bytes(first.line + b"\n" + second.line[:length])
        for aside in tmp_path.glob("ledger.torn-*"):
            aside.unlink()
        again = ledger_at(path, clock)
        again.close()
        assert again.entries() == (first,)
        assert path.read_bytes() == first.line + b"\n"
        assert again.moved_aside is not None
        assert (tmp_path / again.moved_aside).read_bytes() == second.line[:length]


def test_two_torn_lines_of_one_second_both_stay(tmp_path: Path, synthetic):
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        path.write_bytes(b'{"kind":"loa')
        ledger_at(path, synthetic.StepClock()).close()
    assert len(list(tmp_path.glob("ledger.torn-*"))) == 2


@pytest.mark.parametrize("byte", [b" ", b"X", b"\x8a", b"\x00", b"\x0b"])
def test_a_changed_last_newline_is_damage_and_not_a_torn_line(tmp_path: Path, clock, byte: bytes):
    path = tmp_path / "ledger.jsonl"
    ledger = ledger_at(path, clock)
    add(ledger)
    ledger.close()
    path.write_bytes(path.read_bytes()[:-1] + byte)
    assert not is_torn_append(split_torn(path.read_bytes()).torn)
    with pytest.raises(EvidenceError, match="damaged"):
        ledger_at(path, clock)
    assert list(tmp_path.glob("ledger.torn-*")) == []


def test_a_fault_at_any_step_leaves_the_old_or_the_new_ledger(tmp_path: Path, synthetic):
    fail_at, outcomes = 0, set()
    while True:
        fail_at += 1
        path = tmp_path / str(fail_at) / "ledger.jsonl"
        path.parent.mkdir()
        try:
            ledger = ledger_at(path, synthetic.StepClock(), synthetic.FaultyFiles(fail_at, half=True))
            add(ledger, number=1)
            add(ledger, number=2)
        except HostError:
            pass
        else:
            break
        again = ledger_at(path, synthetic.StepClock())
        outcomes.add(len(again))
        assert add(again, number=3).seq == len(again) - 1
    assert outcomes == {0, 1, 2}


def test_after_a_fault_nothing_more_is_appended(tmp_path: Path, synthetic):
    ledger = ledger_at(tmp_path / "l", synthetic.StepClock(), synthetic.FaultyFiles(3))
    with pytest.raises(HostError):
        add(ledger)
    with pytest.raises(EvidenceError, match="closed"):
        add(ledger)
