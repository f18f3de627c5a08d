"""Which libraries a program will load, found from its files without starting it.

The dynamic linker's own order (ld.so(8)): DT_RPATH of a file and of those that loaded it, unless it has a DT_RUNPATH;
LD_LIBRARY_PATH; DT_RUNPATH; the folders of the system. A name that is loaded already is not looked for again. What a
program opens by itself while it runs stands in no such entry: for ggml's back ends the place is known.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from engine.elf_file import ElfFacts, read_elf
from protocols.paths import is_file

BACK_ENDS: Final = "libggml-*.so*"
# What the host's packages and drivers own: recorded by each load, not locked. A program that was installed into
# /usr/local owns its libraries there.
_SYSTEM: Final = re.compile(
    r"/(usr/(?!local/)|lib(32|64|x32)?/|s?bin/|usr/local/cuda(-[^/]*)?/|opt/(rocm|amdgpu|intel)(-[^/]*)?/)"
)
# Runtimes that are also unpacked into a user's own folders; they open parts of themselves by name while they run.
_GPU_RUNTIME: Final = re.compile(r"lib(amdhip64|hsa-runtime64|cudart|ze_loader)\.so")
_SYSTEM_FOLDERS: Final = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_LINKER_FILE: Final = Path("/etc/ld.so.conf")
_INCLUDES: Final = 8


class _Loaded(NamedTuple):
    """A file as it is opened, and the folders of DT_RPATH that it inherits from those that load it."""

    path: Path
    rpath: tuple[Path, ...]


def is_system(path: str | Path) -> bool:
    """Whether an absolute path, its links resolved, lies in a folder of the system's packages or drivers."""
    return _SYSTEM.match(str(path)) is not None


def is_gpu_runtime(path: str | Path) -> bool:
    """Whether a library is the entry of a GPU runtime, by its name."""
    return _GPU_RUNTIME.match(Path(path).name) is not None


def loaded_libraries(programs: Iterable[Path], environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the libraries outside the system's folders that programs or libraries will load, links resolved, sorted.

    `environment` is the process's: LD_LIBRARY_PATH and LD_PRELOAD change what is found. A library that is not found is
    left out: the linker will say so at the start.
    """
    roots = [program.resolve() for program in programs]
    walk = _Walk(_folders([environment.get("LD_LIBRARY_PATH", "")], None))
    for name in filter(None, re.split(r"[ :]", environment.get("LD_PRELOAD", ""))):
        walk.find(name)
    for root in roots:
        walk.follow(root)
    if back_end_path := environment.get("GGML_BACKEND_PATH"):
        walk.find(back_end_path)
    while True:  # a back end may need a libggml of yet another folder
        before = len(walk.found)
        folders = {root.parent for root in roots} | {one.parent for one in walk.found if one.name.startswith("libggml")}
        for folder in sorted(folders):
            for back_end in sorted(folder.glob(BACK_ENDS)):
                if back_end.is_file():
                    walk.follow(back_end)
        if len(walk.found) == before:
            break
    return tuple(sorted(walk.found.keys() - set(roots)))


def interpreter_folders(program: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where the interpreter of a script is installed, itself and behind its links; nothing for other programs.

    What an interpreter maps from there belongs to it, as the C library belongs to the host.
    """
    with program.open("rb") as file:
        line = file.readline(4096)
    words = line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        place = shutil.which(names[0], path=environment.get("PATH")) if names else None
        words = [place] if place else []
    if not words:
        return ()
    return installation_folders(Path(words[0]))


def installation_folders(interpreter: Path) -> tuple[Path, ...]:
    """Return the folders above the `bin` that an interpreter lies in, itself and behind its links."""
    folders = (interpreter.absolute().parent.parent, interpreter.resolve().parent.parent)
    return tuple(folder for folder in dict.fromkeys(folders) if folder != Path("/"))


def own_folders() -> tuple[Path, ...]:
    """Return where this process's interpreter and its packages are installed; a worker's are the same."""
    packages = (Path(folder).resolve() for folder in sys.path if folder)
    return (*installation_folders(Path(sys.executable)), *packages)


class _Walk:
    """One walk through the entries of files, breadth first as the linker goes."""

    def __init__(self, library_path: tuple[Path, ...]) -> None:
        self._library_path = library_path
        self._names: set[str] = set()
        self._facts: dict[Path, ElfFacts] = {}
        self.found: dict[Path, None] = {}
        """Every library found, in order, its links resolved."""

    def follow(self, start: Path) -> None:
        """Take a file and everything that it needs."""
        queue = deque([_Loaded(start, ())])
        while queue:
            one = queue.popleft()
            real = one.path.resolve()
            if is_system(real) or real in self._facts:
                continue
            self.found[real] = None
            self._facts[real] = facts = _facts_of(real)
            if facts.soname is not None:
                self._names.add(facts.soname)
            queue.extend(self._needed(one, facts))

    def find(self, name: str) -> None:
        """Take a library that the environment names."""
        for path in _candidates(name, (*self._library_path, *system_folders())):
            self.follow(path)
            return

    def _needed(self, one: _Loaded, facts: ElfFacts) -> Iterator[_Loaded]:
        origin = one.path.parent
        rpath = () if facts.runpath else _folders(facts.rpath, origin)
        inherited = (*rpath, *one.rpath)
        first = () if facts.runpath else inherited
        folders = (*first, *self._library_path, *_folders(facts.runpath, origin), *system_folders())
        for name in facts.needed:
            if name in self._names:
                continue
            for path in _candidates(_expand(name, origin), folders):
                self._names.add(name)
                yield _Loaded(path, inherited)
                break


def _facts_of(path: Path) -> ElfFacts:
    try:
        with path.open("rb") as file:
            return read_elf(file)
    except OSError:
        return ElfFacts()  # hashing it says what is wrong


def _candidates(name: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of a name; a name with a folder is a path."""
    places = (Path(name),) if "/" in name else (folder / name for folder in folders)
    return (place for place in places if place.is_absolute() and is_file(place))


def _expand(text: str, origin: Path) -> str:
    return text.replace("${ORIGIN}", str(origin)).replace("$ORIGIN", str(origin))


def _folders(paths: Iterable[str], origin: Path | None) -> tuple[Path, ...]:
    """Return the folders of colon-separated paths. One that is relative starts at a load's own empty folder: none."""
    texts = [text for path in paths for text in path.split(":") if text]
    expanded = (Path(text if origin is None else _expand(text, origin)) for text in texts)
    return tuple(folder for folder in expanded if folder.is_absolute())


@lru_cache(maxsize=4)
def system_folders(linker_file: Path = _LINKER_FILE) -> tuple[Path, ...]:
    """Return the folders that the linker looks into for every program: those of its configuration, then its own."""
    return tuple(dict.fromkeys((*_configured(linker_file, _INCLUDES), *map(Path, _SYSTEM_FOLDERS))))


def _configured(file: Path, includes_left: int) -> Iterator[Path]:
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:] if includes_left else ():
                absolute = file.parent / pattern
                for included in sorted(Path("/").glob(str(absolute.relative_to("/")))):
                    yield from _configured(included, includes_left - 1)
        else:
            yield from (Path(word) for word in words if word.startswith("/"))
