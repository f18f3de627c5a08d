"""`assay engine`: build, serve, bench, logits."""

from __future__ import annotations

from pathlib import Path

import click

from engine.build import QSA_PATHS
from harness.engines import become, build_facts, find_build, find_model, make_build, read_tokens, write_logits
from harness.options import Settings, command

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
build_option = click.option("--build", "folder", type=FOLDER, help="Folder of a build.  [default: the installed build]")
model_option = click.option("--model", required=True, help="Name of a fetched model, or path of a GGUF file.")


@click.group()
def engine() -> None:
    """Build the bundled engine, run it, and look into it."""


@command("build", example="assay engine build --name slow --fault slow-decode=30 --out builds/slow", with_store=False)
@click.option("--name", default="engine", show_default=True, help="Label of the build.")
@click.option(
    "--layout-salt", type=click.IntRange(min=0), default=0, show_default=True, help="Order of the same objects."
)
@click.option(
    "--fault", "faults", multiple=True, help="Known defect to compile in, such as slow-decode=30; repeatable."
)
@click.option(
    "--path",
    "qsa_path",
    type=click.Choice(QSA_PATHS),
    default="guarded",
    show_default=True,
    help="How block selection finds its inputs.",
)
@click.option("--source", type=FOLDER, help="Source tree.  [default: the bundled source]")
@click.option("--out", type=FOLDER, help="New folder that gets a copy of the build.  [default: only the cache]")
def build_command(
    settings: Settings,
    *,
    name: str,
    layout_salt: int,
    faults: tuple[str, ...],
    qsa_path: str,
    source: Path | None,
    out: Path | None,
) -> int:
    """Compile a named build of the engine, with a receipt of compiler, flags, inputs and outputs."""
    console = settings.console
    build = make_build(
        name=name, layout_salt=layout_salt, faults=faults, qsa_path=qsa_path, source=source, out=out, log=console.say
    )
    console.result(build_facts(build), lambda c: c.show(f"{build.name}: {build.folder}"))
    return 0


@command("serve", example="assay engine serve --model smollm2 --port 8080", with_store=False)
@build_option
@model_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve_command(settings: Settings, *, folder: Path | None, model: str, arguments: tuple[str, ...]) -> int:
    """Run the engine's server in this terminal; everything else on the line goes to it."""
    build = find_build(folder, settings.console.say)
    become(build.server, ["--model", str(find_model(model)), *arguments])
    return 0


@command("bench", example="assay engine bench --model smollm2 --threads 2", with_store=False)
@build_option
@model_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench_command(settings: Settings, *, folder: Path | None, model: str, arguments: tuple[str, ...]) -> int:
    """Run the engine's own benchmark, without HTTP; everything else on the line goes to it."""
    build = find_build(folder, settings.console.say)
    become(build.bench, ["--model", str(find_model(model)), *arguments])
    return 0


serve_command.context_settings = bench_command.context_settings = PASS_ON


@command("logits", example="assay engine logits --model smollm2 --tokens ids.json --out logits.npz", with_store=False)
@build_option
@model_option
@click.option("--tokens", type=FILE, required=True, help="JSON file with a list of token ids.")
@click.option(
    "--kv-type", type=click.Choice(["f32", "f16", "q8_0"]), default="f16", show_default=True, help="Cache type."
)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Threads.")
@click.option("--out", type=FILE, required=True, help="File to write; array `logits`, shape [tokens, vocabulary].")
def logits_command(
    settings: Settings, *, folder: Path | None, model: str, tokens: Path, kv_type: str, threads: int, out: Path
) -> int:
    """Write the full-vocabulary logits at every position of a token list."""
    ids, build = read_tokens(tokens), find_build(folder, settings.console.say)
    shape = write_logits(build=build, model=find_model(model), tokens=ids, kv_type=kv_type, threads=threads, out=out)
    value = {"file": str(out), "shape": list(shape), "kv_type": kv_type}
    settings.console.result(value, lambda c: c.show(f"{out}: logits of {shape[0]} tokens, vocabulary {shape[1]}"))
    return 0


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (build_command, serve_command, bench_command, logits_command):
        engine.add_command(one)
    root.add_command(engine)
