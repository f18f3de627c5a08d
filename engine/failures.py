"""How a library in a worker fails: it says no, or it takes its process with it."""

from __future__ import annotations

from typing import Final

from protocols.errors import EngineError

UNSUPPORTED: Final = 2
"""ASSAY_UNSUPPORTED of the C interface: the model or the request needs something that the engine lacks."""


class LibraryRefusedError(EngineError):
    """A function of the library returned another status than ASSAY_OK; what it was is in `status`."""

    def __init__(self, message: str, where: str, status: int) -> None:
        super().__init__(message, where=where)
        self.status = status

    @property
    def is_unsupported(self) -> bool:
        """Whether the engine says that it cannot do this at all."""
        return self.status == UNSUPPORTED


class LibraryDiedError(EngineError):
    """The worker died or did not answer in time."""
