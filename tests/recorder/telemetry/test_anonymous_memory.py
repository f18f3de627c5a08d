"""Memory of its own is what a process wrote, and not what it maps."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from protocols.errors import HostError
from recorder.telemetry.anonymous_memory import anonymous_bytes

SIZE = 32 * 1024 * 1024


def test_what_a_process_writes_counts_and_what_it_reads_of_a_file_does_not(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(SIZE))
    before = anonymous_bytes(os.getpid())
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, SIZE, 4096)) == 0
        assert anonymous_bytes(os.getpid()) - before < SIZE // 4
    # A mapping of its own: an allocator could hand out memory that was written before.
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as written:
        written.write(b"x" * SIZE)
        assert anonymous_bytes(os.getpid()) - before > SIZE * 3 // 4


def test_a_process_that_is_gone_is_an_error_in_words():
    with pytest.raises(HostError, match="cannot be read"):
        anonymous_bytes(2**22 - 1)
