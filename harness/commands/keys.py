"""`assay key`: make, show, trust, rotate, revoke."""

from __future__ import annotations

from pathlib import Path

import click

from harness.auditing import read_key
from harness.options import Settings, command
from protocols.errors import HostError, UsageError
from recorder.key_ring import REVOCATION, key_ring, parse_revocation, revoke, rotate, take_revocation
from recorder.keys import DEFAULT_NAME, VerifierKey, key_home, load_signer


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
    """Show the public half of one own key, or every key that an audit on this machine trusts, and the revoked ones."""
    ring = key_ring()
    keys = ring.trusted if name is None else (_own(name),)
    revoked = {one.key.text(): one.reason for one in ring.revoked if name is None or one.key.raw == keys[0].raw}
    lines = [public.text() for public in keys if public.text() not in revoked]
    lines += [f"{text} (revoked: {reason})" for text, reason in revoked.items()]
    value = [
        {"name": public.name, "public_key": public.text(), "is_revoked": public.text() in revoked} for public in keys
    ]
    value += [
        {"name": one.key.name, "public_key": one.key.text(), "is_revoked": True} for one in ring.revoked if name is None
    ]
    settings.console.result(value, lambda c: c.show(*(lines or ["no keys yet: `assay key make`"])))
    return 0


def _own(name: str) -> VerifierKey:
    """Return the public half of an own key that exists."""
    if not (key_home() / f"{name}.key").exists():
        raise UsageError(f"there is no key {name}", where=str(key_home()), hint=f"`assay key make {name}` makes it")
    return load_signer(name).public()


def _read(text: str) -> str:
    """Return the content of a file, or the text itself where it names none."""
    path = Path(text)
    is_file = len(text) < 1024 and path.is_file()
    return path.read_text("utf-8", errors="replace").strip() if is_file else text


@command("trust", example="assay key trust 'release+1f2e3d4c+AbC...'", with_store=False)
@click.argument("public_key")
def trust_command(settings: Settings, *, public_key: str) -> int:
    """Trust somebody's public key: audits then say VERIFIED for ledgers that it signed."""
    verifier = read_key(_read(public_key))
    file = key_home() / "trusted" / f"{verifier.key_hash.hex()}.pub"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(verifier.text() + "\n", encoding="ascii")
    except (OSError, UnicodeEncodeError) as error:
        raise HostError(f"the key cannot be kept: {error}", where=str(file)) from None
    settings.console.result({"name": verifier.name, "file": str(file)}, lambda c: c.show(f"trusts {verifier.text()}"))
    return 0


@command("rotate", example="assay key rotate\nassay key rotate release", with_store=False)
@click.argument("name", default=DEFAULT_NAME)
def rotate_command(settings: Settings, *, name: str) -> int:
    """Replace a private key by a new one; both sign that the one follows the other, and the old one is destroyed.

    The next store that is opened records the statement: whoever trusts the old key then trusts the new one as well.
    """
    done = rotate(name)
    value = {"name": name, "old": done.old.text(), "new": done.new.text(), "statement": done.note}
    settings.console.result(value, lambda c: c.show(f"old: {done.old.text()}", f"new: {done.new.text()}"))
    return 0


@command("revoke", example="assay key revoke release --reason 'the laptop was stolen'", with_store=False)
@click.argument("which")
@click.option("--reason", default="", help="Why, in one line.")
def revoke_command(settings: Settings, *, which: str, reason: str) -> int:
    """Stop trusting a key, whenever it signed. WHICH is an own key, a public key, or a statement that was published.

    The statement is printed, for others to take with the same command.
    """
    text = _read(which)
    if text.startswith(REVOCATION):
        statement = take_revocation(text if text.endswith("\n") else f"{text}\n")
    else:
        statement = revoke(read_key(text) if "+" in text else _own(text), reason)
    found = parse_revocation(statement)
    value = {"public_key": found.key.text(), "reason": found.reason, "statement": statement}
    settings.console.result(value, lambda c: c.document(statement.rstrip("\n")))
    return 0


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (make_command, show_command, trust_command, rotate_command, revoke_command):
        key.add_command(one)
    root.add_command(key)
