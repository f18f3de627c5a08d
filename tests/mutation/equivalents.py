"""Mutants that were looked at and change nothing that anybody can see: by the line, the change, and why."""

from __future__ import annotations

from typing import NamedTuple

from mutants import Mutant


class Equivalent(NamedTuple):
    """A change that no test can notice. `line` is the text of its line, so that it outlives changes elsewhere."""

    path: str
    line: str
    old: str
    new: str
    why: str


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "protocols/stats.py",
        "return residual**2 > limit",
        "residual**2 > limit",
        "(residual ** 2 >= limit)",
        "a rounded square equals a rounded quantile for no data that can be told from others",
    ),
    Equivalent(
        "protocols/screens.py",
        "return gap_pp <= limit_pp + AT_LIMIT",
        "gap_pp <= limit_pp + AT_LIMIT",
        "(gap_pp < limit_pp + AT_LIMIT)",
        "the allowance for rounding has no side of its own",
    ),
    Equivalent(
        "protocols/simulate.py",
        "logs += math.log1p(-host.slow_by) * (source.random(arms.shape) < host.slow_share)",
        "source.random(arms.shape) < host.slow_share",
        "(source.random(arms.shape) <= host.slow_share)",
        "a draw is a multiple of 2**-53 below 1: no share of a published host is one",
    ),
    Equivalent(
        "protocols/simulate.py",
        "for row, flags in zip(logs, arms, strict=True):",
        "True",
        "(False)",
        "both have a row for each campaign of the batch",
    ),
    Equivalent(
        "protocols/comparators.py",
        "return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)",
        "0",
        "(1)",
        "the bits 0 give 0 on either branch",
    ),
    Equivalent(
        "engine/src/qsa/tracker.cpp",
        "while (lowest > 0 && lowest < tables.n_own() && tables.at[lowest - 1] == tables.at[lowest]) --lowest;",
        "<",
        "<=",
        "differs for a run without rows only, by a read past the end, which has no right value",
    ),
    Equivalent(
        "engine/src/qsa/prefix.cpp",
        "cell_bound_ = 0;",
        "0",
        "1",
        "a bound is asked whether it is above the cells of a stream, which has one at least",
    ),
    Equivalent(
        "recorder/audit_tables.py",
        "if missing < 0:",
        "missing < 0",
        "(missing <= 0)",
        "where none is missing, as many entries are covered as there are, and the ledger has only grown since",
    ),
    Equivalent(
        "recorder/audit_judgement.py",
        "if not isinstance(expected, str) or not isinstance(found, str):",
        "not isinstance(expected, str) or not isinstance(found, str)",
        "(not isinstance(expected, str) and (not isinstance(found, str)))",
        "only values of one type are asked about: either both are texts or neither is",
    ),
)


def reason(mutant: Mutant, source: bytes) -> str | None:
    """Return why a mutant changes nothing, where that is known."""
    line = source.decode().splitlines()[mutant.line - 1].strip()
    for one in EQUIVALENT:
        if (one.path, one.line, one.old, one.new) == (mutant.path, line, mutant.old, mutant.new):
            return one.why
    return None
