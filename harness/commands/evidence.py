"""`assay audit`."""

from __future__ import annotations

import click

from harness.auditing import audit_document, read_keys, show_audit
from harness.exits import EXIT_OK
from harness.options import Settings, command
from protocols.errors import EvidenceError
from recorder.audit import LEVELS, Level, audit_store


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    root.add_command(audit)


@command("audit", example="assay audit\nassay audit --level hashes --key release.pub --head 57:9f3c...")
@click.argument("campaign", required=False)
@click.option("--level", type=click.Choice(LEVELS), default="recompute", show_default=True, help="How far to check.")
@click.option(
    "--key", "keys", multiple=True, help="Trusted public key, or a file with one; repeatable.  [default: the key ring]"
)
@click.option("--head", help="Head that the ledger must continue, as an earlier audit printed it.")
def audit(settings: Settings, *, campaign: str | None, level: Level, keys: tuple[str, ...], head: str | None) -> int:
    """Check the evidence from its files alone and name the first place that does not hold; exit 6 if one does not."""
    result = audit_store(settings.store, level=level, campaign=campaign, trusted_keys=read_keys(keys), head=head)
    settings.console.result(audit_document(result, level), lambda console: show_audit(console, result, level))
    return EXIT_OK if result.is_sound else EvidenceError.exit_code
