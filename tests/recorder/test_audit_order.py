"""The audit of the order of a campaign: loads one after the other, at their places, and the verdict after all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from recorder.audit import audit_store
from recorder.ledger import FIRST_PREV, Entry, encode_entry, parse_entry

Found = list[tuple[str, str, str | None, str | None]]


@pytest.fixture
def entries(store_root: Path) -> list[Entry]:
    lines = (store_root / "ledger.jsonl").read_bytes().splitlines()
    return [parse_entry(line, seq=seq) for seq, line in enumerate(lines)]


def audited(root: Path, entries: Iterable[Entry]) -> Found:
    """What the check of the order finds where these are the entries, chained anew. Places are those of the new ledger."""
    lines, prev = [], FIRST_PREV
    for seq, one in enumerate(entries):
        new = encode_entry(
            seq=seq,
            kind=one.kind,
            lock=one.lock,
            prev=prev,
            utc_ns=one.utc_ns,
            monotonic_ns=one.monotonic_ns,
            payload=one.payload,
        )
        lines.append(new.line + b"\n")
        prev = new.sha256
    (root / "ledger.jsonl").write_bytes(b"".join(lines))
    found = audit_store(root, level="structure").findings
    return [(one.place, one.message, one.expected, one.found) for one in found if one.check == "order"]


def places(entries: list[Entry], kind: str) -> list[int]:
    return [place for place, one in enumerate(entries) if one.kind == kind]


def test_the_order_of_a_whole_campaign_holds(store_root: Path, entries: list[Entry]):
    assert audited(store_root, entries) == []


def test_a_load_that_was_opened_while_another_one_was_open_is_found(store_root: Path, entries: list[Entry]):
    sealed, opened = places(entries, "load.sealed")[0], places(entries, "load.opened")[1]
    moved = [*entries[:sealed], entries[opened], entries[sealed], *entries[sealed + 1 : opened], *entries[opened + 1 :]]
    assert audited(store_root, moved) == [
        (f"ledger entry {sealed} (load.opened)", "the load was opened while another one was open", None, None)
    ]


def test_a_load_that_was_never_sealed_lets_no_other_load_and_no_verdict_follow(store_root: Path, entries: list[Entry]):
    sealed, opened, verdict = (places(entries, kind)[0] for kind in ("load.sealed", "load.opened", "verdict.recorded"))
    assert opened < sealed
    # However many entries lie in between.
    between = [entries[places(entries, "preflight.recorded")[0]]] * 200
    changed = [*entries[:sealed], *between, *entries[sealed + 1 :]]
    second = places(changed, "load.opened")[1]
    assert audited(store_root, changed) == [
        (f"ledger entry {second} (load.opened)", "the load was opened while another one was open", None, None),
        (
            f"ledger entry {verdict + 199} (verdict.recorded)",
            "the verdict was recorded while a load was open",
            None,
            None,
        ),
    ]


def again(entries: list[Entry], load: int, attempt: int) -> list[Entry]:
    """The entries with one load recorded a second time, right before the verdict, as this attempt."""
    opened, sealed = (entries[places(entries, kind)[load]] for kind in ("load.opened", "load.sealed"))
    name = f"{opened.text('load')}-2"
    second = [
        replace(opened, payload={**opened.payload, "load": name, "attempt": attempt}),
        replace(sealed, payload={**sealed.payload, "load": name}),
    ]
    verdict = places(entries, "verdict.recorded")[0]
    return [*entries[:verdict], *second, *entries[verdict:]]


def with_state(entries: list[Entry], load: int, state: str) -> list[Entry]:
    place = places(entries, "load.sealed")[load]
    sealed = replace(entries[place], payload={**entries[place].payload, "state": state})
    return [*entries[:place], sealed, *entries[place + 1 :]]


def test_a_second_load_where_one_was_complete_is_found(store_root: Path, entries: list[Entry]):
    place = places(entries, "verdict.recorded")[0]
    name = f"{entries[places(entries, 'load.opened')[1]].text('load')}-2"
    assert audited(store_root, again(entries, 1, 2)) == [
        (f"ledger entry {place} (load.opened)", "place 1 had its COMPLETE load already", None, name)
    ]


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_attempts_at_a_place_are_numbered_from_one(store_root: Path, entries: list[Entry], attempt: int):
    place = places(entries, "verdict.recorded")[0]
    changed = again(with_state(entries, 1, "PARTIAL"), 1, attempt)
    expected = [(f"ledger entry {place} (load.opened): payload.attempt", "wrong number", "2", str(attempt))]
    assert audited(store_root, changed) == ([] if attempt == 2 else expected)
