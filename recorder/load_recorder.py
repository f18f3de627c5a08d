"""Records one load: exchanges, events, samples, files; then seals them.

Everything reaches its spool file before the call returns. Calls may come from several threads (the sampler has its
own); a kill of the process at any point leaves files that `seal_abandoned` turns into partial evidence.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from protocols.canonical import JsonValue
from protocols.errors import AssayError
from recorder.campaign_state import STATES, LoadEntries
from recorder.files import AppendFile, host_errors
from recorder.journal import Journal
from recorder.load_files import EVENTS, EXCHANGE_OPENED, SAMPLES, EventLine, Exchange, SampleWriter, encode_event
from recorder.receipts import filtered
from recorder.spool import checked_name, remove_spool, seal_files
from recorder.telemetry.sample import Sample
from recorder.wire import WireWriter


@dataclass(frozen=True, kw_only=True)
class LoadSummary:
    """A sealed load: its state, the files that became blobs, and the bytes in them."""

    load_id: str
    state: str
    files: int
    content_bytes: int


class ExchangeSink:
    """Takes the bytes of one exchange as they pass. Each call writes to the spool file before it returns.

    A call that fails raises `HostError`; the error is kept, and `close` raises it again, because what a callback of
    an event loop raises is easily lost.
    """

    def __init__(self, file: AppendFile, request: bytes, journal: Journal) -> None:
        self._file: Final = file
        self._filter: Final = journal.secrets.reads()
        self.error: AssayError | None = None
        with host_errors("record a request", file.path):
            self._writer: Final = WireWriter(file.write)
            self._writer.sent_bytes(journal.secrets.request(request))

    def on_sent(self, t_ns: int) -> None:
        """Record that the last request byte was handed to the socket at ``t_ns`` (monotonic)."""
        try:
            self._writer.sent(t_ns)
        except OSError as error:
            self._fail(error)

    def on_read(self, t_ns: int, data: bytes) -> None:
        """Record one socket read, stamped at ``t_ns`` (monotonic)."""
        # Called for every token: no context manager and no closure on this path.
        try:
            self._writer.read(t_ns, self._filter.read(data))
        except OSError as error:
            self._fail(error)

    def close(self, reason: str, t_ns: int) -> None:
        """Record why and when the exchange ended. Raises the error of an earlier call that failed."""
        if self.error is not None:
            self.abandon()
            raise self.error
        try:
            self._writer.end(reason, t_ns)
        except OSError as error:
            self._fail(error)
        self.abandon()

    def abandon(self) -> None:
        """Close the file without an end record: the exchange is cut."""
        self._file.close()

    def _fail(self, error: OSError) -> None:
        try:
            with host_errors("record an exchange", self._file.path):
                raise error
        except AssayError as kept:
            self.error = kept
            raise


class LoadRecorder:
    """One open load. Made by `CampaignRecorder.open_load`."""

    def __init__(self, journal: Journal, load: LoadEntries) -> None:
        self.load_id: Final = load.load_id
        self.spool: Final = journal.root / "spool" / load.load_id
        self._load: Final = load
        self._journal: Final = journal
        self._mutex: Final = threading.RLock()
        self._exchanges = 0
        self._sinks: list[ExchangeSink] = []
        self._sample_writer: Final = SampleWriter()
        with host_errors("open the spool of a load", self.spool):
            for folder in (self.spool, self.spool / "wire", self.spool / "log", self.spool / "attachment"):
                journal.files.make_folder(folder)
            self._events: Final = AppendFile(self.spool / EVENTS, journal.files)
            self._samples: Final = AppendFile(self.spool / SAMPLES, journal.files)

    def exchange(
        self, *, name: str, route: str, kind: str, workload: str | None, repeat: int, is_warmup: bool, request: bytes
    ) -> ExchangeSink:
        """Begin to record one exchange; ``request`` is the whole HTTP request as it will be sent.

        ``kind`` is ``native`` or ``openai`` where tokens are read from the answer, any other word for plain HTTP.
        ``workload`` is None for what no gate looks at. Raises `HostError` if the disk refuses.
        """
        with self._mutex:
            self._exchanges += 1
            exchange = Exchange(
                number=self._exchanges,
                name=name,
                file=f"wire/{self._exchanges:03d}-{checked_name(name)}.wire",
                route=route,
                kind=kind,
                workload=workload,
                repeat=repeat,
                is_warmup=is_warmup,
            )
            self.note(EXCHANGE_OPENED, **exchange.fields())
            with host_errors("record an exchange", self.spool / exchange.file):
                file = AppendFile(self.spool / exchange.file, self._journal.files)
            sink = ExchangeSink(file, request, self._journal)
            self._sinks.append(sink)
            return sink

    def note(self, event: str, **fields: str | int | None) -> None:
        """Record that something happened now, secrets replaced. Raises `HostError` if the disk refuses."""
        secrets = self._journal.secrets
        with self._mutex:
            kept = cast("dict[str, str | int | None]", secrets.value(fields))
            line = EventLine(self._journal.clock.monotonic_ns(), event, kept)
            with host_errors("record an event", self._events.path):
                self._events.write(encode_event(line))

    def sample(self, sample: Sample) -> None:
        """Record one telemetry sample. Raises `HostError` if the disk refuses."""
        with self._mutex, host_errors("record a sample", self._samples.path):
            self._samples.write(self._sample_writer.encode(sample))

    def attach(self, name: str, source: Path | bytes) -> None:
        """Keep a whole file or bytes under this name, secrets in text replaced. The same name replaces."""
        path = self.spool / "attachment" / checked_name(name)
        with host_errors("keep an attachment", path):
            content = source if isinstance(source, bytes) else source.read_bytes()
            self._journal.files.replace_file(path, filtered(self._journal, content))

    def log_path(self, name: str) -> Path:
        """Return where an engine may write its log; secrets in it are replaced when the load is sealed."""
        return self.spool / "log" / checked_name(name)

    def seal(self, *, state: str, reason: str | None) -> LoadSummary:
        """Turn the spool into blobs, record ``load.sealed`` with a checkpoint, and remove the spool.

        ``state`` is COMPLETE, PARTIAL or INVALID; ``reason`` says why it is not COMPLETE.
        Raises `HostError` if the disk or the database refuses; the spool then stays until the store is opened again.
        """
        if state not in STATES:
            raise ValueError(f"{state!r} is no state of a load")
        with self._mutex:
            for sink in self._sinks:
                sink.abandon()
            self._events.close()
            self._samples.close()
        return seal_load(self._journal, self._load, state=state, reason=reason, is_abandoned=False)


def seal_load(
    journal: Journal, load: LoadEntries, *, state: str, reason: str | None, is_abandoned: bool
) -> LoadSummary:
    """Seal what lies in the spool of a load, and sign a checkpoint over it."""
    root = journal.root / "spool"
    sealed = seal_files(root / load.load_id, journal.blobs, journal.secrets, is_abandoned=is_abandoned)
    count, content_bytes = len(sealed), sum(one.blob.content_bytes for one in sealed)
    if reason is not None:
        sealed.append(journal.store_blob("reason.txt", "reason", journal.secrets.text(reason.encode())))
    payload: dict[str, JsonValue] = {
        "campaign": load.opened.text("campaign"),
        "load": load.load_id,
        "state": state,
        "is_abandoned": is_abandoned,
    }
    journal.record("load.sealed", payload, lock=load.opened.lock, blobs=sealed)
    journal.checkpoint()
    with journal.step():
        remove_spool(root / load.load_id, root, journal.files)
    return LoadSummary(load_id=load.load_id, state=state, files=count, content_bytes=content_bytes)
