"""`assay run`, `resume`, `report`, `list`, `show`, `judge`, `review`, `cancel`, `attempts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from harness.api_key import secret_values
from harness.console import Console, table
from harness.display import show_campaigns, show_files, show_verdict
from harness.exits import EXIT_OK
from harness.judging import attested_verdict, rejudge, render_report
from harness.options import Settings, command
from harness.planning import dry_run, show_dry_run
from harness.result_files import check_folder, write_results
from harness.runner import CampaignEnd, resume_campaign, run_campaign
from protocols.errors import UsageError
from protocols.load import find_protocol
from protocols.start_failures import ADVICE
from recorder.attempts import attempts_of
from recorder.campaign_state import read_campaigns
from recorder.imports import import_folders
from recorder.key_ring import own_signer
from recorder.keys import DEFAULT_NAME
from recorder.reviews import DECISIONS, STATUSES, Review, record_review, reviews_of
from recorder.store import Store
from reports import style
from reports.ci_formats import render_ctrf, render_junit
from reports.collect import collect_facts
from reports.facts import Facts
from reports.figures import campaign_figures
from reports.json_report import report_document

CAMPAIGN = click.argument("campaign", default="latest")


def _in_toto(store: Path, facts: Facts) -> tuple[str, bytes]:
    with Store.open(store, read_only=True) as opened:
        return "test-result.intoto.json", attested_verdict(opened, facts.campaign_id, own_signer())


FORMATS: dict[str, Callable[[Path, Facts], tuple[str, bytes]]] = {
    "junit": lambda _, facts: ("junit.xml", render_junit(facts)),
    "ctrf": lambda _, facts: ("ctrf.json", render_ctrf(facts)),
    "in-toto": _in_toto,
}


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (run, resume, report, list_campaigns, show, judge, review, cancel, attempts):
        root.add_command(one)


def _finish(settings: Settings, end: CampaignEnd) -> int:
    """Print how a campaign ended."""
    value = report_document(end.facts) | {"exit_code": end.exit_code, "stopped_by": end.stopped_by}
    settings.console.result(value, lambda console: show_verdict(console, end.facts))
    if not settings.console.as_json:
        show_files(settings.console, settings.store, end.facts)
    if end.stopped_by is not None:
        next_step = ADVICE if end.facts.arms_that_do_not_start() else "`assay resume` goes on from there"
        settings.console.warn(f"the campaign stopped early: {end.stopped_by}. {next_step[:1].upper()}{next_step[1:]}")
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


@command("report", example="assay report\nassay report served-pair-20261129 --out report\nassay report --format junit")
@CAMPAIGN
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that gets report.md, report.json and the figures.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("markdown", *FORMATS)),
    default="markdown",
    show_default=True,
    help="What is printed: the report, or test results for CI (junit, ctrf), or a signed in-toto test result.",
)
def report(settings: Settings, *, campaign: str, out: Path | None, form: str) -> int:
    """Print the report of a campaign, written again from its evidence."""
    _check_out(out, settings.store)
    facts = collect_facts(settings.store, campaign)
    if form != "markdown":
        name, content = FORMATS[form](settings.store, facts)
        if out is None:
            settings.console.result(content.decode(), lambda console: console.document(content.decode().rstrip("\n")))
        else:
            write_results(out, {name: content})
            settings.console.result(str(out / name), lambda console: console.show(f"wrote {out / name}"))
        return EXIT_OK
    files = render_report(facts)
    if out is not None:
        files |= campaign_figures(settings.store, facts.campaign_id)
        write_results(out, files)
        settings.console.say(f"wrote {', '.join(str(out / name) for name in files)}")
    settings.console.result(
        report_document(facts), lambda console: console.document(files["report.md"].decode().rstrip("\n"))
    )
    return EXIT_OK


def _check_out(out: Path | None, store: Path) -> None:
    check_folder(out)
    if out is not None and out.resolve().is_relative_to(store.resolve()):
        raise UsageError(
            "the report cannot be written into the store: it holds only what its ledger names",
            where=str(out),
            hint="name a folder outside of it",
        )


@command("list", example="assay list")
def list_campaigns(settings: Settings) -> int:
    """List the campaigns of the store, oldest first."""
    with Store.open(settings.store, read_only=True) as store:
        found, imported = store.campaigns(), import_folders(store.entries())
    value = [asdict(one) | {"locked_utc_ns": str(one.locked_utc_ns)} for one in found]

    def render(console: Console) -> None:
        show_campaigns(console, found)
        console.show(
            *(f"imported from {one.store}: assay list --store {settings.store / one.folder}" for one in imported)
        )

    settings.console.result(value, render)
    return EXIT_OK


@command("show", example="assay show\nassay show served-pair-20261129 --json")
@CAMPAIGN
def show(settings: Settings, *, campaign: str) -> int:
    """Show verdict, gates and loads of one campaign, with every review and every older verdict."""
    facts = collect_facts(settings.store, campaign)
    with Store.open(settings.store, read_only=True) as store:
        state = read_campaigns(store.entries())[facts.campaign_id]
        reviews = reviews_of(state, store.blobs.read)
    older = [{"entry_seq": entry.seq, "status": entry.text("status")} for entry in state.verdicts[:-1]]
    value = report_document(facts) | {"reviews": [_review_value(one) for one in reviews], "older_verdicts": older}

    def render(console: Console) -> None:
        show_verdict(console, facts)
        console.show(*(f"older verdict: {one['status']} (ledger entry {one['entry_seq']})" for one in older))
        console.show(*(_review_line(one) for one in reviews))

    settings.console.result(value, render)
    return EXIT_OK


def _review_value(one: Review) -> dict[str, object]:
    return asdict(one) | {"key": one.key.text()}


def _review_line(one: Review) -> str:
    what = "agrees" if one.decision == "agrees" else f"overrides it with {one.status}"
    return f"review of {one.verdict_status} (ledger entry {one.verdict_seq}): {one.reviewer} {what}: {one.statement}"


@command("judge", example="assay judge\nassay judge served-pair-20261129")
@CAMPAIGN
def judge(settings: Settings, *, campaign: str) -> int:
    """Judge stored evidence again with this Assay and record that; every older verdict stays and is linked."""
    with Store.open(settings.store, secrets=secret_values()) as store:
        campaign_id = store.resolve_campaign(campaign)
        before = [entry.text("status") for entry in read_campaigns(store.entries())[campaign_id].verdicts]
        judgement = rejudge(store, campaign_id)
    value = {
        "campaign": campaign_id,
        "status": judgement.verdict.status,
        "reason": judgement.verdict.reason,
        "older_verdicts": before,
    }
    lines = [f"{judgement.verdict.status}: {judgement.verdict.reason}", *(f"before: {status}" for status in before)]
    settings.console.result(value, lambda console: console.show(*lines))
    return judgement.verdict.exit_code


@command(
    "review",
    example="assay review --agree --by 'A. Reader' --statement 'read the raw streams'\n"
    "assay review --override FAIL --by 'A. Reader' --statement 'the model file was the wrong one'",
)
@CAMPAIGN
@click.option("--agree", is_flag=True, help="Agree with the recorded verdict.")
@click.option("--override", "status", type=click.Choice(STATUSES), help="Say that the verdict should be this one.")
@click.option("--by", "reviewer", required=True, help="Who reviews: a person or a tool.")
@click.option("--statement", required=True, help="What was looked at, and why.")
@click.option("--sign-with", "key_name", default=DEFAULT_NAME, show_default=True, help="Own key that signs the review.")
def review(
    settings: Settings, *, campaign: str, agree: bool, status: str | None, reviewer: str, statement: str, key_name: str
) -> int:
    """Add a signed review to the newest verdict. The verdict itself never changes and stays visible everywhere."""
    if agree == (status is not None):
        raise click.UsageError("say either --agree or --override STATUS")
    with Store.open(settings.store, secrets=secret_values()) as store:
        state = read_campaigns(store.entries())[store.resolve_campaign(campaign)]
        decision = DECISIONS[0] if agree else DECISIONS[1]
        signer = own_signer(key_name)
        entry = record_review(
            store.writer,
            state,
            decision=decision,
            status=status,
            reviewer=reviewer,
            statement=statement,
            by=signer,
        )
    value = {"campaign": state.campaign_id, "entry_seq": entry.seq, "decision": decision, "key": signer.public().text()}
    line = f"review recorded: ledger entry {entry.seq}, linked to entry {entry.number('verdict')}"
    settings.console.result(value, lambda console: console.show(line))
    return EXIT_OK


@command("cancel", example="assay cancel --reason 'the host is needed elsewhere'")
@CAMPAIGN
@click.option("--reason", required=True, help="Why it is given up.")
def cancel(settings: Settings, *, campaign: str, reason: str) -> int:
    """Give up a campaign that has no verdict, for good and on record; it stays an attempt at its question."""
    with Store.open(settings.store, secrets=secret_values()) as store:
        recorder = store.campaign_recorder(campaign)
        recorder.record_cancellation(reason)
    settings.console.result(
        {"campaign": recorder.campaign_id, "state": "cancelled"},
        lambda console: console.show(f"cancelled: {recorder.campaign_id}"),
    )
    return EXIT_OK


@command("attempts", example="assay attempts\nassay attempts served-pair-20261129 --json")
@CAMPAIGN
def attempts(settings: Settings, *, campaign: str) -> int:
    """List every campaign that asked the same question, oldest first, whatever candidate or host it was for.

    A question is baseline, model, workload and metric, or the name of the protocol; imported bundles count.
    """
    questions, found = attempts_of(settings.store, campaign)
    value = {
        "questions": [asdict(one) for one in questions],
        "attempts": [asdict(one) | {"locked_utc_ns": str(one.locked_utc_ns)} for one in found],
    }
    columns = ("campaign", "locked", "candidate", "state", "verdict", "the same", "in")
    rows = [
        (
            one.campaign_id,
            style.utc(one.locked_utc_ns),
            one.candidate,
            one.state,
            " then ".join(one.verdicts) or None,
            one.same,
            one.place,
        )
        for one in found
    ]
    lines = [f"question: {one.name}, {one.workload}, {one.metric} ({one.digest[:12]})" for one in questions]
    settings.console.result(value, lambda console: console.show(*lines, table(columns, rows)))
    return EXIT_OK
