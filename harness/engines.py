"""What the `assay engine` commands do: find a build, start its programs, write logits."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.build import BuildSpec, EngineBuild, build_engine, copy_build, installed_build, open_build
from engine.models import known_models, resolve_model
from engine.perplexity import Perplexity, perplexity
from engine.worker import EngineWorker
from harness.result_files import check_folder, unwritten
from protocols.errors import EngineError, HostError, ProtocolError, UsageError
from protocols.findings import nearest
from protocols.paths import is_file, read_given
from protocols.schema import ModelReference

Log = Callable[[str], None]


def find_build(folder: Path | None, log: Log) -> EngineBuild:
    """Return the build in a folder; without one, the installed build, else the bundled source, built into the cache."""
    if folder is not None:
        return open_build(folder)
    try:
        return installed_build()
    except EngineError:
        return build_engine(BuildSpec(name="bundled"), log=log)


def make_build(
    *,
    name: str,
    layout_salt: int,
    faults: Sequence[str],
    qsa_path: str,
    source: Path | None,
    out: Path | None,
    log: Log,
) -> EngineBuild:
    """Build the engine, and copy the build to `out` where one is given."""
    check_folder(out)
    spec = BuildSpec(name=name, layout_salt=layout_salt, faults=tuple(faults), qsa_path=qsa_path, path=source)
    build = build_engine(spec, log=log)
    try:
        return copy_build(build, out) if out is not None else build
    except OSError as error:
        raise unwritten(error, out or build.folder) from error


def build_facts(build: EngineBuild) -> dict[str, Any]:
    """Return what a person wants to know of a build."""
    return {
        "name": build.name,
        "folder": str(build.folder),
        "layout_salt": build.receipt["layout_salt"],
        "faults": build.receipt["faults"],
        "qsa_path": build.receipt["qsa_path"],
        "files": build.receipt["outputs"],
    }


def find_model(name_or_path: str) -> Path:
    """Return a model file: a known name, or a path. UsageError where it is neither."""
    known = known_models()
    if name_or_path in known:
        return resolve_model(ModelReference(name=name_or_path), base=Path.cwd())
    path = Path(name_or_path).expanduser().absolute()
    if not is_file(path):
        near = nearest(name_or_path, known)
        hint = f"write {near}" if near else f"name one of {', '.join(sorted(known))}, or a GGUF file that is there"
        raise UsageError("this is neither a known model nor a file", where=name_or_path, hint=hint)
    return path


def become(program: Path, arguments: Sequence[str]) -> None:
    """Replace this process by a program of a build. Does not return. Raises EngineError where it cannot start."""
    try:
        os.execv(program, [str(program), *arguments])  # noqa: S606 - no shell is meant
    except OSError as error:
        raise EngineError(f"the program cannot be started: {error.strerror}", where=str(program)) from None


def read_tokens(path: Path) -> list[int]:
    """Read token ids from a JSON file: a list, or an object with a list under `tokens`.

    Raises ProtocolError where the file holds anything else.
    """
    try:
        value = json.loads(read_given(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the token file cannot be read: {error}", where=str(path)) from None
    tokens = value.get("tokens") if isinstance(value, dict) else value
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise ProtocolError(
            "the token file holds no list of token ids", where=str(path), hint="write [1, 2, 3] into it"
        )
    return tokens


def text_perplexity(*, build: EngineBuild, model: Path, text: bytes, kv_type: str, threads: int) -> Perplexity:
    """Return the perplexity of a text under a model, evaluated as one sequence. Raises EngineError as `perplexity`."""
    with EngineWorker(build.library) as worker:
        worker.load(model)
        tokens = worker.tokenize(text, parse_special=False)
        return perplexity(tokens, worker.logit_blocks(tokens, kv_type=kv_type, threads=threads) if tokens else ())


def npy_header(shape: tuple[int, int]) -> bytes:
    """Return what stands before the bytes of a float32 array in an npy file, version 1.0 of NumPy's format.

    The whole header is a multiple of 64 bytes long, so that the array is aligned where the file is mapped.
    """
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1).encode("ascii") + b"\n"


def write_logits(
    *, build: EngineBuild, model: Path, tokens: Sequence[int], kv_type: str, threads: int, out: Path
) -> tuple[int, int]:
    """Write the logits at every position as array `logits` [tokens, vocabulary] of an npz file; return its shape.

    The rows go to the file block by block, so that long inputs need little memory.
    """
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        with EngineWorker(build.library) as worker, zipfile.ZipFile(partial, "w", allowZip64=True) as archive:
            vocabulary = int(worker.load(model)["n_vocab"])
            shape = (len(tokens), vocabulary)
            with archive.open("logits.npy", "w", force_zip64=True) as file:
                file.write(npy_header(shape))
                for block in worker.logit_blocks(tokens, kv_type=kv_type, threads=threads):
                    file.write(block.tobytes())
        partial.chmod(0o644)
        partial.replace(out)
    except OSError as error:
        raise HostError(f"the logits cannot be written: {error.strerror}", where=str(out)) from None
    finally:
        partial.unlink(missing_ok=True)
    return shape
