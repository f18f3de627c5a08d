"""What `assay plan` and `assay run --dry-run` say: loads, time, noise, and what the design can decide on this host."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rich.table import Table

from engine.cache import cache_folder
from harness.calibrations import calibration_id, calibrations_in, find, with_calibrations
from harness.console import Console, table
from harness.preflight import inspect_host
from harness.preparation import prepare
from harness.references import check_references
from harness.runner import need_of
from protocols.load import load_protocol
from protocols.next_step import blocks_to_pass
from protocols.plan import POWER, TRUE_LOSSES_PCT, Noise, Plan, plan_protocol
from protocols.schedule import LOADS_PER_BLOCK
from protocols.schema import LossGate, Protocol
from protocols.validity import READING_WORDS
from recorder.ledger import Entry
from recorder.store import LEDGER, Store
from reports import style

ASSUMED_NOISE_PCT: Final = 4.0
"""Standard deviation of a load that a shared machine of two cores shows; used where nothing was recorded."""
LEAST_CHANCE: Final = 0.5
"""A claim that an equal candidate would fail to earn more often than not counts as one that cannot be decided."""
Source = Literal["stated", "calibrated", "seen in this store", "assumed"]
NS_PER_S: Final = 1_000_000_000
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Experience:
    """What the store's earlier campaigns say: seconds of a load of this protocol, and the noise that loss gates saw."""

    load_s: float | None
    noise_pct: float | None


def experience(store_root: Path, protocol_id: str) -> Experience:
    """Return the medians of earlier loads and of the noise in earlier verdicts of a protocol; None without any."""
    if not (store_root / LEDGER).is_file():
        return Experience(load_s=None, noise_pct=None)
    with Store.open(store_root, read_only=True) as store:
        campaigns = store.campaigns()
        names = {one.campaign_id for one in campaigns if one.protocol_id == protocol_id}
        alike = {one.campaign_id for one in campaigns if one.protocol_id == calibration_id(protocol_id)}
        seconds = list(_load_seconds(store.entries(), names | alike))
        noises = [noise for name in names for noise in _noises(store, name)]
    return Experience(
        load_s=statistics.median(seconds) if seconds else None,
        noise_pct=statistics.median(noises) if noises else None,
    )


def _load_seconds(entries: tuple[Entry, ...], names: set[str]) -> Iterator[float]:
    opened: dict[str, int] = {}
    for entry in entries:
        if entry.payload.get("campaign") not in names:
            continue
        if entry.kind == "load.opened":
            opened[entry.text("load")] = entry.monotonic_ns
        elif entry.kind == "load.sealed" and entry.text("state") == "COMPLETE":
            yield (entry.monotonic_ns - opened[entry.text("load")]) / NS_PER_S


def _noises(store: Store, campaign_id: str) -> Iterator[float]:
    judged = store.verdict_of(campaign_id)
    for result in judged[0] if judged else ():
        inputs = result["inputs"]
        if result["kind"] == "loss" and isinstance(inputs, dict) and inputs.get("sigma_of_these_loads_pct"):
            yield float(inputs["sigma_of_these_loads_pct"])


def make_plan(path: Path, store_root: Path, *, noise_pct: float | None, power: float = POWER) -> dict[str, Any]:
    """Return the plan of a protocol as plain JSON values; `refused` says why its claim cannot be decided, or None."""
    loaded = load_protocol(path)
    check_references(loaded, path.absolute().parent)
    protocol = loaded.protocol
    seen = experience(store_root, protocol.id)
    noises = gate_noises(protocol, store_root, stated_pct=noise_pct, seen_pct=seen.noise_pct)
    plan = plan_protocol(protocol, {name: one.noise for name, one in noises.items()}, true_losses_pct=_losses(protocol))
    estimate = None if seen.load_s is None else round(seen.load_s * len(plan.labels))
    cheapest = _cheapest(protocol, noises, power, seen.load_s)
    return asdict(plan) | {
        "protocol": protocol.id,
        "title": protocol.title,
        "claim": protocol.claim,
        "expect": protocol.expect,
        "noise": {name: one.document() for name, one in noises.items()},
        "estimated_s": estimate,
        "load_s": seen.load_s,
        "power": power,
        "cheapest": cheapest,
        "refused": _refusal(protocol, plan, noises),
        "looks_min": protocol.limits.looks_min,
        "rules": [f"{rule.most} {READING_WORDS[rule.reading]}" for rule in protocol.validity],
        "warnings": [problem.line() for problem in loaded.warnings],
    }


def _losses(protocol: Protocol) -> list[float]:
    """Return the true losses that a plan shows: 0 to 4 %, and where the margins are and twice of them."""
    margins = [float(gate.margin_pct) for gate in protocol.gates if isinstance(gate, LossGate)]
    return sorted({*TRUE_LOSSES_PCT, *margins, *(2 * margin for margin in margins if 2 * margin < 100)})


@dataclass(frozen=True, kw_only=True)
class GateNoise:
    """The noise of a load that a plan uses for one gate, where it comes from, and why no better source holds."""

    noise: Noise
    source: Source
    misfits: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "noise_pct": 100 * self.noise.sigma,
            "source": self.source,
            "df": self.noise.df,
            "misfits": list(self.misfits),
        }


def gate_noises(
    protocol: Protocol, store_root: Path, *, stated_pct: float | None, seen_pct: float | None
) -> dict[str, GateNoise]:
    """Return the noise for each loss gate: as stated, else calibrated here, else seen in verdicts, else assumed.

    Calibrated degrees of freedom are kept only where the protocol lets the calibration stand in for its own loads.
    """
    known = () if stated_pct is not None else calibrations_in(store_root)
    found: dict[str, GateNoise] = {}
    for gate in protocol.gates:
        if not isinstance(gate, LossGate):
            continue
        if stated_pct is not None:
            found[gate.id] = GateNoise(noise=Noise(sigma=stated_pct / 100), source="stated")
            continue
        here = find(protocol, gate.workload, gate.metric, known)
        if here.calibration is not None:
            df = here.calibration.df if protocol.sigma == "calibrated" else None
            found[gate.id] = GateNoise(noise=Noise(sigma=here.calibration.sigma, df=df), source="calibrated")
        elif seen_pct is not None:
            found[gate.id] = GateNoise(
                noise=Noise(sigma=seen_pct / 100), source="seen in this store", misfits=here.misfits
            )
        else:
            assumed = Noise(sigma=ASSUMED_NOISE_PCT / 100)
            found[gate.id] = GateNoise(noise=assumed, source="assumed", misfits=here.misfits)
    return found


def _cheapest(
    protocol: Protocol, noises: Mapping[str, GateNoise], power: float, load_s: float | None
) -> dict[str, Any] | None:
    """Return the fewest blocks with which every required loss gate passes an equal candidate with the wanted chance."""
    gates = [gate for gate in protocol.gates if isinstance(gate, LossGate) and gate.required]
    steps = [
        blocks_to_pass(noises[gate.id].noise.sigma, float(gate.margin_pct / 100), float(gate.alpha), power=power)
        for gate in gates
    ]
    known = [step for step in steps if step is not None]
    if not known or len(known) < len(steps):
        return None
    most = max(known, key=lambda step: (step.blocks, -step.chance))
    loads = LOADS_PER_BLOCK * most.blocks + 1
    return {
        "blocks": most.blocks,
        "loads": loads,
        "chance": most.chance,
        "estimated_s": None if load_s is None else round(load_s * loads),
    }


def _refusal(protocol: Protocol, plan: Plan, noises: Mapping[str, GateNoise]) -> str | None:
    """Say why a claim of non-inferiority cannot be decided by this design on this host; None where it can.

    An assumed noise, or one that an earlier campaign happened to show, refuses nothing.
    """
    if protocol.claim != "non_inferiority":
        return None
    for gate in plan.gates:
        if not gate.is_required:
            continue
        if not gate.can_qualify:
            return f"gate {gate.gate} rests on calibrated noise, and none holds for this host: `assay calibrate` first"
        chance = next(one.p_pass for one in gate.chances if one.true_loss_pct == 0)
        if chance < LEAST_CHANCE and noises[gate.gate].source in {"stated", "calibrated"}:
            return (
                f"gate {gate.gate} passes a candidate without any loss with a chance of {style.chance(chance)}, at "
                f"a noise of {style.percent(gate.noise_pct)} a load"
            )
    return None


def show_plan(console: Console, plan: dict[str, Any]) -> None:
    """Print a plan for a person."""
    known = plan["estimated_s"]
    time = f"about {_duration(known)}, from earlier loads in this store" if known else "unknown before its first load"
    if known and plan["looks"]:
        time += " (all looks)"
    qualify = "can qualify a candidate" if plan["can_qualify"] else "can reject a candidate, and never qualify one"
    looks = f"judged after {', '.join(map(str, plan['looks']))} blocks" if plan["looks"] else "judged once, at the end"
    if plan["looks_min"] is not None:
        looks += f"; a further look begins only if it ends within {plan['looks_min']} min"
    console.show(
        f"{plan['protocol']}: {plan['title']}",
        f"loads:    {' '.join(plan['labels'])} ({plan['measured_loads']} measured, {plan['requests']} requests)",
        f"time:     {time}; at most {plan['budget_min']} min",
        f"design:   {qualify}; {looks}",
        *(f"left out: blocks with a load of more than {rule}" for rule in plan["rules"]),
    )
    for gates in _alike(plan):
        console.show("", *_gate_lines(plan, gates))
    console.show("", *_advice(plan), *(f"warning: {line}" for line in plan["warnings"]))


def _alike(plan: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the gates in groups that differ by their names only."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for gate in plan["gates"]:
        same = {key: value for key, value in gate.items() if key != "gate"}
        groups.setdefault(json.dumps([same, plan["noise"][gate["gate"]]], sort_keys=True), []).append(gate)
    return list(groups.values())


def _gate_lines(plan: dict[str, Any], gates: list[dict[str, Any]]) -> Iterator[str | Table]:
    gate, noise = gates[0], plan["noise"][gates[0]["gate"]]
    names = " and ".join(one["gate"] for one in gates)
    yield (
        f"{'gate' if len(gates) == 1 else 'gates'} {names}, margin {style.percent(gate['margin_pct'])}; "
        f"noise {style.percent(gate['noise_pct'])} a load ({noise['source']})"
    )
    yield from (f"  the calibration here does not hold: {reason}" for reason in noise["misfits"][:3])
    smallest = gate["minimal_detectable_loss_pct"]
    if smallest is not None:
        yield (
            f"smallest margin that these {plan['measured_loads']} loads can hold an equal candidate to "
            f"(chance {POWER:g}): {style.percent(smallest)}"
        )
    yield table(
        ("if the true loss is", "PASS", "FAIL", "SCREEN_ONLY", "INCONCLUSIVE"),
        [
            (
                style.percent(one["true_loss_pct"]),
                *(style.chance(one[f"p_{name}"]) for name in ("pass", "fail", "screen_only", "inconclusive")),
            )
            for one in gate["chances"]
        ],
    )
    if plan["looks"]:
        first = LOADS_PER_BLOCK * plan["looks"][0]
        yield f"without a loss it ends after {gate['expected_loads']:.1f} measured loads on average, {first} at least"


def _advice(plan: dict[str, Any]) -> list[str]:
    """Return the cheapest design, why the plan is refused if it is, and how to know the noise better."""
    lines = []
    cheapest, power = plan["cheapest"], style.chance(plan["power"])
    if plan["claim"] == "non_inferiority" and cheapest is None:
        lines.append(
            f"no number of blocks up to 64 passes an equal candidate with a chance of {power}: widen the margin"
        )
    elif plan["claim"] == "non_inferiority":
        time = f", about {_duration(cheapest['estimated_s'])}" if cheapest["estimated_s"] else ""
        lines.append(
            f"cheapest: {cheapest['blocks']} blocks ({cheapest['loads']} loads with burn-in{time}) pass a candidate "
            f"without any loss with a chance of {style.chance(cheapest['chance'])}; wanted {power}"
        )
    if any(noise["source"] in {"assumed", "seen in this store"} for noise in plan["noise"].values()):
        lines.append("next: `assay calibrate` measures this host's noise; until then these chances rest on a guess")
    if plan["refused"]:
        lines.append(f"refused: {plan['refused']}")
    return lines


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def dry_run(path: Path, store_root: Path, *, log: Log) -> dict[str, Any]:
    """Prepare a campaign and look at the host, without recording or starting anything."""
    loaded = load_protocol(path)
    prepared = with_calibrations(
        prepare(loaded, base=path.absolute().parent, cache=cache_folder(), log=log), store_root
    )
    place = store_root.absolute()
    while not place.is_dir():
        place = place.parent
    findings = inspect_host(need_of(prepared), place)
    return {
        "protocol": loaded.protocol.id,
        "loads": [position.label for position in prepared.positions],
        "lock": prepared.lock.model_dump(mode="json"),
        "argv": {name: list(arm.resolved.argv) for name, arm in prepared.arms.items()},
        "preflight": [finding.payload() for finding in findings],
        "would_start": all(finding.effect != "refuse" for finding in findings),
        "warnings": [problem.line() for problem in loaded.warnings],
    }


def _found(found: object) -> str | None:
    return None if found is None else str(found)


def show_dry_run(console: Console, value: dict[str, Any]) -> None:
    """Print a dry run for a person."""
    console.show(f"{value['protocol']}: {' '.join(value['loads'])}")
    for name, argv in value["argv"].items():
        files = value["lock"]["arms"][name]["files"]
        console.show(f"{name}: {len(files)} files, {' '.join(argv)}")
    rows = [(one["id"], one["effect"], _found(one["found"]), one["message"]) for one in value["preflight"]]
    console.show(table(("preflight", "effect", "found", "meaning"), rows))
    console.show("nothing was recorded or started" + ("" if value["would_start"] else "; a real run would be refused"))
