"""Every file that a process uses is seen, whatever it uses it for, and a process that is gone uses none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine.open_files import held_paths

PROGRAM = """
import mmap, os, sys
mapped = open(sys.argv[1], "rb")
held = mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ)
mapped.close()
opened = open(sys.argv[2], "rb")
os.unlink(sys.argv[2])
open(sys.argv[3], "rb").close()
print("ready", flush=True)
sys.stdin.read()
"""


def test_mapped_opened_and_run_files_are_seen_and_closed_ones_are_not(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("mapped data", "opened", "closed")]
    for path in paths:
        path.write_bytes(b"x" * 10)
    stand = tmp_path / "stand"
    stand.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=stand
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = held_paths(process.pid)
        process.communicate()
    assert {str(paths[0]), str(paths[1]), str(stand), str(Path(sys.executable).resolve())} <= found
    assert str(paths[2]) not in found
    assert not any(path.endswith(" (deleted)") or path.startswith(("pipe:", "[")) for path in found)
    assert held_paths(process.pid) == frozenset()
