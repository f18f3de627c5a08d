"""The cheapest step that could change a gate that neither passed nor failed."""

from __future__ import annotations

from protocols.breaks import NEXT_STEP
from protocols.next_step import MOST_BLOCKS, QUIET_BLOCKS, blocks_to_decide, blocks_to_pass, is_host_too_noisy
from protocols.schema import LossGate, Protocol
from protocols.start_failures import ADVICE
from reports import style
from reports.facts import Facts, GateFact

_NOISY = frozenset({"load_average", "pressure_cpu", "pressure_memory", "pressure_io", "foreign_gpu_processes"})
"""Findings of the preflight that say that the host was not ours alone."""

QUIET = "Run it again on a quiet host: other work ran on this one (see the limits)."


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
    sigma, loss = real(gate.inputs.get("sigma_pct")), real(gate.inputs.get("loss_pct"))
    if sigma is not None and loss is not None and gate.margin is not None:
        alpha = float(loss_gate(facts.protocol, gate.id).alpha)
        enough = blocks_to_decide(sigma / 100, loss / 100, float(gate.margin) / 100, alpha)
        planned = max(load.block or 0 for load in facts.loads)
        if enough is None or enough.blocks > planned:
            wanted = f"more than {MOST_BLOCKS}" if enough is None else f"{enough.blocks}"
            step += f"; with noise like this {wanted} blocks decide, and this protocol has {planned}"
    return f"{QUIET} Otherwise {step}." if _is_busy(facts) else f"{step[0].upper()}{step[1:]}."


def _is_busy(facts: Facts) -> bool:
    """Whether the preflight saw that the host was not ours alone."""
    return any(finding.effect == "warn" and finding.id in _NOISY for finding in facts.preflight)


def is_look_open(facts: Facts) -> bool:
    """Whether the campaign ended before a look that could still decide."""
    return any("next_look" in gate.inputs for gate in facts.gates)


def _blocks_step(gate: GateFact, facts: Facts) -> str:
    """Say how many blocks would decide at the noise seen, or that a quiet host is cheaper."""
    inputs = gate.inputs
    sigma, loss = real(inputs["sigma_of_these_loads_pct"] or inputs["sigma_pct"]), real(inputs["loss_pct"])
    if sigma is None or loss is None or gate.margin is None:
        return "Run at least two blocks of four loads: fewer leave no noise estimate."
    if inputs["is_noisier_than_calibration"]:
        return "Make the host quieter, or calibrate it again: these loads vary more than its calibration allows."
    if is_host_too_noisy(sigma / 100, float(gate.margin) / 100, float(loss_gate(facts.protocol, gate.id).alpha)):
        return quiet_sentence(sigma / 100, float(gate.margin) / 100)
    enough = blocks_sentence(
        sigma / 100, loss / 100, float(gate.margin) / 100, float(loss_gate(facts.protocol, gate.id).alpha)
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


def loss_gate(protocol: Protocol, gate_id: str) -> LossGate:
    """Return the loss gate of this name. Raises StopIteration where it is no loss gate."""
    return next(gate for gate in protocol.gates if gate.id == gate_id and isinstance(gate, LossGate))


def real(text: object) -> float | None:
    """Return a number of a gate's inputs as a float; None stays None."""
    return None if text is None else float(str(text))
