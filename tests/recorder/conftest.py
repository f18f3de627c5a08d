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
