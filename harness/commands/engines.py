"""`assay engine`: build, pack, unpack, serve, bench, logits, perplexity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from engine.build import QSA_PATHS
from harness.api_key import secret_values
from harness.engines import (
    become,
    build_facts,
    find_build,
    find_model,
    make_build,
    read_tokens,
    text_perplexity,
    write_logits,
)
from harness.options import Settings, command, threads_option
from harness.result_files import check_file, check_folder
from harness.transfer import SUFFIX, Transfer, check_archive, pack_build, unpack_build
from protocols.errors import AssayError, HostError
from protocols.paths import read_given
from recorder.receipts import record_receipt
from recorder.store import Store

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


RECORD = click.option("--record", is_flag=True, help="Also record a receipt in the store, whether it succeeds or not.")


def _recorded(settings: Settings, action: str, do: Callable[[], Transfer], *, record: bool) -> Transfer:
    """Do one transfer; put on record what came of it, where that was asked for."""
    if not record:
        return do()
    with Store.open(settings.store, create=True, secrets=secret_values()) as store:
        try:
            done = do()
        except AssayError as error:
            record_receipt(store.writer, "transfer", {"action": action, "error": str(error), "where": error.where}, {})
            raise
        record_receipt(store.writer, "transfer", done.payload(action), {})
        return done


@command(
    "pack", example="assay engine pack builds/slow --out slow.build.tar.zst\nassay engine pack builds/slow --record"
)
@click.argument("folder", type=FOLDER)
@click.option("--out", type=FILE, help="File to write.  [default: <folder>.build.tar.zst]")
@RECORD
def pack_command(settings: Settings, *, folder: Path, out: Path | None, record: bool) -> int:
    """Pack a build into one file, every file by its hash, to be moved to another machine."""
    check_file(out, makes_folders=True)
    target = out or Path(f"{folder.name}{SUFFIX}")
    done = _recorded(settings, "pack", lambda: pack_build(folder, target), record=record)
    value = {"file": str(target), **done.payload("pack")}
    lines = [f"{target}: {done.files} files, {done.content_bytes} bytes", f"sha256: {done.sha256}"]
    settings.console.result(value, lambda c: c.show(*lines))
    return 0


@command("unpack", example="assay engine unpack slow.build.tar.zst --out builds/slow --sha256 9f3c...")
@click.argument("archive", type=FILE)
@click.option("--out", type=FOLDER, required=True, help="New folder that gets the build.")
@click.option("--sha256", help="Hash that the archive must have, as `assay engine pack` printed it.")
@RECORD
def unpack_command(settings: Settings, *, archive: Path, out: Path, sha256: str | None, record: bool) -> int:
    """Unpack a build into a new folder, checking every hash and the build against its own receipt."""
    check_folder(out)

    def unpack() -> Transfer:
        check_archive(archive, sha256)
        return unpack_build(archive, out)[1]

    done = _recorded(settings, "unpack", unpack, record=record)
    value = {"folder": str(out), **done.payload("unpack")}
    settings.console.result(value, lambda c: c.show(f"{out}: {done.files} files, every hash holds"))
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
@threads_option(2)
@click.option("--out", type=FILE, required=True, help="File to write; array `logits`, shape [tokens, vocabulary].")
def logits_command(
    settings: Settings, *, folder: Path | None, model: str, tokens: Path, kv_type: str, threads: int, out: Path
) -> int:
    """Write the full-vocabulary logits at every position of a token list."""
    check_file(out, makes_folders=True, is_streamed=False)
    ids, build = read_tokens(tokens), find_build(folder, settings.console.say)
    shape = write_logits(build=build, model=find_model(model), tokens=ids, kv_type=kv_type, threads=threads, out=out)
    value = {"file": str(out), "shape": list(shape), "kv_type": kv_type}
    settings.console.result(value, lambda c: c.show(f"{out}: logits of {shape[0]} tokens, vocabulary {shape[1]}"))
    return 0


@command("perplexity", example="assay engine perplexity --model smollm2 --text corpus.txt", with_store=False)
@build_option
@model_option
@click.option("--text", type=FILE, required=True, help="UTF-8 text, evaluated as one sequence.")
@click.option(
    "--kv-type", type=click.Choice(["f32", "f16", "q8_0"]), default="f16", show_default=True, help="Cache type."
)
@threads_option(2)
def perplexity_command(
    settings: Settings, *, folder: Path | None, model: str, text: Path, kv_type: str, threads: int
) -> int:
    """Print the perplexity of a text under a model: exp of the mean negative log-likelihood of the next tokens."""
    try:
        content = read_given(text)
    except OSError as error:
        raise HostError(f"the text cannot be read: {error.strerror}", where=str(text)) from None
    build = find_build(folder, settings.console.say)
    found = text_perplexity(build=build, model=find_model(model), text=content, kv_type=kv_type, threads=threads)
    value = {"perplexity": found.value, "predicted_tokens": found.predicted, "mean_nll": found.mean_nll}
    line = f"perplexity: {found.value:.4f} over {found.predicted} tokens"
    settings.console.result(value, lambda c: c.show(line))
    return 0


def register(root: click.Group) -> None:
    """Add the commands to the root group."""
    for one in (build_command, pack_command, unpack_command, serve_command, bench_command):
        engine.add_command(one)
    engine.add_command(logits_command)
    engine.add_command(perplexity_command)
    root.add_command(engine)
