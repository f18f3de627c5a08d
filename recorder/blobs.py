"""Content-addressed files: ``blobs/sha256/ab/cdef...``.

A blob is 16 random bytes of salt and then the content; its name is the SHA-256 of both. The salt keeps a short
secret-free text (a path, a host name) from being guessed from its hash, so that a redacted bundle can leave the
blob out while every hash still verifies. Two puts of one content therefore make two blobs.

Order of a put: temporary name, fsync, rename, fsync of the folder; only then may anything refer to it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from protocols.errors import EvidenceError
from recorder.files import Files, host_errors, read_chunks

SALT_BYTES: Final = 16
TEMPORARY_PREFIX: Final = ".tmp-"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class BlobReference(NamedTuple):
    """A stored blob: its name (hex SHA-256 of salt and content) and the number of bytes of its content."""

    sha256: str
    content_bytes: int


def salted(content: bytes) -> bytes:
    """Return the bytes of a new blob with this content: fresh salt, then the content."""
    return os.urandom(SALT_BYTES) + content


class BlobStore:
    """The blobs of one store. Reading works on a read-only folder."""

    def __init__(self, root: Path, files: Files) -> None:
        self.root: Final = root
        self._files: Final = files
        self.has_unfinished = False
        """Whether a put failed half-way: then a temporary file, or a blob that nothing names, may lie here."""

    def path_of(self, sha256: str) -> Path:
        """Return where a blob lies. Raises `EvidenceError` for a name that is no SHA-256."""
        if not _SHA256.fullmatch(sha256):
            raise EvidenceError(f"{sha256!r} cannot name a blob", where=str(self.root))
        return self.root / sha256[:2] / sha256[2:]

    def put(self, content: bytes) -> BlobReference:
        """Store content under fresh salt. Raises `HostError` if the disk refuses."""
        return self._put(iter((os.urandom(SALT_BYTES), content)))

    def put_salted(self, data: bytes) -> BlobReference:
        """Store bytes that `salted` made before, so that their hash could be promised first."""
        if len(data) < SALT_BYTES:
            raise EvidenceError(f"a salted blob has at least {SALT_BYTES} bytes, not {len(data)}")
        return self._put(iter((data,)))

    def put_file(self, source: Path) -> BlobReference:
        """Store the content of a file under fresh salt, in pieces."""
        return self._put(self._salted_pieces(source))

    def put_pieces(self, pieces: Iterable[bytes]) -> BlobReference:
        """Store content that comes in pieces under fresh salt."""

        def all_pieces() -> Iterator[bytes]:
            yield os.urandom(SALT_BYTES)
            yield from pieces

        return self._put(all_pieces())

    def _salted_pieces(self, source: Path) -> Iterator[bytes]:
        yield os.urandom(SALT_BYTES)
        yield from read_chunks(source)

    def _put(self, pieces: Iterator[bytes]) -> BlobReference:
        digest, total = hashlib.sha256(), 0
        had_unfinished, self.has_unfinished = self.has_unfinished, True
        with host_errors("store a blob", self.root):
            self._files.make_folder(self.root)
            temporary = self.root / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
            descriptor = self._files.open_new(temporary)
            try:
                for piece in pieces:
                    digest.update(piece)
                    total += len(piece)
                    self._files.write(descriptor, piece)
                self._files.fsync(descriptor)
            finally:
                self._files.close(descriptor)
            target = self.path_of(digest.hexdigest())
            if not target.parent.is_dir():
                self._files.make_folder(target.parent)
                self._files.fsync_folder(self.root)
            self._files.rename(temporary, target)
            self._files.fsync_folder(target.parent)
        self.has_unfinished = had_unfinished
        return BlobReference(digest.hexdigest(), total - SALT_BYTES)

    def read(self, sha256: str) -> bytes:
        """Return the content of a blob, after its hash was checked.

        Raises `EvidenceError` if the blob is missing or its bytes do not have this hash.
        """
        path = self.path_of(sha256)
        # A pipe would wait for its writer.
        if not path.is_file():
            raise EvidenceError("the blob is missing", where=str(path))
        with path.open("rb", buffering=0) as file:
            salt, content = file.read(SALT_BYTES), file.readall()
        digest = hashlib.sha256(salt)
        digest.update(content)
        if (found := digest.hexdigest()) != sha256:
            raise EvidenceError(f"the bytes of the blob have the hash {found}", where=str(path))
        return content

    def digest(self, sha256: str) -> BlobReference | None:
        """Return hash and content size of what lies under this name, read in pieces; None if it is missing."""
        digest, total = hashlib.sha256(), 0
        if not self.path_of(sha256).is_file():
            return None
        for piece in read_chunks(self.path_of(sha256)):
            digest.update(piece)
            total += len(piece)
        return BlobReference(digest.hexdigest(), total - SALT_BYTES)

    def names(self) -> Iterator[str]:
        """Yield the name of every blob that lies here, sorted; `strays` has what cannot be a blob."""
        for folder in sorted(self._folders()):
            for path in sorted(folder.iterdir()):
                if _SHA256.fullmatch(folder.name + path.name) and path.is_file() and not path.is_symlink():
                    yield folder.name + path.name

    def strays(self) -> Iterator[Path]:
        """Yield everything under the blob folder that is no blob, temporary files of a killed writer included."""
        for path in sorted(self.root.rglob("*")) if self.root.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                continue
            name = path.parent.name + path.name
            if path.is_symlink() or path.parent.parent != self.root or not _SHA256.fullmatch(name):
                yield path

    def _folders(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return [path for path in self.root.iterdir() if re.fullmatch("[0-9a-f]{2}", path.name) and path.is_dir()]
