"""What `assay plan` and `assay run --dry-run` say: loads, time, noise, and what the design can decide on this host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from engine.cache import cache_folder
from harness.console import Console, table
from harness.preflight import inspect_host
from harness.preparation import prepare
from harness.runner import need_of
from protocols.load import load_protocol
from protocols.plan import Noise, plan_protocol
from recorder.ledger import Entry
from recorder.store import LEDGER, Store
from reports import style

ASSUMED_NOISE_PCT: Final = 4.0
"""Standard deviation of a load that a shared machine of two cores shows; used where nothing was recorded."""
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
        names = {one.campaign_id for one in store.campaigns() if one.protocol_id == protocol_id}
        seconds = list(_load_seconds(store.entries(), names))
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


def make_plan(path: Path, store_root: Path, *, noise_pct: float | None) -> dict[str, Any]:
    """Return the plan of a protocol as plain JSON values."""
    loaded = load_protocol(path)
    protocol = loaded.protocol
    seen = experience(store_root, protocol.id)
    source = "stated" if noise_pct else "seen in this store" if seen.noise_pct else "assumed"
    noise = noise_pct or seen.noise_pct or ASSUMED_NOISE_PCT
    plan = plan_protocol(protocol, Noise(sigma=noise / 100))
    estimate = None if seen.load_s is None else round(seen.load_s * len(plan.labels))
    return asdict(plan) | {
        "protocol": protocol.id,
        "title": protocol.title,
        "claim": protocol.claim,
        "expect": protocol.expect,
        "noise_pct": noise,
        "noise_source": source,
        "estimated_s": estimate,
        "warnings": [problem.line() for problem in loaded.warnings],
    }


def show_plan(console: Console, plan: dict[str, Any]) -> None:
    """Print a plan for a person."""
    known = plan["estimated_s"]
    time = f"about {known} s, from earlier loads in this store" if known else "unknown before its first load"
    qualify = "can qualify a candidate" if plan["can_qualify"] else "can reject a candidate, and never qualify one"
    console.show(
        f"{plan['protocol']}: {plan['title']}",
        f"loads:    {' '.join(plan['labels'])} ({plan['measured_loads']} measured, {plan['requests']} requests)",
        f"time:     {time}; at most {plan['budget_min']} min",
        f"noise:    {style.percent(plan['noise_pct'])} a load ({plan['noise_source']})",
        f"design:   {qualify}",
    )
    for gate in plan["gates"]:
        smallest = gate["minimal_detectable_loss_pct"]
        console.show(
            "",
            f"gate {gate['gate']}, margin {style.percent(gate['margin_pct'])}; "
            f"smallest loss that it resolves (chance 0.8): {style.percent(smallest)}",
            table(
                ("true loss", "PASS", "FAIL", "SCREEN_ONLY", "INCONCLUSIVE"),
                [
                    (
                        style.percent(one["true_loss_pct"]),
                        *(style.chance(one[f"p_{name}"]) for name in ("pass", "fail", "screen_only", "inconclusive")),
                    )
                    for one in gate["chances"]
                ],
            ),
        )
    console.show(*(f"warning: {line}" for line in plan["warnings"]))


def dry_run(path: Path, store_root: Path, *, log: Log) -> dict[str, Any]:
    """Prepare a campaign and look at the host, without recording or starting anything."""
    loaded = load_protocol(path)
    prepared = prepare(loaded, base=path.absolute().parent, cache=cache_folder(), log=log)
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


def show_dry_run(console: Console, value: dict[str, Any]) -> None:
    """Print a dry run for a person."""
    console.show(f"{value['protocol']}: {' '.join(value['loads'])}")
    for name, argv in value["argv"].items():
        files = value["lock"]["arms"][name]["files"]
        console.show(f"{name}: {len(files)} files, {' '.join(argv)}")
    rows = [(one["id"], one["effect"], str(one["found"]), one["message"]) for one in value["preflight"]]
    console.show(table(("preflight", "effect", "found", "meaning"), rows))
    console.show("nothing was recorded or started" + ("" if value["would_start"] else "; a real run would be refused"))
