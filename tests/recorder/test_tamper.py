"""Every single fault of a small campaign is found, and its place named; an untouched store has no findings.

500 random changes here; `ASSAY_TAMPER_CHANGES=10000` makes that many (``make nightly``), `ASSAY_TAMPER_SEED` other ones.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import sys
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import pytest

from recorder import audit_files, verify
from recorder.audit import AuditResult, audit_store
from recorder.bundle import unpack_bundle, write_bundle
from recorder.key_ring import trusted_keys
from recorder.keys import VerifierKey
from recorder.redaction import parse_rule

COUNT = int(os.environ.get("ASSAY_TAMPER_CHANGES", "500"))
SEED = int(os.environ.get("ASSAY_TAMPER_SEED", "20261129"))
SECONDS = float(os.environ.get("ASSAY_TAMPER_SECONDS", "inf"))
LIMIT = pytest.mark.timeout(300 + COUNT)  # a change takes a fifth of a second; what waits forever must be seen


def load(name: str) -> ModuleType:
    full = f"assay_test_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


tamper = load("tamper")


class Case(NamedTuple):
    root: Path
    pristine: dict[str, bytes]
    keys: list[VerifierKey]
    head: str
    stamps: dict[str, object]


def case(root: Path, keys: list[VerifierKey]) -> Case:
    result = audit_store(root, trusted_keys=keys)
    assert (result.findings, result.trust) == ((), "VERIFIED")
    return Case(root, tamper.read_tree(root), keys, str(result.head), {})


@pytest.fixture(scope="module")
def _two(tmp_path_factory: pytest.TempPathFactory, synthetic) -> Path:
    """Two campaigns of one protocol, so that a load of one can be passed off as the other's."""
    root = tmp_path_factory.mktemp("two") / "store"
    synthetic.run_campaign(root)
    synthetic.run_campaign(root, clock=synthetic.StepClock(1_800_001_000_000_000_000))
    return root


@pytest.fixture
def store(_two: Path, fast_path: Path, synthetic) -> Case:
    shutil.copytree(_two, fast_path / "store")
    return case(fast_path / "store", [synthetic.SIGNER.public()])


@pytest.fixture
def bundle(_two: Path, fast_path: Path, synthetic) -> Case:
    made = write_bundle(_two, fast_path / "b.zst", rules=[parse_rule("log"), parse_rule("text")])
    unpack_bundle(made.path, fast_path / "u")
    return case(fast_path / "u", [synthetic.SIGNER.public()])


def applied(one: Case, change) -> None:
    change.apply(one.root)
    if change.is_forged and (one.root / "assay.sqlite").exists():
        tamper.rebuild(one.root)


def audited(one: Case, change) -> AuditResult:
    """Audit as far as it takes: a level includes those before it, so what a lower one finds the whole audit finds."""
    change.apply(one.root)
    result = audit_store(one.root, level="chain", trusted_keys=one.keys, head=one.head)
    for level in ("tables", "recompute"):
        if result.findings:
            break
        if level == "tables" and change.is_forged and (one.root / "assay.sqlite").exists():
            tamper.rebuild(one.root)
        result = audit_store(one.root, level=level, trusted_keys=one.keys, head=one.head)
    return result


def is_named(result: AuditResult, words: tuple[str, ...]) -> bool:
    return any(word in f"{one.place} {one.message}" for one in result.findings for word in words)


def is_a_change(one: Case, folder: Path) -> bool:
    """Whether a flipped byte of the database changed anything that it says."""
    now = (one.root / "assay.sqlite").read_bytes()
    return tamper.dump(now, folder) != tamper.dump(one.pristine["assay.sqlite"], folder)


def missed(one: Case, change, folder: Path) -> str | None:
    """Apply one change, audit, take it back. Returns what the audit missed."""
    try:
        result = audited(one, change)
        if not result.findings:
            if change.kind == "flip: assay.sqlite" and not is_a_change(one, folder):
                return None
            return f"{change.kind}: nothing was found"
        if result.trust == "VERIFIED" or not is_named(result, change.words):
            places = [f"{finding.place}: {finding.message}" for finding in result.findings[:3]]
            return f"{change.kind}: the place is not named in {places}, expected one of {change.words}"
        return None
    finally:
        tamper.restore(one.root, one.pristine, one.stamps)


def run(one: Case, folder: Path, count: int) -> tuple[list[str], Counter[str]]:
    found, kinds, end = [], Counter(), time.monotonic() + SECONDS
    # What a line of the ledger says depends on the line and its number alone, and most lines are the same each time.
    with mock.patch.object(audit_files, "parse_entry", lru_cache(1000)(audit_files.parse_entry)):
        for number, change in enumerate(tamper.changes(one.pristine, random.Random(SEED))):
            if number == count or time.monotonic() > end:
                break
            kinds[change.kind.partition(":")[0]] += 1
            if (problem := missed(one, change, folder)) is not None:
                found.append(problem)
            if number % 500 == 499:
                sys.stderr.write(f"{number + 1} changes, {len(found)} missed\n")
    return found, kinds


def test_whatever_is_changed_is_put_back(store: Case):
    """Also where a file is written twice in a row, with the same size: a change that stays would hide the next ones."""
    for number, change in enumerate(tamper.changes(store.pristine, random.Random(SEED))):
        change.apply(store.root)
        tamper.restore(store.root, store.pristine, store.stamps)
        if number % 8 == 0:
            assert tamper.read_tree(store.root) == store.pristine, change.kind
            time.sleep(0.15)  # some stamps are old enough to be trusted, some are not
        if number == 100:
            break
    assert tamper.read_tree(store.root) == store.pristine
    assert store.stamps
    assert not any(path.is_symlink() or not (path.is_file() or path.is_dir()) for path in store.root.rglob("*"))


def test_an_untouched_store_and_bundle_have_no_findings(store: Case, bundle: Case):
    for one in (store, bundle):
        assert audit_store(one.root, trusted_keys=one.keys, head=one.head).findings == ()


@LIMIT
def test_random_changes_of_a_store_are_all_found_and_named(store: Case, fast_path: Path):
    found, kinds = run(store, fast_path, COUNT)
    sys.stderr.write(f"{kinds.total()} changes of {len(kinds)} kinds: {dict(kinds)}\n")  # shown with pytest -s
    assert found == []
    assert len(kinds) >= 28
    assert audit_store(store.root, trusted_keys=store.keys, head=store.head).findings == ()


@LIMIT
def test_random_changes_of_a_redacted_bundle_are_all_found_and_named(bundle: Case, fast_path: Path):
    found, kinds = run(bundle, fast_path, COUNT // 10)
    assert found == []
    assert len(kinds) >= 24


@LIMIT
def test_the_single_file_verifier_finds_the_same_changes_of_a_bundle(bundle: Case):
    trusted = [key.raw for key in bundle.keys]
    changes = tamper.changes(bundle.pristine, random.Random(SEED))
    for _, change in zip(range(COUNT // 10), changes, strict=False):
        change.apply(bundle.root)
        verifier = verify.Verifier(bundle.root, trusted, bundle.head)
        verifier.run()
        text = "\n".join(f"{one['place']} {one['message']}" for one in verifier.findings)
        assert any(word in text for word in change.words), (change.kind, text[:500])
        assert verifier.trust == "SELF_CONSISTENT"
        tamper.restore(bundle.root, bundle.pristine, bundle.stamps)


def test_a_store_signed_again_with_another_key_is_self_consistent_and_says_what_that_leaves_open(store: Case):
    """Without a trusted key and a pinned head nothing can tell it from the real one."""
    change = tamper.Tamper(store.pristine, random.Random(SEED)).sign_again_with_another_key()
    applied(store, change)
    for keys in ([], store.keys):
        result = audit_store(store.root, trusted_keys=keys)
        assert (result.findings, result.trust) == ((), "SELF_CONSISTENT")
        assert any("could have made all of it up" in point for point in result.open_points)
        assert any("no pinned head" in point for point in result.open_points)
    result = audit_store(store.root, trusted_keys=store.keys, head=store.head)
    assert [finding.check for finding in result.findings] == ["head"]


def test_a_store_taken_back_to_any_earlier_checkpoint_passes_without_a_pinned_head_only(store: Case):
    seen = set()
    for seed in range(12):
        change = tamper.Tamper(store.pristine, random.Random(seed)).go_back_to_a_checkpoint()
        if change.kind in seen:
            continue
        seen.add(change.kind)
        applied(store, change)
        result = audit_store(store.root, trusted_keys=store.keys)
        assert (result.findings, result.trust) == ((), "VERIFIED"), change.kind
        assert any("older copy of this store" in point for point in result.open_points)
        result = audit_store(store.root, trusted_keys=store.keys, head=store.head)
        assert [finding.check for finding in result.findings] == ["head"]
        assert (result.findings[0].place, result.trust) == ("ledger.jsonl", "SELF_CONSISTENT")
        tamper.restore(store.root, store.pristine, store.stamps)
    assert len(seen) > 3


@LIMIT
def test_random_changes_of_a_campaign_of_real_processes_are_all_found(finished, fast_path: Path):
    shutil.copytree(finished.store, fast_path / "real")
    keys = list(trusted_keys(home=finished.root / "keys"))
    found, _ = run(case(fast_path / "real", keys), fast_path, COUNT // 10)
    assert found == []
