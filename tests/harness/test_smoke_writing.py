"""What `assay smoke --write` says of the build that it asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import smoke_writing
from protocols.load import library_protocol, load_protocol


def test_writing_a_reference_names_the_build_to_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundled arm lies in the cache folder under a hash: nobody finds it without being told."""
    made = SimpleNamespace(folder=tmp_path / "builds" / "0123abcd")
    for name, value in (("prepare_build", made), ("resolve_model", tmp_path / "m.gguf"), ("smoke_engine", made.folder)):
        monkeypatch.setattr(smoke_writing, name, lambda *_, _value=value, **__: _value)
    said: list[str] = []
    loaded = load_protocol(library_protocol("release-quick"))
    assert smoke_writing._engine(loaded, "candidate", tmp_path, said.append) == made.folder
    assert said == [f"the candidate is the build {made.folder} (`assay engine pack` takes it to another host)"]
