"""What a check of a protocol finds: where, what, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from protocols.yaml_tree import PathPart

_MOST_LISTED = 20
"""Names that are listed beside the nearest one: more would hide it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check says about a key; a refusal unless `is_warning`."""

    path: tuple[PathPart, ...]
    message: str
    hint: str | None = None
    is_warning: bool = False


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like `word`, or None where none is alike."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(path: tuple[PathPart, ...], what: str, word: str, known: Iterable[str]) -> Finding:
    """Return the finding that `word` names nothing, with the known word that is nearest."""
    names = sorted(known)
    near = nearest(word, names)
    listed = ", ".join(names) if names else "none, because there is none"
    if near is not None and len(names) > _MOST_LISTED:
        listed = f"{len(names)}"
    hint = None if near is None else f"write {near}"
    return Finding(path=path, message=f"found the unknown {what} {word}, expected one of {listed}", hint=hint)
