"""Progress and tables on a terminal and without one."""

from __future__ import annotations

import errno
import io
import json
import re
import sys
from typing import Any

import pytest
from rich.console import Console as RichConsole

from harness.console import Console, LiveProgress, PlainProgress, panel, table
from harness.progress import Clockwork
from protocols.errors import HostError, Problem, ProtocolError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class Gone(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def play(progress: Any) -> None:
    progress.begin(campaign_id="pair-1", n_positions=2, n_done=1)
    progress.position(number=2, label="C1", arm="candidate")
    progress.phase("measures cold")
    progress.tick(event_count=0, seconds=0.0, machine="")
    progress.tick(event_count=64, seconds=0.5, machine="2,870 MHz, 106 W")
    progress.warn("other work runs")
    progress.load_done(state="PARTIAL", reason="it died")
    progress.end()


def test_without_a_terminal_progress_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    progress = console.progress()
    assert isinstance(progress, PlainProgress)
    play(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "campaign pair-1: 2 loads, 1 already complete"
    assert lines[1] == "[2/2] C1 candidate: starts, time left unknown"
    assert lines[2] == "[2/2] C1 candidate: measures cold"
    assert lines[3] == "warning: other work runs"
    assert lines[4].startswith("[2/2] C1 candidate: PARTIAL after ")
    assert lines[4].endswith(" s (it died)")


def test_on_a_terminal_progress_shows_position_phase_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = Console()
    screen = Terminal()
    console.err = RichConsole(file=screen, force_terminal=True, width=120, highlight=False)
    progress = console.progress()
    assert isinstance(progress, LiveProgress)
    play(progress)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    for part in (
        "[2/2] C1 candidate",
        "measures cold",
        "prefill",
        "128 tokens/s",
        "time left unknown",
        "PARTIAL after",
    ):
        assert part in shown


def test_time_left_is_the_mean_of_the_loads_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("harness.progress.time.monotonic", lambda: now[0])
    clock = Clockwork()
    clock.begin("pair-1", 4)
    clock.position(1, "A1", "baseline")
    assert clock.left() == "time left unknown"
    now[0] += 50
    assert clock.load_done() == 50
    clock.position(2, "C1", "candidate")
    assert clock.left() == "2 min 30 s left"
    now[0] += 10
    assert clock.left() == "2 min 20 s left"
    now[0] += 1000
    assert clock.left() == "0 s left"


def test_an_error_says_what_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    Console().fail(HostError("the disk is full", where="/store", hint="free some room"))
    assert capsys.readouterr().err == "error: the disk is full\n  where: /store\n  next:  free some room\n"


def test_many_problems_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem(where=f"p.yaml:{line}", message="wrong", hint="mend it") for line in (3, 9)]
    Console().fail(ProtocolError.from_problems("p.yaml", problems))
    assert capsys.readouterr().err == "error: 2 problems\n  p.yaml:3: wrong; mend it\n  p.yaml:9: wrong; mend it\n"


def test_text_from_outside_is_never_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.show("a [red]path[/red]", table(("x",), [("[bold]y[/bold]",)]), panel("t", "PASS", ["[blink]z[/blink]"]))
    console.say("[link=x]w[/link]")
    shown = capsys.readouterr()
    for part in ("[red]path[/red]", "[bold]y[/bold]", "[blink]z[/blink]"):
        assert part in shown.out
    assert "[link=x]w[/link]" in shown.err


def test_long_lines_of_tables_and_panels_are_wrapped_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    Console().show(panel("Verdict", "PASS", [words]), table(("reason",), [(words,)]))
    shown = capsys.readouterr().out
    assert shown.count("word59") == 2


@pytest.mark.parametrize(("code", "expected"), [(0, 5), (1, 5), (3, 5), (5, 5), (6, 6), (130, 130)])
def test_a_result_that_cannot_be_written_is_a_failed_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, expected: int
) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    console = Console()
    console.show("sound")
    assert console.finish(code) == expected
    assert "could not be written to standard output: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 6])
def test_a_reader_that_goes_away_changes_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    monkeypatch.setattr(sys, "stdout", Gone())
    console = Console()
    console.result({"sound": True}, lambda _: None)
    console.show("more")
    assert console.finish(code) == code
    assert capsys.readouterr().err == ""


def test_a_full_standard_error_hides_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    console = Console(as_json=True)
    console.warn("other work runs")
    console.result([1], lambda _: None)
    assert console.finish(0) == 0
    assert capsys.readouterr().out == "[\n  1\n]\n"


HOSTILE = "a\x1b]0;owned\x07b\x9b2Jc\u202ed\u2028e\r"
SHOWN = "a\\x1b]0;owned\\x07b\\x9b2Jc\\u202ed\\u2028e\\r"


def test_no_text_moves_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.show(HOSTILE, table(("a",), [(HOSTILE,)]), panel("t", "PASS", [HOSTILE]))
    console.say(HOSTILE)
    console.warn(HOSTILE)
    console.fail(HostError(HOSTILE, where=HOSTILE, hint=HOSTILE))
    console.fail(
        ProtocolError.from_problems("f", [Problem(where=HOSTILE, message="x"), Problem(where="b", message="y")])
    )
    shown = capsys.readouterr()
    assert (shown.out.count(SHOWN), shown.err.count(SHOWN)) == (3, 6)
    assert not set(shown.out + shown.err) & set("\x1b\x07\x9b\u202e\u2028\r")


def test_json_is_ascii_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=True).result({"text": HOSTILE}, lambda _: None)
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert "\x1b" not in shown
    assert json.loads(shown) == {"text": HOSTILE}


FORGED = "it died\nverdict: PASS\r\x1b[2J\x9b1A\u2028verdict: PASS\u202egnp\x07"


def test_a_text_of_others_begins_no_line_and_moves_nothing_wherever_it_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    console.show(FORGED, table(("x",), [(FORGED,)], title="t"), panel("t", "FAIL", [FORGED]))
    console.say(FORGED)
    console.warn(FORGED)
    console.fail(ProtocolError(FORGED, where=FORGED, hint=FORGED))
    console.fail(
        ProtocolError.from_problems(FORGED, [Problem(where=FORGED, message=FORGED, hint=FORGED) for _ in range(2)])
    )
    play_hostile(PlainProgress(console))
    shown = capsys.readouterr()
    lines = [line for part in shown for line in part.split("\n")]
    assert sum("verdict: PASS" in line for line in lines) >= 15
    assert not [line for line in lines if line.lstrip(" ").startswith("verdict")]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", shown.out + shown.err)


def play_hostile(progress: Any) -> None:
    progress.begin(campaign_id=FORGED, n_positions=1, n_done=0)
    progress.position(number=1, label=FORGED, arm=FORGED)
    progress.phase(FORGED)
    progress.tick(event_count=9, seconds=1.0, machine=FORGED)
    progress.say(FORGED)
    progress.warn(FORGED)
    progress.load_done(state="PARTIAL", reason=FORGED)
    progress.end()


def test_the_progress_on_a_terminal_shows_texts_of_others_as_escapes() -> None:
    stream = Terminal()
    console = Console()
    console.err = RichConsole(file=stream, force_terminal=True, width=4000, no_color=True, highlight=False)
    play_hostile(LiveProgress(console))
    shown = stream.getvalue()
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    assert not re.search("[\x07\x9b\u2028\u202e]", shown)


def test_a_document_keeps_its_own_lines_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    Console().document("# report\n\nline \x1b[1m of \u202e others")
    assert capsys.readouterr().out == "# report\n\nline \\x1b[1m of \\u202e others\n"
