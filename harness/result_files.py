"""Files and folders that get the result of a command: refused before the work, and written whole or not at all.

A target that cannot be written is a usage error (exit code 2) before anything was done. A disk that fills up meanwhile
is a fault of the host (exit code 5): then what lay at the target is still there, and nothing beside it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from protocols.errors import EvidenceError, HostError, UsageError

_NEW_FILE_MODE: Final = 0o644


def check_file(
    target: Path | None, *, option: str = "--out", makes_folders: bool = False, is_streamed: bool = True
) -> None:
    """Refuse a file that could not be written later.

    `makes_folders`: the command makes the folders that are missing. `is_streamed` is false for a format that no device
    or pipe can take.

    Raises UsageError where its folder is not there or takes no file, where it is a folder or a socket itself, or where
    it is there and may not be written.
    """
    if target is None:
        return
    mode = _mode(target)
    if mode is None:
        _check_place(target, option, target.absolute().parent, makes_folders=makes_folders)
    elif stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a socket"
        raise UsageError(f"{option} names {what}, and a file is needed", where=str(target), hint="name a file in it")
    elif not is_streamed and not stat.S_ISREG(mode):
        raise UsageError(f"{option} names no plain file", where=str(target), hint="name a new file")
    elif not os.access(target, os.W_OK):
        raise UsageError(f"{option}: the file may not be written", where=str(target), hint="name another file")
    elif stat.S_ISREG(mode):
        _check_place(target, option, target.resolve().parent, makes_folders=False)


def check_folder(target: Path | None, *, option: str = "--out") -> None:
    """Refuse a folder that could not get files later; those that are missing are made then.

    Raises UsageError where it is a file, or where nothing can be made in it or in the first folder above it that
    is there.
    """
    if target is None:
        return
    mode = _mode(target)
    if mode is not None and not stat.S_ISDIR(mode):
        raise UsageError(f"{option} names a file, and a folder is needed", where=str(target), hint="name a folder")
    _check_place(target, option, target.absolute(), makes_folders=True)


def write_result(target: Path, content: bytes | str, *, is_new: bool = False) -> None:
    """Write a result file: beside the target first, then renamed, so that a reader sees the old or the new one.

    A device or a pipe gets the bytes as they are. With `is_new`, what is there is an error and stays. Raises HostError
    where the system refuses; no part is left then.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode) and not is_new:
            with target.open("wb") as stream:
                stream.write(data)
            return
        real = target if is_new else target.resolve()
        _place(real, data, _NEW_FILE_MODE if mode is None else stat.S_IMODE(mode), is_new=is_new)
    except OSError as error:
        raise unwritten(error, target) from error


def write_results(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write result files, each whole or not at all, into a folder, which is made. Raises HostError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(error, folder) from error
    for name, content in files.items():
        write_result(folder / name, content)


class LateResult:
    """A result file that is written during or after long work.

    Where that fails, the work is not lost: it goes on, is printed, and the exit code says that the file is missing.
    """

    def __init__(self, target: Path | None, warn: Callable[[str], None]) -> None:
        """Take the target, None for no file, and what takes a warning."""
        self._target, self._warn = target, warn
        self._problem: HostError | None = None

    def write(self, content: bytes | str) -> None:
        """Write the file, or warn of why it cannot be."""
        if self._target is None:
            return
        try:
            write_result(self._target, content)
        except HostError as error:
            self._problem = error
            self._warn(error.lines()[0])
        else:
            self._problem = None

    def exit_code(self, code: int) -> int:
        """Return the exit code of the command, whose work came to `code`."""
        if self._problem is None or code == EvidenceError.exit_code:
            return code
        return self._problem.exit_code


def unwritten(error: OSError, target: Path) -> HostError:
    """Return what the system refused while a result was written, in words."""
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, shutil.Error) and error.args[0]:  # of a whole tree: the first file that failed
        reason = str(error.args[0][0][-1])
    hint = "free space or name another place, and repeat"
    return HostError(f"the result cannot be written: {reason}", where=str(target), hint=hint)


def _place(target: Path, data: bytes, mode: int, *, is_new: bool) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".assay-", dir=target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(mode)
        if is_new:
            target.touch(exist_ok=False)  # a rename would replace what came meanwhile, and not every disk has links
        try:
            partial.replace(target)
        except OSError:
            if is_new:
                target.unlink()
            raise
    finally:
        partial.unlink(missing_ok=True)


def _mode(target: Path) -> int | None:
    """Return the kind and the permissions of what is there; None where nothing is, or where it cannot be looked at."""
    try:
        return target.stat().st_mode
    except (OSError, ValueError):
        return None


def _check_place(target: Path, option: str, folder: Path, *, makes_folders: bool) -> None:
    """Make and remove a file in the folder, or in the first one above that is there."""
    place = folder
    while makes_folders and not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        found = "is not there" if not os.path.lexists(place) else "is no folder"
        hint = f"mkdir -p {target.parent}" if not os.path.lexists(place) else "name another place"
        raise UsageError(f"{option}: its folder {found}", where=str(target), hint=hint)
    try:
        with tempfile.TemporaryFile(prefix=".assay-", dir=place):
            pass
        _check_name(target)
    except OSError as error:
        message = f"{option}: no file can be made there: {error.strerror}"
        raise UsageError(message, where=str(target), hint="name a place that takes files") from None


def _check_name(target: Path) -> None:
    """Look for the target: a name that no file can have raises OSError."""
    try:
        target.lstat()
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise OSError(0, str(error)) from None
