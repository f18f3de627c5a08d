"""Sentences that are bound to gate results: nothing is claimed that a gate does not support.

Each claim names the gate that it rests on. A loss gate that PASSes carries the one claim that a release may quote;
every other status carries a sentence that says what may not be said, and the cheapest step that would change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from protocols.breaks import NEXT_STEP
from protocols.checks.served_recall import ServedRecallCheck
from protocols.engine_schema import BundledEngine, FolderEngine
from protocols.measurements import ARMS
from protocols.plain_text import one_line
from protocols.plan import POWER, Noise, minimal_detectable_loss
from protocols.results import in_short
from protocols.validity import READING_WORDS
from reports import style
from reports.facts import Facts, GateFact, LoadFact
from reports.steps import is_look_open, loss_gate, next_step, real

HEADLINES = {
    "PASS": "The candidate may replace the baseline within the stated scope.",
    "FAIL": "The candidate must not replace the baseline.",
    "INCONCLUSIVE": "Not decided: the evidence supports neither a yes nor a no.",
    "SCREEN_ONLY": "Screened only: nothing spoke against the candidate, but this design cannot qualify it.",
    "NOT_RUN": "Not decided: a required check could not be run.",
    "NOT_COMPARABLE": "Not comparable: the two engines did not do the same work, so their speeds say nothing.",
    "INVALID": "Invalid: a rule that was fixed beforehand broke, so nothing is concluded.",
}
SCREENED = "The candidate may replace the baseline within the stated scope, which leaves its speed out (claim: screen)."
SHARED_BREAK = (
    "Not comparable: the baseline itself breaks what the protocol states, so nothing is said about the candidate."
)
UNFINISHED = "No verdict yet: the campaign is not complete. What the gates say now is shown, and is no verdict."
METRICS = {"prefill_rate": "prefill rate", "generation_rate": "generation rate"}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence and the gate that it rests on. `kind`: may be said, may not be said, or what to do next."""

    kind: Literal["may_say", "may_not_say", "next"]
    gate: str
    text: str


def headline(facts: Facts) -> str:
    """Return the one sentence under the verdict."""
    if not facts.is_recorded:
        return UNFINISHED
    status = facts.verdict.status
    if status == "NOT_COMPARABLE" and any(gate.required and NEXT_STEP in gate.inputs for gate in facts.gates):
        return SHARED_BREAK
    return SCREENED if status == "PASS" and facts.protocol.claim == "screen" else HEADLINES[status]


def explanation(facts: Facts) -> str:
    """Return why the verdict is what it is, or why there is none."""
    if facts.is_recorded:
        return facts.verdict.reason
    if facts.interruptions:
        reason = in_short(facts.interruptions[-1]).rstrip(".")
        return f"It stopped early: {reason}."
    return "Its runner still works on it, or was killed."


def explanation_lines(facts: Facts) -> list[str]:
    """Return the explanation with the sentence of each gate on a line of its own."""
    text = one_line(explanation(facts))  # so that only what follows begins a line
    for gate in facts.gates:
        sentence = f"{gate.id}: {one_line(gate.reason)}"
        text = text.replace(f" {sentence}", f"\n  {sentence}")
    return text.split("\n")


def claims_of(facts: Facts) -> tuple[Claim, ...]:
    """Return every claim, in the order of the gates. A next step that several gates share is named once."""
    claims: list[Claim] = []
    steps: set[str] = set()
    for claim in (claim for gate in facts.gates for claim in _claims(gate, facts)):
        if claim.kind == "next" and claim.text in steps:
            continue
        steps.add(claim.text)
        claims.append(claim)
    return tuple(claims)


def _claims(gate: GateFact, facts: Facts) -> Iterator[Claim]:
    may_speak = facts.is_recorded and facts.verdict.status != "INVALID"
    if gate.status == "PASS" and may_speak:
        yield Claim(kind="may_say", gate=gate.id, text=_supported(gate, facts))
        return
    if gate.status == "FAIL" and may_speak:
        yield Claim(kind="may_say", gate=gate.id, text=gate.reason)
    if gate.kind in {"loss", "screen_loss"}:
        metric = METRICS[str(loss_gate(facts.protocol, gate.id).metric)] if gate.kind == "loss" else "rate"
        yield Claim(
            kind="may_not_say",
            gate=gate.id,
            text=f"That the candidate's {metric} is as good as the baseline's: gate {gate.id} is {gate.status}."
            f"{_why_open(gate)}",
        )
    if gate.status not in {"PASS", "FAIL"}:
        yield Claim(kind="next", gate=gate.id, text=next_step(gate, facts))


def _why_open(gate: GateFact) -> str:
    """Say whether noise or the candidate itself keeps a loss from being decided; empty where it is something else."""
    inputs = gate.inputs
    error, noise = real(inputs.get("standard_error_pct")), real(inputs.get("sigma_pct"))
    if gate.status != "INCONCLUSIVE" or gate.margin is None or error is None or not inputs["residual_df"]:
        return ""
    smallest = minimal_detectable_loss(
        1.0, inputs["residual_df"], Noise(sigma=error / 100), alpha=float(inputs["alpha"])
    )
    loads = inputs["n_baseline"] + inputs["n_candidate"]
    if smallest is not None and 100 * smallest >= float(gate.margin):
        return (
            f" Loads of one engine vary by {style.percent(noise)} here: {loads} of them rule out a loss of "
            f"{style.percent(100 * smallest)} for an equal candidate (chance {POWER:g}); the margin is {gate.margin} %."
        )
    return (
        f" The loads are steady enough for a margin of {gate.margin} %; the candidate itself lies too close to it for "
        f"{loads} of them."
    )


def _supported(gate: GateFact, facts: Facts) -> str:
    if gate.kind != "loss":
        return gate.reason
    locked = loss_gate(facts.protocol, gate.id)
    workload = facts.protocol.workload(locked.workload)
    sides = "neither lower nor higher than the baseline's" if locked.equivalence else "not lower than the baseline's"
    return (
        f"On this host, with this model, {workload.prompt_tokens} prompt tokens and "
        f"{workload.generated_tokens} generated tokens, the candidate's {METRICS[locked.metric]} "
        f"is {sides} by {gate.margin} % or more "
        f"({100 * (1 - float(locked.alpha)):g} % confidence)."
    )


def loss_numbers(gate: GateFact) -> tuple[tuple[str, str], ...]:
    """Return name and text of every number that a loss gate rests on; empty where it computed none."""
    inputs = gate.inputs
    if gate.kind != "loss" or "loss_pct" not in inputs:
        return ()
    return (
        ("estimated loss", style.percent(real(inputs["loss_pct"]), signed=True)),
        ("lower bound", style.percent(real(inputs["loss_low_pct"]), signed=True)),
        ("upper bound", style.percent(real(inputs["loss_high_pct"]), signed=True)),
        ("margin", f"{gate.margin} %"),
        ("loads", f"{inputs['n_baseline']} baseline, {inputs['n_candidate']} candidate"),
        ("drift a load", style.percent(real(inputs["drift_pct_per_load"]), signed=True)),
        ("noise of a load", style.percent(real(inputs["sigma_pct"]))),
        ("by the client's clock", style.percent(real(inputs["client_loss_pct"]), signed=True)),
    )


def control_lines(facts: Facts) -> tuple[str, ...]:
    """Return what a control protocol expected and what was found, with each known fault beside the measured loss."""
    expected = facts.protocol.expect
    if expected is None:
        return ()
    found = facts.verdict.status if facts.is_recorded else "no verdict yet"
    if found == expected:
        surprise = "as expected"
    elif found in {"PASS", "FAIL", "SCREEN_ONLY"}:
        surprise = "NOT as expected: the judge cannot be believed before this is explained"
    else:
        surprise = "which says nothing about the judge: the control was not decided here"
    lines = [f"This is a control. Expected verdict: {expected}. Found: {found}, {surprise}."]
    faults = [fault for arm in facts.arms if arm.arm == "candidate" for fault in arm.faults]
    for fault in faults:
        name, _, share = fault.partition("=")
        if name != "slow-decode" or not share:
            lines.append(f"Known fault of the candidate: {fault}.")
            continue
        lines += [
            f"Known fault of the candidate: {share} % lower generation rate. {_measured_loss(gate)}"
            for gate in facts.gates
            if gate.kind == "loss" and "loss_pct" in gate.inputs and gate.inputs.get("metric") == "generation_rate"
        ]
    return tuple(lines)


def _measured_loss(gate: GateFact) -> str:
    loss, low, high = (style.percent(real(gate.inputs[f"loss{part}_pct"])) for part in ("", "_low", "_high"))
    return f"Measured by gate {gate.id}: loss of {loss} (bounds {low} to {high})."


def failed_loads(facts: Facts) -> tuple[LoadFact, ...]:
    """Return the loads that were started and are not COMPLETE."""
    return tuple(load for load in facts.loads if load.state not in {"COMPLETE", None})


def not_measured(facts: Facts) -> tuple[str, ...]:
    """Return what this campaign says nothing about."""
    protocol = facts.protocol
    lines = [f"Gate {gate.id} was NOT_RUN: {gate.reason}" for gate in facts.gates if gate.status == "NOT_RUN"]
    not_run = [load.label for load in facts.loads if load.state is None]
    if not_run:
        names = ", ".join(not_run)
        lines.append(
            f"Loads that a decided look made needless: {names}."
            if facts.is_recorded and not is_look_open(facts)
            else f"Loads that were not run: {names}."
        )
    if any(provider.name == "gpu" and provider.state == "absent" for provider in facts.providers):
        lines.append("GPU: no GPU telemetry on this host.")
    watched = [load.telemetry for load in facts.loads if load.telemetry is not None]
    has_energy = any(one.energy_uj is not None for load in facts.loads for one in load.machine.energies)
    if not has_energy and not any(one.energy_j is not None for one in watched):
        lines.append("Energy: this host shows no energy counter to us.")
    if not any(one.cpu_clock_mhz is not None for one in watched):
        lines.append("CPU clock: this host does not show it to us.")
    if not any(one.cpu_temp_c is not None for one in watched):
        lines.append("CPU temperature: this host does not show it to us.")
    sizes = ", ".join(f"{w.prompt_tokens} + {w.generated_tokens}" for w in protocol.workloads)
    lines.append(f"Other lengths than {sizes} tokens (prompt + generated), other models, other hosts, other settings.")
    together = [check.id for check in protocol.checks if isinstance(check, ServedRecallCheck)]
    if together:
        names = ", ".join(together)
        lines.append(f"The speed of several requests at once: only the answers of such were looked at ({names}).")
    else:
        lines.append("Several requests at once: each load served one request at a time.")
    lines.append("The quality of the text, beyond whether both arms generate the same token ids.")
    return tuple(lines)


def untouched(facts: Facts) -> str:
    """Return what no row of the campaign has touched, in short: what a reader might take for tested.

    A GPU is named only where we know that none took part: other servers take arguments of their own for it.
    """
    protocol = facts.protocol
    settings = [protocol.settings_of(arm) for arm in ARMS]
    sizes = [one.context_tokens for one in settings]
    for check in protocol.checks:
        sizes += getattr(check, "depths", ())
        sizes += [getattr(check, name, None) or 0 for name in ("context_tokens", "distance_tokens", "depth_tokens")]
    parts = ["other hosts", "other models", f"contexts above {max(sizes):,} tokens"]
    ours = all(isinstance(protocol.arm(arm).engine, BundledEngine | FolderEngine) for arm in ARMS)
    on_gpu = any(one.gpu_layers for one in settings) or any(
        getattr(c, "on_accelerator", False) for c in protocol.checks
    )
    if ours and not on_gpu:
        parts.append("the engine on a GPU")
    return f"Outside the scope, and not tested: {', '.join(parts)}."


def limits_of(facts: Facts) -> tuple[str, ...]:
    """Return what keeps the verdict from meaning more than it says."""
    lines = [f"Scope: one host, one model, protocol {facts.protocol.id}."]
    if facts.protocol.claim == "screen":
        lines.append(
            "No claim about speed (claim: screen): a loss can reject the candidate here, and no speed qualifies "
            "it. The other gates mean what they say."
        )
    lines += [
        f"{arm.arm} is an endpoint that is not started afresh for each load." for arm in facts.arms if not arm.is_fresh
    ]
    lines += [
        f"Host: {finding.message} (found {finding.found}, expected {finding.expected})."
        for finding in facts.preflight
        if finding.effect == "warn"
    ]
    uncovered = [
        load.label for load in facts.loads if load.telemetry is not None and not load.telemetry.covers_requests
    ]
    if uncovered:
        lines.append(f"Telemetry does not cover all requests of {', '.join(uncovered)}.")
    lines += _validity_limits(facts)
    disagree = sorted({load.label for load in facts.loads for one in load.workloads if one.timings_disagree})
    if disagree:
        labels = ", ".join(disagree)
        lines.append(f"Engine and client disagree about times by more than max(2 %, 20 ms) in {labels}.")
    lines += _cache_limits(facts)
    if facts.interruptions:
        times = "once" if len(facts.interruptions) == 1 else f"{style.count(len(facts.interruptions))} times"
        lines.append(f"The campaign was interrupted {times}: the loads before and after ran at different times.")
    return tuple(lines)


def _cache_limits(facts: Facts) -> Iterator[str]:
    """Say of which workloads a part of the prompt came from the cache: their prefill rate is that of the rest."""
    for workload in facts.protocol.workloads:
        seen = [one for load in facts.loads for one in load.workloads if one.workload == workload.id]
        most = max((one.most_cached_tokens or 0 for one in seen), default=0)
        if most:
            yield (
                f"Up to {most} of {workload.prompt_tokens} prompt tokens of {workload.id} came from the cache: its "
                "prefill rate and TTFT are those of the tokens that were left, not of a cold prompt."
            )


def _validity_limits(facts: Facts) -> list[str]:
    """Say which blocks rules about the host left out, what all would give, and which rules nobody could check."""
    lines: list[str] = []
    unchecked: dict[str, list[str]] = {}
    for gate in facts.gates:
        left_out = [str(one["block"]) for one in gate.inputs.get("invalid_blocks", [])]
        if left_out:
            blocks = f"block {left_out[0]}" if len(left_out) == 1 else f"blocks {', '.join(left_out)}"
            whole = gate.inputs["all_blocks"]["decision"]
            lines.append(
                f"Gate {gate.id} leaves out {blocks} by a rule about the host; with every block it is {whole}."
            )
        unchecked |= gate.inputs.get("unchecked_loads", {})
    measured = {load.label for load in facts.loads if not load.is_burn_in and load.state == "COMPLETE"}
    for reading, labels in unchecked.items():
        where = "any load" if measured <= set(labels) else ", ".join(labels)
        lines.append(f"The rule about {READING_WORDS[reading]} could not be checked in {where}.")
    return lines
