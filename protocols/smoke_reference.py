"""A smoke reference: what one host showed of an engine, so that another host can be asked for the same.

One JSON object in a file. Engine and model stand in it by hash; prompts and replies as token ids. It names no argument
and no variable that another host would obey: whoever asks names the engine, the model and what they need.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from protocols.canonical import canonical_bytes
from protocols.errors import EngineError, Problem, ProtocolError
from protocols.lock import Count, FileIdentity, ModelIdentity
from protocols.request_checks import parse_body
from protocols.schema import Settings
from protocols.vocabulary import FileName, Identifier, Line, Part
from protocols.yaml_tree import path_text

FORMAT = 1
MAX_BYTES = 64 << 20
"""Largest reference that is read: prompt and reply of 262,144 tokens take under 4 MB."""
_SHOWN_PROBLEMS = 20

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1, max_length=16_777_216)]


class SmokeDevice(Part):
    """Where the engine computes."""

    processor: Line | None = None
    """Model of the CPU as the kernel names it."""
    gpus: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Every GPU by architecture or product name, sorted; from kernel or driver, never from a log."""
    is_engine_on_gpu: bool | None = None
    """Whether the engine says that it holds memory of a GPU; null where it says nothing."""


class SmokeCase(Part):
    """One prompt and its greedy reply without a cache."""

    id: Identifier
    """Workload that it comes from."""
    prompt: Annotated[str, Field(min_length=1)] | None = None
    """The prompt as text, where the workload has one: its ids are asked for, too."""
    prompt_tokens: TokenIds
    """The prompt as ids."""
    reply_tokens: TokenIds
    """The whole reply."""
    drafted_tokens: Count | None = None
    """Tokens that were drafted; null where the engine states none."""
    accepted_tokens: Count | None = None
    """Drafts that were kept; null where the engine states none."""


class SmokeReference(Part):
    """Everything that another host is asked for."""

    assay_smoke: Literal[1]
    """Version of the format."""
    protocol: Identifier
    """Protocol whose arm this is."""
    arm: Literal["baseline", "candidate"]
    """The arm."""
    kind: Literal["build", "llama-server"]
    """A build folder of ours, or a llama.cpp server."""
    files: Annotated[tuple[FileIdentity, ...], Field(strict=False, min_length=1, max_length=4096)]
    """Every file of the engine."""
    arguments: Annotated[tuple[FileName, ...], Field(strict=False, max_length=256)] = ()
    """What a llama.cpp server was told beside the settings."""
    model: ModelIdentity
    """The model file."""
    settings: Settings
    """What the engine is told at its start."""
    load_s: int = Field(ge=1, le=86_400)
    """Seconds until the engine must be ready."""
    request_s: int = Field(ge=1, le=86_400)
    """Seconds for one request."""
    device: SmokeDevice
    """Where it computed."""
    cases: Annotated[tuple[SmokeCase, ...], Field(strict=False, min_length=1, max_length=64)]
    """Prompts with their replies."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        for what, names in (("file", [file.name for file in self.files]), ("case", [one.id for one in self.cases])):
            if len(set(names)) < len(names):
                raise ValueError(f"a {what} is named twice")
        for one in self.cases:
            if len(one.prompt_tokens) + len(one.reply_tokens) > self.settings.context_tokens:
                raise ValueError(f"the case {one.id} is longer than the context of {self.settings.context_tokens}")
            if (one.drafted_tokens is None) != (one.accepted_tokens is None):
                raise ValueError(f"the case {one.id} has drafted or accepted tokens and not both")
            if (one.accepted_tokens or 0) > (one.drafted_tokens or 0):
                raise ValueError(f"the case {one.id} accepts more tokens than it drafts")
        return self

    def file_bytes(self) -> bytes:
        """Return the bytes of its file: RFC 8785 and a newline."""
        return canonical_bytes(self.model_dump(mode="json")) + b"\n"


def new_smoke_reference(**parts: object) -> SmokeReference:
    """Return a reference of this format. EngineError where its parts do not hold together."""
    try:
        return SmokeReference.model_validate({"assay_smoke": FORMAT, **parts})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise EngineError(f"no reference can be made of this engine: {first['msg']}") from None


def read_smoke_reference(path: Path) -> tuple[SmokeReference, bytes]:
    """Read a reference and return it with the bytes of its file.

    ProtocolError names what is wrong in it, by key: no plain file, too large, no JSON, another format, another shape.
    """
    data = _read(path)
    return parse_smoke_reference(data, str(path)), data


def parse_smoke_reference(data: bytes, where: str) -> SmokeReference:
    """Read the bytes of a reference; `where` names them. ProtocolError names what is wrong in it, by key."""
    try:
        value = parse_body(data)
    except ValueError as error:
        raise ProtocolError(f"the smoke reference is not readable: {error}", where=where, hint=_HINT) from None
    version = value.get("assay_smoke")
    if type(version) is not int:
        raise ProtocolError("this is no smoke reference: it has no number assay_smoke", where=where, hint=_HINT)
    if version != FORMAT:
        message = f"the smoke reference has the format {str(version)[:20]}, and this Assay reads {FORMAT}"
        raise ProtocolError(
            message, where=f"{where}: assay_smoke", hint="use the Assay that wrote it, or write it again"
        )
    try:
        return SmokeReference.model_validate(value)
    except ValidationError as error:
        problems = [
            Problem(where=f"{where}: {path_text(details['loc'])}".removesuffix(": "), message=details["msg"])
            for details in error.errors(include_url=False)[:_SHOWN_PROBLEMS]
        ]
        raise ProtocolError.from_problems(where, problems) from None


_HINT = "`assay smoke PROTOCOL --write FILE` on the reference host makes one"


def _read(path: Path) -> bytes:
    """Return the bytes of a plain file; a pipe could keep the reader waiting for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProtocolError(f"the smoke reference cannot be read: {reason}", where=str(path), hint=_HINT) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ProtocolError("the smoke reference is no plain file", where=str(path), hint=_HINT)
        if status.st_size > MAX_BYTES:
            message = f"the smoke reference has {status.st_size} bytes, expected at most {MAX_BYTES}"
            raise ProtocolError(message, where=str(path), hint=_HINT)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        message = f"the smoke reference cannot be read: {error.strerror}"
        raise ProtocolError(message, where=str(path), hint=_HINT) from None
    finally:
        os.close(descriptor)
