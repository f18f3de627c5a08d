"""Campaigns that asked the same question before: a rejected candidate stays in sight of the next one."""

from __future__ import annotations

from collections import Counter
from typing import Final

from reports.facts import EarlierFact, Facts

EARLIER_SHOWN: Final = 10
"""Campaigns that a report shows, the newest ones; how many there are it says in any case."""


def earlier_verdict(one: EarlierFact) -> str:
    """Return what became of an earlier campaign: its verdicts, oldest first, or why there is none."""
    return " then ".join(one.verdicts) if one.verdicts and one.state == "judged" else one.state


def earlier_lines(facts: Facts) -> tuple[str, ...]:
    """Return one sentence with how often the question was asked before and what came of it; none where it never was."""
    if not facts.earlier:
        return ()
    found = Counter(earlier_verdict(one) for one in facts.earlier)
    what = ", ".join(f"{count} x {verdict}" for verdict, count in sorted(found.items()))
    count = len(facts.earlier)
    campaigns = "One campaign" if count == 1 else f"{count} campaigns"
    shown = f" The newest {EARLIER_SHOWN} are shown; `assay attempts` lists all." if count > EARLIER_SHOWN else ""
    return (f"{campaigns} of this store asked the same question before, with whatever candidate: {what}.{shown}",)
