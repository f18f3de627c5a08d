"""`assay audit`, `bundle`, `import`, `export`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from harness.api_key import secret_values
from harness.auditing import audit_document, evidence_place, read_keys, read_lock, show_audit, summary
from harness.exits import EXIT_OK
from harness.options import Settings, assay_version, command
from harness.result_files import LateResult, check_file, check_folder
from protocols.errors import EvidenceError
from recorder.attestation import envelope, verification_summary
from recorder.audit import LEVELS, Level, audit_store
from recorder.bundle import write_bundle
from recorder.export import FORMATS, Format, export_tables
from recorder.importing import import_bundle
from recorder.key_ring import own_signer
from recorder.redaction import parse_rule
from recorder.store import Store

OTHERS_KEPT = (
    "of other campaigns it holds lock, protocol and ledger entries, which the hashes need; to share none of them, run "
    "the campaign in a store of its own (--store)"
)
FILE = click.Path(path_type=Path, dir_okay=False)
KEYS = click.option(
    "--key", "keys", multiple=True, help="Trusted public key, or a file with one; repeatable.  [default: the key ring]"
)


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (audit, bundle, import_command, export):
        root.add_command(one)


@command(
    "audit",
    example="assay audit\nassay audit release.assay.tar.zst --key release.pub --head 57:9f3c...",
)
@click.argument("evidence", required=False)
@click.option("--campaign", help="Only this campaign's judgement (levels up to tables look at the whole store).")
@click.option("--level", type=click.Choice(LEVELS), default="recompute", show_default=True, help="How far to check.")
@click.option("--recompute", is_flag=True, help="The same as --level recompute: everything again from raw bytes.")
@click.option(
    "--against", type=FILE, help="Lock that was kept elsewhere: the campaign must have promised exactly that."
)
@KEYS
@click.option("--head", help="Head that the ledger must continue, as an earlier audit printed it.")
@click.option("--attest", type=FILE, help="Also write a signed verification summary (in-toto, DSSE) to this file.")
def audit(
    settings: Settings,
    *,
    evidence: str | None,
    campaign: str | None,
    level: Level,
    recompute: bool,
    against: Path | None,
    keys: tuple[str, ...],
    head: str | None,
    attest: Path | None,
) -> int:
    """Check evidence from its files alone and name the first place that does not hold; exit 6 if one does not.

    EVIDENCE is a bundle, an unpacked one, a store folder, or a campaign of the store; the store if it is left out.
    """
    check_file(attest, option="--attest")
    file = LateResult(attest, settings.console.warn)
    place, named = evidence_place(settings.store, evidence)
    level = "recompute" if recompute else level
    result = audit_store(
        place,
        level=level,
        campaign=campaign or named,
        **read_keys(keys)._asdict(),
        head=head,
        against=None if against is None else read_lock(against),
    )
    if attest is not None:
        versions = {"assay": assay_version()}
        summarised = verification_summary(result, level=level, utc_ns=time.time_ns(), versions=versions)
        file.write(envelope(summarised, own_signer()))
    settings.console.result(audit_document(result, level), lambda console: show_audit(console, result, level))
    return file.exit_code(EXIT_OK if result.is_sound else EvidenceError.exit_code)


@command(
    "bundle",
    example="assay bundle\nassay bundle --out release.assay.tar.zst --redact log --redact 'text:host.*'\n"
    "assay bundle served-pair-20261129",
)
@click.argument("campaign", required=False)
@click.option("--out", type=FILE, help="File to write.  [default: <store id>-<entries>.assay.tar.zst]")
@click.option(
    "--redact",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Leave out blobs of a role, or of a role and a name (ROLE:PATTERN); every hash still verifies. Repeatable.",
)
def bundle(settings: Settings, *, campaign: str | None, out: Path | None, rules: tuple[str, ...]) -> int:
    """Write the evidence as one reproducible file that strangers can check, with a verifier beside it.

    With CAMPAIGN, what was recorded of every other campaign is left out: requests, answers, telemetry, logs, reports.
    What the others promised stays (lock.json with the host's identity, protocol.yaml), and the ledger stays whole.
    """
    check_file(out, makes_folders=True)
    made = write_bundle(settings.store, out, rules=[parse_rule(rule) for rule in rules], only_campaign=campaign)
    value = asdict(made) | {"path": str(made.path), "verifier": str(made.verifier)}
    lines = [
        f"{made.path}: {made.files} files, {made.content_bytes} bytes in {made.bytes}, {made.left_out} blobs left out",
        *([OTHERS_KEPT] if campaign is not None and made.left_out else []),
        f"sha256: {made.sha256}",
        f"head: {made.head}",
        f"check it: assay audit {made.path}",
        f"or with Python alone: python3 {made.verifier.name} FOLDER, after tar --zstd -xf {made.path.name} -C FOLDER",
    ]
    settings.console.result(value, lambda console: console.show(*lines))
    return EXIT_OK


@command("import", example="assay import release.assay.tar.zst --key release.pub")
@click.argument("archive", type=FILE)
@KEYS
def import_command(settings: Settings, *, archive: Path, keys: tuple[str, ...]) -> int:
    """Take a bundle of another store into this one, after auditing it; nothing of it is changed or lost."""
    with Store.open(settings.store, create=True, secrets=secret_values()) as store:
        done = import_bundle(store, archive, trusted_keys=read_keys(keys).trusted_keys)
    folder = settings.store / done.folder
    value = {
        "folder": str(folder),
        "store": done.manifest.store,
        "head": done.audit.head,
        "left_out": len(done.manifest.left_out),
        "was_here": done.was_here,
        "trust": done.audit.trust,
    }
    lines = [
        f"{'was here already' if done.was_here else 'imported'}: {folder}",
        summary(done.audit, "recompute"),
        f"look at it: assay list --store {folder}",
    ]
    settings.console.result(value, lambda console: console.show(*lines))
    return EXIT_OK


@command(
    "export", example="assay export --out tables\nassay export --out tables --format csv --table request --table token"
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder that gets the files."
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True, help="Kind of files."
)
@click.option("--table", "tables", multiple=True, help="Only this table; repeatable.  [default: all]")
def export(settings: Settings, *, out: Path, form: Format, tables: tuple[str, ...]) -> int:
    """Write the rows of the database as Parquet or CSV, a file a table, for pandas, DuckDB and spreadsheets."""
    check_folder(out)
    counts = export_tables(settings.store, out, form=form, names=tables)
    value = {"folder": str(out), "format": form, "rows": counts}
    lines = (f"{out / name}.{form}: {count} rows" for name, count in counts.items())
    settings.console.result(value, lambda console: console.show(*lines))
    return EXIT_OK
