"""What later checks need of an exchange once its bytes have been read, small enough to be kept.

Rows, requests and gates are checked one after the other, and each of them needs every exchange of the store. Reading
one costs more than all that is done with it, so an audit keeps the facts of those that it has read, as far as its
memory allows; the others it reads again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from protocols.canonical import sha256_hex
from protocols.measurements import RequestMeasurement
from recorder.anomalies import MarkedPhase
from recorder.ledger import Entry
from recorder.load_files import Exchange
from recorder.load_rows import read_exchanges
from recorder.phase_rows import marked_phases
from recorder.request_rows import ReadExchange
from recorder.row_values import ReadBlob

KEPT_BYTES: Final = 100_000_000
_EXCHANGE_BYTES: Final = 6_000  # of one without token ids, about


class ExchangeFacts(NamedTuple):
    """One exchange without its bytes.

    ``problems`` break the framing of its record; ``target`` is where the request line sends it, without the query;
    ``measurement`` is None where no gate sees it; ``is_unsent`` says that recording stopped before it was sent.
    """

    exchange: Exchange
    problems: tuple[str, ...]
    is_unsent: bool
    body_sha256: str
    target: str
    measurement: RequestMeasurement | None
    phases: tuple[MarkedPhase, ...]


ReadFacts = Callable[[Entry], Iterable[ExchangeFacts]]
"""From the entry of a sealed load to its exchanges, in order."""


def facts_of(read: ReadExchange) -> ExchangeFacts:
    """Return what is kept of one exchange."""
    wire = read.wire
    target = b"".join(wire.request.split(b" ", 2)[1:2]).partition(b"?")[0]
    return ExchangeFacts(
        exchange=read.exchange,
        problems=wire.problems,
        is_unsent=wire.is_cut and wire.sent_ns is None,
        body_sha256=sha256_hex(read.body()),
        target=target.decode("latin-1"),
        measurement=read.measurement() if read.is_measured else None,
        phases=marked_phases([read]),
    )


def facts_reader(read_blob: ReadBlob) -> ReadFacts:
    """Return a reader that keeps nothing."""
    return lambda sealed: map(facts_of, read_exchanges(sealed, read_blob))


class _Kept(NamedTuple):
    facts: ExchangeFacts
    ids: bytes | None


class FactMemory:
    """Reads the facts of sealed loads, and keeps them up to a number of bytes."""

    def __init__(self, read_blob: ReadBlob, *, limit_bytes: int = KEPT_BYTES) -> None:
        self._read_blob: Final = read_blob
        self._kept: Final[dict[int, tuple[_Kept, ...]]] = {}
        self._ids: Final[dict[bytes, bytes]] = {}
        self._room = limit_bytes

    def facts(self, sealed: Entry) -> Iterator[ExchangeFacts]:
        """Yield the facts of each exchange of a load; what a missing blob hides raises when it is reached."""
        if (kept := self._kept.get(sealed.seq)) is not None:
            yield from map(_whole, kept)
            return
        found: list[ExchangeFacts] = []
        for read in read_exchanges(sealed, self._read_blob):
            found.append(facts_of(read))
            yield found[-1]
        self._keep(sealed, found)

    def take(self, sealed: Entry, reads: Sequence[ReadExchange]) -> None:
        """Keep the facts of a load that was read for another reason."""
        if sealed.seq not in self._kept:
            self._keep(sealed, map(facts_of, reads))

    def _keep(self, sealed: Entry, found: Iterable[ExchangeFacts]) -> None:
        kept: list[_Kept] = []
        for facts in found:
            if self._room <= 0:
                return
            one = _small(facts)
            cost = _EXCHANGE_BYTES + sum(map(len, facts.problems))
            if one.ids is not None:
                # The loads of a campaign mostly give the same ids: those are kept once.
                same = self._ids.setdefault(one.ids, one.ids)
                cost += len(same) if same is one.ids else 0
                one = one._replace(ids=same)
            self._room -= cost
            kept.append(one)
        self._kept[sealed.seq] = tuple(kept)


def _small(facts: ExchangeFacts) -> _Kept:
    measurement = facts.measurement
    if measurement is None or measurement.token_ids is None:
        return _Kept(facts, None)
    ids = array("q", measurement.token_ids).tobytes()
    return _Kept(facts._replace(measurement=replace(measurement, token_ids=None)), ids)


def _whole(kept: _Kept) -> ExchangeFacts:
    facts, ids = kept
    if ids is None or facts.measurement is None:
        return facts
    numbers = array("q")
    numbers.frombytes(ids)
    return facts._replace(measurement=replace(facts.measurement, token_ids=tuple(numbers)))
