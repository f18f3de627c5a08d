"""The one module that prints: progress and messages to standard error, results to standard output.

With `--json` standard output carries exactly one JSON document. Colour follows the terminal and `NO_COLOR`, and never
carries a meaning of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, cast

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harness.exits import EXIT_EXECUTION, EXIT_INTERRUPTED
from harness.outlet import Outlet
from harness.progress import Clockwork, Progress
from protocols.errors import AssayError
from protocols.plain_text import one_line, plain, quoted
from protocols.results import in_short

COLOURS = {
    "PASS": "green",
    "COMPLETE": "green",
    "FAIL": "red",
    "INVALID": "red",
    "NOT_COMPARABLE": "red",
    "INCONCLUSIVE": "yellow",
    "SCREEN_ONLY": "yellow",
    "PARTIAL": "yellow",
    "NOT_RUN": "yellow",
}


_PLAIN_WIDTH = 140
"""Columns of tables where there is no terminal that says how wide it is."""


class Console:
    """Standard output and standard error of one command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stdout, self._stderr = Outlet(sys.stdout), Outlet(sys.stderr)
        width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        self.out = RichConsole(file=cast("IO[str]", self._stdout), highlight=False, width=width)
        soft_wrap = not sys.stderr.isatty()
        self.err = RichConsole(file=cast("IO[str]", self._stderr), highlight=False, soft_wrap=soft_wrap)

    def result(self, value: Any, render: Callable[[Console], None]) -> None:  # noqa: ANN401 - any JSON document
        """Print a result: the value as JSON with `--json`, else whatever `render` prints."""
        if self.as_json:
            self.out.file.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
            self.out.file.flush()
        else:
            render(self)

    def show(self, *renderables: RenderableType) -> None:
        """Print to standard output; a string is taken literally, and is one line."""
        for item in renderables:
            if isinstance(item, str):
                self.out.print(Text(one_line(item)), soft_wrap=True)
            else:
                self.out.print(item)

    def document(self, text: str) -> None:
        """Print a text of many lines of ours, in which texts of others stand on one line each."""
        self.out.print(Text(plain(text)), soft_wrap=True)

    def say(self, text: str) -> None:
        """Print one line to standard error; further lines are marked as going on."""
        self.err.print(Text(quoted(text)))

    def warn(self, text: str) -> None:
        """Print one warning to standard error."""
        self.err.print(Text("warning: ", style="yellow").append(quoted(text), style="default"))

    def fail(self, error: AssayError) -> None:
        """Print what went wrong, where, and what to do next."""
        problems = error.lines()
        if len(problems) > 1:
            self.err.print(Text("error: ", style="bold red").append(f"{len(problems)} problems", style="default"))
            self.err.print(Text("\n".join(f"  {quoted(line)}" for line in problems)))
        else:
            self._fail_once(error)
        if self.as_json:
            self.result(error_document(error), lambda _: None)

    def _fail_once(self, error: AssayError) -> None:
        block = Text("error: ", style="bold red").append(quoted(str(error)), style="default")
        if error.where:
            block.append(f"\n  where: {one_line(error.where)}", style="default")
        if error.hint:
            block.append(f"\n  next:  {one_line(error.hint)}", style="default")
        self.err.print(block)

    def finish(self, exit_code: int) -> int:
        """Flush both streams and return the exit code of the command; a result that could not be written is 5.

        A reader that has gone away (`assay list | head`) changes nothing.
        """
        self._stderr.flush()
        self._stdout.flush()
        error = self._stdout.error
        if error is None or isinstance(error, BrokenPipeError):
            return exit_code
        self.say(f"error: the result could not be written to standard output: {error.strerror}")
        return max(exit_code, EXIT_EXECUTION) if exit_code != EXIT_INTERRUPTED else exit_code

    def progress(self) -> Progress:
        """Return the progress display that fits standard error."""
        return LiveProgress(self) if self.err.is_terminal and not self.err.is_dumb_terminal else PlainProgress(self)


def error_document(error: AssayError) -> dict[str, Any]:
    """Return an error as the JSON document that `--json` prints for it."""
    return {
        "error": {
            "family": error.family,
            "message": str(error),
            "where": error.where,
            "hint": error.hint,
            "problems": list(error.lines()),
            "exit_code": error.exit_code,
        }
    }


def status_text(status: str) -> Text:
    """Return a status word, coloured where there is colour."""
    return Text(status, style=COLOURS.get(status, "default"))


def table(columns: Sequence[str], rows: Sequence[Sequence[str | None]], *, title: str | None = None) -> Table:
    """Return a table of plain texts; status words get their colour, None shows as a dash."""
    made = Table(*columns, title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
    for row in rows:
        made.add_row(
            *(status_text(cell) if cell in COLOURS else Text("-" if cell is None else one_line(cell)) for cell in row)
        )
    return made


def panel(title: str, status: str, lines: Sequence[str]) -> Panel:
    """Return a framed block with a status in its title."""
    head = Text.assemble(f"{title}: ", status_text(status))
    return Panel(
        Text("\n".join(map(one_line, lines))),
        title=head,
        title_align="left",
        border_style=COLOURS.get(status, "default"),
    )


class PlainProgress:
    """Progress as lines: for logs, pipes and dumb terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = Clockwork()

    def begin(self, *, campaign_id: str, n_positions: int, n_done: int) -> None:
        """Name the campaign."""
        self._clock.begin(campaign_id, n_positions)
        done = f", {n_done} already complete" if n_done else ""
        self._console.say(f"campaign {campaign_id}: {n_positions} loads{done}")

    def position(self, *, number: int, label: str, arm: str) -> None:
        """Name the load that starts."""
        self._clock.position(number, label, arm)
        self._console.say(f"{self._clock.head()}: starts, {self._clock.left()}")

    def phase(self, text: str) -> None:
        """Name the phase."""
        self._console.say(f"{self._clock.head()}: {text}")

    def tick(self, *, event_count: int, seconds: float, machine: str) -> None:
        """Print nothing: a line a second would drown the rest."""

    def load_done(self, *, state: str, reason: str | None) -> None:
        """Say how the load ended."""
        seconds = self._clock.load_done()
        why = f" ({in_short(reason)})" if reason else ""
        self._console.say(f"{self._clock.head()}: {state} after {seconds:.1f} s{why}")

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.say(text)

    def warn(self, text: str) -> None:
        """Print one warning."""
        self._console.warn(text)

    def end(self) -> None:
        """Nothing to take down."""


class LiveProgress:
    """Progress as one line that is redrawn in place, at most when the runner says something.

    There is no refresh thread: drawing happens about once a second, between reads, so that the display does not
    compete with the engine for a core.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = Clockwork()
        self._live = Live(console=console.err, auto_refresh=False, transient=True)
        self._phase = ""
        self._rate = ""

    def begin(self, *, campaign_id: str, n_positions: int, n_done: int) -> None:
        """Start to draw."""
        self._clock.begin(campaign_id, n_positions)
        done = f", {n_done} already complete" if n_done else ""
        self._console.say(f"campaign {campaign_id}: {n_positions} loads{done}")
        self._live.start()

    def position(self, *, number: int, label: str, arm: str) -> None:
        """Draw the next load."""
        self._clock.position(number, label, arm)
        self._phase, self._rate = "starts", ""
        self._draw()

    def phase(self, text: str) -> None:
        """Draw the phase."""
        self._phase, self._rate = text, ""
        self._draw()

    def tick(self, *, event_count: int, seconds: float, machine: str) -> None:
        """Draw the current rate and the state of the machine."""
        rate = f"{event_count / seconds:.0f} tokens/s" if seconds > 0 and event_count else "prefill"
        self._rate = f"{rate}  {machine}" if machine else rate
        self._draw()

    def load_done(self, *, state: str, reason: str | None) -> None:
        """Print how the load ended above the line."""
        seconds = self._clock.load_done()
        line = Text(one_line(f"{self._clock.head()}: ")).append(status_text(state)).append(f" after {seconds:.1f} s")
        self._console.err.print(line.append(f" ({one_line(in_short(reason))})" if reason else ""))

    def say(self, text: str) -> None:
        """Print one line above the drawn one."""
        self._console.say(text)

    def warn(self, text: str) -> None:
        """Print one warning above the drawn line."""
        self._console.warn(text)

    def end(self) -> None:
        """Stop to draw."""
        self._live.stop()

    def _draw(self) -> None:
        clock = self._clock
        width = 24
        filled = round(width * (clock.number - 1) / clock.n_positions) if clock.n_positions else 0
        parts = [clock.head(), self._phase, self._rate, clock.left()]
        line = Text("#" * filled + "." * (width - filled) + "  ", style="cyan")
        self._live.update(line.append(one_line("  ".join(p for p in parts if p)), style="default"), refresh=True)
