"""Removes the blocks of known faults from C++ source: what is left is the source of an engine without them."""

from __future__ import annotations

import re

_SWITCH = re.compile(r"ASSAY_(FAULT_[A-Z0-9_]+|PATH_GENERAL_ONLY)\b")
_DIRECTIVE = re.compile(r"^\s*#\s*(if|ifdef|ifndef|else|elif|endif)\b(.*)$")


def strip_fault_blocks(source: str) -> str:
    """Return `source` as a build without faults sees it.

    Raises ValueError for a condition that mixes a fault with something else, or that has an #elif.
    """
    kept = []
    # Per open conditional: None where it is no fault's, else whether its lines are kept.
    stack: list[bool | None] = []
    for line in source.splitlines(keepends=True):
        match = _DIRECTIVE.match(line)
        word, condition = (match[1], match[2]) if match else ("", "")
        if word in {"if", "ifdef", "ifndef"}:
            stack.append(_is_kept(word, condition) if _SWITCH.search(condition) else None)
            if stack[-1] is not None:
                continue
        elif word in {"else", "elif", "endif"} and stack[-1] is not None:
            if word == "elif":
                raise ValueError(f"a fault's block has an #elif: {line.strip()}")
            stack[-1] = not stack[-1]
            if word == "endif":
                stack.pop()
            continue
        elif word == "endif":
            stack.pop()
            kept += [line] * (False not in stack)
            continue
        if False not in stack:
            kept.append(line)
    return "".join(kept)


def _is_kept(word: str, condition: str) -> bool:
    """Return whether the lines under the condition belong to a build without faults."""
    if word != "if":
        return word == "ifndef"
    terms = condition.replace("||", " ").split()
    plain = all(re.fullmatch(r"defined\(ASSAY_\w+\)", term) for term in terms)
    negated = len(terms) == 1 and bool(re.fullmatch(r"!defined\(ASSAY_\w+\)", terms[0]))
    if not plain and not negated:
        raise ValueError(f"a fault's condition mixes it with something else: {condition.strip()}")
    return negated
