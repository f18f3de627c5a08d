"""`.ci/patiently`: a long silent command is seen to run, and its end stays its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci" / "patiently"


def run(script: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), "sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )


def test_exit_codes_and_signals_are_the_commands() -> None:
    assert run(SCRIPT, "exit 3").returncode == 3
    assert run(SCRIPT, "kill -9 $$").returncode == 137
    done = run(SCRIPT, "echo out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")


def test_a_silent_command_is_seen_to_run(tmp_path: Path) -> None:
    hasty = tmp_path / "hasty"
    hasty.write_text(SCRIPT.read_text().replace("EVERY_S = 20", "EVERY_S = 0.2"))
    done = run(hasty, "sleep 1; exit 4")
    assert done.returncode == 4
    assert "s, still running" in done.stderr
