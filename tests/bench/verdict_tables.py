"""Writes the operating characteristics into docs/verdicts.md: `python tests/bench/verdict_tables.py --write`.

Every cell is simulated with the real decision code; the same loads are given to other ways to decide, and those of the
first campaigns to the real code of inference-doctor and metria (extra `verdicts`). The counts lie in
`tests/protocols/golden/characteristics.json`; the page is rendered from them, and tests hold both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from protocols.decision import LossRule
from protocols.look_chances import look_chances
from protocols.looks import Look, spent_levels
from protocols.other_ways import WAYS
from protocols.simulate import HOSTS, Characteristics, Design, batches, simulate

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "verdicts.md"
COUNTS = ROOT / "tests" / "protocols" / "golden" / "characteristics.json"
MARGIN = 0.02
LOSSES = (0.0, MARGIN, 2 * MARGIN)
CAMPAIGNS, PEER_CAMPAIGNS = 20_000, 200
LOOKS = (2, 3, 4, 6)
_WAY = ("way", "order", "host", "true_loss")
KEYS = {"own": ("design", "host", "true_loss"), "ways": _WAY, "peers": _WAY}
"""What names a cell of each part."""


def rule(looks: tuple[int, ...] = (), *, anytime: bool = False) -> LossRule:
    levels = (0.05,) * len(looks) if anytime else spent_levels(looks, 0.05)
    made = tuple(Look(blocks=blocks, level=level) for blocks, level in zip(looks, levels, strict=True))
    return LossRule(margin=MARGIN, looks=made, stopping="anytime" if anytime else "spent")


def designs() -> dict[str, Design]:
    """The designs of Assay in the table."""
    return {
        "2 blocks": Design(blocks=2, rule=rule()),
        "4 blocks": Design(blocks=4, rule=rule()),
        "looks 2, 3, 4, 6": Design(blocks=6, rule=rule(LOOKS)),
        "anytime, 2 to 6": Design(blocks=6, rule=rule((2, 3, 4, 5, 6), anytime=True)),
    }


def orders() -> dict[str, Design]:
    """Eight loads in mirrored blocks, eight with one arm after the other, a single block, and a pair."""
    return {
        "2 blocks": Design(blocks=2, rule=rule()),
        "AAAACCCC": Design(blocks=2, rule=rule(), burn_in=False, order="AAAACCCC"),
        "1 block": Design(blocks=1, rule=rule()),
        "AC": Design(blocks=1, rule=rule(), burn_in=False, order="ACCA"),
    }


def own_cells(campaigns: int, known: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for name, design in designs().items():
        for host, made in HOSTS.items():
            for loss in LOSSES:
                if (name, host, loss) in known:
                    continue
                found = simulate(made, design, loss, campaigns=campaigns)
                yield {"design": name, "host": host, **asdict(found)}


def other_cells(campaigns: int, known: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """The point screen, Welch and paired t over the loads that Assay's designs see."""
    for way, order in (
        ("point screen", "1 block"),
        ("point screen", "2 blocks"),
        ("Welch, loads pooled", "2 blocks"),
        ("Welch, loads pooled", "AAAACCCC"),
        ("paired t, one value a block", "2 blocks"),
    ):
        design = orders()[order]
        for host, made in HOSTS.items():
            for loss in LOSSES:
                if (way, order, host, loss) in known:
                    continue
                passed = failed = 0
                for arms, logs in batches(made, design, loss, campaigns=campaigns):
                    found = WAYS[way](logs, arms, MARGIN)
                    passed, failed = passed + int(found.passed.sum()), failed + int(found.failed.sum())
                yield _row(way, order, host, loss, campaigns, passed, failed)


def _row(way: str, order: str, host: str, loss: float, campaigns: int, passed: int, failed: int) -> dict[str, Any]:
    return {
        "way": way,
        "order": order,
        "host": host,
        "true_loss": loss,
        "campaigns": campaigns,
        "passed": passed,
        "failed": failed,
    }


def peer_cells(campaigns: int, known: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """What the real code of two other programs says about the first campaigns of the same cells."""
    from peer_verdicts import PEERS

    with tempfile.TemporaryDirectory() as folder:
        for peer, order, judge in PEERS:
            design = orders()[order]
            for host, made in HOSTS.items():
                for loss in LOSSES:
                    if (peer, order, host, loss) in known:
                        continue
                    counts: Counter[str] = Counter()
                    for arms, logs in batches(made, design, loss, campaigns=campaigns):
                        for row, flags in zip(np.exp(logs) * 100, arms, strict=True):
                            counts[judge(row[~flags].tolist(), row[flags].tolist(), MARGIN, Path(folder))] += 1
                    yield _row(peer, order, host, loss, campaigns, counts["PASS"], counts["FAIL"])


def own_table(cells: list[dict[str, Any]]) -> Iterator[str]:
    yield "| design | host | no loss: PASS | FAIL | loss found | loads | loss 2 %: PASS | FAIL | loss 4 %: FAIL | PASS |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for design in dict.fromkeys(cell["design"] for cell in cells):
        for host in HOSTS:
            none, margin, twice = (
                next(c for c in cells if (c["design"], c["host"], c["true_loss"]) == (design, host, loss))
                for loss in LOSSES
            )
            shares = (
                _share(none, "passed"),
                _share(none, "failed"),
                _share(none, "detected"),
                f"{none['loads']:.1f}",
                _share(margin, "passed"),
                _share(margin, "failed"),
                _share(twice, "failed"),
                _share(twice, "passed"),
            )
            yield f"| {design} | {host} | {' | '.join(shares)} |"


def way_table(own: list[dict[str, Any]], cells: list[dict[str, Any]]) -> Iterator[str]:
    yield "| way | loads | host | no loss: passes | fails | loss 2 %: passes | fails | loss 4 %: fails | passes |"
    yield "|---|---|---|---|---|---|---|---|---|"
    rows = [{"way": "**Assay**", "order": cell["design"], **cell} for cell in own if cell["design"] == "2 blocks"]
    for way, order in dict.fromkeys((cell["way"], cell["order"]) for cell in rows + cells):
        for host in HOSTS:
            none, margin, twice = (
                next(
                    c
                    for c in rows + cells
                    if (c["way"], c["order"], c["host"], c["true_loss"]) == (way, order, host, loss)
                )
                for loss in LOSSES
            )
            shares = (
                *(_share(cell, name) for cell in (none, margin) for name in ("passed", "failed")),
                *(_share(twice, name) for name in ("failed", "passed")),
            )
            yield f"| {way} | {order} | {host} | {' | '.join(shares)} |"


def _share(cell: dict[str, Any], name: str) -> str:
    digits = 4 if cell["campaigns"] >= 10_000 else 3
    return f"{cell[name] / cell['campaigns']:.{digits}f}"


def sequential_table(lengths: tuple[int, ...] = (6, 12, 24, 40)) -> Iterator[str]:
    """Spent levels against bounds that hold at any time, both looking after every block; and the habit of neither."""
    yield (
        "| most blocks | noise | spent: PASS | loads | passes 2 % | anytime: PASS | loads | passes 2 % | "
        "level 0.05 at every look: passes 2 % |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for most in lengths:
        blocks = tuple(range(2, most + 1))
        levels = {"spent": spent_levels(blocks, 0.05), "anytime": (0.05,) * len(blocks)}
        looks = {
            name: tuple(Look(blocks=count, level=level) for count, level in zip(blocks, found, strict=True))
            for name, found in levels.items()
        }
        for noise in (0.006, 0.01, 0.02):

            def chances(name: str, stopping: Any, loss: float, looks: Any = looks, noise: float = noise) -> Any:
                return look_chances(looks[name], stopping, sigma=noise, margin=MARGIN, true_loss=loss)

            cells = [str(most), f"{100 * noise:g} %"]
            for name in ("spent", "anytime"):
                none, margin = chances(name, name, 0.0), chances(name, name, MARGIN)
                cells += [f"{none.passed:.3f}", f"{none.loads:.1f}", f"{margin.passed:.3f}"]
            cells.append(f"{chances('anytime', 'spent', MARGIN).passed:.3f}")
            yield f"| {' | '.join(cells)} |"


def characteristics(cell: dict[str, Any]) -> Characteristics:
    """Return a stored cell as the simulation returns it."""
    return Characteristics(**{key: cell[key] for key in Characteristics.__dataclass_fields__})


def rendered(page: str, counts: dict[str, Any]) -> str:
    """Return the page with its two tables written from the counts."""
    for name, lines in (
        ("characteristics", own_table(counts["own"])),
        ("ways", way_table(counts["own"], counts["ways"] + counts["peers"])),
        ("sequential", sequential_table()),
    ):
        head, begin, rest = page.partition(f"<!-- {name}: begin")
        mark, end, tail = rest.partition(f"<!-- {name}: end -->")
        first = mark.partition("-->\n")[0]
        page = f"{head}{begin}{first}-->\n" + "".join(f"{line}\n" for line in lines) + end + tail
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="simulate everything and write counts and page")
    parser.add_argument("--render", action="store_true", help="write the page from the stored counts")
    parser.add_argument("--missing", action="store_true", help="with --write: keep the cells that are stored")
    parser.add_argument("--only", choices=("own", "ways", "peers"), help="simulate this part only")
    options = parser.parse_args()
    counts: dict[str, Any] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    parts = {"own": (own_cells, CAMPAIGNS), "ways": (other_cells, CAMPAIGNS), "peers": (peer_cells, PEER_CAMPAIGNS)}
    for name, (cells, campaigns) in parts.items():
        if options.write and options.only in {None, name}:
            started_s = time.monotonic()
            counts[name] = counts.get(name, []) if options.missing else []
            known = {tuple(c[key] for key in KEYS[name]) for c in counts[name]}
            for cell in cells(campaigns, known):
                counts[name].append(cell)
                print(f"{time.monotonic() - started_s:7.1f} s {cell}", flush=True)
    if options.write:
        rows = (json.dumps(name) + ": [\n" + ",\n".join(map(json.dumps, counts[name])) + "\n]" for name in parts)
        COUNTS.write_text("{" + ",\n".join(rows) + "}\n")
    if options.write or options.render:
        PAGE.write_text(rendered(PAGE.read_text(), counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
