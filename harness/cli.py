"""The command `assay`: the list of commands, and the process exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from harness.console import Console
from harness.exits import EXIT_INTERRUPTED, EXIT_USAGE
from harness.options import assay_version
from protocols.errors import ProtocolError

EPILOG = """\b
Exit codes:
  0    PASS, or the command did what it was asked
  1    FAIL
  2    usage or protocol error, a store, bundle or campaign that is not there among them
  3    INCONCLUSIVE, SCREEN_ONLY, or a required gate was NOT_RUN
  4    INVALID or NOT_COMPARABLE
  5    execution failed (engine or host)
  6    evidence does not hold
  130  interrupted
When several hold, the first of 6, 5, 4, 1, 3, 0 counts.

\b
Example:
  assay model fetch smollm2
  assay run served-pair
  assay report
  assay audit"""


MODULES: Final[Mapping[str, str]] = {
    "run": "campaigns",
    "resume": "campaigns",
    "plan": "statistics",
    "calibrate": "statistics",
    "report": "campaigns",
    "stats": "statistics",
    "simulate": "statistics",
    "trend": "statistics",
    "view": "statistics",
    "list": "campaigns",
    "show": "campaigns",
    "judge": "campaigns",
    "review": "campaigns",
    "cancel": "campaigns",
    "attempts": "campaigns",
    "audit": "evidence",
    "bundle": "evidence",
    "import": "evidence",
    "export": "evidence",
    "protocol": "protocols",
    "controls": "controls",
    "search": "searches",
    "smoke": "smokes",
    "engine": "engines",
    "model": "models",
    "key": "keys",
    "doctor": "hosts",
}
"""Each command and the module of `harness.commands` that has it, in the order of the help."""


class LazyGroup(click.Group):
    """Imports a command's module when it is asked for: `assay model fetch` needs no statistics and no tables."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now."""
        if cmd_name in MODULES and cmd_name not in self.commands:
            importlib.import_module(f"harness.commands.{MODULES[cmd_name]}").register(self)
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(assay_version(), prog_name="assay")
@click.option("--debug", is_flag=True, help="Show tracebacks of unexpected errors instead of writing them to a file.")
@click.pass_context
def cli(context: click.Context, *, debug: bool) -> None:
    """Answer whether a candidate engine may replace the baseline, and what exactly may be said about it."""
    context.obj = debug


def run_cli(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = cli.main(args=list(arguments), prog_name="assay", standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "assay"
        Console(as_json="--json" in arguments).fail(
            ProtocolError(error.format_message(), where=where, hint=f"`{where} --help` shows what is possible")
        )
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Give a stream that was closed a place that takes nothing: its number would go to a file that is opened later.

    What is printed then fails to be written, which is exit code 5 for a result, and never the exit code of a verdict.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDONLY)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))


def main() -> None:
    """Run the command line of this process."""
    _open_closed_streams()
    sys.exit(run_cli(sys.argv[1:]))
