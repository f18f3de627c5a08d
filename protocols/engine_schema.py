"""The engines that an arm can name: builds of ours, a llama.cpp server, an endpoint that already answers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from protocols.vocabulary import FileName, Part, Text

FaultName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*(=[0-9]{1,9})?$", max_length=64)]


class BundledEngine(Part):
    """A build of the engine that comes with Assay."""

    kind: Literal["bundled"]
    """Says that the engine is built from the bundled source."""
    layout_salt: int = Field(default=0, ge=0, le=2**31 - 1)
    """Order in which the same object files are linked; 0 is the stated order."""
    faults: Annotated[tuple[FaultName, ...], Field(strict=False, max_length=16)] = ()
    """Known defects compiled in, such as slow-decode=30; for controls only."""
    path: Literal["guarded", "general-only"] = "guarded"
    """How block selection finds its inputs: from tracked prefixes where it may, or always by a scan of the cells."""
    LATER: ClassVar[frozenset[str]] = frozenset({"path"})


class FolderEngine(Part):
    """A build that `assay engine build --out FOLDER` made."""

    kind: Literal["folder"]
    """Says that the engine is a folder with a build."""
    path: FileName
    """The build folder; a relative path starts at the protocol's folder."""


class LlamaServerEngine(Part):
    """A llama.cpp server binary, started with our settings in its own flags."""

    kind: Literal["llama-server"]
    """Says that the engine is a llama.cpp server."""
    path: FileName
    """The binary; a relative path starts at the protocol's folder."""
    arguments: Annotated[tuple[FileName, ...], Field(strict=False, max_length=256)] = ()
    """Further arguments, after those that the settings make."""


class OpenAIEngine(Part):
    """An endpoint that is not started by Assay: no fresh loads, so a loss gate is a screen at best."""

    kind: Literal["openai"]
    """Says that the engine is an endpoint that already answers."""
    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@/]+(/[^\s]*)?$", max_length=1024)]
    """Base address without user name or password, such as http://127.0.0.1:8000."""
    model: Text
    """Model name that is sent with each request."""


EngineReference = Annotated[
    BundledEngine | FolderEngine | LlamaServerEngine | OpenAIEngine, Field(discriminator="kind")
]
