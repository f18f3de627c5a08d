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
from protocols.next_step import MOST_BLOCKS, QUIET_BLOCKS, blocks_to_decide, blocks_to_pass, is_host_too_noisy
from protocols.plan import POWER, Noise, minimal_detectable_loss
from protocols.results import in_short
from protocols.schema import LossGate, Protocol
from protocols.start_failures import ADVICE
from protocols.validity import READING_WORDS
from reports import style
from reports.facts import Facts, GateFact, LoadFact

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
_NOISY = frozenset({"load_average", "pressure_cpu", "pressure_memory", "pressure_io", "foreign_gpu_processes"})
"""Findings of the preflight that say that the host was not ours alone."""

QUIET = "Run it again on a quiet host: other work ran on this one (see the limits)."


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
    text = explanation(facts)
    for gate in facts.gates:
        text = text.replace(f" {gate.id}: {gate.reason}", f"\n  {gate.id}: {gate.reason}")
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
        metric = METRICS[str(_loss_gate(facts.protocol, gate.id).metric)] if gate.kind == "loss" else "rate"
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
    error, noise = _real(inputs.get("standard_error_pct")), _real(inputs.get("sigma_pct"))
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


def _loss_gate(protocol: Protocol, gate_id: str) -> LossGate:
    return next(gate for gate in protocol.gates if gate.id == gate_id and isinstance(gate, LossGate))


def _supported(gate: GateFact, facts: Facts) -> str:
    if gate.kind != "loss":
        return gate.reason
    locked = _loss_gate(facts.protocol, gate.id)
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
        ("estimated loss", style.percent(_real(inputs["loss_pct"]), signed=True)),
        ("lower bound", style.percent(_real(inputs["loss_low_pct"]), signed=True)),
        ("upper bound", style.percent(_real(inputs["loss_high_pct"]), signed=True)),
        ("margin", f"{gate.margin} %"),
        ("loads", f"{inputs['n_baseline']} baseline, {inputs['n_candidate']} candidate"),
        ("drift a load", style.percent(_real(inputs["drift_pct_per_load"]), signed=True)),
        ("noise of a load", style.percent(_real(inputs["sigma_pct"]))),
        ("by the client's clock", style.percent(_real(inputs["client_loss_pct"]), signed=True)),
    )


def _real(text: object) -> float | None:
    return None if text is None else float(str(text))


def next_step(gate: GateFact, facts: Facts) -> str:
    """Return the cheapest step that could change a gate that neither passed nor failed."""
    if not facts.is_recorded and facts.arms_that_do_not_start():
        return f"{ADVICE[:1].upper()}{ADVICE[1:]}."
    if not _is_complete(facts):
        return "Complete the campaign: `assay resume`."
    if NEXT_STEP in gate.inputs:
        return str(gate.inputs[NEXT_STEP])
    if gate.status == "NOT_COMPARABLE":
        open_steps = [other.inputs[NEXT_STEP] for other in facts.gates if NEXT_STEP in other.inputs]
        if open_steps:  # the gates before this one say what to do, and then this one can be judged
            return str(open_steps[0])
        blockers = ", ".join(str(item) for item in gate.inputs.get("blocked_by", []))
        return f"Make the work equal first: {blockers}."
    if gate.status == "NOT_RUN":
        return f"Meet the need that it names: {gate.reason}"
    return _open_step(gate, facts)


def _open_step(gate: GateFact, facts: Facts) -> str:
    """Return the step for a gate that was judged and left open."""
    if "next_look" in gate.inputs:
        return _look_step(gate, facts)
    if gate.status == "SCREEN_ONLY" and facts.stated_models():
        return (
            "Let Assay start the engine (an arm of kind llama-server, folder or bundled): an endpoint that is not "
            "started afresh for each load never qualifies."
        )
    if gate.kind == "loss" and "loss_pct" in gate.inputs:
        return _blocks_step(gate, facts)
    if gate.kind == "check" and gate.status == "INCONCLUSIVE":
        return "Run the check again on a quiet host, or allow it more rounds."
    if gate.status == "SCREEN_ONLY":
        return "Use a loss gate in a protocol with `claim: non_inferiority`: a screen never qualifies."
    return "Find the cause that the gate names, then run a new campaign."


def _is_complete(facts: Facts) -> bool:
    """Whether nothing is left to run: a verdict is recorded only then, at the end or at a look that decided."""
    if facts.is_recorded:
        return True
    done = {load.index for load in facts.loads if load.state == "COMPLETE"}
    return done == {load.index for load in facts.loads}


def _look_step(gate: GateFact, facts: Facts) -> str:
    """Say what a campaign lacked that ended before a look, and whether the looks that were left would likely decide."""
    blocks = int(gate.inputs["next_look"])
    done = {load.index for load in facts.loads if load.state == "COMPLETE"}
    missing = {load.index for load in facts.loads if (load.block or 0) <= blocks} - done
    minutes = facts.protocol.limits.looks_min or facts.protocol.limits.campaign_min
    step = (
        f"run it again with more time for looks than {minutes} min (`limits.looks_min`): this one ended "
        f"{len(missing)} loads before the look after {blocks} blocks"
    )
    sigma, loss = _real(gate.inputs.get("sigma_pct")), _real(gate.inputs.get("loss_pct"))
    if sigma is not None and loss is not None and gate.margin is not None:
        alpha = float(_loss_gate(facts.protocol, gate.id).alpha)
        enough = blocks_to_decide(sigma / 100, loss / 100, float(gate.margin) / 100, alpha)
        planned = max(load.block or 0 for load in facts.loads)
        if enough is None or enough.blocks > planned:
            wanted = f"more than {MOST_BLOCKS}" if enough is None else f"{enough.blocks}"
            step += f"; with noise like this {wanted} blocks decide, and this protocol has {planned}"
    return f"{QUIET} Otherwise {step}." if _is_busy(facts) else f"{step[0].upper()}{step[1:]}."


def _is_busy(facts: Facts) -> bool:
    """Whether the preflight saw that the host was not ours alone."""
    return any(finding.effect == "warn" and finding.id in _NOISY for finding in facts.preflight)


def _is_look_open(facts: Facts) -> bool:
    """Whether the campaign ended before a look that could still decide."""
    return any("next_look" in gate.inputs for gate in facts.gates)


def _blocks_step(gate: GateFact, facts: Facts) -> str:
    """Say how many blocks would decide at the noise seen, or that a quiet host is cheaper."""
    inputs = gate.inputs
    sigma, loss = _real(inputs["sigma_of_these_loads_pct"] or inputs["sigma_pct"]), _real(inputs["loss_pct"])
    if sigma is None or loss is None or gate.margin is None:
        return "Run at least two blocks of four loads: fewer leave no noise estimate."
    if inputs["is_noisier_than_calibration"]:
        return "Make the host quieter, or calibrate it again: these loads vary more than its calibration allows."
    if is_host_too_noisy(sigma / 100, float(gate.margin) / 100, float(_loss_gate(facts.protocol, gate.id).alpha)):
        return quiet_sentence(sigma / 100, float(gate.margin) / 100)
    enough = blocks_sentence(
        sigma / 100, loss / 100, float(gate.margin) / 100, float(_loss_gate(facts.protocol, gate.id).alpha)
    )
    if _is_busy(facts):
        return QUIET if enough is None else f"{QUIET} Otherwise {enough}."
    if enough is None:
        return (
            f"The estimate lies too close to the margin of {gate.margin} % for {MOST_BLOCKS} blocks: "
            f"choose another margin before a new campaign."
        )
    return f"Run a new campaign with more loads: {enough}. A quieter host needs fewer."


def quiet_sentence(sigma: float, margin: float) -> str:
    """Return what to do where noise hides the margin, whatever the candidate is."""
    return (
        f"Make the host quiet first (`assay doctor` names what runs beside it): its loads vary by "
        f"{style.percent(100 * sigma)}, and even an equal candidate would need more than {QUIET_BLOCKS} blocks of four "
        f"loads to pass a margin of {100 * margin:g} %."
    )


def blocks_sentence(sigma: float, loss: float, margin: float, alpha: float) -> str | None:
    """Return how many blocks would decide at the noise and the loss seen, and pass without a loss; None past 64."""
    decides, passes = blocks_to_decide(sigma, loss, margin, alpha), blocks_to_pass(sigma, margin, alpha)
    if decides is None:
        return None
    sentence = (
        f"{decides.blocks} blocks of four loads decide with a chance of {style.chance(decides.chance)} if loads go on "
        f"to vary by {style.percent(100 * sigma)} and the candidate stays {_pace_words(loss)}"
    )
    if passes is None or passes.blocks == decides.blocks:
        return sentence
    return (
        f"{sentence}; {passes.blocks} pass it with a chance of {style.chance(passes.chance)} if it loses nothing at all"
    )


def _pace_words(loss: float) -> str:
    pace = style.percent(100 * abs(loss))
    if pace == style.percent(0.0):
        return "as fast as it looks"
    return f"{pace} {'slower' if loss > 0 else 'faster'}"


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
    loss, low, high = (style.percent(_real(gate.inputs[f"loss{part}_pct"])) for part in ("", "_low", "_high"))
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
            if facts.is_recorded and not _is_look_open(facts)
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
