"""Finds the lines of a build's log that say what went wrong."""

from __future__ import annotations

import re
from typing import Final

_ERROR_LINE: Final = re.compile(r"error:|undefined reference|^FAILED:|multiple definition|cannot find")
_ADDRESS: Final = re.compile(r"\(\.[a-z]+[^)]*\)|0x[0-9a-f]+")
_SHOWN_ERRORS: Final = 6
_STEP: Final = re.compile(r"^\[(\d+)/(\d+)\] ", re.MULTILINE)


def steps_done(log: str) -> tuple[int, int] | None:
    """Return how many of a build's steps the newest line with a count says are done; None before the first one."""
    counts = _STEP.findall(log)
    return (int(counts[-1][0]), int(counts[-1][1])) if counts else None


def first_errors(lines: list[str]) -> list[str]:
    """Return the first different error lines of a build's log; its last lines where none looks like an error."""
    found: dict[str, str] = {}
    for index, line in enumerate(lines):
        if line.startswith("CMake Error"):  # its words stand in the lines below, indented
            words = " ".join(below.strip() for below in lines[index + 1 : index + 8] if below.startswith("  "))
            found.setdefault(words, f"{line.strip()} {words}")
        elif _ERROR_LINE.search(line):
            # A linker repeats one missing name at each place that uses it.
            found.setdefault(_ADDRESS.sub("", line.removeprefix("/usr/bin/ld: ")), line.strip())
    return (list(found.values()) or lines[-_SHOWN_ERRORS:])[:_SHOWN_ERRORS]
