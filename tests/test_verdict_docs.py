"""The tables of docs/verdicts.md are what the code gives."""

from __future__ import annotations

import importlib.util
import json
import os
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
TABLES = Path(__file__).parent / "bench" / "verdict_tables.py"
VECTORS = Path(__file__).parent / "protocols" / "golden" / "vectors.json"


def section(name: str) -> str:
    found = re.search(rf"<!-- {name}: begin.*?-->\n(.*?)<!-- {name}: end -->", DOCUMENT.read_text(), re.DOTALL)
    assert found, f"docs/verdicts.md has no section {name}"
    return found.group(1)


@pytest.fixture(scope="module")
def tables() -> Any:
    spec = importlib.util.spec_from_file_location("verdict_tables", TABLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_stored_counts_and_nothing_else(tables: Any) -> None:
    counts = json.loads(tables.COUNTS.read_text())
    assert section("characteristics").splitlines() == list(tables.own_table(counts["own"]))
    assert section("ways").splitlines() == list(tables.way_table(counts["own"], counts["ways"] + counts["peers"]))


def cells_of(lines: list[str]) -> list[list[float]]:
    """Return the numbers of a table, row by row."""
    return [[float(cell.strip().removesuffix(" %")) for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_spending_wins_where_the_end_is_fixed_and_neither_passes_the_margin_too_often(tables: Any) -> None:
    lines = section("sequential").splitlines()
    shown = cells_of(lines)
    lengths = (6, 12, 24, 40) if os.environ.get("ASSAY_FULL_SIMULATION") == "1" else (6,)
    computed = cells_of(list(tables.sequential_table(lengths)))
    for row, again in zip(shown, computed, strict=False):
        assert again == pytest.approx(row, abs=0.011)
    for row in shown:
        most, _, spent, spent_loads, spent_error, anytime, anytime_loads, anytime_error, careless = row
        assert spent >= anytime
        assert spent_loads < anytime_loads
        assert max(spent_error, anytime_error) <= 0.06
        assert careless > (0.1 if most >= 6 else 0)


def test_what_the_text_says_about_the_table_is_so() -> None:
    own = cells_by_name(section("characteristics").splitlines())
    noisy = own["looks 2, 3, 4, 6", "noisy"]
    assert 10 < float(noisy[3]) < 12
    assert float(noisy[0]) > 0.99
    assert 0.77 < float(own["2 blocks", "noisy"][0]) < 0.83


def test_the_earlier_figures_stand_beside_those_of_the_table() -> None:
    own = cells_by_name(section("characteristics").splitlines())
    rows = cells_by_name(section("earlier").splitlines())
    assert len(rows) == 9
    for name, (earlier, here) in rows.items():
        assert here == own[name][0]
        assert float(here) >= float(earlier) - 0.012


def cells_by_name(lines: list[str]) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {(row[0], row[1]): row[2:] for row in rows}


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
