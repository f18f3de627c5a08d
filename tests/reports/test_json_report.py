"""The JSON report: the same facts with every digit."""

from __future__ import annotations

import json
from collections.abc import Callable

from reports.facts import Facts
from reports.json_report import render_json


def test_the_report_of_a_pass(passed: Facts, golden: Callable[[str, bytes], None]) -> None:
    golden("pass.json", render_json(passed))


def test_it_says_whether_its_verdict_is_a_record(passed: Facts, broken: Facts) -> None:
    assert json.loads(render_json(passed))["is_recorded"] is True
    assert json.loads(render_json(broken))["is_recorded"] is False


def test_numbers_are_not_rounded(passed: Facts) -> None:
    report = json.loads(render_json(passed))
    assert report["loads"][3]["workloads"][0]["prefill_rate"] == 474.25
    assert report["loads"][3]["workloads"][0]["ttft_ns"] == 1_086_000_003


def test_it_holds_every_sentence_of_the_markdown(control: Facts) -> None:
    from reports.markdown import render_markdown

    report, text = json.loads(render_json(control)), render_markdown(control)
    for sentence in [report["headline"], *report["control"], *report["not_measured"], *report["limits"]]:
        assert sentence in text
    for claim in report["claims"]:
        assert claim["text"] in text
