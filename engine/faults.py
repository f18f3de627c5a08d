"""The known defects that the bundled source can compile in, as its build file declares them."""

from __future__ import annotations

import re
from functools import cache

from engine.source_tree import source_folder

_ONE = re.compile(r"^assay_known_fault\(([a-z0-9-]+) ", re.MULTILINE)
_LIST = re.compile(r"^set\(qsa_faults\s+([a-z0-9\s-]+)\)", re.MULTILINE)


@cache
def known_faults() -> frozenset[str]:
    """Return the names, without values."""
    text = (source_folder() / "CMakeLists.txt").read_text(encoding="utf-8")
    lists = [name for names in _LIST.findall(text) for name in names.split()]
    return frozenset([*_ONE.findall(text), *lists])
