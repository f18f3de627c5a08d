"""Everything that fuzzing found worth keeping goes through the same assertions again."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus" / "sse").iterdir())
check = runpy.run_path(str(HERE / "fuzz_sse.py"), run_name="fuzz_sse")["check"]


def test_the_corpus_is_there_and_small() -> None:
    assert len(CORPUS) >= 20
    assert sum(path.stat().st_size for path in CORPUS) <= 200 * 1024


@pytest.mark.parametrize("shard", range(4))
def test_kept_inputs_hold(shard: int) -> None:
    for path in CORPUS[shard::4]:
        try:
            check(path.read_bytes())
        except AssertionError as error:
            raise AssertionError(path.name) from error
