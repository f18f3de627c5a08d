"""`assay plan`, `calibrate`, `stats`, `simulate`: what a design can decide, what numbers say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from harness.api_key import secret_values
from harness.calibration_tables import calibration_row, calibration_rows, show_calibrations
from harness.calibrations import calibration_protocol, record
from harness.console import panel
from harness.exits import EXIT_OK, EXIT_USAGE
from harness.options import FiniteRange, Settings, command
from harness.planning import make_plan, show_plan
from harness.runner import run_loaded
from harness.simulating import (
    LEAST_CAMPAIGNS,
    Question,
    answer,
    design_of,
    protocol_design,
    show_simulated,
    simulated_document,
)
from harness.trends import list_series, series_document, show_series, store_series
from harness.view_tables import show_view
from protocols.calibration import DAYS
from protocols.decision import LossRule
from protocols.errors import ProtocolError
from protocols.load import find_protocol, load_protocol
from protocols.loose_rates import judge_rates, parse_rates
from protocols.paths import read_given
from protocols.plan import POWER
from protocols.schedule import LOADS_PER_BLOCK
from protocols.schema import BlocksSchedule
from protocols.simulate import HOSTS, SEED
from protocols.start_failures import ADVICE
from protocols.stats import Calibration
from protocols.verdicts import EXIT_CODES
from recorder.store import Store
from reports.loose import loose_document, loose_lines
from reports.request_view import NOTE, view_requests

FILE = click.Path(path_type=Path, dir_okay=False)
ALPHA = FiniteRange(0.0001, 0.25)
PERCENT = FiniteRange(min=0, max=100, min_open=True, max_open=True)


@command("stats", example="assay stats rates.csv --margin 2\nassay stats rates.csv --margin 2 --json", with_store=False)
@click.argument("file", type=FILE)
@click.option("--margin", type=PERCENT, required=True, help="Loss in percent that is just not acceptable.")
@click.option("--alpha", type=ALPHA, default=0.05, show_default=True, help="Level of each bound.")
@click.option("--max-gap", type=FiniteRange(0, 100), default=3.0, show_default=True, help="Legacy limit in points.")
@click.option("--equivalence", is_flag=True, help="Refuse a gain of the margin or more as well.")
@click.option("--noise-pct", type=PERCENT, help="Noise of a load from A/A loads of this host, for three or four loads.")
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
        text = read_given(file).decode("utf-8")
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


@command(
    "simulate",
    example="assay simulate served-pair\nassay simulate --margin 2 --blocks 6 --looks 2,3,4,6 --noise-pct 1",
    with_store=False,
)
@click.argument("protocol", required=False)
@click.option("--margin", type=PERCENT, default=2.0, show_default=True, help="Margin in percent, without PROTOCOL.")
@click.option("--alpha", type=ALPHA, default=0.05, show_default=True, help="Level of each bound, without PROTOCOL.")
@click.option("--blocks", type=click.IntRange(2, 64), default=2, show_default=True, help="Blocks, without PROTOCOL.")
@click.option("--looks", metavar="N,N,...", help="Blocks after which is judged, the last being --blocks.")
@click.option("--anytime", is_flag=True, help="Bounds that hold at any time in place of spent levels.")
@click.option("--no-burn-in", is_flag=True, help="Without the discarded first load.")
@click.option(
    "--host", "hosts", multiple=True, type=click.Choice(list(HOSTS)), help="Only these hosts.  [default: all]"
)
@click.option("--noise-pct", type=PERCENT, help="Noise of a load on every host.  [default: the host's own]")
@click.option(
    "--campaigns", type=click.IntRange(LEAST_CAMPAIGNS), default=20_000, show_default=True, help="Campaigns of a cell."
)
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True, help="Another seed, other campaigns.")
def simulate_command(
    settings: Settings,
    *,
    protocol: str | None,
    margin: float,
    alpha: float,
    blocks: int,
    looks: str | None,
    anytime: bool,
    no_burn_in: bool,
    hosts: tuple[str, ...],
    noise_pct: float | None,
    campaigns: int,
    seed: int,
) -> int:
    """Judge made-up campaigns of known losses with the real decision code, and count how often a design errs."""
    if protocol is not None:
        name, design = protocol_design(find_protocol(protocol))
    else:
        schedule = BlocksSchedule(
            kind="blocks",
            blocks=blocks,
            looks=_numbers(looks, blocks),
            stopping="anytime" if anytime else "spent",
            burn_in=not no_burn_in,
        )
        design = design_of(schedule, margin=margin / 100, alpha=alpha)
        name = f"{blocks} blocks of four loads"
    question = Question(
        name=name,
        design=design,
        hosts=hosts or tuple(HOSTS),
        noise=None if noise_pct is None else noise_pct / 100,
        campaigns=campaigns,
        seed=seed,
    )
    cells = answer(question)
    settings.console.result(
        simulated_document(question, cells), lambda console: show_simulated(console, question, cells)
    )
    return EXIT_OK


def _numbers(text: str | None, blocks: int) -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    looks = tuple(int(word) for word in words if word.isascii() and word.isdecimal())
    if len(looks) != len(words) or looks[0] < 2 or list(looks) != sorted(set(looks)) or looks[-1] != blocks:
        message = f"found {text!r}, expected rising numbers from 2 of which the last is {blocks}"
        raise ProtocolError(message, where="--looks", hint=f"write 2,{blocks}")
    return looks


@command("plan", example="assay plan served-pair\nassay plan my-pair.yaml --noise-pct 2 --power 0.9")
@click.argument("protocol")
@click.option("--noise-pct", type=PERCENT, help="Noise of one load.  [default: calibrated here, else a guess]")
@click.option(
    "--power", type=FiniteRange(0.5, 0.999), default=POWER, show_default=True, help="Wanted chance of a PASS."
)
def plan(settings: Settings, *, protocol: str, noise_pct: float | None, power: float) -> int:
    """Say before anything runs: the loads, how long they take, what the design can decide, and the cheapest that does.

    Exit code 2 where the protocol claims what this design cannot decide on this host.
    """
    made = make_plan(find_protocol(protocol), settings.store, noise_pct=noise_pct, power=power)
    settings.console.result(made, lambda console: show_plan(console, made))
    return EXIT_USAGE if made["refused"] else EXIT_OK


@command(
    "calibrate", example="assay calibrate served-pair --loads 12\nassay calibrate served-pair --relink\nassay calibrate"
)
@click.argument("protocol", required=False)
@click.option(
    "--loads", type=click.IntRange(12, 256), default=12, show_default=True, help="A/A loads, a multiple of 4."
)
@click.option("--relink", is_flag=True, help="Load a relink of the same objects in turn (bundled engine).")
@click.option("--from", "campaign", metavar="CAMPAIGN", help="Record what a complete A/A campaign shows, run nothing.")
@click.option("--days", type=click.IntRange(1, 365), default=DAYS, show_default=True, help="Days until it expires.")
def calibrate(
    settings: Settings, *, protocol: str | None, loads: int, relink: bool, campaign: str | None, days: int
) -> int:
    """Measure the noise of a fresh load: A/A loads of a protocol's baseline. Without PROTOCOL, list what is known."""
    if protocol is None and campaign is None:
        known = calibration_rows(settings.store)
        settings.console.result(known, lambda console: show_calibrations(console, known))
        return EXIT_OK
    if protocol is not None and campaign is None:
        path = find_protocol(protocol)
        aa = calibration_protocol(load_protocol(path), loads=_whole_blocks(loads), is_relinked=relink)
        end = run_loaded(aa, path.absolute().parent, settings.store, progress=settings.console.progress())
        if end.stopped_by is not None:
            settings.console.warn(f"the A/A loads stopped early: {end.stopped_by}")
            resume = f"then: assay resume, and assay calibrate --from {end.campaign_id}"
            settings.console.warn(ADVICE if end.facts.arms_that_do_not_start() else resume)
            return end.exit_code
        campaign = end.campaign_id
    with Store.open(settings.store, secrets=secret_values()) as store:
        made = record(store, campaign or "latest", days=days)
    rows = [calibration_row(one) for one in made]
    settings.console.result(rows, lambda console: show_calibrations(console, rows))
    return EXIT_OK


def _whole_blocks(loads: int) -> int:
    if loads % LOADS_PER_BLOCK:
        raise ProtocolError(f"found {loads} loads, expected a multiple of {LOADS_PER_BLOCK}", where="--loads")
    return loads


@command("trend", example="assay trend\nassay trend served-pair-20261129 --json\nassay trend --csv releases.csv")
@click.argument("campaign", default="latest")
@click.option(
    "--csv", "csv_file", type=FILE, help="A list without a record: name, change_pct, error_pct and, if known, df."
)
def trend(settings: Settings, *, campaign: str, csv_file: Path | None) -> int:
    """Find where a series of campaigns of one question changed: the same baseline, release after release."""
    found = list_series(csv_file) if csv_file is not None else store_series(settings.store, campaign)
    settings.console.result(series_document(found), lambda console: show_series(console, found))
    return EXIT_OK


@command("view", example="assay view\nassay view served-pair-20261129 --json")
@click.argument("campaign", default="latest")
def view(settings: Settings, *, campaign: str) -> int:
    """Describe what requests took: TTFT, gaps, TPOT and whole requests, arm by arm. Nothing is concluded from it."""
    campaign_id, found = view_requests(settings.store, campaign)
    value = {"campaign": campaign_id, "note": NOTE, "distributions": [asdict(one) for one in found]}
    settings.console.result(value, lambda console: show_view(console, campaign_id, found))
    return EXIT_OK


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (plan, calibrate, stats, simulate_command, trend, view):
        root.add_command(one)
