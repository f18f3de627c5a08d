"""What a protocol names outside itself: files that must be there, faults that the engine knows, two arms that differ.

Asked at plan time, before anything is built or downloaded. Each refusal stands at the line of the key that names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from engine.build import LIBRARY
from engine.faults import known_faults, value_problem
from engine.gguf_header import GgufHeader, load_header
from engine.identity import identify_executable, identify_file
from engine.models import known_models
from protocols.check_semantics import check_model
from protocols.checks.requirements import PLACEHOLDER, RequirementsCheck
from protocols.errors import EngineError
from protocols.findings import Finding, unknown
from protocols.load import LoadedProtocol, refuse
from protocols.measurements import ARMS, Arm
from protocols.paths import is_file
from protocols.schema import BundledEngine, FolderEngine, LlamaServerEngine, Protocol

RECEIPT: Final = "receipt.json"
_MODEL_FILES: Final = ("draft", "ple_table", "tokenizer", "chat_template")


def check_references(loaded: LoadedProtocol, base: Path) -> None:
    """Raise ProtocolError where a reference leads nowhere, or both arms are one file under two names."""
    protocol = loaded.protocol
    found = [*_models(protocol, base), *_engines(protocol, base), *_same_file(protocol, base)]
    refuse(loaded, [*found, *_requirements(protocol, base)])


def _models(protocol: Protocol, base: Path) -> Iterator[Finding]:
    model = protocol.model
    if model.name is not None and model.name not in known_models():
        yield unknown(("model", "name"), "model", model.name, known_models())
    if model.path is not None and not is_file(_below(base, model.path)):
        yield _missing(("model", "path"), "model file", model.path)
    elif model.path is not None:
        yield from _model_file(protocol, base, model.path)
    for name in _MODEL_FILES:
        reference = getattr(model, name)
        place = ("model", name, "path")
        if reference is not None and not is_file(_below(base, reference.path)):
            yield _missing(place, "file", reference.path)
        elif (
            reference is not None and name == "draft" and isinstance(read := _header(base, reference.path), EngineError)
        ):
            yield _unreadable(place, reference.path, read)


def _model_file(protocol: Protocol, base: Path, path: str) -> Iterator[Finding]:
    """Find what keeps a file from being the model: its header, and checks that are made for another model."""
    read = _header(base, path)
    if isinstance(read, EngineError):
        yield _unreadable(("model", "path"), path, read)
        return
    name = read.text("general.name") or path
    for index, check in enumerate(protocol.checks):
        yield from check_model(check, name, ("checks", index))


def _header(base: Path, path: str) -> GgufHeader | EngineError:
    """Return the header of a model file, or why there is none."""
    try:
        return load_header(_below(base, path))
    except EngineError as error:
        return error


def _engines(protocol: Protocol, base: Path) -> Iterator[Finding]:
    for name in ARMS:
        engine = protocol.arm(name).engine
        place = ("arms", name, "engine")
        match engine:
            case BundledEngine():
                yield from _faults(engine.faults, (*place, "faults"))
            case FolderEngine():
                if not is_file(_below(base, engine.path) / RECEIPT):
                    yield _missing((*place, "path"), "build (a folder with receipt.json)", engine.path)
            case LlamaServerEngine():
                server = _below(base, engine.path)
                if not is_file(server):
                    yield _missing((*place, "path"), "server", engine.path)
                elif _is_bundled_server(server):
                    yield _bundled(place, engine.path, server)
            case _:
                pass


def _faults(faults: Sequence[str], place: tuple[str | int, ...]) -> Iterator[Finding]:
    """Find faults that the bundled source does not know, and numbers that its build does not take."""
    known = known_faults()
    for index, fault in enumerate(faults):
        if fault.split("=")[0] not in known:
            yield unknown((*place, index), "fault", fault, known)
        elif (problem := value_problem(fault)) is not None:
            yield Finding(path=(*place, index), message=problem)


def _requirements(protocol: Protocol, base: Path) -> Iterator[Finding]:
    """Find programs and files of requirements that are not there; what stands in a build is known when it is built."""
    for index, check in enumerate(protocol.checks):
        for number, one in enumerate(check.requirements if isinstance(check, RequirementsCheck) else ()):
            place = ("checks", index, "requirements", number)
            program = one.run[0].replace("{here}", str(base))
            if "/" in program and not PLACEHOLDER.search(program) and not os.access(_below(base, program), os.X_OK):
                yield _missing((*place, "run", 0), "executable program", one.run[0])
            for position, name in enumerate(one.files):
                if not is_file(_below(base, name)):
                    yield _missing((*place, "files", position), "file", name)


def _same_file(protocol: Protocol, base: Path) -> Iterator[Finding]:
    """Find two arms that are named differently and are the same bytes; one name for both is an A/A on purpose."""
    engines = [protocol.arm(name).engine for name in ARMS]
    files = [_program(protocol, name, base) for name in ARMS]
    left, right = files
    if left is None or right is None or engines[0] == engines[1] or left == right:
        return
    if protocol.settings_of("baseline") != protocol.settings_of("candidate"):
        return
    if protocol.arms.baseline.environment != protocol.arms.candidate.environment:
        return
    arguments = [engine.arguments for engine in engines if isinstance(engine, LlamaServerEngine)]
    if len(set(arguments)) > 1 or not is_file(left) or not is_file(right):
        return
    environment = protocol.arms.baseline.environment
    try:
        is_same = _hashes(left, environment) == _hashes(right, environment)
    except EngineError:
        return
    if is_same:
        message = f"{right.name} is the baseline's under another name: this compares an engine with itself"
        hint = "name the engine that is meant; for an A/A, write the same path in both arms"
        yield Finding(path=("arms", "candidate", "engine", "path"), message=message, hint=hint)


def _program(protocol: Protocol, name: Arm, base: Path) -> Path | None:
    engine = protocol.arm(name).engine
    if isinstance(engine, FolderEngine):
        return _below(base, engine.path) / RECEIPT
    return _below(base, engine.path) if isinstance(engine, LlamaServerEngine) else None


def _hashes(file: Path, environment: Mapping[str, str]) -> set[str]:
    """Return the hashes of a server and of everything that it loads, or of the outputs of a build."""
    if file.name != RECEIPT:
        return {one.sha256 for one in identify_executable(file, environment).files}
    return {identify_file(one).sha256 for one in file.parent.glob("*/*") if one.is_file()}


def _is_bundled_server(server: Path) -> bool:
    """Whether a program is the server of a build of ours, by the library that it is linked with."""
    try:
        return Path(LIBRARY).name in identify_file(server).needed
    except EngineError:
        return False


def _bundled(place: tuple[str | int, ...], name: str, server: Path) -> Finding:
    folder = server.resolve().parent.parent
    is_build = is_file(folder / RECEIPT)
    message = f"{name} is the bundled engine's server, which belongs to kind: folder and has flags of its own"
    hint = f"write {{kind: folder, path: {folder}}}" if is_build else "name the folder that `assay engine build` made"
    return Finding(path=(*place, "kind"), message=message, hint=hint)


def _missing(path: tuple[str | int, ...], what: str, name: str) -> Finding:
    message = f"there is no {what} {name}; a relative path starts at the protocol's folder"
    return Finding(path=path, message=message, hint="correct the path")


def _unreadable(path: tuple[str | int, ...], name: str, error: EngineError) -> Finding:
    return Finding(path=path, message=f"{name} is no model file: {error}", hint=error.hint)


def _below(base: Path, path: str) -> Path:
    return (base / Path(path).expanduser()).absolute()
