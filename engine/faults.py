"""The known defects that the bundled source can compile in, as its build file declares them."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from engine.source_tree import source_folder

_ONE = re.compile(r"^assay_known_fault\(([a-z0-9-]+) ", re.MULTILINE)
_LIST = re.compile(r"^set\(qsa_faults\s+([a-z0-9\s-]+)\)", re.MULTILINE)


_VALUED = re.compile(r'^assay_known_fault\(([a-z0-9-]+) .*VALUE "([^"]*)" ([0-9]+) ([0-9]+)\)', re.MULTILINE)


class FaultValue(NamedTuple):
    """What the number behind a fault's name means, and the least and the largest that it may be."""

    meaning: str
    least: int
    most: int


@cache
def known_faults() -> frozenset[str]:
    """Return the names, without values."""
    text = (source_folder() / "CMakeLists.txt").read_text(encoding="utf-8")
    lists = [name for names in _LIST.findall(text) for name in names.split()]
    return frozenset([*_ONE.findall(text), *lists])


@cache
def fault_values() -> dict[str, FaultValue]:
    """Return the faults that take a number; all others take none."""
    text = (source_folder() / "CMakeLists.txt").read_text(encoding="utf-8")
    return {name: FaultValue(meaning, int(low), int(high)) for name, meaning, low, high in _VALUED.findall(text)}


def value_problem(fault: str) -> str | None:
    """Return what is wrong with the number of a known fault, None where it is as the build takes it."""
    name, _, number = fault.partition("=")
    wanted = fault_values().get(name)
    if wanted is None:
        return f"found {fault}, and {name} takes no number" if number else None
    if number and wanted.least <= int(number) <= wanted.most:
        return None
    return f"found {fault}, expected {name}=P with P from {wanted.least} to {wanted.most}: {wanted.meaning}"
