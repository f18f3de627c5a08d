"""The report as Markdown: verdict first, then what it rests on. No arithmetic: numbers come from facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from protocols.plain_text import one_line
from protocols.results import in_short
from reports import style
from reports.check_table import COLUMNS, check_rows, check_summary, requirement_rows
from reports.claims import (
    claims_of,
    control_lines,
    explanation_lines,
    failed_loads,
    headline,
    limits_of,
    loss_numbers,
    not_measured,
    untouched,
)
from reports.companions import companion_lines
from reports.earlier import EARLIER_SHOWN, earlier_lines, earlier_verdict
from reports.facts import Facts, GateFact, LoadFact, TelemetryFact
from reports.machine_section import anomaly_lines, machine_tables
from reports.model_section import model_tables, unknown_files


def render_markdown(facts: Facts) -> str:
    """Return the whole report."""
    sections = (
        _verdict(facts),
        _checks(facts),
        _earlier(facts),
        _claims(facts),
        _gates(facts),
        _loads(facts),
        _failures(facts),
        _identities(facts),
        _host(facts),
        _machine(facts),
        _diagnostics(facts),
        _limits(facts),
        _protocol(facts),
    )
    return "\n".join(line for section in sections for line in section).rstrip("\n") + "\n"


def _line(text: object) -> str:
    """Return one line in which an engine's own words make no markup: no tag, link, image or emphasis, no row."""
    line = one_line(" ".join(str(text).split()))
    return line.replace("<", "&lt;").replace("](", "]\\(").replace("*", "\\*")


def _cell(text: object) -> str:
    return _line(text).replace("|", "\\|")


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(style.ABSENT if cell is None else _cell(cell) for cell in row) + " |"
    yield ""


def _list(lines: Iterable[str]) -> Iterator[str]:
    items = [f"- {_line(line)}" for line in lines]
    if items:
        yield from items
        yield ""


def _verdict(facts: Facts) -> Iterator[str]:
    status = facts.verdict.status if facts.is_recorded else "no verdict yet"
    yield f"# {status}: {_line(facts.protocol.title)}"
    yield ""
    yield _line(headline(facts))
    yield ""
    why, *gates = explanation_lines(facts)
    yield _line(why)
    yield ""
    yield from _list([*gates, *control_lines(facts)])
    recorded = f"ledger entry {facts.verdict.entry_seq}" if facts.is_recorded else "not recorded"
    yield from _table(
        ("campaign", "protocol", "locked", "verdict stands in", "exit code"),
        [
            (
                facts.campaign_id,
                facts.protocol.id,
                style.utc(facts.locked_utc_ns),
                recorded,
                facts.verdict.exit_code if facts.is_recorded else style.ABSENT,
            )
        ],
    )


def _checks(facts: Facts) -> Iterator[str]:
    rows = check_rows(facts)
    if not rows:
        return
    yield "## What was broken, what is repaired, what was not tested"
    yield ""
    yield from _list([*check_summary(rows), untouched(facts)])
    yield from _table(COLUMNS, [*rows, *requirement_rows(facts)])


def _earlier(facts: Facts) -> Iterator[str]:
    if not facts.earlier:
        return
    yield "## Tried before"
    yield ""
    yield from _list(earlier_lines(facts))
    yield from _table(
        ("campaign", "what it was", "locked", "candidate's files", "verdict"),
        [
            (one.campaign_id, one.title, style.utc(one.locked_utc_ns), one.candidate, earlier_verdict(one))
            for one in facts.earlier[-EARLIER_SHOWN:]
        ],
    )


def _claims(facts: Facts) -> Iterator[str]:
    claims = claims_of(facts)
    for kind, title in (
        ("may_say", "What may be said"),
        ("may_not_say", "What may not be said"),
        ("next", "Next step"),
    ):
        chosen = [claim for claim in claims if claim.kind == kind]
        if chosen:
            yield f"## {title}"
            yield ""
            yield from _list(f"{claim.text} [{claim.gate}]" for claim in chosen)


def _gates(facts: Facts) -> Iterator[str]:
    yield "## Gates"
    yield ""
    yield from _table(
        ("gate", "rule", "status", "required", "limit", "reason"),
        [
            (
                gate.id,
                gate.kind,
                gate.status,
                "yes" if gate.required else "no",
                _limit(gate),
                gate.reason,
            )
            for gate in facts.gates
        ],
    )
    with_numbers = [(gate, numbers) for gate in facts.gates if (numbers := loss_numbers(gate))]
    if with_numbers:
        yield "Losses in percent of the baseline's rate; a negative loss is a gain. Bounds are one-sided."
        yield ""
        names = [name for name, _ in with_numbers[0][1]]
        yield from _table(
            ("gate", *names), [(gate.id, *(text for _, text in numbers)) for gate, numbers in with_numbers]
        )
    companions = companion_lines(facts)
    if companions:
        yield "Beside the losses, deciding nothing:"
        yield ""
        yield from _list(companions)


def _limit(gate: GateFact) -> str:
    if gate.margin is not None:
        return f"margin {gate.margin} %"
    return style.ABSENT if gate.threshold is None else gate.threshold


def _loads(facts: Facts) -> Iterator[str]:
    yield "## Loads"
    yield ""
    yield "Rates in tokens per second, by the clock that is named; A is the baseline, C the candidate."
    yield ""
    columns = (
        "load",
        "arm",
        "state",
        "workload",
        "prefill",
        "generation",
        "TTFT ms",
        "prompt",
        "cached",
        "generated",
        "clock",
        "telemetry",
    )
    yield from _table(columns, [row for load in facts.loads for row in _load_rows(load)])


def _load_rows(load: LoadFact) -> Iterator[Sequence[object]]:
    label = load.label if load.attempt <= 1 else f"{load.label}, try {load.attempt}"
    arm = f"{load.arm} (burn-in, not measured)" if load.is_burn_in else load.arm
    state = load.state or "not run"
    if not load.workloads:
        yield (label, arm, state, *[style.ABSENT] * 9)
    for one in load.workloads:
        flag = " (disagree)" if one.timings_disagree else ""
        yield (
            label,
            arm,
            state,
            one.workload if one.outcome == "ok" else f"{one.workload}: {one.outcome}",
            style.rate(one.prefill_rate),
            style.rate(one.generation_rate),
            style.milliseconds(one.ttft_ns),
            style.count(one.prompt_tokens),
            style.count(one.cached_tokens),
            style.count(one.generated_tokens),
            f"{one.clock or style.ABSENT}{flag}",
            _telemetry(load.telemetry),
        )


def _telemetry(one: TelemetryFact | None) -> str:
    if one is None:
        return "none"
    parts = [f"{style.count(one.samples)} samples"]
    if one.missed_ticks:
        parts.append(f"{style.count(one.missed_ticks)} missed")
    if not one.covers_requests:
        parts.append("does not cover all requests")
    if one.host_cpu_busy_pct is not None:
        parts.append(f"host CPU {style.whole_percent(one.host_cpu_busy_pct)} busy")
    if one.peak_rss_bytes is not None:
        parts.append(f"peak memory {style.size(one.peak_rss_bytes)}")
    return ", ".join(parts)


def _failures(facts: Facts) -> Iterator[str]:
    failed = failed_loads(facts)
    if not failed and not facts.interruptions:
        return
    yield "## Failures and partial loads"
    yield ""
    yield from _list(
        f"{load.label}, try {load.attempt}: {load.state}. {load.reason or 'No reason was recorded.'}" for load in failed
    )
    yield from _list(f"Interrupted: {in_short(reason)}" for reason in facts.interruptions)


def _identities(facts: Facts) -> Iterator[str]:
    yield "## Identities"
    yield ""
    difference = facts.difference
    if unknown := unknown_files(facts):
        yield unknown
        yield ""
    elif difference.changed_files or difference.only_baseline or difference.only_candidate:
        yield "Only these files differ between the arms:"
        yield ""
        yield from _list(
            [
                *(f"`{name}`" for name in difference.changed_files),
                *(f"`{name}`, only in the baseline" for name in difference.only_baseline),
                *(f"`{name}`, only in the candidate" for name in difference.only_candidate),
            ]
        )
    else:
        yield "Every file of the two arms is the same."
        yield ""
    if difference.settings:
        yield "Settings that differ:"
        yield ""
        yield from _table(("setting", "baseline", "candidate"), difference.settings)
    else:
        yield "The settings of the two arms are the same."
        yield ""
    rows = [
        (
            arm.arm,
            file.name,
            style.size(file.bytes),
            style.short_hash(file.sha256),
            (file.build_id or style.ABSENT)[:12],
        )
        for arm in facts.arms
        for file in arm.files
    ]
    if rows:
        yield from _table(("arm", "file", "size", "SHA-256", "build-id"), rows)
    yield from _table(
        ("arm", "kind", "layout salt", "faults"),
        [
            (
                arm.arm,
                arm.kind,
                style.ABSENT if arm.layout_salt is None else arm.layout_salt,
                ", ".join(arm.faults) or "none",
            )
            for arm in facts.arms
        ],
    )
    for sentence, columns, cells in model_tables(facts):
        if sentence:
            yield sentence
            yield ""
        yield from _table(columns, cells)


def _host(facts: Facts) -> Iterator[str]:
    yield "## Host and telemetry"
    yield ""
    yield from _table(
        ("fact", "value"), [(name, value) for name, value in sorted(facts.host.items()) if value is not None]
    )
    yield from _table(
        ("preflight", "effect", "found", "expected", "meaning"),
        [(one.id, one.effect, one.found, one.expected, one.message) for one in facts.preflight],
    )
    yield from _table(
        ("telemetry source", "state", "reason"),
        [(one.name, one.state, one.reason or style.ABSENT) for one in facts.providers],
    )


def _machine(facts: Facts) -> Iterator[str]:
    tables, anomalies = [*machine_tables(facts)], [*anomaly_lines(facts)]
    if not tables and not anomalies:
        return
    yield "## The machine while it served"
    yield ""
    for sentence, columns, rows in tables:
        yield sentence
        yield ""
        yield from _table(columns, rows)
    if anomalies:
        yield "Anomalies; without a rule of the protocol they decide nothing:"
        yield ""
        yield from _list(anomalies)


def _diagnostics(facts: Facts) -> Iterator[str]:
    if not facts.diagnostics:
        return
    yield "## Diagnostics"
    yield ""
    yield "Profilers after the timing was over, each in a load of its own; no gate sees them."
    yield ""
    yield from _table(
        ("diagnostic", "tool", "arm", "status", "outcome", "from the cache", "what its files show", "reason"),
        [
            (
                one.diagnostic,
                one.tool_version or one.tool,
                one.arm,
                one.status,
                one.outcome,
                style.count(one.cached_tokens),
                "; ".join(f"{name} {value}" for name, value in one.numbers.items()) or style.ABSENT,
                one.reason,
            )
            for one in facts.diagnostics
        ],
    )


def _limits(facts: Facts) -> Iterator[str]:
    yield "## What was not measured"
    yield ""
    yield from _list(not_measured(facts))
    yield "## Limits"
    yield ""
    yield from _list(limits_of(facts))


def _protocol(facts: Facts) -> Iterator[str]:
    protocol = facts.protocol
    yield "## Protocol"
    yield ""
    yield _line(protocol.purpose)
    yield ""
    if protocol.margin_reason:
        yield f"How the margins were chosen: {_line(protocol.margin_reason)}"
        yield ""
    yield from _table(
        ("frozen", "value"),
        [
            ("lock, SHA-256", facts.lock_sha256),
            ("protocol file, SHA-256", facts.protocol_file_sha256),
            ("seed of the schedule's coins, commitment", facts.seed_commitment or "no coins"),
            *((f"version of {name}", version) for name, version in sorted(facts.versions.items())),
        ],
    )
    yield "Check all of this without trusting this report: `assay audit`."
