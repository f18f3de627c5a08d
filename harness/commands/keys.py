"""`assay key`: make, show, trust."""

from __future__ import annotations

from pathlib import Path

import click

from harness.auditing import read_key
from harness.options import Settings, command
from protocols.errors import HostError, UsageError
from recorder.keys import DEFAULT_NAME, key_home, load_signer, trusted_keys


@click.group()
def key() -> None:
    """Keys that sign checkpoints, and keys that an audit trusts."""


@command("make", example="assay key make\nassay key make release", with_store=False)
@click.argument("name", default=DEFAULT_NAME)
def make_command(settings: Settings, *, name: str) -> int:
    """Make a private key (mode 0600, in the user's key folder) and show its public half."""
    path = key_home() / f"{name}.key"
    if path.exists():
        raise HostError(
            f"the key {name} exists already", where=str(path), hint=f"`assay key show {name}` shows its public half"
        )
    public = load_signer(name).public()
    value = {"name": name, "file": str(path), "public_key": public.text()}
    settings.console.result(value, lambda c: c.show(public.text()))
    return 0


@command("show", example="assay key show", with_store=False)
@click.argument("name", required=False)
def show_command(settings: Settings, *, name: str | None) -> int:
    """Show the public half of one own key, or every key that an audit on this machine trusts."""
    if name is not None and not (key_home() / f"{name}.key").exists():
        raise UsageError(f"there is no key {name}", where=str(key_home()), hint=f"`assay key make {name}` makes it")
    keys = trusted_keys() if name is None else (load_signer(name).public(),)
    lines = [public.text() for public in keys] or ["no keys yet: `assay key make`"]
    settings.console.result(
        [{"name": public.name, "public_key": public.text()} for public in keys], lambda c: c.show(*lines)
    )
    return 0


@command("trust", example="assay key trust 'release+1f2e3d4c+AbC...'", with_store=False)
@click.argument("public_key")
def trust_command(settings: Settings, *, public_key: str) -> int:
    """Trust somebody's public key: audits then say VERIFIED for ledgers that it signed."""
    path = Path(public_key)
    text = path.read_text("ascii", errors="replace").strip() if path.is_file() else public_key
    verifier = read_key(text)
    file = key_home() / "trusted" / f"{verifier.key_hash.hex()}.pub"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(verifier.text() + "\n", encoding="ascii")
    except (OSError, UnicodeEncodeError) as error:
        raise HostError(f"the key cannot be kept: {error}", where=str(file)) from None
    settings.console.result({"name": verifier.name, "file": str(file)}, lambda c: c.show(f"trusts {verifier.text()}"))
    return 0


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (make_command, show_command, trust_command):
        key.add_command(one)
    root.add_command(key)
