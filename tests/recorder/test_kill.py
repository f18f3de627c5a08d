"""SIGKILL in the middle of a campaign: a real process dies at a step, and its evidence goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recorder.audit import audit_store
from recorder.store import Store

CHILD = """
import importlib.util, os, signal, sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("synthetic", sys.argv[1])
synthetic = importlib.util.module_from_spec(spec)
sys.modules["synthetic"] = synthetic
spec.loader.exec_module(synthetic)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Killer(synthetic.FaultyFiles):
    def _step(self):
        self.steps += 1
        if self.steps == self.fail_at:
            die()

    def write(self, descriptor, data):
        self.steps += 1
        if self.steps == self.fail_at:
            synthetic.Files.write(self, descriptor, memoryview(data)[: len(data) // 2])
            die()
        synthetic.Files.write(self, descriptor, data)


files = Killer(int(sys.argv[3]))
synthetic.run_campaign(Path(sys.argv[2]), files=files)
print(files.steps)
"""


def run_child(synthetic, root: Path, fail_at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, synthetic.__file__, str(root), str(fail_at)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, synthetic) -> int:
    done = run_child(synthetic, tmp_path_factory.mktemp("whole") / "store", 0)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("share", [0.02, 0.37, 0.74, 0.97])  # two runs differ by a few steps
def test_a_killed_recorder_leaves_sound_partial_evidence_and_the_next_one_goes_on(
    fast_path: Path, synthetic, steps: int, share: float
):
    root = fast_path / "store"
    done = run_child(synthetic, root, max(1, int(steps * share)))
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = audit_store(root)
    assert (before.findings, before.is_partial) == ((), True)
    assert (root / "store.lock").read_text() != ""
    complete = {}
    if (root / "ledger.jsonl").is_file() and before.counts["entries"] > 2:
        complete = {one.campaign_id: one.complete_loads for one in Store.open(root, read_only=True).campaigns()}
    synthetic.resume_campaign(root, clock=synthetic.StepClock(1_800_000_100_000_000_000))
    after = audit_store(root)
    assert (after.findings, after.is_partial) == ((), False)
    (summary,) = Store.open(root, read_only=True).campaigns()
    assert summary.complete_loads == 4
    assert summary.verdict == "SCREEN_ONLY"
    for name, count in complete.items():
        assert summary.campaign_id == name
        assert count <= 4, "a COMPLETE load is not run again"
    assert (root / "store.lock").read_text() == ""
