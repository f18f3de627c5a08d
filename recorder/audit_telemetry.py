"""Check of decoded telemetry: what was read as one table of bytes is decoded again, and must give the same readings.

Values that were read one by one (a file, a call of a library) have no bytes to be decoded from: what the samples say is
all that there is. Of these tables the bytes are kept with each sample, so that whoever mends the decoder can read old
loads again, and whoever changes a value must change the bytes too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from recorder.audit_context import Audit, place_of
from recorder.ledger import Entry
from recorder.load_files import SAMPLES, parse_samples
from recorder.telemetry.gpu_metrics import DECODED, LAYOUTS, RAW_PREFIX, decode, fields_of
from recorder.telemetry.sample import FieldSpec, Reading, Sample

_SOURCE: Final = re.compile(r"(?P<path>.*/gpu_metrics) v(?P<format>[0-9]{1,3})\.(?P<content>[0-9]{1,3}) \w+")


class Problem(NamedTuple):
    """One thing of a sample file that its bytes do not give. ``place`` is the sample and field, or the field alone."""

    place: str
    message: str
    expected: object = None
    found: object = None


def check_telemetry(audit: Audit) -> None:
    """(20) Every reading that was decoded from a table is what the bytes of that sample give."""
    for state in audit.chosen():
        for load in state.loads.values():
            if load.sealed is not None:
                with audit.tolerating_redaction(place_of(load.sealed), f"the samples of {load.load_id}"):
                    _check_load(audit, load.load_id, load.sealed)
    audit.counts["decoded_readings"] = audit.items


def _check_load(audit: Audit, load_id: str, sealed: Entry) -> None:
    names = {str(item["name"]): str(item["sha256"]) for item in sealed.blobs()}
    if SAMPLES not in names:
        return
    found = parse_samples(audit.read_blob(names[SAMPLES]))
    decoded = [field for field in found.fields if field.name in DECODED]
    audit.items += sum(reading.field.name in DECODED for sample in found.samples for reading in sample.readings)
    for problem in (*_field_problems(decoded), *sample_problems(decoded, found.samples)):
        place = f"{place_of(sealed)}: {load_id}, {SAMPLES}, {problem.place}"
        audit.find(place, message=problem.message, expected=problem.expected, found=problem.found)


def _field_problems(fields: Iterable[FieldSpec]) -> Iterator[Problem]:
    """Name each field that is not described as its table's revision describes it."""
    for field in fields:
        expected = _described(field)
        if expected != field:
            yield Problem(f"field {field.key}", "not the field that its table has", expected, field)


def _described(field: FieldSpec) -> FieldSpec | None:
    match = _SOURCE.fullmatch(field.source)
    revision = _revision(field)
    if match is None or revision not in LAYOUTS:
        return None
    return fields_of(revision, match["path"], field.instance).get(field.name)


def _revision(field: FieldSpec) -> tuple[int, int]:
    match = _SOURCE.fullmatch(field.source)
    return (int(match["format"]), int(match["content"])) if match else (-1, -1)


def sample_problems(fields: Sequence[FieldSpec], samples: Iterable[Sample]) -> Iterator[Problem]:
    """Decode each sample's tables again. A table that could not be read leaves no bytes and readings in error."""
    for number, sample in enumerate(samples):
        given = [reading for reading in sample.readings if reading.field.name in DECODED]
        kept = [raw for raw in sample.raws if raw.source.startswith(RAW_PREFIX)]
        readings, tables = {one.field: one for one in given}, {one.source: one.data for one in kept}
        if (len(readings), len(tables)) != (len(given), len(kept)):
            yield Problem(f"sample {number}", "a reading or a table stands there twice")
        # Every table is read as a whole at each tick; at the edge of a phase none is.
        due = () if sample.is_edge else fields
        for field in dict.fromkeys((*due, *readings)):
            yield from _reading_problems(number, field, readings.get(field), tables)


def _reading_problems(
    number: int, field: FieldSpec, reading: Reading | None, tables: Mapping[str, bytes]
) -> Iterator[Problem]:
    place = f"sample {number}, {field.key}"
    data = tables.get(f"{RAW_PREFIX}{field.instance}")
    metrics = None if data is None else decode(data)
    is_of_revision = metrics is not None and metrics.revision == _revision(field)
    value = metrics.values.get(field.name) if metrics is not None and is_of_revision else None
    if reading is None:
        if value is not None:
            yield Problem(place, "the reading is missing that its bytes give", value)
    elif (reading.raw, reading.status) != (value, "error" if value is None else "ok"):
        message = "not what the bytes give" if metrics is not None else "the bytes that it was decoded from are missing"
        yield Problem(place, message, value, reading.raw if reading.status == "ok" else reading.status)
