"""One campaign a host: an exclusive lock on one well-known file that names its holder.

Two campaigns at once would measure each other. The lock is a `flock`, so it goes away with its holder however that
dies; the text in the file is only there to tell a person who holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from protocols.errors import HostError

GUARD_VARIABLE = "ASSAY_HOST_GUARD"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds (or held) the host: process id, campaign (None while it is being locked) and store folder."""

    pid: int
    campaign: str | None
    store: str


class HostGuard:
    """The held lock; `name_campaign` completes what the file says once the campaign has a name."""

    def __init__(self, descriptor: int, holder: Holder, previous: Holder | None) -> None:
        self._descriptor = descriptor
        self._holder = holder
        self.stale_holder = previous
        """A holder that died without leaving, or None."""

    def name_campaign(self, campaign_id: str) -> None:
        """Write the campaign's name into the guard file."""
        self._holder = Holder(pid=self._holder.pid, campaign=campaign_id, store=self._holder.store)
        _write(self._descriptor, self._holder)


def guard_path() -> Path:
    """Return the guard file: `ASSAY_HOST_GUARD`, else one file in the temporary folder that all users share."""
    named = os.environ.get(GUARD_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / "assay-host.guard"


@contextmanager
def hold_host(store: Path, *, path: Path | None = None) -> Iterator[HostGuard]:
    """Hold the host for one campaign.

    Raises HostError, with the holder's process, campaign and store, when another campaign runs here.
    """
    path = guard_path() if path is None else path
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(_read(descriptor), path) from None
        previous = _read(descriptor)
        holder = Holder(pid=os.getpid(), campaign=None, store=str(store))
        _write(descriptor, holder)
        try:
            yield HostGuard(descriptor, holder, previous)
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class GuardState:
    """What the guard says without being touched: whether somebody holds it, and who wrote it last."""

    is_held: bool
    holder: Holder | None


def look_at_host(path: Path | None = None) -> GuardState:
    """Say whether a campaign holds this host, changing nothing. Raises HostError where the guard cannot be read."""
    path = guard_path() if path is None else path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return GuardState(is_held=False, holder=None)
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        is_held = False
    except BlockingIOError:
        is_held = True
    finally:
        holder = _read(descriptor)
        os.close(descriptor)
    return GuardState(is_held=is_held, holder=holder)


def _open(path: Path) -> int:
    # Existing files are opened without O_CREAT: in sticky folders Linux refuses O_CREAT on a file of another user
    # (fs.protected_regular), and the guard is for every user of the host.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unusable(path, error) from None
    # The umask took the write bits of other users away.
    if os.fstat(descriptor).st_uid == os.getuid():
        os.fchmod(descriptor, 0o666)
    return descriptor


def _unusable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"the host guard cannot be opened: {error.strerror}",
        where=str(path),
        hint=f"name another file in {GUARD_VARIABLE}, the same for every user of this host",
    )


def _busy(holder: Holder | None, path: Path) -> HostError:
    if holder is None:
        return HostError(
            "another campaign holds this host and is only just starting", where=str(path), hint="wait for it"
        )
    what = f"campaign {holder.campaign}" if holder.campaign else "a campaign that is just starting"
    if not _is_alive(holder.pid):
        return HostError(
            f"another process holds this host, although process {holder.pid} that took it for {what} is gone",
            where=str(path),
            hint="it may run in another container; `fuser` on this file names who has it open",
        )
    return HostError(
        f"process {holder.pid} already runs {what} on this host",
        where=f"store {holder.store}",
        hint="two at once would measure each other: wait for it, or interrupt it and use `assay resume` later",
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(descriptor: int) -> Holder | None:
    text = os.pread(descriptor, 65536, 0)
    if not text:
        return None
    try:
        value = json.loads(text)
        return Holder(pid=int(value["pid"]), campaign=value["campaign"], store=str(value["store"]))
    except (ValueError, KeyError, TypeError):
        return None  # half a line of a holder that died while it wrote


def _write(descriptor: int, holder: Holder) -> None:
    text = json.dumps({"pid": holder.pid, "campaign": holder.campaign, "store": holder.store}).encode() + b"\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)
