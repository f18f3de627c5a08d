"""`assay search`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, cast

import click

from harness.console import Console, table
from harness.engines import find_build, find_model
from harness.exits import EXIT_OK
from harness.options import FiniteRange, Settings, command, threads_option
from harness.result_files import LateResult, check_file
from harness.search import Player, replay, search
from protocols.laws import LAWS, LawName
from protocols.plain_text import one_line
from protocols.search import replayed_search
from reports.reproducer import HEADS, finding_text, summary, tally_rows

EXIT_FOUND: Final = 1
_CASES: Final = 100


def register(root: click.Group) -> None:
    """Add the command to the root group."""
    root.add_command(search_command)


@command(
    "search",
    example="assay search qwen4exp-recall --cases 200 --out found.json\n"
    "assay search qwen4exp-recall --replay found.json",
    with_store=False,
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--build",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of a build.  [default: the installed build]",
)
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**64 - 1), default=1, show_default=True, help="Seed of the cases."
)
@click.option("--cases", type=click.IntRange(min=1), help=f"Cases to try.  [default: {_CASES}, without --seconds]")
@click.option("--seconds", type=FiniteRange(min=0, min_open=True), help="Draw cases for so long.")
@click.option(
    "--law", "laws", multiple=True, type=click.Choice(tuple(LAWS)), help="Law to try; repeatable.  [default: all]"
)
@threads_option(1)
@click.option(
    "--tolerance",
    type=FiniteRange(min=0),
    help="Largest difference of logits where bytes are not promised.  [default: by the types of cache and weights]",
)
@click.option(
    "--replay", "replayed", type=click.Path(path_type=Path, dir_okay=False), help="Play the findings of a file again."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File that gets everything as JSON.")
def search_command(
    settings: Settings,
    *,
    model: str,
    folder: Path | None,
    seed: int,
    cases: int | None,
    seconds: float | None,
    laws: tuple[str, ...],
    threads: int,
    tolerance: float | None,
    replayed: Path | None,
    out: Path | None,
) -> int:
    """Search for histories that break a law of an engine, and shrink each to a reproducer: exit code 1 with findings.

    A law is a pair of histories that must give the same logits, such as a conversation that is copied and one that goes
    on by itself. Cases are drawn from the seed. MODEL is the name of a known model or the path of a GGUF file.
    """
    check_file(out)
    file = LateResult(out, settings.console.warn)
    progress = settings.console.progress()
    again = None if replayed is None else replayed_search(replayed)
    chosen = cast("tuple[LawName, ...]", tuple(dict.fromkeys(laws)) or tuple(LAWS))
    build = find_build(folder, settings.console.say)
    with Player(build, find_model(model), threads=threads, tolerance=tolerance) as player:
        if again is None:
            most = _CASES if cases is None and seconds is None else cases
            result = search(player, chosen, seed=seed, cases=most, seconds=seconds, progress=progress)
        else:
            if again.model and (again.model, again.vocabulary) != (player.model.name, player.vocabulary):
                found_on = one_line(again.model)
                settings.console.warn(
                    f"found on {found_on}, and played on {player.model.name}: other weights, other logits"
                )
            result = replay(player, again.cases, source=str(replayed))
    document = result.document()
    file.write(json.dumps(document, indent=1) + "\n")

    def render(console: Console) -> None:
        console.show(table(HEADS, tally_rows(result)))
        for one in result.findings:
            console.show("")
            console.document(finding_text(one, result.vocabulary))
        console.show("", summary(result))

    settings.console.result(document, render)
    return file.exit_code(EXIT_FOUND if result.findings else EXIT_OK)
