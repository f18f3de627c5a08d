"""What an audit keeps of an exchange says the same as reading it again, and never more than its limit."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from protocols.errors import EvidenceError
from recorder import exchange_facts
from recorder.exchange_facts import FactMemory, facts_of, facts_reader
from recorder.load_rows import read_exchanges
from recorder.store import Store


@pytest.fixture
def store(store_root: Path) -> Store:
    return Store.open(store_root, read_only=True)


def sealed(store: Store):
    return [entry for entry in store.entries() if entry.kind == "load.sealed"]


def test_kept_facts_are_those_that_are_read(store: Store):
    memory, fresh = FactMemory(store.blobs.read), facts_reader(store.blobs.read)
    for entry in sealed(store):
        expected = [*fresh(entry)]
        assert [facts.measurement is None for facts in expected] == [True, False, False]
        assert [*memory.facts(entry)] == expected
        with mock.patch.object(exchange_facts, "read_exchanges", side_effect=AssertionError):
            assert [*memory.facts(entry)] == expected, "kept"


def test_exchanges_that_were_read_for_rows_are_taken(store: Store):
    memory, (entry, *_) = FactMemory(store.blobs.read), sealed(store)
    reads = [*read_exchanges(entry, store.blobs.read)]
    memory.take(entry, reads)
    with mock.patch.object(exchange_facts, "read_exchanges", side_effect=AssertionError):
        assert [*memory.facts(entry)] == [facts_of(read) for read in reads]


@pytest.mark.parametrize(("limit_bytes", "kept"), [(0, 0), (1, 0), (20_000, 1), (50_000, 3)])
def test_what_does_not_fit_is_read_again(store: Store, limit_bytes: int, kept: int):
    memory, fresh = FactMemory(store.blobs.read, limit_bytes=limit_bytes), facts_reader(store.blobs.read)
    reads = []
    with mock.patch.object(
        exchange_facts, "read_exchanges", side_effect=lambda *one: reads.append(one) or read_exchanges(*one)
    ):
        for _ in range(2):
            assert [[*memory.facts(entry)] for entry in sealed(store)] == [[*fresh(entry)] for entry in sealed(store)]
    again = len(reads) - 3 * len(sealed(store))  # twice by `fresh`, once by the memory
    assert again == len(sealed(store)) - kept


def test_a_missing_blob_is_named_when_it_is_reached(store: Store):
    memory, (entry, *_) = FactMemory(store.blobs.read), sealed(store)
    name = str([item["sha256"] for item in entry.blobs() if item["role"] == "exchange"][-1])
    store.blobs.path_of(name).unlink()
    facts = memory.facts(entry)
    assert [next(facts).exchange.name, next(facts).exchange.name] == ["props", "tiny-warmup"]
    with pytest.raises(EvidenceError, match="missing"):
        next(facts)
