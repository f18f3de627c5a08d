"""Every change that the recorder makes to the disk goes through this layer.

It exists for two reasons. Durability has one spelling (write all, fsync the file, rename, fsync the folder), and
a test can hand in a layer whose n-th step fails, to show that a fault at any step leaves old or new, never torn.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from protocols.errors import HostError

_CHUNK_BYTES: Final = 1 << 20
_FILE_MODE: Final = 0o644
_HINTS: Final = {
    errno.ENOSPC: "free space on that disk, then run `assay resume`: what was recorded so far is safe",
    errno.EDQUOT: "the disk quota is used up: free space, then run `assay resume`",
    errno.EROFS: "the file system is read-only: choose another store with --store",
    errno.EACCES: "check the owner and the permissions of the store folder",
    errno.EPERM: "check the owner and the permissions of the store folder",
    errno.EIO: "the disk reports an error: look at the kernel log before you go on",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
}
_AGAIN: Final = "free space or name another place, and repeat"


class Files:
    """The real disk. Every method that changes something is one step that can fail."""

    def open_append(self, path: Path) -> int:
        """Open (or create) a file for appending and give its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)

    def open_new(self, path: Path, *, mode: int = _FILE_MODE) -> int:
        """Create a file that must not exist yet and give its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def write(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write all of ``data``; a short write is continued."""
        written = os.write(descriptor, data)  # nearly always all of it
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])

    def fsync(self, descriptor: int) -> None:
        """Force a file to the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target`` by ``source`` in one step."""
        source.replace(target)

    def fsync_folder(self, folder: Path) -> None:
        """Force the names in a folder to the disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents where they are missing."""
        folder.mkdir(parents=True, exist_ok=True)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to ``size`` bytes and force that to the disk."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def commit(self, commit: Callable[[], None]) -> None:
        """Commit a database transaction."""
        commit()

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def replace_file(self, path: Path, data: bytes, *, mode: int = _FILE_MODE) -> None:
        """Write a file so that a reader sees the old or the new content, and a crash leaves one of them."""
        self.make_folder(path.parent)
        temporary = path.parent / f".tmp-{os.urandom(8).hex()}"
        descriptor = self.open_new(temporary, mode=mode)
        try:
            try:
                self.write(descriptor, data)
                self.fsync(descriptor)
            finally:
                self.close(descriptor)
            self.rename(temporary, path)
        except OSError:
            with suppress(OSError):  # a full disk gets its room back; recovery removes what is left
                temporary.unlink()
            raise
        self.fsync_folder(path.parent)


class AppendFile(io.RawIOBase):
    """An append-only file without a buffer: the bytes are with the kernel when ``write`` returns.

    A kill of this process loses nothing that was written; a loss of power may lose what ``sync`` did not cover.
    """

    def __init__(self, path: Path, files: Files) -> None:
        super().__init__()
        self.path: Final = path
        self._files: Final = files
        self._descriptor = files.open_append(path)

    def writable(self) -> bool:
        """Say yes."""
        return True

    def write(self, data: object) -> int:
        """Append all bytes of ``data`` and give their number."""
        if not isinstance(data, bytes):
            raise TypeError(f"bytes are needed, not {type(data).__name__}")
        if self.closed:
            raise ValueError(f"{self.path.name} is closed")
        self._files.write(self._descriptor, data)
        return len(data)

    def sync(self) -> None:
        """Force the file to the disk."""
        self._files.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; doing it twice is harmless."""
        if not self.closed:
            super().close()
            with host_errors("close a file", self.path):
                self._files.close(self._descriptor)


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of 1 MiB."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece


@contextmanager
def host_errors(action: str, place: Path | str, *, is_recording: bool = True) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a `HostError` that names the action, the file and what to do.

    ``is_recording`` is false where a copy of evidence is written, which can just be done again.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        hint = _HINTS.get(error.errno or 0, "mend the cause, then run `assay resume`") if is_recording else _AGAIN
        raise HostError(f"cannot {action}: {reason}", where=str(place), hint=hint) from error
