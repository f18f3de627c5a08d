"""Token files and builds for the `assay engine` commands."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.engines import find_build, npy_header, read_tokens
from protocols.errors import EngineError, ProtocolError


def test_tokens_are_a_list_or_stand_under_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    (tmp_path / "b.json").write_text(json.dumps({"tokens": [4]}))
    assert read_tokens(tmp_path / "a.json") == [1, 2, 3]
    assert read_tokens(tmp_path / "b.json") == [4]


@pytest.mark.parametrize("content", ["[]", "[1.5]", "[true]", '"x"', "{}", "not json", '{"tokens": "1"}'])
def test_anything_else_is_refused_with_the_file_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "ids.json").write_text(content)
    with pytest.raises(ProtocolError) as error:
        read_tokens(tmp_path / "ids.json")
    assert error.value.where == str(tmp_path / "ids.json")


@pytest.mark.parametrize("shape", [(1, 2), (3, 49152), (123456, 151936)])
def test_a_written_header_is_read_by_numpy(shape: tuple[int, int]) -> None:
    header = npy_header(shape)
    assert len(header) % 64 == 0
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<f4"))


def test_a_folder_that_is_no_build_is_a_clean_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no finished build"):
        find_build(tmp_path, lambda _: None)


def test_logits_of_a_missing_model_are_a_clean_error(world: Any) -> None:
    (world.root / "ids.json").write_text("[1, 2]")
    arguments = (
        "engine",
        "logits",
        "--build",
        "nothing",
        "--model",
        "none.gguf",
        "--tokens",
        "ids.json",
        "--out",
        "x.npz",
    )
    ended = world.run(*arguments)
    assert ended.code == 5
    assert "Traceback" not in ended.err
    assert not (world.root / "x.npz").exists()
