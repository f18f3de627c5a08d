"""Parts of one load that a whole campaign rarely shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.identity import FileIdentity
from harness.load import _group_members, _Load, script_of
from harness.runner import _known_system_files
from recorder.store import Store


def mapped(name: str, sha256: str) -> FileIdentity:
    return FileIdentity(name=name, bytes=1, sha256=sha256)


def a_load(known: dict[str, str]) -> Any:
    """Return a load of an arm whose lock names `engine` only."""
    arm = SimpleNamespace(identity=SimpleNamespace(files=(SimpleNamespace(name="engine"),)))
    prepared = SimpleNamespace(arms={"baseline": arm}, protocol=SimpleNamespace(limits=None))
    context = SimpleNamespace(prepared=prepared, system_files=known)
    return _Load(context, SimpleNamespace(arm="baseline"), None)  # type: ignore[arg-type]


def test_a_system_library_that_changes_between_two_loads_is_named() -> None:
    known: dict[str, str] = {}
    first = (mapped("/b/engine", "e"), mapped("/lib/libc.so.6", "one"))
    assert a_load(known)._changed_system_files(first) == []
    assert known == {"/lib/libc.so.6": "one"}, "files of the lock are compared with the lock"
    assert a_load(known)._changed_system_files((mapped("/lib/libm.so.6", "m"),)) == []
    changed = a_load(known)._changed_system_files((mapped("/lib/libc.so.6", "other"),))
    assert changed == ["/lib/libc.so.6 is not the file that an earlier load of this campaign mapped"]


def test_a_resumed_campaign_knows_the_system_libraries_of_its_earlier_loads(finished: Any) -> None:
    with Store.open(finished.store, read_only=True) as store:
        known = _known_system_files(store, store.resolve_campaign("latest"))
    assert any("libc" in name for name in known)
    assert not any("fake_engine.py" in name for name in known)
    assert all(len(sha256) == 64 for sha256 in known.values())


def test_leftover_processes_of_a_group_are_found_and_zombies_are_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    try:
        assert _group_members(process.pid) == [process.pid]
    finally:
        process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert _group_members(process.pid) == []
    process.wait()


def test_a_script_is_identified_by_its_own_bytes_because_only_its_interpreter_is_mapped(tmp_path: Path) -> None:
    for name, content in (("script", b"#!/bin/sh\n"), ("binary", b"\x7fELF")):
        (tmp_path / name).write_bytes(content)
    found = script_of([str(tmp_path / "script"), "--port", "0"])
    assert found is not None
    assert (found.name, found.bytes) == ("script", 10)
    assert script_of([str(tmp_path / "binary")]) is None
