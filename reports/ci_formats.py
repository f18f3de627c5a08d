"""A campaign as test results for CI: JUnit XML and CTRF JSON. One test a gate, and one for the verdict.

Neither format knows our statuses. A gate that must hold and FAILs is a failure, NOT_COMPARABLE an error; INCONCLUSIVE,
NOT_RUN and SCREEN_ONLY are skipped (JUnit) or other (CTRF) with the status and the reason in words: they are no pass,
and `assay run` says so by its exit code. A gate that is not required never fails a build.
"""

from __future__ import annotations

import json
from typing import Any, Final
from xml.etree import ElementTree as ET

from protocols.plain_text import plain
from reports.facts import Facts

_FAILING: Final = {"FAIL": "failure", "NOT_COMPARABLE": "error", "INVALID": "error"}
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


def _results(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Return name, kind, status and reason of each test, the verdict last."""
    rows = []
    for gate in facts.gates:
        status = gate.status if gate.required or gate.status == "PASS" else f"{gate.status} (not required)"
        rows.append((gate.id, gate.kind, status, gate.reason))
    status = facts.verdict.status if facts.is_recorded else f"{facts.verdict.status} (not recorded)"
    return [*rows, ("verdict", "verdict", status, facts.verdict.reason)]


def _duration_ns(facts: Facts) -> int:
    return sum(load.duration_ns or 0 for load in facts.loads)


def render_junit(facts: Facts) -> bytes:
    """Return the campaign as a JUnit XML file."""
    results = _results(facts)
    kinds = [None if status == "PASS" else _FAILING.get(status, "skipped") for _, _, status, _ in results]
    suite = ET.Element(
        "testsuite",
        name=facts.campaign_id,
        tests=str(len(results)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=f"{_duration_ns(facts) / _NS_PER_S:.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("lock_sha256", facts.lock_sha256), ("protocol", facts.protocol.id)):
        ET.SubElement(properties, "property", name=name, value=value)
    for (name, kind, status, reason), word in zip(results, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname=f"{facts.protocol.id}.{kind}", name=name)
        if word is not None:
            message = {"message": _visible(f"{status}: {reason}")}
            ET.SubElement(case, word, message if word == "skipped" else {**message, "type": status})
    root = ET.Element("testsuites", name="assay")
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _visible(text: str) -> str:
    """Return a text that a reader only shows, without the two marks that XML 1.0 cannot hold and Unicode can."""
    return plain(text).replace("\ufffe", "").replace("\uffff", "")


def render_ctrf(facts: Facts) -> bytes:
    """Return the campaign as a CTRF JSON file."""
    tests: list[dict[str, Any]] = []
    for name, kind, status, reason in _results(facts):
        word = "passed" if status == "PASS" else "failed" if status in _FAILING else "other"
        extra = {"assay_status": status}
        tests.append({"name": name, "status": word, "duration": 0, "type": kind, "message": reason, "extra": extra})
    words = [str(test["status"]) for test in tests]
    start = facts.locked_utc_ns // _NS_PER_MS
    summary = {
        "tests": len(tests),
        "passed": words.count("passed"),
        "failed": words.count("failed"),
        "skipped": 0,
        "pending": 0,
        "other": words.count("other"),
        "start": start,
        "stop": start + _duration_ns(facts) // _NS_PER_MS,
    }
    tool = {"name": "assay", "version": str(facts.versions.get("assay", "unknown"))}
    extra = {"campaign": facts.campaign_id, "lock_sha256": facts.lock_sha256}
    value = {
        "reportFormat": "CTRF",
        "specVersion": "0.0.0",
        "results": {"tool": tool, "summary": summary, "tests": tests, "extra": extra},
    }
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"
