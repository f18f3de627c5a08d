"""A reduced detection matrix over the real engine: faults of a server, each caught by its gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli


@pytest.mark.timeout(900)
def test_known_faults_of_a_server_are_caught_and_nothing_is_without_one(tmp_path: Path):
    out = tmp_path / "detection.md"
    names = ["split-utf8", "doubled-token-event", "swapped-library"]
    result = CliRunner().invoke(
        cli,
        ["controls", "run", *names, "--store", str(tmp_path / "store"), "--out", str(out), "--json"],
        standalone_mode=False,
    )
    document = json.loads(result.stdout)
    assert [(row["control"], row["caught"]) for row in document["rows"]] == [(None, True), *((n, True) for n in names)]
    assert "3 of 3 faults caught" in out.read_text()
    assert result.return_value == 0


def test_an_unknown_control_is_refused_with_the_nearest_name(tmp_path: Path):
    result = CliRunner().invoke(
        cli, ["controls", "run", "split-utf", "--store", str(tmp_path / "s")], standalone_mode=False
    )
    assert result.return_value == 2
    assert "split-utf8" in result.output
