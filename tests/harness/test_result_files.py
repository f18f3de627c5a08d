"""Result files: refused before the work where they cannot be written, whole or not there where the disk fills up."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import click
import pytest

from harness.cli import cli, run_cli
from harness.commands import controls, searches
from harness.result_files import LateResult, check_file, check_folder, unwritten, write_result, write_results
from protocols.errors import HostError, UsageError

FILES = {
    "audit": "audit none --attest OUT",
    "bundle": "bundle --store none --out OUT",
    "engine logits": "engine logits --model none --tokens none --out OUT",
    "engine pack": "engine pack none --out OUT",
    "search": "search none --out OUT",
    "smoke": "smoke none --write OUT",
    "controls run": "controls run --store none --out OUT",
    "controls alarms": "controls alarms none --store none --out OUT",
    "protocol schema": "protocol schema --out OUT",
    "protocol prompt": "protocol prompt --tokens 9 --model none --out OUT",
}
FOLDERS = {
    "engine build": "engine build --fault none --out OUT",
    "engine unpack": "engine unpack none --out OUT",
    "export": "export --store none --out OUT",
    "report": "report --store none --out OUT",
}
MAKE_FOLDERS = {"bundle", "engine logits", "engine pack", "protocol prompt"}
OPTIONS = {"--out", "--write", "--attest"}


def commands(group: click.Group, path: str = "") -> dict[str, click.Command]:
    context, found = click.Context(group), {}
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        found |= commands(one, f"{path}{name} ") if isinstance(one, click.Group) else {f"{path}{name}": one}
    return found


def test_every_option_that_names_a_result_is_tried_here() -> None:
    known = commands(cli)
    with_it = {name for name, one in known.items() if OPTIONS & {opt for p in one.params for opt in p.opts}}
    assert with_it == {*FILES, *FOLDERS}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
@pytest.mark.parametrize("place", ["/proc/x", "KIND", "file/x", "long"])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    kind = "folder" if name in FILES else "file"
    target = {"KIND": kind, "long": "x" * 300}.get(place, place)
    line = (FILES | FOLDERS)[name].replace("OUT", target)
    assert run_cli(line.split()) == 2
    shown = capsys.readouterr().err
    if place == "KIND":
        assert ("is a directory" if name in FILES else "is a file") in shown
        return
    # Nothing else of the line was looked at: its store, model and protocol are not there.
    assert shown.startswith(("error: --out", "error: --write", "error: --attest"))
    assert f"where: {target}" in shown.replace("\n", "")
    assert "next: " in shown
    assert "none" not in shown
    assert {one.name for one in tmp_path.iterdir()} == {"file", "folder"}
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("name", sorted({*FILES} - MAKE_FOLDERS))
def test_a_folder_that_is_not_there_is_refused_with_the_command_that_makes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert run_cli(FILES[name].replace("OUT", f"{tmp_path}/none/x").split()) == 2
    assert f"mkdir -p {tmp_path}/none" in capsys.readouterr().err.replace("\n", "")
    assert not [*tmp_path.iterdir()]


def test_a_new_protocol_in_an_impossible_place_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["protocol", "new", "/proc/x.yaml"]) == 2
    assert "error: OUT: no file can be made there" in capsys.readouterr().err


def test_what_may_not_be_written_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with mock.patch("os.access", return_value=False), pytest.raises(UsageError, match="may not be written"):
        check_file(target)
    with pytest.raises(UsageError, match="no plain file"):
        check_file(Path("/dev/null"), is_streamed=False)
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
    with mock.patch("tempfile.TemporaryFile", side_effect=refused):
        for check in (lambda: check_file(target), lambda: check_folder(tmp_path)):
            with pytest.raises(UsageError, match="Read-only file system"):
                check()
    check_file(Path("/dev/full"))
    check_file(None)
    check_folder(None)
    check_folder(tmp_path / "a" / "b")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_what_was_there_and_nothing_beside_it(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for old in (None, "old"):
        if old is not None:
            (tmp_path / "out").write_text(old)
        for step in ("os.fsync", "pathlib.Path.replace"):
            with mock.patch(step, side_effect=full), pytest.raises(HostError, match="No space left") as caught:
                write_result(tmp_path / "out", "new")
            assert (caught.value.exit_code, caught.value.where) == (5, str(tmp_path / "out"))
            assert [one.read_text() for one in tmp_path.iterdir()] == ([] if old is None else [old])
    with mock.patch("pathlib.Path.replace", side_effect=full), pytest.raises(HostError, match="No space left"):
        write_result(tmp_path / "new", "new", is_new=True)
    assert not (tmp_path / "new").exists()
    with pytest.raises(HostError, match="No space left"):
        write_result(Path("/dev/full"), "new")
    assert Path("/dev/full").is_char_device()


def test_a_result_keeps_mode_link_and_what_must_not_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    write_result(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "real").read_text(), (tmp_path / "real").stat().st_mode & 0o777) == ("new", 0o600)
    with pytest.raises(HostError, match="File exists"):
        write_result(tmp_path / "real", "other", is_new=True)
    write_result(tmp_path / "fresh", "text", is_new=True)
    write_results(tmp_path / "a" / "b", {"x": b"1", "y": b"2"})
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o644
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a", "b", "fresh", "link", "real", "x", "y"]
    with pytest.raises(HostError, match="Not a directory"):
        write_results(tmp_path / "fresh" / "x", {"x": b"1"})


def test_a_late_result_that_cannot_be_kept_is_warned_of_and_changes_the_exit_code(tmp_path: Path) -> None:
    warned: list[str] = []
    file = LateResult(Path("/dev/full"), warned.append)
    file.write("x")
    assert [file.exit_code(code) for code in (0, 1, 6)] == [5, 5, 6]
    assert warned == [
        "/dev/full: the result cannot be written: No space left on device; free space or name another place, and repeat"
    ]
    kept = LateResult(tmp_path / "x", warned.append)
    with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
        kept.write("a")
    kept.write("b")  # there is room again
    assert (kept.exit_code(1), (tmp_path / "x").read_text(), len(warned)) == (1, "b", 2)
    LateResult(None, warned.append).write("x")


def test_long_work_is_printed_although_its_file_cannot_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    found = SimpleNamespace(document=lambda: {"n": 1}, findings=[])
    player = mock.MagicMock()
    with (
        mock.patch.multiple(searches, Player=player, find_build=mock.Mock(), find_model=mock.Mock()),
        mock.patch.object(searches, "search", return_value=found),
    ):
        assert run_cli(["search", "m", "--out", "/dev/full", "--json"]) == 5
    shown = capsys.readouterr()
    assert ('"n": 1' in shown.out, "No space left" in shown.err, "Traceback" in shown.err) == (True, True, False)
    outcome = SimpleNamespace(caught=True)
    with mock.patch.multiple(
        controls,
        run_controls=lambda *_, **__: [outcome, outcome],
        detection_markdown=lambda _: "m",
        detection_document=len,
        summary=lambda found: f"{len(found)} done",
    ):
        assert run_cli(["controls", "run", "--out", "/dev/full", "--json"]) == 5
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("No space left"), "2 done" in shown.err) == ("2\n", 2, True)


def test_the_schema_on_a_full_disk_is_a_host_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["protocol", "schema", "--out", "/dev/full"]) == 5
    assert "error: the result cannot be written: No space left on device" in capsys.readouterr().err


def test_the_first_file_of_a_tree_that_failed_says_why(tmp_path: Path) -> None:
    import shutil

    tree = shutil.Error([("a", "b", "[Errno 28] No space left on device"), ("c", "d", "other")])
    assert str(unwritten(tree, tmp_path)) == "the result cannot be written: [Errno 28] No space left on device"


def test_evidence_that_is_attested_on_a_full_disk_is_still_shown(finished: Any, world: Any) -> None:
    ended = world.run("audit", "--store", finished.store, "--attest", "/dev/full", "--json")
    assert (ended.code, ended.json()["is_sound"], "No space left" in ended.err) == (5, True, True)


@pytest.mark.parametrize(
    "line", ["bundle --out OUT", "report --out OUT", "export --out OUT --table token", "export --out OUT --format csv"]
)
def test_a_file_that_becomes_too_large_leaves_no_part_and_no_traceback(
    finished: Any, tmp_path: Path, line: str
) -> None:
    """The limit of a file's size stands for a full disk: the write fails in its middle."""
    words = [word.replace("OUT", str(tmp_path / "out")) for word in line.split()]
    program = "import sys; from harness.cli import main; main()"
    ended = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -f 1; exec "$@"',
            "bash",
            sys.executable,
            "-c",
            program,
            *words,
            "--store",
            finished.store,
        ],
        env=os.environ | finished.environment | {"ASSAY_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, "File too large" in ended.stderr) == (5, True), ended.stderr
    assert "should not have happened" not in ended.stderr
    left = [one.name for one in tmp_path.rglob("*") if one.is_file()]
    assert not [name for name in left if name.startswith(".") or name.endswith((".zst", ".parquet", ".csv"))], left
