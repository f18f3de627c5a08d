"""The tables of docs/verdicts.md are what the code gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocols.decision import LossRule
from protocols.loose_rates import LooseJudgement, judge_rates, parse_rates
from reports import style

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "verdicts.md"
VECTORS = Path(__file__).parent / "protocols" / "golden" / "vectors.json"


def section(name: str) -> str:
    found = re.search(rf"<!-- {name}: begin.*?-->\n(.*?)<!-- {name}: end -->", DOCUMENT.read_text(), re.DOTALL)
    assert found, f"docs/verdicts.md has no section {name}"
    return found.group(1)


def judged(row: dict[str, Any]) -> tuple[str, LooseJudgement]:
    if row["kind"] == "abba":
        order, rates = "ACCA", [row[label] for label in ("A1", "C1", "C2", "A2")]
    else:
        order = row["order"].replace(",", "")
        rates = [row["baseline"] if letter == "A" else row["candidate"] for letter in order]
    lines = [f"L{n},{arm},{rate!r}" for n, (arm, rate) in enumerate(zip(order, rates, strict=True))]
    loads = parse_rates("\n".join(["load,arm,rate", *lines]), row["id"])
    return order, judge_rates(loads, LossRule(margin=0.02))


def vector_lines() -> Iterator[str]:
    yield "| data | order | pooled change | mirror gap | its own screen | loss, bounds | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for row in json.loads(VECTORS.read_text())["vectors"]:
        if row["kind"] not in {"abba", "pair"}:
            continue
        order, found = judged(row)
        fit = found.fit
        assert fit is not None
        bounds = "no bounds"
        if fit.loss_low is not None and fit.loss_high is not None:
            bounds = f"{style.percent(100 * fit.loss_low)} to {style.percent(100 * fit.loss_high)}"
        cells = (
            f"`{row['id']}`",
            order,
            style.percent(found.screen.pooled_change_pct, signed=True),
            style.points(found.screen.mirror_gap_pp),
            row["verdict"],
            f"{style.percent(100 * fit.loss)}, {bounds}",
            found.status,
        )
        yield f"| {' | '.join(cells)} |"


def test_the_table_of_the_real_release_is_what_the_code_gives(request: pytest.FixtureRequest) -> None:
    lines = "".join(f"{line}\n" for line in vector_lines())
    if request.config.getoption("--update-golden"):
        text = DOCUMENT.read_text()
        DOCUMENT.write_text(text.replace(section("vectors") + "<!-- vectors: end", lines + "<!-- vectors: end"))
    assert section("vectors") == lines
