"""`assay model`: fetch."""

from __future__ import annotations

import click

from engine.models import MODELS, fetch_model
from harness.options import Settings, command


@click.group()
def model() -> None:
    """Get the models that bundled protocols use."""


@command("fetch", example="assay model fetch smollm2", with_store=False)
@click.argument("name", type=click.Choice(sorted(MODELS)))
def fetch_command(settings: Settings, *, name: str) -> int:
    """Download a known model into the cache folder and check its SHA-256; a second time it is only checked."""
    path = fetch_model(name, log=settings.console.say)
    known = MODELS[name]
    value = {"name": name, "path": str(path), "bytes": known.bytes, "sha256": known.sha256}
    settings.console.result(value, lambda c: c.show(str(path)))
    return 0


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (fetch_command,):
        model.add_command(one)
    root.add_command(model)
