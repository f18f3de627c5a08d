"""The command line as a whole: exit codes, JSON documents, errors without tracebacks, plain output where it is not a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import MODULES, cli, run_cli
from harness.options import guarded


def test_every_command_loads(capsys: pytest.CaptureFixture[str]) -> None:
    for name in MODULES:
        assert run_cli([name, "--help"]) == 0
        assert name in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--version"]) == 0
    assert capsys.readouterr().out.startswith("assay, version ")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["run"], ["run", "x", "--nonsense"], ["audit", "--level", "half"], ["protocol", "prompt"]],
)
def test_a_wrong_command_line_exits_2_with_one_block(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_cli(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert "--help` shows what is possible" in shown.err
    assert shown.out == ""


def test_an_unknown_protocol_exits_2_and_names_the_nearest(world: Any) -> None:
    ended = world.run("run", "served-pai", "--store", world.store)
    assert ended.code == 2
    assert "served-pair" in ended.err


def test_a_wrong_protocol_names_file_line_and_key_for_each_problem(world: Any) -> None:
    path = world.protocol()
    path.write_text(path.read_text().replace("claim: screen", "claim: proof").replace("threads: 1", "threads: many"))
    ended = world.run("run", path, "--store", world.store, "--json")
    assert ended.code == 2
    problems = ended.json()["error"]["problems"]
    assert len(problems) == 2
    assert all(problem.startswith(f"{path}:") for problem in problems)
    assert any("settings.threads" in problem for problem in problems)
    assert "error: 2 problems" in ended.err


@pytest.mark.parametrize("command", ["resume", "report", "show", "list", "audit"])
def test_a_folder_without_a_store_is_a_clean_error(world: Any, command: str) -> None:
    ended = world.run(command, "--store", world.root / "nothing", "--json")
    assert ended.code == 2
    error = ended.json()["error"]
    assert set(error) == {"family", "message", "where", "hint", "problems", "exit_code"}
    assert error["exit_code"] == ended.code
    assert "Traceback" not in ended.err


def test_an_unexpected_error_is_one_block_and_a_file_with_the_traceback(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import harness.commands.campaigns as campaigns

    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(campaigns, "find_protocol", explode)
    ended = world.run("run", "served-pair", "--store", world.store)
    assert ended.code == 5
    assert "this should not have happened: ZeroDivisionError: a bug" in ended.err
    assert "Traceback" not in ended.err
    file = Path(next(line for line in ended.err.splitlines() if "where:" in line).split("where: ")[1])
    assert file.parent == world.root / "cache" / "errors", "a store holds only what its ledger names"
    assert "ZeroDivisionError" in file.read_text()
    with pytest.raises(ZeroDivisionError):
        world.run("--debug", "run", "served-pair", "--store", world.store)


@pytest.mark.parametrize(
    "words", [("audit",), ("key", "trust"), ("review", "--agree", "--by", "a", "--statement", "b")]
)
def test_a_name_that_no_file_can_have_is_a_usage_error(world: Any, words: tuple[str, ...]) -> None:
    ended = world.run(*words, "x" * 300)
    assert "this should not have happened" not in ended.err
    assert ended.code in {2, 6}


def test_what_the_system_refuses_is_named_with_its_file(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import harness.commands.campaigns as campaigns

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr(campaigns, "find_protocol", refuse)
    ended = world.run("run", "served-pair", "--store", world.store, "--json")
    assert ended.code == 5
    error = ended.json()["error"]
    assert (error["message"], error["where"]) == ("the system refuses it: Permission denied", "/some/file")


@pytest.mark.parametrize("option", ["--alpha", "--max-gap"])
def test_a_level_that_is_no_number_is_refused(world: Any, option: str) -> None:
    (world.root / "rates.csv").write_text("load,arm,rate\nA1,A,40\nC1,C,41\n")
    assert world.run("stats", "rates.csv", "--margin", "2", option, "nan").code == 2
    assert world.run("plan", "served-pair", "--power", "nan").code == 2


@pytest.mark.parametrize(("closed", "code"), [("<&-", 0), (">&-", 5), ("2>&-", 0), ("<&- >&- 2>&-", 5)])
def test_a_closed_stream_is_no_verdict(world: Any, closed: str, code: int) -> None:
    command = [sys.executable, "-c", "from harness.cli import main; main()", "key", "show"]
    environment = {**os.environ, **world.environment}
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command], env=environment, capture_output=True, check=False
    )
    assert (ended.returncode, b"Traceback" in ended.stderr) == (code, False), ended.stderr


def test_ctrl_c_before_anything_was_recorded_exits_130(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from harness.console import Console
    from harness.options import Settings

    def interrupt() -> int:
        raise KeyboardInterrupt

    assert guarded(Settings(store=tmp_path, console=Console(), debug=False), interrupt) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_json_is_the_only_thing_on_standard_output(finished: Any) -> None:
    run = json.loads((finished.root / "run.json").read_text())
    assert {"campaign", "verdict", "gates", "loads", "claims", "exit_code", "stopped_by"} <= set(run)
    assert "[1/4] A1 baseline: starts" in (finished.root / "run.err").read_text()


def test_list_show_and_report_tell_the_same_campaign(finished: Any) -> None:
    listed = finished.run("list", "--store", finished.store, "--json").json()
    shown = finished.run("show", "--store", finished.store, "--json").json()
    report = finished.run("report", "--store", finished.store, "--json").json()
    assert shown == report | {"reviews": [], "older_verdicts": []}
    assert [one["campaign_id"] for one in listed] == [shown["campaign"]]
    assert (listed[0]["verdict"], listed[0]["complete_loads"], listed[0]["places"]) == (
        shown["verdict"]["status"],
        4,
        4,
    )


def test_a_campaign_is_found_by_the_beginning_of_its_name(finished: Any) -> None:
    assert finished.run("show", "fake-pair", "--store", finished.store).code == 0
    ended = finished.run("show", "other", "--store", finished.store)
    assert (ended.code, "there is no campaign 'other'" in ended.err) == (2, True)


def test_the_store_can_be_named_in_the_environment(finished: Any) -> None:
    assert finished.run("list", "--json", ASSAY_STORE=str(finished.store)).code == 0


def test_a_report_can_be_written_to_a_folder_and_is_the_recorded_one(finished: Any) -> None:
    out = finished.root / "out"
    assert finished.run("report", "--store", finished.store, "--out", out).code == 0
    recorded = next((finished.store / "campaigns").iterdir())
    for name in ("report.md", "report.json"):
        assert (out / name).read_bytes() == (recorded / name).read_bytes()


def test_an_audit_that_finds_something_exits_6_and_names_the_place(finished: Any, copy_of_finished: Path) -> None:
    report = next(copy_of_finished.glob("campaigns/*/report.md"))
    report.write_text(report.read_text().replace("SCREEN_ONLY", "PASS"))
    ended = finished.run("audit", "--store", copy_of_finished)
    assert ended.code == 6
    assert f"does not hold: campaigns/{report.parent.name}/report.md" in ended.out
    assert "NOT SOUND" in ended.out
    found = finished.run("audit", "--store", copy_of_finished, "--json").json()["findings"]
    assert [finding["check"] for finding in found] == ["copies"]


def test_audit_levels_check_less(finished: Any) -> None:
    audit = finished.run("audit", "--store", finished.store, "--level", "structure", "--json").json()
    states = {check["label"]: check["state"] for check in audit["checks"]}
    assert (states["entries"], states["gates"], audit["level"]) == ("held", "skipped", "structure")


def test_a_head_is_pinned_and_an_older_store_no_longer_passes(finished: Any, copy_of_finished: Path) -> None:
    head = finished.run("audit", "--store", finished.store, "--json").json()["head"]
    assert finished.run("audit", "--store", finished.store, "--head", head).code == 0
    size, _, root = head.partition(":")
    assert finished.run("audit", "--store", copy_of_finished, "--head", f"{int(size) + 1}:{root}").code == 6


def test_trust_comes_from_the_given_key_or_the_key_ring(finished: Any, world: Any) -> None:
    key = finished.run("key", "show", "default", "--json").json()[0]["public_key"]
    stranger = world.run("audit", "--store", finished.store, "--json").json()
    assert (stranger["trust"], stranger["is_sound"]) == ("SELF_CONSISTENT", True)
    assert world.run("audit", "--store", finished.store, "--key", key, "--json").json()["trust"] == "VERIFIED"
    assert world.run("key", "trust", key).code == 0
    assert world.run("audit", "--store", finished.store, "--json").json()["trust"] == "VERIFIED"


def test_keys_are_made_once_shown_and_never_overwritten(world: Any) -> None:
    assert world.run("key", "show").out == "no keys yet: `assay key make`\n"
    made = world.run("key", "make", "release", "--json").json()
    assert made["public_key"].startswith("release+")
    assert Path(made["file"]).stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in json.dumps(made)
    shown = {"name": "release", "public_key": made["public_key"], "is_revoked": False}
    assert world.run("key", "show", "--json").json() == [shown]
    again = world.run("key", "make", "release")
    assert (again.code, "exists already" in again.err) == (5, True)
    assert world.run("key", "show", "other").code == 2
    assert world.run("key", "trust", "nonsense").code == 2


def test_a_key_is_rotated_and_the_old_one_revoked_for_everybody(world: Any, tmp_path: Path) -> None:
    old = world.run("key", "make", "release", "--json").json()["public_key"]
    statement = world.run("key", "revoke", "release", "--reason", "lost").out
    rotated = world.run("key", "rotate", "release", "--json").json()
    assert (rotated["old"], rotated["new"] == old) == (old, False)
    keys = {one["public_key"]: one["is_revoked"] for one in world.run("key", "show", "--json").json()}
    assert keys == {old: True, rotated["new"]: False}
    other = {"ASSAY_KEY_HOME": str(tmp_path / "other")}
    (tmp_path / "statement").write_text(statement)
    assert world.run("key", "trust", old, **other).code == 0
    assert world.run("key", "revoke", tmp_path / "statement", **other).code == 0
    assert [one["is_revoked"] for one in world.run("key", "show", "--json", **other).json()] == [True]
    (tmp_path / "statement").write_text(statement.replace("lost", "fine"))
    assert world.run("key", "revoke", tmp_path / "statement", **other).code == 6


def test_protocols_are_checked_by_name_and_by_file(world: Any) -> None:
    path = world.protocol()
    good = world.run("protocol", "check", "served-pair", path, "--json")
    assert (good.code, [one["is_sound"] for one in good.json()]) == (0, [True, True])
    path.write_text(path.read_text().replace("title: Two fakes", "titel: Two fakes"))
    bad = world.run("protocol", "check", path)
    assert bad.code == 2
    assert f"{path}:3: titel" in bad.out
    assert f"{path}: refused" in bad.out


def test_the_schema_is_a_json_schema(world: Any) -> None:
    schema = world.run("protocol", "schema").out
    assert json.loads(schema)["title"] == "Assay protocol"
    assert world.run("protocol", "schema", "--out", world.root / "schema.json").code == 0
    assert json.loads((world.root / "schema.json").read_text()) == json.loads(schema)


def test_a_new_protocol_is_sound_keeps_its_comments_and_is_never_overwritten(world: Any) -> None:
    path = world.root / "my-pair.yaml"
    assert world.run("protocol", "new", path).code == 0
    assert "id: my-pair\n" in path.read_text()
    assert path.read_text().startswith("#")
    assert world.run("protocol", "check", path).code == 0
    assert world.run("protocol", "new", path).code == 2
    assert world.run("protocol", "new", world.root / "???.yaml").code == 2


def test_a_plan_says_what_the_design_can_decide(finished: Any) -> None:
    plan = finished.run("plan", "served-pair", "--store", finished.store, "--noise-pct", "4", "--json").json()
    assert (len(plan["labels"]), plan["measured_loads"], plan["can_qualify"]) == (17, 16, True)
    assert {one["source"] for one in plan["noise"].values()} == {"stated"}
    chances = plan["gates"][0]["chances"][0]
    assert 0.9 < chances["p_pass"] < 1
    text = finished.run("plan", "served-pair", "--store", finished.store).out
    assert "noise 4.00 % a load (assumed)" in text
    assert "time:     unknown before its first load" in text
    seen = finished.run("plan", finished.root / "fake-pair.yaml", "--store", finished.store, "--json").json()
    assert seen["estimated_s"] > 0
    assert seen["can_qualify"] is False


def test_what_a_person_reads_of_a_plan(world: Any, golden: Any) -> None:
    for name, arguments in (
        ("plan-served-pair.txt", ("served-pair",)),
        ("plan-served-strict.txt", ("served-strict", "--noise-pct", "2")),
    ):
        golden(name, world.run("plan", *arguments, "--store", world.store).out.encode())


def test_what_a_host_does_not_show_is_a_dash_in_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    from harness.console import Console
    from harness.planning import show_dry_run

    finding = {"id": "governor", "effect": "record", "found": None, "message": "this host shows no governor"}
    value = {"protocol": "p", "loads": ["A1"], "argv": {}, "preflight": [finding], "would_start": True}
    show_dry_run(Console(), value)
    out = capsys.readouterr().out
    assert ("None" in out, "governor" in out) == (False, True)


def test_a_dry_run_records_and_starts_nothing(world: Any) -> None:
    ended = world.run("run", world.protocol(), "--store", world.store, "--dry-run", "--json")
    value = ended.json()
    assert (ended.code, value["loads"], value["would_start"]) == (0, ["A1", "C1", "C2", "A2"], True)
    assert value["lock"]["model"]["model"]["bytes"] == 4096
    assert not world.store.exists()
    assert world.order() == []


def test_the_doctor_names_the_next_command(world: Any) -> None:
    ended = world.run("doctor", "--store", world.store, "--json")
    lines = {(line["topic"], line["name"]): line for line in ended.json()}
    assert lines["model", "smollm2"]["state"] == "missing"
    assert lines["model", "smollm2"]["next"] == "assay model fetch smollm2"
    assert ended.code == 5
    assert lines["store", "evidence"]["next"] == "assay run served-pair"
    assert lines["host", "guard"]["found"] == "no campaign runs on this host"
    assert lines["keys", "key ring"]["next"] == "assay key make"
    assert any(topic == "sensors" for topic, _ in lines)


def test_the_doctor_looks_into_a_store_and_changes_nothing(finished: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.store.rglob("*")}
    lines = {line["name"]: line for line in finished.run("doctor", "--store", finished.store, "--json").json()}
    assert lines["evidence"]["found"] == "1 campaigns, sound by structure"
    assert {path: path.stat().st_mtime_ns for path in finished.store.rglob("*")} == before


def test_no_colour_codes_reach_a_pipe(finished: Any) -> None:
    assert "\x1b" not in finished.run("show", "--store", finished.store).out


@pytest.mark.parametrize(("variables", "has_colour"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_follow_the_terminal_and_no_color(finished: Any, variables: dict[str, str], has_colour: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    environment |= {"TERM": "xterm-256color", **finished.environment, **variables}
    command = [sys.executable, "-c", "from harness.cli import main; main()", "show", "--store", str(finished.store)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    assert (b"\x1b[3" in shown) is has_colour
    assert b"SCREEN_ONLY" in shown, "the words are there with and without colour"


def test_the_root_group_has_no_stub(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not built does not exist as a command."""
    assert set(cli.list_commands(None)) == set(MODULES)  # type: ignore[arg-type]
    for name in ("compare",):
        assert run_cli([name]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("redirect", ["> /dev/full", "| true"])
def test_output_that_nobody_takes_ends_without_a_traceback(world: Any, redirect: str) -> None:
    """The shell sees the program's own exit code: 5 where the result is lost, its usual one where nobody reads on."""
    script = "import sys; from harness.cli import main; sys.argv[0] = 'assay'; main()"
    line = f"set -o pipefail; '{sys.executable}' -c \"{script}\" protocol schema {redirect}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=world.root)
    assert ended.returncode == (5 if "full" in redirect else 0)
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


@pytest.mark.parametrize("noise", ["nan", "inf", "-1"])
def test_noise_is_a_finite_number_of_the_range(world: Any, noise: str) -> None:
    assert world.run("plan", "served-pair", "--noise-pct", noise, "--store", world.store).code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nobody"],
        ["report", "nobody"],
        ["resume", "nobody"],
        ["audit", "--head", "9"],
        ["audit", "--key", "no key"],
        ["key", "trust", "no key"],
        ["key", "show", "nobody"],
    ],
)
def test_what_the_command_line_names_wrongly_is_a_usage_error(world: Any, arguments: list[str]) -> None:
    assert world.run("run", world.protocol(), "--store", world.store).code in {0, 3}
    store = [] if arguments[0] == "key" else ["--store", world.store]
    ended = world.run(*arguments, *store, "--json")
    assert ended.code == 2
    assert ended.json()["error"]["family"] == "usage"


def test_a_report_goes_neither_into_the_store_nor_to_an_impossible_place(world: Any) -> None:
    assert world.run("run", world.protocol(), "--store", world.store).code in {0, 3}
    inside = world.run("report", "--out", world.store / "copies", "--store", world.store)
    assert inside.code == 2
    assert "outside" in inside.err
    assert not (world.store / "copies").exists()
    (world.root / "file").write_text("x")
    nowhere = world.run("report", "--out", world.root / "file" / "folder", "--store", world.store)
    assert nowhere.code == 2
    assert "its folder is no folder" in nowhere.err
