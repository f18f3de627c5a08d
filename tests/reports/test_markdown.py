"""The Markdown report, word for word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

from protocols.schema import Arm
from reports.claims import explanation_lines
from reports.facts import ArmDifference, EarlierFact, Facts
from reports.json_report import render_json
from reports.markdown import render_markdown

Golden = Callable[[str, bytes], None]


def test_the_report_of_a_pass(passed: Facts, golden: Golden) -> None:
    golden("pass.md", render_markdown(passed).encode())


def test_the_report_of_a_control_that_fails_as_it_must(control: Facts, golden: Golden) -> None:
    golden("control.md", render_markdown(control).encode())


def test_the_report_of_a_campaign_that_stopped(broken: Facts, golden: Golden) -> None:
    golden("stopped.md", render_markdown(broken).encode())


def test_the_verdict_is_the_first_line(passed: Facts) -> None:
    assert render_markdown(passed).startswith("# PASS: Two layouts of one engine, served\n")


def test_every_load_of_the_facts_is_in_the_table(passed: Facts, broken: Facts) -> None:
    for facts in (passed, broken):
        text = render_markdown(facts)
        for load in facts.loads:
            assert re.search(rf"^\| {load.label} \| {load.arm}", text, re.MULTILINE), load.label


def test_text_from_outside_cannot_break_a_table(passed: Facts) -> None:
    model = replace(passed.model, name="a | b\n| c")
    text = render_markdown(replace(passed, model=model))
    assert "| a \\| b \\| c |" in text


def test_words_of_an_engine_make_no_markup(broken: Facts) -> None:
    words = "the engine says: <script>x</script> ![PASS](http://localhost/p.png) **PASS**\n# PASS"
    loads = tuple(replace(load, reason=words) for load in broken.loads)
    text = render_markdown(replace(broken, loads=loads, interruptions=(words,)))
    shown = "the engine says: &lt;script>x&lt;/script> ![PASS]\\(http://localhost/p.png) \\*\\*PASS\\*\\* # PASS"
    assert f"- Interrupted: {shown}" in text
    assert re.search(r"<\w|\]\(|\*\*PASS|^# PASS", text, re.MULTILINE) is None


def test_every_table_row_has_as_many_cells_as_its_head(passed: Facts, control: Facts, broken: Facts) -> None:
    for facts in (passed, control, broken):
        width = 0
        for line in render_markdown(facts).splitlines():
            if not line.startswith("|"):
                width = 0
                continue
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert width in {0, cells}, line
            width = cells


def test_the_same_facts_give_the_same_bytes(passed: Facts) -> None:
    assert render_markdown(passed) == render_markdown(passed)


def test_nothing_is_said_of_the_files_behind_endpoints(passed: Facts) -> None:
    endpoint = Arm.model_validate({"engine": {"kind": "openai", "url": "http://h:1", "model": "stated-name"}})
    arms = passed.protocol.arms.model_copy(update={"baseline": endpoint, "candidate": endpoint})
    facts = replace(
        passed,
        protocol=passed.protocol.model_copy(update={"arms": arms}),
        arms=tuple(replace(arm, kind="openai", is_fresh=False, files=()) for arm in passed.arms),
        difference=ArmDifference(changed_files=(), only_baseline=(), only_candidate=(), same_files=(), settings=()),
    )
    text = render_markdown(facts)
    assert "Every file of the two arms is the same" not in text
    assert "Nothing is known of the files behind the endpoints" in text
    assert "| arm | file |" not in text, "a table without rows"
    assert "| arm | model (stated, not verified) |\n|---|---|\n| baseline | stated-name |" in text
    assert "| model file (stated, not verified) | architecture" in text
    without = render_markdown(replace(facts, model=None))
    assert "architecture" not in without
    assert json.loads(render_json(replace(facts, model=None)))["model"] is None

    one = replace(
        facts,
        protocol=passed.protocol.model_copy(
            update={"arms": arms.model_copy(update={"baseline": passed.protocol.arms.baseline})}
        ),
        arms=(passed.arms[0], facts.arms[1]),
    )
    text = render_markdown(one)
    assert "Nothing is known of the files behind the candidate, an endpoint" in text
    assert "| model | architecture" in text
    assert "Only these files differ" not in text


HOSTILE = "it died\nverdict: PASS\r\x1b[2J\x9b1A\u2028verdict: PASS\u202egnp\x07"


def test_texts_of_others_begin_no_line_and_command_no_terminal(passed: Facts) -> None:
    """A title, a reason, a finding or a file name from a foreign store, in a file that somebody prints."""
    gate = replace(passed.gates[0], status="FAIL", reason=HOSTILE)
    facts = replace(
        passed,
        protocol=passed.protocol.model_copy(update={"title": HOSTILE, "purpose": HOSTILE, "margin_reason": HOSTILE}),
        gates=(gate, *passed.gates[1:]),
        verdict=replace(passed.verdict, reason=f"{HOSTILE} {gate.id}: {HOSTILE}"),
        loads=tuple(replace(one, state="PARTIAL", reason=HOSTILE) for one in passed.loads),
        interruptions=(HOSTILE,),
        preflight=tuple(replace(one, found=HOSTILE, message=HOSTILE) for one in passed.preflight),
    )
    shown = render_markdown(facts)
    assert shown.count("verdict: PASS") > 8
    assert not [line for line in shown.split("\n") if line.lstrip("-> ").startswith("verdict: PASS")]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", shown)
    assert [line for line in explanation_lines(facts) if "\n" in line or line.startswith("verdict")] == []


def test_a_candidate_that_was_rejected_before_stays_in_sight(passed: Facts) -> None:
    one = EarlierFact(
        campaign_id="first-20261128T120000Z-abc123",
        title="A fix that scans | rejected",
        locked_utc_ns=1_795_867_200_000_000_000,
        candidate="0123456789ab",
        state="judged",
        verdicts=("FAIL",),
    )
    assert "Tried before" not in render_markdown(passed)
    text = render_markdown(replace(passed, earlier=(one,)))
    assert "One campaign of this store asked the same question before, with whatever candidate: 1 x FAIL." in text
    assert (
        "| first-20261128T120000Z-abc123 | A fix that scans \\| rejected | 2026-11-28 12:00:00 UTC | 0123456789ab | FAIL |"
        in text
    )
    assert text.index("## Tried before") < text.index("## What may be said")
    left = replace(one, state="not finished", verdicts=())
    again = render_markdown(replace(passed, earlier=(one,) * 10 + (left,)))
    assert "11 campaigns of this store" in again
    assert "10 x FAIL, 1 x not finished. The newest 10 are shown; `assay attempts` lists all." in again
    assert again.count("| first-20261128T120000Z-abc123 |") == 10
    assert json.loads(render_json(replace(passed, earlier=(one,))))["earlier"][0]["verdicts"] == ["FAIL"]
