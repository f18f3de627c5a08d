"""`assay run`, `resume`, `report`, `list`, `show`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from harness.display import show_campaigns, show_files, show_verdict
from harness.exits import EXIT_OK
from harness.judging import render_report
from harness.options import Settings, command
from harness.planning import dry_run, show_dry_run
from harness.runner import CampaignEnd, resume_campaign, run_campaign
from protocols.errors import HostError, UsageError
from protocols.load import find_protocol
from recorder.store import Store
from reports.collect import collect_facts
from reports.figures import campaign_figures
from reports.json_report import report_document

CAMPAIGN = click.argument("campaign", default="latest")


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (run, resume, report, list_campaigns, show):
        root.add_command(one)


def _finish(settings: Settings, end: CampaignEnd) -> int:
    """Print how a campaign ended."""
    value = report_document(end.facts) | {"exit_code": end.exit_code, "stopped_by": end.stopped_by}
    settings.console.result(value, lambda console: show_verdict(console, end.facts))
    if not settings.console.as_json:
        show_files(settings.console, settings.store, end.facts)
    if end.stopped_by is not None:
        settings.console.warn(f"the campaign stopped early: {end.stopped_by}. `assay resume` goes on from there")
    return end.exit_code


@command("run", example="assay run served-pair\nassay run my-pair.yaml --store evidence --json")
@click.argument("protocol")
@click.option("--dry-run", "is_dry", is_flag=True, help="Prepare and check everything, record and start nothing.")
def run(settings: Settings, *, protocol: str, is_dry: bool) -> int:
    """Run a protocol (a bundled name or a file) from the lock to the verdict and the report."""
    path, progress = find_protocol(protocol), settings.console.progress()
    if is_dry:
        value = dry_run(path, settings.store, log=settings.console.say)
        settings.console.result(value, lambda console: show_dry_run(console, value))
        return EXIT_OK
    return _finish(settings, run_campaign(path, settings.store, progress=progress))


@command("resume", example="assay resume\nassay resume served-pair-20261129")
@CAMPAIGN
def resume(settings: Settings, *, campaign: str) -> int:
    """Go on with a campaign that was interrupted or killed, after checking that everything is as it was locked."""
    return _finish(settings, resume_campaign(campaign, settings.store, progress=settings.console.progress()))


@command("report", example="assay report\nassay report served-pair-20261129 --out report")
@CAMPAIGN
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets report.md, report.json and the figures.",
)
def report(settings: Settings, *, campaign: str, out: Path | None) -> int:
    """Print the report of a campaign, written again from its evidence."""
    facts = collect_facts(settings.store, campaign)
    files = render_report(facts)
    if out is not None:
        files |= campaign_figures(settings.store, facts.campaign_id)
        _write_files(files, out, settings.store)
        settings.console.say(f"wrote {', '.join(str(out / name) for name in files)}")
    settings.console.result(
        report_document(facts), lambda console: console.show(files["report.md"].decode().rstrip("\n"))
    )
    return EXIT_OK


def _write_files(files: Mapping[str, bytes], out: Path, store: Path) -> None:
    if out.resolve().is_relative_to(store.resolve()):
        raise UsageError(
            "the report cannot be written into the store: it holds only what its ledger names",
            where=str(out),
            hint="name a folder outside of it",
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (out / name).write_bytes(content)
    except OSError as error:
        raise HostError(f"the report cannot be written: {error.strerror}", where=str(error.filename or out)) from None


@command("list", example="assay list")
def list_campaigns(settings: Settings) -> int:
    """List the campaigns of the store, oldest first."""
    with Store.open(settings.store, read_only=True) as store:
        found = store.campaigns()
    value = [asdict(one) | {"locked_utc_ns": str(one.locked_utc_ns)} for one in found]
    settings.console.result(value, lambda console: show_campaigns(console, found))
    return EXIT_OK


@command("show", example="assay show\nassay show served-pair-20261129 --json")
@CAMPAIGN
def show(settings: Settings, *, campaign: str) -> int:
    """Show verdict, gates and loads of one campaign."""
    facts = collect_facts(settings.store, campaign)
    settings.console.result(report_document(facts), lambda console: show_verdict(console, facts))
    return EXIT_OK
