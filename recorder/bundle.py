"""Bundles: the evidence of a store in one file that a stranger can check, and how such a file is opened.

A bundle is ``tar`` in ``zstd``: ``manifest.json`` first, then ``verify.py``, then ledger, blobs, notes, keys, and the
copies for people, sorted by name. Everything in it follows from ledger and blobs, so the same store gives the same
bytes (with the same version of zstd). The database is left out: it is derived, and an import makes it again. Private
keys and running loads never enter.

Opening trusts nothing: see `archive` for what the reader refuses. Beyond that each file must be the next one of the
manifest with its size and hash, and the manifest may promise neither more than the disk has room for nor more than a
thousand times the bytes of the archive.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocols.errors import EvidenceError, HostError
from recorder import verify
from recorder.archive import Decompressed, Member, compressed, pack_member, read_members
from recorder.blobs import BlobStore
from recorder.campaign_state import read_campaigns, resolve_campaign
from recorder.files import Files, host_errors, read_chunks
from recorder.imports import import_folders
from recorder.journal import copies_of
from recorder.ledger import Entry, read_entries, split_torn
from recorder.manifest import (
    LIMIT_BYTES,
    MANIFEST,
    VERIFIER,
    BundleFile,
    Manifest,
    blob_file,
    described,
    file_sha256,
    parse_manifest,
    read_manifest,
)
from recorder.merkle import leaf_hash, root_of
from recorder.presence import no_ledger
from recorder.recovery import recorded_torn_files
from recorder.redaction import Rule, left_out

SUFFIX: Final = ".assay.tar.zst"
_RATIO_LIMIT: Final = 1000
_SMALL_BYTES: Final = 64 << 20  # what an archive of any size may hold


@dataclass(frozen=True, kw_only=True)
class BundleSummary:
    """A bundle that was written: its file and hash, the verifier beside it, what it holds and what was left out."""

    path: Path
    verifier: Path
    sha256: str
    bytes: int
    files: int
    content_bytes: int
    left_out: int
    head: str


def verifier_source() -> bytes:
    """Return the bytes of the single-file verifier."""
    return Path(verify.__file__).read_bytes()


def write_bundle(
    root: Path, target: Path | None, *, rules: Sequence[Rule] = (), only_campaign: str | None = None
) -> BundleSummary:
    """Write the bundle of a store (or again of an unpacked bundle), and a copy of the verifier beside it.

    ``target`` is a file that must not exist, or None for ``<store id>-<entries>.assay.tar.zst`` in the current folder.
    ``rules`` and ``only_campaign`` say what is left out. Raises `EvidenceError` where the ledger or a file does not
    hold, `HostError` where the disk refuses; nothing is left behind then.
    """
    if not (root / "ledger.jsonl").is_file():
        raise no_ledger(root)
    with host_errors("read the ledger", root / "ledger.jsonl"):
        lines = split_torn((root / "ledger.jsonl").read_bytes()).lines
    entries = tuple(read_entries(lines))
    if not entries:
        raise EvidenceError("there is nothing to bundle: the ledger is empty", where=str(root))
    known = read_manifest(root)
    chosen = None
    if only_campaign is not None:
        chosen = resolve_campaign(read_campaigns(entries), only_campaign)
    gone = left_out(entries, rules, only_campaign=chosen) | (known.left_out if known else frozenset())
    is_redacted = bool(rules) or chosen is not None
    imports = import_folders(entries)
    if is_redacted:
        gone |= {one.manifest_sha256 for one in imports}
    made = _small_files(entries, BlobStore(root / "blobs" / "sha256", Files()), gone)
    made["ledger.jsonl"] = b"".join(line + b"\n" for line in lines)
    files = {name: described(name, content) for name, content in made.items()}
    blobs = (blob for entry in entries for blob in blob_file(entry))
    files |= {blob.name: blob for blob in blobs if blob.sha256 not in gone}
    for one in imports:
        if one.manifest_sha256 not in gone:
            files |= {file.name: file for file in _import_files(root, one.folder)}
    manifest = Manifest(
        store=entries[0].text("origin"),
        entries=len(entries),
        root=root_of([leaf_hash(line) for line in lines]).hex(),
        files=tuple(files[name] for name in sorted(files)),
        left_out=gone,
    )
    path = target or Path(f"{manifest.store.rpartition('/')[2]}-{manifest.entries}{SUFFIX}")
    return _write(root, path, manifest, made)


def _small_files(entries: Sequence[Entry], blobs: BlobStore, gone: frozenset[str]) -> dict[str, bytes]:
    """Return every file that is no blob, made from ledger and blobs and not from the copies that lie about."""
    made = {VERIFIER: verifier_source()}
    for entry in entries:
        made |= copies_of(entry, blobs, left_out=gone)
    for name, sha256 in recorded_torn_files(tuple(entries)).items():
        path = blobs.root.parent.parent / name
        with host_errors("read a torn line", path):
            made[name] = path.read_bytes()
        if hashlib.sha256(made[name]).hexdigest() != sha256:
            raise EvidenceError("the torn line is not the recorded one", where=str(path), hint="run `assay audit`")
    return made


def _import_files(root: Path, folder: str) -> list[BundleFile]:
    manifest = read_manifest(root / folder)
    if manifest is None:
        raise EvidenceError("an imported bundle lost its manifest", where=folder, hint="run `assay audit`")
    own = described(MANIFEST, (root / folder / MANIFEST).read_bytes())
    return [file._replace(name=f"{folder}/{file.name}") for file in (own, *manifest.files)]


def _write(root: Path, path: Path, manifest: Manifest, made: dict[str, bytes]) -> BundleSummary:
    if path.exists():
        raise HostError("this file exists already", where=str(path), hint="remove it, or name another one with --out")
    verifier = path.with_name(path.name.removesuffix(SUFFIX) + ".verify.py")
    temporary = path.with_name(f".tmp-{os.urandom(8).hex()}")
    encoded, disk = manifest.encode(), Files()
    first = [described(MANIFEST, encoded), *(file for file in manifest.files if file.name == VERIFIER)]
    rest = [file for file in manifest.files if file.name != VERIFIER]
    contents = made | {MANIFEST: encoded}
    try:
        with host_errors("write the bundle", path, is_recording=False):
            disk.make_folder(path.parent)
            with temporary.open("xb") as file:
                with compressed(file) as write:
                    for one in (*first, *rest):
                        pieces = _pieces(root, one, contents.get(one.name))
                        for piece in pack_member(Member(one.name, one.size), pieces):
                            write(piece)
                file.flush()
                disk.fsync(file.fileno())
            disk.replace_file(verifier, contents[VERIFIER])
            disk.rename(temporary, path)
            disk.fsync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return BundleSummary(
        path=path,
        verifier=verifier,
        sha256=file_sha256(path),
        bytes=path.stat().st_size,
        files=len(manifest.files) + 1,
        content_bytes=manifest.total_bytes() + len(encoded),
        left_out=len(manifest.left_out),
        head=f"{manifest.entries}:{manifest.root}",
    )


def _pieces(root: Path, file: BundleFile, content: bytes | None) -> Iterator[bytes]:
    """Yield a file's bytes, and fail behind the last one if they do not have the hash that was promised."""
    path, digest = root / file.name, hashlib.sha256()
    if content is None and not path.is_file():
        raise EvidenceError("the file is missing", where=file.name, hint="run `assay audit`")
    for piece in read_chunks(path) if content is None else (content,):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != file.sha256:
        raise EvidenceError("the bytes of the file changed", where=file.name, hint="run `assay audit`")


def unpack_bundle(archive: Path, folder: Path) -> Manifest:
    """Unpack a bundle into a folder that must be empty or missing, checking every name, size and hash on the way.

    Raises `EvidenceError` for anything that is not exactly what the manifest promises; what was written by then stays
    in the folder, for the caller to remove.
    """
    with host_errors("open the bundle", archive):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise HostError("the folder is not empty", where=str(folder))
        with archive.open("rb") as file:
            return _unpack(read_members(Decompressed(file)), folder, archive.stat().st_size)


def _unpack(members: Iterable[tuple[Member, Iterator[bytes]]], folder: Path, archive_bytes: int) -> Manifest:
    iterator = iter(members)
    first = next(iterator, None)
    if first is None or first[0].name != MANIFEST or first[0].size > LIMIT_BYTES:
        raise EvidenceError(f"this is no bundle: it does not begin with {MANIFEST}")
    encoded = b"".join(first[1])
    manifest = parse_manifest(encoded)
    total, room = manifest.total_bytes(), shutil.disk_usage(folder).free
    if total > max(_SMALL_BYTES, _RATIO_LIMIT * archive_bytes):
        raise EvidenceError(f"the archive of {archive_bytes} bytes claims to hold {total}: that is no evidence")
    if total > room:
        raise HostError(f"the bundle holds {total} bytes, the disk has room for {room}", where=str(folder))
    (folder / MANIFEST).write_bytes(encoded)
    promised = sorted(manifest.files, key=lambda file: (file.name != VERIFIER, file.name))
    for expected in promised:
        found = next(iterator, None)
        if found is None or (found[0].name, found[0].size) != (expected.name, expected.size):
            name = None if found is None else f"{found[0].name} with {found[0].size} bytes"
            where = f"{expected.name} with {expected.size} bytes"
            raise EvidenceError(f"the archive goes on with {name}, where the manifest promises {where}")
        _unpack_file(folder / expected.name, expected, found[1])
    if (more := next(iterator, None)) is not None:
        raise EvidenceError("the archive holds a file that the manifest does not name", where=more[0].name)
    return manifest


def _unpack_file(path: Path, expected: BundleFile, pieces: Iterable[bytes]) -> None:
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != expected.sha256:
        raise EvidenceError("the bytes of the file changed", where=expected.name)


@contextmanager
def opened_evidence(place: Path) -> Iterator[Path]:
    """Give the folder of a store or of an unpacked bundle; a bundle is unpacked into a temporary one."""
    if not place.is_file():
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="assay-bundle-") as folder:
        unpack_bundle(place, Path(folder))
        yield Path(folder)
