"""Rows of a sealed load: requests, reads, events, tokens, counters, telemetry samples, attachments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from recorder.ledger import Entry
from recorder.load_files import EVENTS, SAMPLES, SampleFile, exchanges_of, parse_events, parse_samples
from recorder.phase_rows import phase_rows
from recorder.request_rows import ReadExchange, exchange_rows, read_exchange
from recorder.row_blocks import AllRows, RowBlocks
from recorder.row_values import ReadBlob, RowMap, attachment_rows, optional_text, plain_text, to_json

_PROPS_ROUTE: Final = "/props"
_OK: Final = 200


def derive_load_rows(entry: Entry, read_blob: ReadBlob, exchanges: Sequence[ReadExchange] | None = None) -> AllRows:
    """Derive the rows of a ``load.sealed`` entry: see the module. ``exchanges`` are its exchanges, if read already."""
    campaign, names = entry.text("campaign"), {str(item["name"]): str(item["sha256"]) for item in entry.blobs()}
    seal = {
        "load_id": entry.text("load"),
        "campaign_id": campaign,
        "state": entry.text("state"),
        "reason": optional_text(seal_reason(entry, read_blob)),
        "is_abandoned": int(bool(entry.payload.get("is_abandoned"))),
        "sealed_ns": entry.monotonic_ns,
    }
    rows: AllRows = {"load_seal": [seal], "attachment": [*attachment_rows(entry, campaign)]}
    if EVENTS in names:
        rows["load_event"] = [
            {
                "ordinal": ordinal,
                "t_ns": line.t_ns,
                "event": plain_text(line.event),
                "fields_json": plain_text(to_json(line.fields)),
            }
            for ordinal, line in enumerate(parse_events(read_blob(names[EVENTS])))
        ]
    reads = [*read_exchanges(entry, read_blob)] if exchanges is None else exchanges
    props: list[dict[str, Any]] = []
    for read in reads:
        blob_sha256 = names[read.exchange.file]
        for table, found in exchange_rows(read, entry_seq=entry.seq, blob_sha256=blob_sha256).items():
            _add(rows, table, found)
        if read.exchange.route.startswith(_PROPS_ROUTE) and read.response.status == _OK:
            body = read.response.body.data.decode("utf-8", "replace")
            props.append({"ordinal": read.exchange.number, "props_json": plain_text(body)})
    rows["props"] = props
    if SAMPLES in names:
        samples = parse_samples(read_blob(names[SAMPLES]))
        rows |= _telemetry_rows(samples)
        if samples.knows_phases:
            rows |= phase_rows(samples, reads)
    return rows


def _add(rows: AllRows, table: str, found: list[dict[str, Any]] | RowBlocks) -> None:
    if isinstance(found, RowBlocks):
        blocks = rows.setdefault(table, RowBlocks())
        if isinstance(blocks, RowBlocks):
            blocks.extend(found)
    else:
        plain = rows.setdefault(table, [])
        if isinstance(plain, list):
            plain.extend(found)


def seal_reason(entry: Entry, read_blob: ReadBlob) -> str | None:
    """Return why a load was sealed in its state; None where no reason was needed."""
    if not any(item.get("role") == "reason" for item in entry.blobs()):
        return None
    return read_blob(entry.blob("reason")).decode("utf-8", "replace")


def read_exchanges(entry: Entry, read_blob: ReadBlob) -> Iterator[ReadExchange]:
    """Read every exchange of a sealed load, in the order in which they were opened."""
    names = {str(item["name"]): str(item["sha256"]) for item in entry.blobs()}
    if EVENTS not in names:
        return
    for exchange in exchanges_of(parse_events(read_blob(names[EVENTS]))):
        # A crash between the event and the first byte leaves no file: then nothing was exchanged.
        if exchange.file in names:
            yield read_exchange(exchange, read_blob(names[exchange.file]))


def _telemetry_rows(found: SampleFile) -> RowMap:
    numbers = {field: number for number, field in enumerate(found.fields)}
    return {
        "telemetry_field": [
            {
                "field": number,
                "name": field.name,
                "instance": plain_text(field.instance),
                "unit": field.unit,
                "kind": field.kind,
                "domain": field.domain,
                "source": plain_text(field.source),
                "window_us": field.window_us,
                "update_us": field.update_us,
                "resolution": field.resolution,
                "modulus": field.modulus,
                "states_json": to_json(field.states),
            }
            for number, field in enumerate(found.fields)
        ],
        "telemetry_sample": [
            {
                "sample": ordinal,
                "tick": sample.tick,
                "deadline_ns": sample.deadline_ns,
                "t_begin_ns": sample.t_begin_ns,
                "t_end_ns": sample.t_end_ns,
                "cpu_ns": sample.cpu_ns,
                "missed_ticks": sample.missed_ticks,
                "is_edge": int(sample.is_edge),
            }
            for ordinal, sample in enumerate(found.samples)
        ],
        "telemetry_raw": [
            {"sample": ordinal, "source": plain_text(raw.source), "data": raw.data}
            for ordinal, sample in enumerate(found.samples)
            for raw in sample.raws
        ],
        "telemetry_reading": [
            {"sample": ordinal, "field": numbers[reading.field], "raw": reading.raw, "status": reading.status}
            for ordinal, sample in enumerate(found.samples)
            for reading in sample.readings
        ],
    }
