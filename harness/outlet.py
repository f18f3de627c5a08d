"""A stream of text for people or machines whose reader may go away, and whose disk may be full.

Neither may change what a command found out: its exit code is about the evidence.
"""

from __future__ import annotations

import contextlib
import os
from typing import IO, Any


class Outlet:
    """A text stream that swallows what can no longer be written, and keeps the error that stopped it in `error`."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write text, or nothing once the stream has failed."""
        if self.error is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._stop(error)
        return len(text)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._stop(error)

    def _stop(self, error: OSError) -> None:
        self.error = error
        # The stream's own buffer is flushed again when the interpreter ends, which would change the exit code.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the stream has
        return getattr(self._stream, name)
