"""Token files and builds for the `assay engine` commands."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.build import BuildSpec, build_engine
from engine.models import fetched_model
from harness.engines import find_build, find_model, npy_header, read_tokens
from protocols.checks.requirements import RequirementsCheck
from protocols.errors import EngineError, ProtocolError, UsageError
from protocols.load import library_protocol, load_protocol


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


@pytest.mark.parametrize("name", ["smollm3", "./none.gguf", "x" * 300])
def test_a_model_that_is_neither_known_nor_a_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="neither a known model nor a file") as error:
        find_model(name)
    assert error.value.where == name
    assert "smollm2" in str(error.value.hint)


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


def test_the_perplexity_of_the_bundled_corpus_lies_within_the_bounds_of_the_bundled_protocol(world: Any) -> None:
    try:
        build, model = build_engine(BuildSpec(name="tests", layout_salt=1)), fetched_model("smollm2")
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    (check,) = load_protocol(library_protocol("requirements")).protocol.checks
    assert isinstance(check, RequirementsCheck)
    requirement = next(one for one in check.requirements if one.id == "perplexity")
    corpus = library_protocol("requirements").parent / requirement.run[-1]
    command = ("engine", "perplexity", "--build", build.folder, "--model", model, "--text")
    ended = world.run(*command, corpus)
    assert ended.code == 0, ended.err
    assert requirement.number is not None
    number = float(ended.out.partition(requirement.number.after)[2].split()[0])
    assert requirement.number.least <= number <= requirement.number.most
    assert world.run(*command, corpus, "--json").json()["predicted_tokens"] == 401
    (world.root / "empty.txt").write_text("")
    refused = world.run(*command, "empty.txt")
    assert (refused.code, "predict nothing" in refused.err) == (5, True)
    assert world.run(*command, "none.txt").code == 5
