"""The files of one load, as they grow in the spool and as they lie in blobs afterwards.

========================  ===============================================================================
``events.jsonl``          what happened, one JSON object a line: ``{"event","fields","t_ns"}``. The event
                          ``exchange.opened`` describes the wire file that follows
``samples.jsonl``         telemetry: a line with a number for each new field, then a line for each sample
``wire/NNN-name.wire``    one exchange each (see wire.py); NNN is its number in the load, from 001
``log/name``              what the engine wrote itself
``attachment/name``       whole files that were handed over
========================  ===============================================================================

Both JSONL files may end in the middle of a line after a crash: whole lines count, the rest is kept in the blob.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from protocols.errors import EvidenceError
from recorder.telemetry.sample import FieldSpec, RawRead, Reading, Sample

EVENTS: Final = "events.jsonl"
SAMPLES: Final = "samples.jsonl"
EXCHANGE_OPENED: Final = "exchange.opened"
_LEAST_INTEGER: Final = -(2**63)
_MOST_INTEGER: Final = 2**63 - 1
ROLES: Final = {EVENTS: "events", SAMPLES: "telemetry"}
FOLDERS: Final = {"wire": "exchange", "log": "log", "attachment": "attachment"}
"""Spool folder and the role of its files."""


def role_of(name: str) -> str:
    """Return the role of a load's file by its name within the load."""
    folder, slash, _ = name.partition("/")
    return FOLDERS.get(folder, "attachment") if slash else ROLES.get(name, "attachment")


class EventLine(NamedTuple):
    """One line of ``events.jsonl``; the time is monotonic."""

    t_ns: int
    event: str
    fields: dict[str, str | int | None]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What is known about an exchange besides its bytes.

    ``number`` counts the load's exchanges from 1. ``kind`` is ``native`` or ``openai`` where tokens are read from it,
    any other word where it is plain HTTP. ``workload`` is None for what no gate looks at.
    """

    number: int
    name: str
    file: str
    route: str
    kind: str
    workload: str | None
    repeat: int
    is_warmup: bool

    def fields(self) -> dict[str, str | int | None]:
        """Return the fields of the ``exchange.opened`` event."""
        return {
            "number": self.number,
            "name": self.name,
            "file": self.file,
            "route": self.route,
            "kind": self.kind,
            "workload": self.workload,
            "repeat": self.repeat,
            "is_warmup": int(self.is_warmup),
        }


def encode_line(value: object) -> bytes:
    """Return a JSON value as one line: compact, keys sorted, UTF-8."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


def encode_event(event: EventLine) -> bytes:
    """Return one line of ``events.jsonl``."""
    return encode_line({"event": event.event, "fields": event.fields, "t_ns": event.t_ns})


def _objects(data: bytes, name: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            value = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise EvidenceError("the line is no JSON", where=f"{name} line {number}") from error
        if not isinstance(value, dict):
            raise EvidenceError("the line is no object", where=f"{name} line {number}")
        yield value


def parse_events(data: bytes) -> tuple[EventLine, ...]:
    """Read the whole lines of ``events.jsonl``. Raises `EvidenceError` for a line that is no event."""
    events: list[EventLine] = []
    for value in _objects(data, EVENTS):
        try:
            events.append(EventLine(int(value["t_ns"]), str(value["event"]), dict(value["fields"])))
        except (KeyError, TypeError, ValueError) as error:
            raise EvidenceError("the line is no event", where=f"{EVENTS} line {len(events) + 1}") from error
    return tuple(events)


def exchanges_of(events: tuple[EventLine, ...]) -> tuple[Exchange, ...]:
    """Return the exchanges that the events announce, in order."""
    found: list[Exchange] = []
    for event in events:
        if event.event != EXCHANGE_OPENED:
            continue
        fields = event.fields
        try:
            workload = fields["workload"]
            found.append(
                Exchange(
                    number=int(fields["number"] or 0),
                    name=str(fields["name"]),
                    file=str(fields["file"]),
                    route=str(fields["route"]),
                    kind=str(fields["kind"]),
                    workload=None if workload is None else str(workload),
                    repeat=int(fields["repeat"] or 0),
                    is_warmup=bool(fields["is_warmup"]),
                )
            )
        except (KeyError, ValueError) as error:
            raise EvidenceError("an exchange.opened event lacks a field", where=EVENTS) from error
    return tuple(found)


class SampleWriter:
    """Turns samples into lines; gives each field a number when it first appears."""

    def __init__(self) -> None:
        self._numbers: dict[FieldSpec, int] = {}

    def encode(self, sample: Sample) -> bytes:
        """Return the lines of one sample: new fields first."""
        keys = [reading.field.key for reading in sample.readings]
        if len(set(keys)) != len(keys):
            doubled = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"tick {sample.tick} has two readings of {', '.join(doubled)}")
        lines: list[bytes] = []
        readings: list[list[int | str | None]] = []
        for reading in sample.readings:
            number = self._numbers.get(reading.field)
            if number is None:
                number = self._numbers[reading.field] = len(self._numbers)
                lines.append(encode_line({"number": number, "field": _field_object(reading.field)}))
            raw, status = reading.raw, str(reading.status)
            if raw is not None and not _LEAST_INTEGER <= raw <= _MOST_INTEGER:
                raw, status = None, "error"  # no database column can hold it
            readings.append([number, raw] if status == "ok" else [number, raw, status])
        line: dict[str, object] = {
            "tick": sample.tick,
            "deadline_ns": sample.deadline_ns,
            "t_begin_ns": sample.t_begin_ns,
            "t_end_ns": sample.t_end_ns,
            "cpu_ns": sample.cpu_ns,
            "missed_ticks": sample.missed_ticks,
            "readings": readings,
        }
        if sample.raws:
            line["raws"] = [[raw.source, raw.data.hex()] for raw in sample.raws]
        if sample.is_edge:
            line["is_edge"] = True
        return b"".join((*lines, encode_line(line)))


def _field_object(spec: FieldSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "instance": spec.instance,
        "unit": spec.unit,
        "kind": spec.kind,
        "domain": spec.domain,
        "source": spec.source,
        "window_us": spec.window_us,
        "update_us": spec.update_us,
        "resolution": spec.resolution,
        "modulus": spec.modulus,
        "states": list(spec.states),
    }


class SampleFile(NamedTuple):
    """What ``samples.jsonl`` holds: fields by number, samples in order.

    ``knows_phases`` is false for the file of an Assay that did not sample the edges of phases: nothing about phases is
    derived from it, so that the rows of an old load stay what they were.
    """

    fields: tuple[FieldSpec, ...]
    samples: tuple[Sample, ...]
    knows_phases: bool = True


def parse_samples(data: bytes) -> SampleFile:
    """Read the whole lines of ``samples.jsonl``. Raises `EvidenceError` for a line that is neither field nor sample."""
    fields: list[FieldSpec] = []
    samples: list[Sample] = []
    knows_phases = True
    for number, value in enumerate(_objects(data, SAMPLES), start=1):
        try:
            if "field" in value:
                knows_phases = knows_phases and "update_us" in value["field"]
                fields.append(_parse_field(value["field"]))
            else:
                samples.append(_parse_sample(value, fields))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            where = f"{SAMPLES} line {number}"
            raise EvidenceError(f"the line is no field and no sample: {error}", where=where) from error
    return SampleFile(tuple(fields), tuple(samples), knows_phases)


def _parse_field(value: dict[str, Any]) -> FieldSpec:
    return FieldSpec(**{**value, "states": tuple(value["states"])})


def _parse_sample(value: dict[str, Any], fields: list[FieldSpec]) -> Sample:
    readings = tuple(
        Reading(field=fields[item[0]], raw=item[1], status=item[2] if len(item) > 2 else "ok")
        for item in value["readings"]
    )
    raws = tuple(RawRead(str(source), bytes.fromhex(data)) for source, data in value.get("raws", ()))
    return Sample(**{**value, "readings": readings, "raws": raws})
