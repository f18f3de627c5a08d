"""Finds what a build of the bundled engine needs on this machine: compiler, build tools, libraries.

Everything comes from the environment that this package is installed in, or from
PATH; nothing is downloaded. What is found goes into the build's key and receipt.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from protocols.errors import EngineError

# Variables that change what a compiler makes; they are part of a build's key. Nothing else of the
# caller's environment but the search path, home and temporary folder reaches a build.
FLAG_VARIABLES: Final = ("CPPFLAGS", "CXXFLAGS", "LDFLAGS")
_PASSED_VARIABLES: Final = ("HOME", "PATH", "TMPDIR")
_COMPILERS: Final = ("c++", "g++", "clang++")
_PROBE_S: Final = 60


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Programs and libraries of a build; `library_hashes` maps file names to SHA-256."""

    compiler: Path
    compiler_version: str
    compiler_target: str
    cmake: Path
    cmake_version: str
    ninja: Path
    ninja_version: str
    ggml_folder: Path
    ggml_include: Path
    boost_include: Path
    package_versions: Mapping[str, str]
    library_hashes: Mapping[str, str]
    flags: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """Environment of the build's processes: locale and time fixed, flags as recorded."""
        kept = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        return kept | dict(self.flags) | {"LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": "0"}

    def definitions(self) -> tuple[str, ...]:
        """CMake definitions that name what was found."""
        return (
            f"-DCMAKE_CXX_COMPILER={self.compiler}",
            f"-DCMAKE_MAKE_PROGRAM={self.ninja}",
            f"-DASSAY_GGML_DIR={self.ggml_folder}",
            f"-DASSAY_BOOST_INCLUDE={self.boost_include}",
        )


def find_toolchain() -> Toolchain:
    """Find compiler, CMake, Ninja, ggml and Boost.

    Raises EngineError that names what is missing and how to get it.
    """
    compiler = _find_compiler()
    cmake = _find_script("cmake")
    ninja = _find_script("ninja")
    ggml = _package_folder("ggml-python", "ggml")
    boost = _package_folder("boost-headers", "boost_headers/include")
    include = next((folder for folder in (ggml / "include", ggml.parent / "include") if _holds_ggml(folder)), None)
    if include is None:
        raise EngineError(
            "the ggml-python package came without its headers", where=str(ggml), hint="reinstall ggml-python==0.0.45"
        )
    hashes = _hash_libraries(ggml / "lib", include)
    return Toolchain(
        compiler=compiler,
        compiler_version=_first_line([str(compiler), "--version"]),
        compiler_target=_first_line([str(compiler), "-dumpmachine"]),
        cmake=cmake,
        cmake_version=_first_line([str(cmake), "--version"]),
        ninja=ninja,
        ninja_version=_first_line([str(ninja), "--version"]),
        ggml_folder=ggml,
        ggml_include=include,
        boost_include=boost,
        package_versions={name: metadata.version(name) for name in ("boost-headers", "ggml-python")},
        library_hashes=hashes,
        flags={name: os.environ[name] for name in FLAG_VARIABLES if os.environ.get(name)},
    )


def _find_compiler() -> Path:
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    if asked:
        raise EngineError(f"the C++ compiler {asked!r} named by CXX is not on PATH", hint="unset CXX or correct it")
    raise EngineError(
        "there is no C++ compiler on PATH (looked for c++, g++, clang++)", hint="on Debian: apt-get install g++"
    )


def _find_script(name: str) -> Path:
    beside = Path(sysconfig.get_path("scripts")) / name
    if beside.is_file():
        return beside
    found = shutil.which(name)
    if found is None:
        raise EngineError(f"{name} is not installed", hint=f"pip install {name}")
    return Path(found)


def _package_folder(package: str, folder: str) -> Path:
    try:
        found = Path(str(metadata.distribution(package).locate_file(folder)))
    except metadata.PackageNotFoundError:
        raise EngineError(
            f"the package {package} is not installed, the engine is built on it", hint=f"pip install {package}"
        ) from None
    if not found.is_dir():
        raise EngineError(f"the package {package} has no folder {folder!r}", hint=f"reinstall {package}")
    return found


def _holds_ggml(folder: Path) -> bool:
    return (folder / "ggml.h").is_file() and (folder / "ggml-backend.h").is_file()


def _hash_libraries(libraries: Path, include: Path) -> dict[str, str]:
    files = sorted(libraries.glob("libggml*.so"))
    if not files:
        raise EngineError(
            "the ggml-python package came without its libraries",
            where=str(libraries),
            hint="reinstall ggml-python==0.0.45",
        )
    files += sorted(path for pattern in ("ggml*.h", "gguf*.h") for path in include.glob(pattern))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _first_line(argv: list[str]) -> str:
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{argv[0]} does not run: {error}", hint="is it installed whole?") from error
    return result.stdout.splitlines()[0].strip() if result.stdout else ""
