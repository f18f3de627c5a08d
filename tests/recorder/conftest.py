"""Shared fixtures of the recorder's tests: a synthetic campaign that goes through the real recorder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from recorder.audit import audit_store
from recorder.blobs import BlobStore
from recorder.files import Files
from recorder.importing import import_bundle
from recorder.receipts import record_receipt

# A shared machine is slow at times; a slow example is no failure.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

SYNTHETIC = Path(__file__).with_name("synthetic.py")


def _load() -> ModuleType:
    name = "assay_test_synthetic"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SYNTHETIC)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The driver in synthetic.py."""
    return _load()


@pytest.fixture(autouse=True)
def key_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty key folder: no test sees or makes keys of the user."""
    home = tmp_path_factory.mktemp("keys")
    monkeypatch.setenv("ASSAY_KEY_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def _whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "store"
    _load().run_campaign(root)
    return root


@pytest.fixture
def store_root(_whole_store: Path, tmp_path: Path) -> Path:
    """A copy of a store with one whole, judged and reported campaign."""
    root = tmp_path / "store"
    shutil.copytree(_whole_store, root)
    return root


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: tests that make many stores wait for no disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="assay-test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory, synthetic) -> Path:
    """A store with a row in every table: interrupted, crashed, recovered, resumed, judged, reported twice."""
    root = tmp_path_factory.mktemp("rich") / "store"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.record_preflight([{"check": "governor", "found": "performance"}])
        campaign.record_receipt("build", {"seconds": 3}, {"build.log": b"ok\n"})
        load = campaign.open_load(synthetic.positions()[0])
        sink = load.exchange(
            name="tiny",
            route="/completion",
            kind="native",
            workload="tiny",
            repeat=0,
            is_warmup=False,
            request=synthetic.http_request("/completion", synthetic.REQUESTS["requests/tiny.json"]),
        )
        synthetic.play(
            sink, [pair for pair in synthetic.completion_reads() if b'"tokens_predicted": 3' not in pair[1]], 10**9
        )
        load.seal(state="PARTIAL", reason="a token was lost")
        campaign.record_interruption("stopped by the user")
    (root / "store.lock").write_text("a killed recorder")
    with (root / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"kind":"load.open')
    BlobStore(root / "blobs" / "sha256", Files()).put(b"nobody names me")
    (root / "blobs" / "sha256" / ".tmp-00").write_bytes(b"unfinished")
    synthetic.resume_campaign(root, clock=synthetic.StepClock(1_800_000_100_000_000_000))
    with synthetic.open_store(root) as store:
        campaign = store.campaign_recorder("latest")
        campaign.record_report({"report.md": b"a second report\n"})
    assert audit_store(root).findings == ()
    return root


@pytest.fixture(scope="session")
def fuller(rich: Path, synthetic, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with what came later: judged again, reviewed, a receipt of its own, a bundle of another store."""
    root = tmp_path_factory.mktemp("fuller") / "store"
    shutil.copytree(rich, root)
    with synthetic.open_store(root) as store:
        synthetic.judge(store, store.campaign_recorder("latest"))
        synthetic.review(store, decision="overrides", status="INCONCLUSIVE")
        record_receipt(store.writer, "smoke", {"seconds": 1}, {})
        import_bundle(store, synthetic.foreign_bundle(root.parent))
    return root


@pytest.fixture
def root(rich: Path, fast_path: Path) -> Path:
    copy = fast_path / "store"
    shutil.copytree(rich, copy)
    return copy


@pytest.fixture
def full(fuller: Path, fast_path: Path) -> Path:
    copy = fast_path / "full"
    shutil.copytree(fuller, copy)
    return copy
