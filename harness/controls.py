"""Carries out controls: a campaign for each known fault, and one without any for each protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.build import LIBRARY, BuildSpec, build_engine
from engine.cache import cache_folder
from harness.progress import Progress
from harness.runner import CampaignEnd, run_loaded
from protocols.controls import Control, Outcome, base_protocol, control_protocol, outcome_of

_OTHER_SALT = 4096


def run_controls(controls: Sequence[Control], store: Path, *, progress: Progress) -> Iterator[Outcome]:
    """Run the protocols of the controls without a fault first, then every control; yield what each showed.

    Errors of the host and of builds are raised: a control that could not be run is neither caught nor missed.
    """
    for name in dict.fromkeys(one.protocol for one in controls):
        loaded = base_protocol(next(one for one in controls if one.protocol == name))
        progress.say(f"control: {name} without a fault")
        yield _outcome(name, None, run_loaded(loaded, loaded.path.parent, store, progress=progress))
    for control in controls:
        loaded = control_protocol(base_protocol(control), control, _environment(control, progress))
        progress.say(f"control: {control.id} ({control.meaning}) under {control.protocol}")
        yield _outcome(control.protocol, control, run_loaded(loaded, loaded.path.parent, store, progress=progress))


def _environment(control: Control, progress: Progress) -> dict[str, str]:
    """Make the loader find the library of another build first, where the control asks for that."""
    if not control.swap_library:
        return {}
    spec = BuildSpec(name="other-library", layout_salt=_OTHER_SALT)
    other = build_engine(spec, cache=cache_folder(), log=progress.say)
    return {"LD_LIBRARY_PATH": str((other.folder / LIBRARY).parent)}


def _outcome(protocol: str, control: Control | None, end: CampaignEnd) -> Outcome:
    verdict = end.facts.verdict
    return outcome_of(
        protocol,
        control,
        campaign=end.campaign_id,
        verdict="none" if verdict is None else verdict.status,
        gates=[(gate.id, gate.status, gate.required) for gate in end.facts.gates],
        has_invalid_loads=any(load.state == "INVALID" for load in end.facts.loads),
    )
