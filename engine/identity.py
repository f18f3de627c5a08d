"""Hashes and versions that name a file, a build, a model and what a process really mapped."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from engine.elf_file import read_elf
from engine.gguf_header import GgufHeader, Value, load_header
from engine.libraries import is_gpu_runtime, is_system, loaded_libraries
from protocols import lock
from protocols.errors import EngineError
from protocols.paths import is_file

RECEIPT_NAME: Final = "receipt.json"
_WORD_LENGTH: Final = 256
_BUILD_ID_LENGTHS: Final = range(2, 129)
# What decides how text becomes ids, in this order. Absent keys count as absent, so that two files
# that differ only in whether they name a key have different hashes.
_TOKENIZER_KEYS: Final = (
    "model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_eos_token",
    "add_space_prefix", "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id",
    "precompiled_charsmap", "remove_extra_whitespaces",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FileIdentity:
    """One file: `name` is relative to its build, or absolute for a mapped file; `bytes` is its size."""

    name: str
    bytes: int
    sha256: str
    build_id: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    search_path: str | None = None

    def locked(self) -> lock.FileIdentity:
        """Return the same for a lock, which holds the name without folders. EngineError where that is no text."""
        name = Path(self.name).name
        if not _is_text(name):
            raise EngineError(
                "a file of the engine has a name that is not Unicode", where=ascii(name), hint="rename it"
            )
        is_build_id = self.build_id is not None and len(self.build_id) in _BUILD_ID_LENGTHS
        return lock.FileIdentity(
            name=name,
            bytes=self.bytes,
            sha256=self.sha256,
            build_id=self.build_id if is_build_id else None,
            soname=_word(self.soname),
            needed=tuple(word for one in self.needed if (word := _word(one)) is not None),
        )


@dataclass(frozen=True, kw_only=True)
class BuildIdentity:
    """Every file of a build folder but its receipt, by name."""

    files: tuple[FileIdentity, ...]

    def locked(self) -> tuple[lock.FileIdentity, ...]:
        """Return the same for a lock, sorted by name without folders."""
        return tuple(sorted((file.locked() for file in self.files), key=lambda file: file.name))


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """What a model file is. `parameters` counts tensor elements; hashes are None where the file has no such part."""

    sha256: str
    bytes: int
    architecture: str | None
    name: str | None
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    parameters: int

    def locked(self) -> lock.ModelIdentity:
        """Return the same for a lock."""
        return lock.ModelIdentity(
            sha256=self.sha256,
            bytes=self.bytes,
            architecture=_word(self.architecture),
            name=_word(self.name),
            parameters=self.parameters,
            tokenizer_sha256=self.tokenizer_sha256,
            chat_template_sha256=self.chat_template_sha256,
        )


def _is_text(name: str) -> bool:
    """Whether a file's name is Unicode: Linux takes any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _word(text: str | None) -> str | None:
    """Return what a file says of itself, cut to what a lock holds: its hash names it, whatever it says."""
    return (text or "")[:_WORD_LENGTH] or None


def identify_file(path: Path, *, name: str | None = None) -> FileIdentity:
    """Hash the file at `path` and read its ELF facts, if it is an ELF file.

    Raises EngineError when it cannot be read.
    """
    facts = _cached_facts(path, path)
    return _with_name(facts, name if name is not None else path.name)


def identify_build(folder: Path) -> BuildIdentity:
    """Identify every file below `folder`, sorted by relative name; the receipt stands apart.

    Raises EngineError when the folder is missing, empty or holds something that is neither file nor folder.
    """
    if not folder.is_dir():
        raise EngineError(
            "there is no build in this folder", where=str(folder), hint="make one with `assay engine build --out`"
        )
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or name == RECEIPT_NAME:
            continue
        if not path.is_file():
            raise EngineError(f"a build holds only files and folders, not {name!r}", where=str(folder))
        files.append(identify_file(path, name=name))
    if not files:
        raise EngineError("the build folder is empty", where=str(folder))
    return BuildIdentity(files=tuple(files))


def identify_executable(path: Path, environment: Mapping[str, str] | None = None) -> BuildIdentity:
    """Identify a program that we did not build: itself, the libraries beside it, and every other that it will load.

    Links are resolved, as the kernel names what a process maps. `environment` is the program's.
    Raises EngineError when it is missing or not executable.
    """
    if not is_file(path) or not os.access(path, os.X_OK):
        raise EngineError("there is no executable file", where=str(path), hint="correct the arm's `engine.path`")
    program = path.resolve()
    beside = {library for library in program.parent.glob("*.so*") if library.is_file()} - {program}
    loaded = loaded_libraries([program], environment or {})
    names = {program.name, *(library.name for library in loaded)}  # what is loaded counts, not a namesake beside it
    files = (program, *sorted(library for library in beside if library.name not in names), *loaded)
    return BuildIdentity(files=tuple(identify_file(file) for file in files))


def with_libraries(build: BuildIdentity, folder: Path, environment: Mapping[str, str]) -> BuildIdentity:
    """Add what the files of a build in `folder` load from outside of it and outside the system's folders.

    A build owns its libraries: a namesake from outside that would be loaded in place of one is not added, so that a
    process which maps it does not run what is locked. Raises EngineError when a file cannot be read.
    """
    loaded = loaded_libraries([folder / file.name for file in build.files], environment)
    root, own = folder.resolve(), {Path(file.name).name for file in build.files}
    outside = [library for library in loaded if library.name not in own and not library.is_relative_to(root)]
    return BuildIdentity(files=(*build.files, *(identify_file(library) for library in outside)))


def mapping_problems(
    locked: Iterable[FileIdentity | lock.FileIdentity], mapped: Iterable[FileIdentity], *, hosts: Iterable[Path] = ()
) -> tuple[str, ...]:
    """Say how the files that a process mapped differ from those that were locked; empty when they agree.

    The C library and its kind, in the system's folders, are recorded and not locked; so is what an interpreter maps
    from its own installation, the folders `hosts`, and what a GPU runtime opens of itself from its own folder. Any
    other file that was mapped must be a locked one.
    """
    expected: dict[str, list[str]] = {}
    for one in locked:
        expected.setdefault(Path(one.name).name, []).append(one.sha256)
    files = tuple(mapped)
    known = [*hosts, *(Path(file.name).parent for file in files if is_gpu_runtime(file.name))]
    problems = []
    seen = set()
    for file in files:
        name = Path(file.name).name
        if name in expected:
            seen.add(name)
            if file.sha256 not in expected[name]:
                hashes = " or ".join(expected[name])
                problems.append(f"{name} was mapped with SHA-256 {file.sha256}, but {hashes} is locked")
        elif not is_system(file.name) and not any(Path(file.name).is_relative_to(folder) for folder in known):
            problems.append(f"{file.name} was mapped, and no file of that name is locked")
    if not seen:
        problems.append("the process mapped none of the locked files")
    return tuple(problems)


def identify_model(path: Path) -> ModelIdentity:
    """Identify the GGUF file at `path`: its bytes, and the parts of it that decide text and ids.

    Raises EngineError when it cannot be read or is no GGUF.
    """
    file = identify_file(path)
    header = load_header(path)
    template = header.metadata.get("tokenizer.chat_template")
    return ModelIdentity(
        sha256=file.sha256,
        bytes=file.bytes,
        architecture=header.text("general.architecture"),
        name=header.text("general.name"),
        tokenizer_sha256=hash_tokenizer(header),
        chat_template_sha256=hashlib.sha256(template).hexdigest() if isinstance(template, bytes) else None,
        parameters=sum(tensor.elements for tensor in header.tensors),
    )


def hash_tokenizer(header: GgufHeader) -> str | None:
    """SHA-256 over the tokenizer's vocabulary, merges, types and rules; None where the file has no tokenizer.

    Each part is fed as name, kind and length-prefixed content, so that no two different tokenizers meet in one hash.
    """
    if "tokenizer.ggml.tokens" not in header.metadata and "tokenizer.ggml.model" not in header.metadata:
        return None
    digest = hashlib.sha256(b"assay tokenizer 1\n")
    for key in _TOKENIZER_KEYS:
        value = header.metadata.get(f"tokenizer.ggml.{key}")
        if value is not None:
            digest.update(_encode(key.encode()))
            digest.update(_encode(value))
    return digest.hexdigest()


def mapped_files(pid: int) -> tuple[FileIdentity, ...]:
    """Identify every file that process `pid` has mapped executable, sorted by path.

    The bytes hashed are those that the process mapped: where a path was replaced or removed since, the kernel's
    own link to the mapping is read instead. Raises EngineError when the process is gone, may not be inspected,
    or maps a file that can no longer be read.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise EngineError(f"cannot read the memory map of process {pid}: {error}", hint="has it ended?") from error
    found: dict[str, FileIdentity] = {}
    for line in lines:
        span, permissions, _, _, inode, *rest = line.split(maxsplit=5)
        if "x" not in permissions or not rest or not rest[0].startswith("/") or inode == "0":
            continue
        path = rest[0].removesuffix(" (deleted)")
        if path not in found:
            found[path] = _identify_mapping(pid, span, path, int(inode))
    if not found:
        raise EngineError(f"process {pid} maps no file (it is a kernel thread or has ended)")
    return tuple(found[path] for path in sorted(found))


def _identify_mapping(pid: int, span: str, path: str, inode: int) -> FileIdentity:
    source = Path(path)
    try:
        is_current = source.stat().st_ino == inode
    except OSError:
        is_current = False
    if not is_current:
        source = Path(f"/proc/{pid}/map_files/{span}")
        if not os.access(source, os.R_OK):
            raise EngineError(
                "a mapped file was replaced or removed while the engine runs, and its bytes cannot be read",
                where=path,
                hint="do not rebuild or upgrade an engine during a campaign",
            )
    return _with_name(_cached_facts(source, Path(path)), path)


def _with_name(facts: FileIdentity, name: str) -> FileIdentity:
    return FileIdentity(
        name=name,
        bytes=facts.bytes,
        sha256=facts.sha256,
        build_id=facts.build_id,
        soname=facts.soname,
        needed=facts.needed,
        search_path=facts.search_path,
    )


def _cached_facts(source: Path, shown: Path) -> FileIdentity:
    try:
        status = source.stat()
        if not stat.S_ISREG(status.st_mode):
            raise EngineError("not a regular file", where=str(shown))
        # The change time cannot be set back by a user, so that a rewritten file never meets an old entry.
        return _hash_once(
            str(source), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )
    except OSError as error:
        raise EngineError(f"cannot read the file: {error.strerror}", where=str(shown)) from error


@lru_cache(maxsize=1024)
def _hash_once(path: str, _dev: int, _inode: int, _size: int, _mtime_ns: int, _ctime_ns: int) -> FileIdentity:
    with Path(path).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        facts = read_elf(file)
    return FileIdentity(
        name=path,
        bytes=size,
        sha256=sha256,
        build_id=facts.build_id,
        soname=facts.soname,
        needed=facts.needed,
        search_path=facts.search_path,
    )


def _encode(value: Value) -> bytes:
    """Kind, length and content of one metadata value; unambiguous under concatenation."""
    if isinstance(value, tuple):
        return b"l" + struct.pack("<Q", len(value)) + b"".join(map(_encode, value))
    if isinstance(value, bytes):
        return b"s" + struct.pack("<Q", len(value)) + value
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return b"i%d;" % value  # unsigned 64-bit values do not fit a signed field
    return b"f" + struct.pack("<d", value)
