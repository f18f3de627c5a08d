"""`assay doctor`."""

from __future__ import annotations

from dataclasses import asdict

import click

from harness.console import table
from harness.doctor import examine
from harness.exits import EXIT_EXECUTION, EXIT_OK
from harness.options import Settings, command
from protocols.load import find_protocol, load_protocol


@command("doctor", example="assay doctor\nassay doctor served-pair")
@click.argument("protocol", required=False)
def doctor(settings: Settings, *, protocol: str | None) -> int:
    """Say what this machine can do and measure, and what a protocol asks of it; exit 5 if something lacks."""
    wanted = None if protocol is None else load_protocol(find_protocol(protocol)).protocol
    lines = examine(settings.store, wanted)
    rows = [(line.topic, line.name, line.state, line.found, line.next) for line in lines]
    settings.console.result(
        [asdict(line) for line in lines],
        lambda console: console.show(table(("", "what", "state", "found", "next"), rows)),
    )
    return EXIT_EXECUTION if any(line.state == "missing" for line in lines) else EXIT_OK


def register(root: click.Group) -> None:
    """Add the command to the root group."""
    root.add_command(doctor)
