"""A worker says why a call did not succeed: the library cannot do it, refused it, or took its process with it."""

from __future__ import annotations

import os
import signal

import pytest
from qwen_data import opened, tiny_model

from engine.build import EngineBuild
from engine.failures import LibraryDiedError, LibraryRefusedError
from engine.worker import EngineWorker


def test_what_the_engine_lacks_is_told_from_what_it_refuses(bundled_build: EngineBuild) -> None:
    with EngineWorker(bundled_build.library) as worker:
        worker.load(tiny_model("tiny-c"))
        opened(worker, context_tokens=16)
        worker.decode([1, 2, 3], start=0)
        with pytest.raises(LibraryRefusedError) as unsupported:
            worker.shift(0, 3)
        assert unsupported.value.is_unsupported
        with pytest.raises(LibraryRefusedError) as full:
            worker.decode([1] * 14, start=3)
    assert (full.value.is_unsupported, full.value.status) == (False, 4)


def test_a_death_is_no_refusal(bundled_build: EngineBuild) -> None:
    with EngineWorker(bundled_build.library) as worker:
        worker.load(tiny_model("tiny-c"))
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(LibraryDiedError, match="SIGKILL"):
            opened(worker)
