"""`assay controls list`, `assay controls run` and `assay controls alarms`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from harness.alarms import run_fault_free
from harness.console import Console, table
from harness.controls import run_controls
from harness.exits import EXIT_OK
from harness.options import Settings, command
from harness.result_files import LateResult, check_file
from protocols.alarms import count_alarms, fault_free
from protocols.controls import Control, load_controls
from protocols.errors import UsageError
from protocols.findings import nearest
from protocols.load import LIBRARY, load_protocol
from reports.alarms import HEADS as ALARM_HEADS
from reports.alarms import alarm_document, alarm_markdown, alarm_rows, alarm_summary
from reports.detection import HEADS, detection_document, detection_markdown, detection_rows, summary

EXIT_MISSED: Final = 1


def register(root: click.Group) -> None:
    """Add the group to the root group."""
    root.add_command(controls)


@click.group("controls")
def controls() -> None:
    """Known faults of an engine, and whether the protocols catch them."""


def _chosen(names: tuple[str, ...]) -> tuple[Control, ...]:
    known = {one.id: one for one in load_controls()}
    for name in names:
        if name not in known:
            hint = nearest(name, list(known))
            raise UsageError(f"there is no control {name}", hint=f"write {hint}" if hint else "assay controls list")
    return tuple(one for one in known.values() if not names or one.id in names)


@command("list", example="assay controls list", with_store=False)
def list_controls(settings: Settings) -> int:
    """List the controls: what is wrong with each candidate, and the gate that is there to catch it."""
    found = load_controls()
    heads = ("control", "what is wrong", "protocol", "gate meant")
    rows = [(one.id, one.meaning, one.protocol, one.gate) for one in found]
    settings.console.result(
        [one.model_dump(mode="json") for one in found], lambda console: console.show(table(heads, rows))
    )
    return EXIT_OK


@command("run", example="assay controls run\nassay controls run split-utf8 wrong-timings --out detection.md")
@click.argument("names", nargs=-1, metavar="[CONTROL]...")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File that gets the matrix as Markdown.")
def run(settings: Settings, *, names: tuple[str, ...], out: Path | None) -> int:
    """Run every control (or those named), and print which gate caught it: exit code 1 where one is missed.

    Each control is a campaign of its own in the store, with a candidate that has one known fault. The protocols are run
    without a fault, too, and no gate may fire there.
    """
    check_file(out)
    file = LateResult(out, settings.console.warn)
    progress, outcomes = settings.console.progress(), []
    for outcome in run_controls(_chosen(names), settings.store, progress=progress):
        outcomes.append(outcome)
        settings.console.say(summary(outcomes))
        file.write(detection_markdown(outcomes))  # after each campaign: a long run that breaks off leaves what it found

    def render(console: Console) -> None:
        console.show(table(HEADS, detection_rows(outcomes)))
        console.show(summary(outcomes))

    settings.console.result(detection_document(outcomes), render)
    return file.exit_code(EXIT_OK if all(one.caught for one in outcomes) else EXIT_MISSED)


@command("alarms", example="assay controls alarms release-quick --campaigns 50 --out alarms.md")
@click.argument("protocol", metavar="PROTOCOL")
@click.option("--campaigns", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many are run.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File that gets the table as Markdown.")
def alarms(settings: Settings, *, protocol: str, campaigns: int, out: Path | None) -> int:
    """Run a bundled protocol over two right builds, and count how often each gate fires: exit code 1 if too often.

    An exact gate may never fire, one over rates in a tenth of the campaigns.
    """
    check_file(out)
    file = LateResult(out, settings.console.warn)
    path = LIBRARY / f"{protocol}.yaml"
    if not path.is_file():
        known = sorted(one.stem for one in LIBRARY.glob("*.yaml"))
        hint = nearest(protocol, known)
        raise UsageError(f"there is no bundled protocol {protocol}", hint=f"write {hint or ', '.join(known)}")
    loaded = fault_free(load_protocol(path))
    seen: list[tuple[tuple[str, str], ...]] = []
    for one in run_fault_free(loaded, campaigns, settings.store, progress=settings.console.progress()):
        seen.append(one)
        found = count_alarms(loaded, seen)
        settings.console.say(alarm_summary(found))
        file.write(alarm_markdown(found))  # after each campaign: a long run that breaks off leaves what it found

    def render(console: Console) -> None:
        console.show(table(ALARM_HEADS, alarm_rows(found)))
        console.show(alarm_summary(found))

    settings.console.result(alarm_document(found), render)
    return file.exit_code(EXIT_MISSED if any(one.is_too_often for one in found) else EXIT_OK)


controls.add_command(list_controls)
controls.add_command(run)
controls.add_command(alarms)
