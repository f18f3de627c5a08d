"""A stream of text for people or machines whose reader may go away, whose disk may be full, and which obeys no text.

Neither may change what a command found out: its exit code is about the evidence.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
from typing import IO, Any, Final

_SHOWN_CONTROLS: Final = frozenset("\n\t")
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plain(text: str) -> str:
    """Return text that a terminal only shows: control and invisible characters stand as their escapes.

    Newlines and tabs stay. What is printed comes from protocols, engines, logs and other people's evidence.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _SHOWN_CONTROLS or unicodedata.category(character) not in _INVISIBLE
        else ascii(character)[1:-1]
        for character in text
    )


def one_line(text: str) -> str:
    """Return `plain` text on one line, so that a text of others cannot begin a line that looks like ours."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


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
