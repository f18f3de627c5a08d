"""Text of others on its way to a person: nothing in it may move a cursor, hide, turn around, or begin a line of ours.

Titles, labels, errors and log lines come from protocols, engines and other people's stores.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_SHOWN_CONTROLS: Final = frozenset("\n\t")
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_GOES_ON: Final = "\n    | "


def plain(text: str) -> str:
    """Return text that a terminal only shows: control and invisible characters stand as their escapes.

    Newlines and tabs stay, so this is for whole documents of ours.
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


def quoted(text: str) -> str:
    """Return `plain` text of several lines, such as an engine's last words; each but the first begins with a bar."""
    return plain(text).replace("\n", _GOES_ON)
