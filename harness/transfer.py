"""Moves a build to another machine: packed by hash, unpacked by hash, with a receipt.

A packed build is a strict tar (see `recorder.archive`) in zstd: first ``transfer.json`` with name, size, SHA-256 and
executable bit of every file of the build folder, its own receipt included, then the files, sorted by name. The same
build gives the same bytes. Unpacking takes nothing that the list does not promise, and ends with the check that every
build passes before it runs: its files against its receipt.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from engine.build import EngineBuild, open_build
from protocols.canonical import canonical_bytes
from protocols.errors import EngineError, EvidenceError, HostError
from recorder.archive import Decompressed, Member, compressed, is_safe_name, pack_member, read_members
from recorder.files import Files, host_errors, read_chunks
from recorder.manifest import file_sha256

FORMAT: Final = "assay.transfer.v1"
LIST: Final = "transfer.json"
SUFFIX: Final = ".build.tar.zst"
_LIST_LIMIT_BYTES: Final = 4 << 20


class Transfer(NamedTuple):
    """One packed or unpacked build: the archive with its hash, and how many files and bytes it holds."""

    archive: Path
    sha256: str
    name: str
    files: int
    content_bytes: int

    def payload(self, action: str) -> dict[str, object]:
        """Return the receipt of this transfer."""
        return {
            "action": action,
            "build": self.name,
            "archive_sha256": self.sha256,
            "files": self.files,
            "content_bytes": self.content_bytes,
        }


def pack_build(folder: Path, target: Path) -> Transfer:
    """Pack the build in a folder into a file that must not exist.

    Raises EngineError where the folder is no finished build or holds more than plain files, HostError by the disk.
    """
    build = open_build(folder)
    if target.exists():
        raise HostError("this file exists already", where=str(target), hint="name another one with --out")
    files = [_described(path, folder) for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink()]
    listed = canonical_bytes({"format": FORMAT, "name": build.name, "files": files})
    temporary = target.with_name(f".tmp-{os.urandom(8).hex()}")
    try:
        with host_errors("pack the build", target, is_recording=False):
            Files().make_folder(target.parent)
            with temporary.open("xb") as file:
                with compressed(file) as write:
                    for piece in pack_member(Member(LIST, len(listed)), (listed,)):
                        write(piece)
                    for one in files:
                        member = Member(str(one["name"]), int(str(one["bytes"])))
                        for piece in pack_member(member, read_chunks(folder / member.name)):
                            write(piece)
                file.flush()
                Files().fsync(file.fileno())
            Files().rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return Transfer(target, file_sha256(target), build.name, len(files), sum(int(str(one["bytes"])) for one in files))


def unpack_build(archive: Path, out: Path) -> tuple[EngineBuild, Transfer]:
    """Unpack a build into a new folder, checking every name, size and hash, and the build against its own receipt.

    Raises EvidenceError where the archive is not exactly what its list promises, EngineError where what came out is no
    sound build or the folder exists, HostError by the disk; nothing is left behind then.
    """
    if out.exists():
        raise EngineError("the output folder exists already", where=str(out), hint="name a new folder with --out")
    with host_errors("unpack the build", archive, is_recording=False):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            with archive.open("rb") as file:
                name, count, total = _unpack(Decompressed(file), partial)
            build = open_build(partial, name=name)
            partial.chmod(0o755)
            partial.rename(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return open_build(out, name=build.name), Transfer(archive, file_sha256(archive), name, count, total)


def check_archive(archive: Path, sha256: str | None) -> None:
    """Compare an archive with the hash that it was sent with. Raises EvidenceError, or HostError by the disk."""
    with host_errors("read the archive", archive):
        found = file_sha256(archive)
    if sha256 is not None and found != sha256:
        raise EvidenceError(f"the archive has the hash {found}, not {sha256}", where=str(archive))


def _described(path: Path, folder: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    if path.is_symlink() or not path.is_file() or not is_safe_name(name):
        raise EngineError("only plain files of a build can be packed", where=str(path))
    return {
        "name": name,
        "bytes": path.stat().st_size,
        "sha256": file_sha256(path),
        "is_executable": bool(path.stat().st_mode & 0o100),
    }


def _unpack(source: Decompressed, folder: Path) -> tuple[str, int, int]:
    members = read_members(source)
    first = next(members, None)
    if first is None or first[0].name != LIST or first[0].size > _LIST_LIMIT_BYTES:
        raise EvidenceError(f"this is no packed build: it does not begin with {LIST}")
    name, files = _read_list(b"".join(first[1]))
    total, room = sum(one["bytes"] for one in files), shutil.disk_usage(folder).free
    if total > room:
        raise HostError(f"the build holds {total} bytes, the disk has room for {room}", where=str(folder))
    for expected in files:
        found = next(members, None)
        if found is None or (found[0].name, found[0].size) != (expected["name"], expected["bytes"]):
            raise EvidenceError(
                "the archive does not go on with the file that its list promises", where=expected["name"]
            )
        _write(folder / expected["name"], expected, found[1])
    if (more := next(members, None)) is not None:
        raise EvidenceError("the archive holds a file that its list does not name", where=more[0].name)
    return name, len(files), total


def _write(path: Path, expected: dict[str, Any], pieces: Iterator[bytes]) -> None:
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != expected["sha256"]:
        raise EvidenceError("the bytes of the file changed", where=expected["name"])
    path.chmod(0o755 if expected["is_executable"] else 0o644)


def _read_list(data: bytes) -> tuple[str, list[dict[str, Any]]]:
    try:
        value = json.loads(data)
        is_whole = canonical_bytes(value) == data and value["format"] == FORMAT and isinstance(value["name"], str)
        files: list[dict[str, Any]] = value["files"]
        names = [one["name"] for one in files]
        forms = {"name": str, "bytes": int, "sha256": str, "is_executable": bool}
        is_whole = is_whole and names == sorted(set(names)) and all(is_safe_name(name) for name in names)
        is_whole = is_whole and all(one.keys() == forms.keys() for one in files)
        is_whole = is_whole and all(type(one[name]) is kind for one in files for name, kind in forms.items())
        is_whole = is_whole and all(one["bytes"] >= 0 for one in files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EvidenceError) as error:
        raise EvidenceError("the list of the packed build cannot be read", where=LIST) from error
    if not is_whole:
        raise EvidenceError("the list of the packed build is not in its one form", where=LIST)
    return value["name"], files
