"""What an ELF file says of itself: build-id, names, and where its libraries are looked for."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import BinaryIO, Final

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

_MAGIC: Final = b"\x7fELF"
_DAMAGED: Final = (
    ELFError, struct.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError,
)  # fmt: skip
"""What the parser says of forged offsets, links and types, which it takes as they are."""


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """Facts of one ELF file, empty for a file of another kind; `rpath` and `runpath` are as the linker wrote them."""

    build_id: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()

    @property
    def search_path(self) -> str | None:
        """Both paths as one text, None without either."""
        return ":".join((*self.rpath, *self.runpath)) or None


def read_elf(file: BinaryIO) -> ElfFacts:
    """Read the facts of an ELF file; another file, or a damaged one, has none, and its hash still names it."""
    file.seek(0)
    if file.read(len(_MAGIC)) != _MAGIC:
        return ElfFacts()
    file.seek(0)
    try:
        return _read(file)
    except _DAMAGED:
        return ElfFacts()
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place that no file has; all else is the disk's
            raise
        return ElfFacts()


def _read(file: BinaryIO) -> ElfFacts:
    build_id = None
    tags: dict[str, list[str]] = {}
    for section in ELFFile(file).iter_sections():
        if isinstance(section, NoteSection):
            for note in section.iter_notes():
                # Types are numbered by each owner: a probe of SystemTap has the number of GNU's build-id.
                if note["n_name"] == "GNU" and note["n_type"] == "NT_GNU_BUILD_ID":
                    build_id = str(note["n_desc"])
        elif isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                _collect(tags, tag)
    return ElfFacts(
        build_id=build_id,
        soname=next(iter(tags.get("soname", ())), None),
        needed=tuple(tags.get("needed", ())),
        rpath=tuple(tags.get("rpath", ())),
        runpath=tuple(tags.get("runpath", ())),
    )


def _collect(tags: dict[str, list[str]], tag: object) -> None:
    for name in ("needed", "soname", "rpath", "runpath"):
        text = getattr(tag, name, None)
        if isinstance(text, str):
            tags.setdefault(name, []).append(text)
