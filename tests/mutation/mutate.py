"""Draws small changes of the sources by a seed, runs the tests that should notice each, and counts those that do.

    python tests/mutation/mutate.py protocols --sample 110 --seed 1
    python tests/mutation/mutate.py audit --sample 60 --seed 2 --out audit.json
    python tests/mutation/mutate.py audit --again audit.json
    python tests/mutation/mutate.py qsa --sample 60 --out qsa.json

Sources and tests are copied; the checkout is not changed. Exit code 1 where fewer were noticed than `--at-least` says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cpp_mutants import cpp_mutants
from cpp_runner import CppRunner
from equivalents import reason
from mutants import Mutant, draw
from python_mutants import python_mutants
from python_runner import PythonRunner
from targets import PYTHON, QSA

CHECKOUT = Path(__file__).parents[2]
OUTCOMES = ("killed", "timed out", "survived", "equivalent")


class Result(NamedTuple):
    """How one mutant ended: `why` it changes nothing, or `by` which test it was noticed first."""

    mutant: Mutant
    outcome: str
    why: str = ""
    by: str = ""


def all_mutants(name: str) -> list[Mutant]:
    """Return every mutant of a group of files."""
    if name == "qsa":
        paths = [f"engine/src/qsa/{file}" for file in QSA]
        return [one for path in paths for one in cpp_mutants(path, (CHECKOUT / path).read_bytes())]
    return [one for path in PYTHON[name] for one in python_mutants(path, (CHECKOUT / path).read_bytes())]


def runner(name: str, scratch: Path) -> Callable[[Mutant], tuple[str, str] | None]:
    """Return what tests a mutant: its outcome and the test that noticed it, or none where it is no program."""
    if name == "qsa":
        native = CppRunner(CHECKOUT, scratch)
        return lambda mutant: (outcome, "") if (outcome := native.run(mutant)) is not None else None
    python = PythonRunner(CHECKOUT, scratch, [*PYTHON[name]])

    def run(mutant: Mutant) -> tuple[str, str]:
        ended = python.run(mutant, PYTHON[name][mutant.path])
        return ended.outcome, ended.by

    return run


def results(sample: Sequence[Mutant], run: Callable[[Mutant], tuple[str, str] | None]) -> Iterator[Result]:
    """Yield how each mutant ended; one that does not compile is none."""
    for mutant in sample:
        ended = run(mutant)
        if ended is None:
            continue
        outcome, by = ended
        why = reason(mutant, (CHECKOUT / mutant.path).read_bytes()) if outcome == "survived" else None
        yield Result(mutant, "equivalent" if why else outcome, why or "", by)


def survivors(path: Path) -> list[Mutant]:
    """Return the mutants that survived in a file of `--out`."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [
        Mutant(**{name: row[name] for name in Mutant.__dataclass_fields__})
        for row in rows
        if row["outcome"] == "survived"
    ]


def kill_rate(found: Sequence[Result]) -> float | None:
    """Return the share of noticed mutants among those that are not equivalent; none where there are no others."""
    real = [one for one in found if one.outcome != "equivalent"]
    return sum(one.outcome != "survived" for one in real) / len(real) if real else None


def table(found: Sequence[Result]) -> str:
    """Return the counts of each file as a Markdown table. The rate is of those that are not equivalent."""
    lines = [
        "| file | mutants | killed | timed out | survived | equivalent | kill rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in [*dict.fromkeys(one.mutant.path for one in found), "all"]:
        of_file = [one for one in found if path in {one.mutant.path, "all"}]
        counts, share = Counter(one.outcome for one in of_file), kill_rate(of_file)
        rate = "-" if share is None else f"{share:.0%}"
        lines.append(f"| {path} | {counts.total()} | {' | '.join(str(counts[name]) for name in OUTCOMES)} | {rate} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run a sample and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=[*PYTHON, "qsa"])
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument(
        "--at-least", type=float, default=0.0, help="kill rate in percent below which the exit code is 1"
    )
    parser.add_argument("--again", type=Path, help="try only what survived in this file of --out")
    parser.add_argument("--out", type=Path, help="file that gets the results as JSON")
    options = parser.parse_args(arguments)
    mutants = [one for one in all_mutants(options.group) if options.only in one.path]
    sample = draw(mutants, options.sample, options.seed) if options.again is None else survivors(options.again)
    print(f"{len(sample)} of {len(mutants)} mutants, seed {options.seed}", flush=True)
    found: list[Result] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-mutants-") as folder:
        for one in results(sample, runner(options.group, Path(folder))):
            found.append(one)
            more = one.why or one.by
            print(
                f"{time.monotonic() - begun:6.0f} s {one.outcome:10} {one.mutant.words}{' : ' * bool(more)}{more}",
                flush=True,
            )
            if options.out is not None:
                document = [
                    {"outcome": each.outcome, "why": each.why, "by": each.by, **vars(each.mutant)} for each in found
                ]
                options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(sorted(found, key=lambda one: one.mutant.path)))
    print(f"{time.monotonic() - begun:.0f} s, the tests without any change included")
    return 1 if (kill_rate(found) or 0.0) * 100 < options.at_least else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
