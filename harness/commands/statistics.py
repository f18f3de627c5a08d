"""`assay stats`: what numbers say."""

from __future__ import annotations

from pathlib import Path

import click

from harness.console import panel
from harness.options import Settings, command
from protocols.decision import LossRule
from protocols.errors import ProtocolError
from protocols.loose_rates import judge_rates, parse_rates
from protocols.stats import Calibration
from protocols.verdicts import EXIT_CODES
from reports.loose import loose_document, loose_lines

FILE = click.Path(path_type=Path, dir_okay=False)
PERCENT = click.FloatRange(min=0, max=100, min_open=True, max_open=True)


@command("stats", example="assay stats rates.csv --margin 2\nassay stats rates.csv --margin 2 --json", with_store=False)
@click.argument("file", type=FILE)
@click.option("--margin", type=PERCENT, required=True, help="Loss in percent that is just not acceptable.")
@click.option(
    "--alpha", type=click.FloatRange(0.0001, 0.25), default=0.05, show_default=True, help="Level of each bound."
)
@click.option(
    "--max-gap", type=click.FloatRange(0, 100), default=3.0, show_default=True, help="Legacy limit in points."
)
@click.option("--equivalence", is_flag=True, help="Refuse a gain of the margin or more as well.")
@click.option("--noise-pct", type=PERCENT, help="Noise of a load from A/A loads of this host, for two to four loads.")
@click.option("--noise-df", type=click.IntRange(min=1), help="Degrees of freedom of --noise-pct.")
def stats(
    settings: Settings,
    *,
    file: Path,
    margin: float,
    alpha: float,
    max_gap: float,
    equivalence: bool,
    noise_pct: float | None,
    noise_df: int | None,
) -> int:
    """Judge rates that have no record: a CSV file with the columns load, arm (A or C) and rate, in run order.

    The older point screen and the verdict stand side by side; the exit code is the verdict's.
    """
    if (noise_pct is None) != (noise_df is None):
        raise ProtocolError("--noise-pct and --noise-df belong together", hint="give both, from `assay calibrate`")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the file cannot be read: {error}", where=str(file)) from error
    rule = LossRule(margin=margin / 100, alpha=alpha, equivalence=equivalence)
    known = Calibration(sigma=noise_pct / 100, df=noise_df) if noise_pct and noise_df else None
    judgement = judge_rates(parse_rates(text, str(file)), rule, max_gap_pp=max_gap, calibration=known)
    settings.console.result(
        {"file": str(file), **loose_document(judgement, rule)},
        lambda console: console.show(panel("Verdict", judgement.status, loose_lines(judgement, rule))),
    )
    return EXIT_CODES[judgement.status]


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    root.add_command(stats)
