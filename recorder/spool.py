"""The spool: files of a load that is still running, and how they become blobs.

``spool/<load id>/`` is made after the ledger entry that opens the load. Reads, events and samples are appended
without a buffer, so that they survive the death of this process. At the end, or by `seal_abandoned` after a crash,
each file becomes a salted blob; nothing here is removed before a ledger entry names its blob.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from protocols.canonical import JsonValue
from recorder.blobs import BlobReference, BlobStore
from recorder.files import Files, host_errors, read_chunks
from recorder.load_files import role_of
from recorder.secrets import SecretFilter
from recorder.wire import WireWriter, read_wire

_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SealedFile(NamedTuple):
    """A blob as a ledger entry names it. ``is_partial`` says that its writer was cut off."""

    name: str
    role: str
    blob: BlobReference
    is_partial: bool = False

    def payload(self) -> dict[str, JsonValue]:
        """Return the blob's line in a ledger payload."""
        return {
            "name": self.name,
            "role": self.role,
            "sha256": self.blob.sha256,
            "bytes": self.blob.content_bytes,
            "is_partial": self.is_partial,
        }


def checked_name(name: str) -> str:
    """Return a name that may become a file name. Raises ValueError for any other."""
    if not _SAFE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a file name: use letters, digits, dot, dash and underscore")
    return name


def spool_files(folder: Path) -> list[tuple[str, Path]]:
    """Return every file of a load's spool with its name within the load, sorted."""
    if not folder.is_dir():
        return []
    return [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file()]


def seal_files(folder: Path, blobs: BlobStore, secrets: SecretFilter, *, is_abandoned: bool) -> list[SealedFile]:
    """Make a blob of each file of a load's spool, secrets replaced; the files stay where they are."""
    sealed: list[SealedFile] = []
    for name, path in spool_files(folder):
        if path.name.startswith(".tmp-"):
            continue  # the unfinished copy of a file that was being handed over
        role = role_of(name)
        with host_errors("seal a file of a load", path):
            if role == "exchange":
                content = _masked_wire(path.read_bytes(), secrets)
                sealed.append(SealedFile(name, role, blobs.put(content), read_wire(content).is_cut))
            elif role in {"events", "telemetry"}:
                content = path.read_bytes()
                is_cut = not content.endswith(b"\n") and content != b""
                sealed.append(SealedFile(name, role, blobs.put(content), is_cut))
            elif role == "log":
                # The engine writes its log itself. Nothing in it says whether it was cut, so a crash marks it.
                sealed.append(SealedFile(name, role, blobs.put_pieces(secrets.lines(read_chunks(path))), is_abandoned))
            else:
                sealed.append(SealedFile(name, role, blobs.put_file(path)))
    return sealed


def _masked_wire(data: bytes, secrets: SecretFilter) -> bytes:
    """Mask known secrets that lie across two reads; each read keeps its length and its time."""
    wire = read_wire(data)
    joined = b"".join(read.data for read in wire.reads)
    masked = secrets.masked(joined)
    if masked == joined or wire.problems:
        return data
    file, place = io.BytesIO(), 0
    writer = WireWriter(file.write)
    if wire.request:
        writer.sent_bytes(wire.request)
    if wire.sent_ns is not None:
        writer.sent(wire.sent_ns)
    for read in wire.reads:
        writer.read(read.t_ns, masked[place : place + len(read.data)])
        place += len(read.data)
    if wire.end_ns is not None and wire.end_reason is not None:
        writer.end(wire.end_reason, wire.end_ns)
    return file.getvalue() + secrets.masked(wire.tail)


def remove_spool(folder: Path, root: Path, files: Files) -> None:
    """Remove a load's spool folder, and its parents below ``root`` that are empty then."""
    with host_errors("remove the spool of a sealed load", folder):
        for _, path in spool_files(folder):
            files.unlink(path)
        if folder.is_dir():
            for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                files.remove_folder(inner)
            files.remove_folder(folder)
        for parent in _parents_below(folder, root):
            if not parent.is_dir() or any(parent.iterdir()):
                break
            files.remove_folder(parent)


def _parents_below(folder: Path, root: Path) -> Iterator[Path]:
    for parent in folder.parents:
        if parent == root or root not in parent.parents:
            return
        yield parent
