"""What every command shares: `--store`, `--json`, an example in its help, and errors that end in an exit code."""

from __future__ import annotations

import errno
import functools
import math
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from engine.cache import cache_folder
from harness.console import Console
from harness.exits import EXIT_EXECUTION, EXIT_INTERRUPTED
from harness.signals import term_as_interrupt
from protocols.errors import AssayError, EngineError, HostError, UsageError
from protocols.vocabulary import MOST_THREADS

STORE_VARIABLE = "ASSAY_STORE"
DEFAULT_STORE = Path("assay-store")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write, which name no file."""


class FiniteRange(click.FloatRange):
    """A range of real numbers: click's own lets `nan` pass, because no comparison with it holds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return the number. Raises a usage error where it is none or out of the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


def threads_option(default: int) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option for the threads of an engine in process, as many as one takes."""
    kind = click.IntRange(min=1, max=MOST_THREADS)
    return click.option("--threads", type=kind, default=default, show_default=True, help="Threads of the engine.")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a command gets besides its own options: where the store is, where to print, whether to show tracebacks."""

    store: Path
    console: Console
    debug: bool


def assay_version() -> str:
    """Return the installed version; a source tree that is not installed has none."""
    try:
        return version("assay")
    except PackageNotFoundError:
        return "0+source"


def command(name: str, *, example: str, with_store: bool = True) -> Callable[[Callable[..., int]], click.Command]:
    """Make a function `(settings, **options) -> exit code` a command.

    The first docstring paragraph is the help; `example` is one or more command lines.
    """

    def decorate(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, store: Path | None = None, **options: Any) -> int:  # noqa: ANN401 - click's options
            debug = bool(click.get_current_context().find_root().obj)
            settings = Settings(store=store or DEFAULT_STORE, console=Console(as_json=as_json), debug=debug)
            return guarded(settings, lambda: function(settings, **options))

        made: Callable[..., int] = run
        made = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")(made)
        if with_store:
            made = click.option(
                "--store",
                type=click.Path(path_type=Path, file_okay=False),
                envvar=STORE_VARIABLE,
                show_envvar=True,
                help="Folder of the evidence store.  [default: ./assay-store]",
            )(made)
        lines = "\n".join(f"  {line}" for line in example.splitlines())
        return click.command(name, epilog=f"\b\nExample:\n{lines}")(made)

    return decorate


def guarded(settings: Settings, action: Callable[[], int]) -> int:
    """Run a command's action; turn every error into one clean block and an exit code."""
    return settings.console.finish(_run(settings, action))


def _run(settings: Settings, action: Callable[[], int]) -> int:
    try:
        with term_as_interrupt():  # so that engines and temporary files go, as after Ctrl-C
            return action()
    except AssayError as error:
        settings.console.fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        settings.console.say("interrupted")
        return EXIT_INTERRUPTED
    except (click.ClickException, click.exceptions.Exit):
        raise
    except OSError as error:
        if settings.debug:
            raise
        shown = _refused(error)
        settings.console.fail(shown)
        return shown.exit_code
    except Exception as error:  # the last line of defence; the traceback is kept in a file
        if settings.debug:
            raise
        settings.console.fail(unexpected(error))
        return EXIT_EXECUTION


def _refused(error: OSError) -> AssayError:
    """Return what the system refused in words; an error that names no file is a fault of ours."""
    if error.errno in _FULL and not isinstance(error.filename, str | bytes):
        return HostError(f"a file cannot be written: {error.strerror}", hint="free space, and repeat")
    if error.filename is None or isinstance(error.filename, int):
        return unexpected(error)
    kind = UsageError if error.errno == errno.ENAMETOOLONG else HostError
    return kind(f"the system refuses it: {error.strerror}", where=os.fsdecode(error.filename))


def unexpected(error: Exception) -> EngineError:
    """Write the traceback of an unexpected error to a file and return the error to show in its place.

    The file lies in the cache folder and not in the store: a store holds only what its ledger names.
    """
    text = "".join(traceback.format_exception(error))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path: Path | None = None
    for folder in (cache_folder() / "errors", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"assay-{stamp}-{os.getpid()}.txt"
            path.write_text(text)
            break
        except OSError:
            path = None
    return EngineError(
        f"this should not have happened: {type(error).__name__}: {error}",
        where=str(path) if path else None,
        hint="the file holds the traceback, `assay --debug ...` shows it here; what was recorded stays: `assay audit`",
    )
