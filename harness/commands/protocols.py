"""`assay protocol`: check, schema, prompt, new."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.exits import EXIT_OK, EXIT_USAGE
from harness.options import Settings, command
from harness.prompts import write_prompt, write_protocol
from harness.result_files import check_file, write_result
from protocols.canonical import sha256_hex
from protocols.errors import ProtocolError
from protocols.load import find_protocol, library_names, load_protocol
from protocols.schema import json_schema

FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def protocol() -> None:
    """Write, check and freeze protocols."""


@command("check", example="assay protocol check my-pair.yaml", with_store=False)
@click.argument("names", metavar="PROTOCOL...", nargs=-1, required=True)
def check_command(settings: Settings, *, names: tuple[str, ...]) -> int:
    """Read protocols (files, or names of bundled ones) and name everything that is wrong in them."""
    results, lines = [], []
    for name in names:
        try:
            loaded = load_protocol(find_protocol(name))
            problems, warnings = [], [problem.line() for problem in loaded.warnings]
        except ProtocolError as error:
            problems, warnings = list(error.lines()), []
        results.append({"protocol": name, "is_sound": not problems, "problems": problems, "warnings": warnings})
        lines += [*problems, *(f"warning: {line}" for line in warnings)]
        lines.append(f"{name}: {'refused' if problems else 'sound'}")
    settings.console.result(results, lambda c: c.show(*lines))
    return EXIT_OK if all(result["is_sound"] for result in results) else EXIT_USAGE


@command("schema", example="assay protocol schema --out protocol.schema.json", with_store=False)
@click.option("--out", type=FILE, help="File to write.  [default: standard output]")
def schema_command(settings: Settings, *, out: Path | None) -> int:
    """Write the JSON Schema of protocol files, for editors and other tools."""
    text = json.dumps(json_schema(), indent=2) + "\n"
    if out is None:
        settings.console.result(json_schema(), lambda c: c.document(text.rstrip("\n")))
        return EXIT_OK
    check_file(out)
    write_result(out, text)
    settings.console.result({"file": str(out)}, lambda c: c.show(str(out)))
    return EXIT_OK


@command("prompt", example="assay protocol prompt --tokens 8192 --out requests/cold-8192.json", with_store=False)
@click.option("--tokens", type=click.IntRange(min=1), required=True, help="Exact number of prompt tokens.")
@click.option(
    "--generated-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens to generate."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Another seed gives another text."
)
@click.option(
    "--model", default="smollm2", show_default=True, help="Model whose tokenizer counts: a name or a GGUF file."
)
@click.option(
    "--build", type=click.Path(path_type=Path, file_okay=False), help="Build to use.  [default: the installed one]"
)
@click.option("--out", type=FILE, required=True, help="New file for the request body.")
def prompt_command(
    settings: Settings, *, tokens: int, generated_tokens: int, seed: int, model: str, build: Path | None, out: Path
) -> int:
    """Freeze a cold prompt of exactly N tokens as the body of a completion request."""
    body = write_prompt(
        tokens=tokens,
        seed=seed,
        generated_tokens=generated_tokens,
        model=model,
        build=build,
        out=out,
        log=settings.console.say,
    )
    value = {
        "file": str(out),
        "prompt_tokens": tokens,
        "generated_tokens": generated_tokens,
        "sha256": sha256_hex(body),
    }
    settings.console.result(value, lambda c: c.show(f"{out}: {tokens} prompt tokens, SHA-256 {value['sha256']}"))
    return EXIT_OK


@command("new", example="assay protocol new my-pair.yaml", with_store=False)
@click.argument("out", type=FILE)
@click.option(
    "--from", "template", type=click.Choice(library_names()), default="served-pair", show_default=True, help="Copied."
)
def new_command(settings: Settings, *, out: Path, template: str) -> int:
    """Start a protocol of your own from a bundled one, comments included."""
    identifier = write_protocol(template=template, out=out)
    value = {"file": str(out), "id": identifier, "template": template}
    settings.console.result(value, lambda c: c.show(f"{out}: edit it, then `assay protocol check {out}`"))
    return EXIT_OK


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (check_command, schema_command, prompt_command, new_command):
        protocol.add_command(one)
    root.add_command(protocol)
