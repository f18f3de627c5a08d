"""Carries out controls: a campaign for each known fault, and one without any for each protocol."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.build import LIBRARY, BuildSpec, build_engine
from engine.cache import cache_folder
from harness.made_up_gpu import MadeUpGpu
from harness.progress import Progress
from harness.runner import CampaignEnd, run_loaded
from protocols.controls import Control, Outcome, base_protocol, control_protocol, outcome_of
from protocols.load import LoadedProtocol
from protocols.measurements import Arm

_OTHER_SALT = 4096


def run_controls(controls: Sequence[Control], store: Path, *, progress: Progress) -> Iterator[Outcome]:
    """Run the protocols of the controls without a fault first, then every control; yield what each showed.

    Errors of the host and of builds are raised: a control that could not be run is neither caught nor missed.
    """
    for name in dict.fromkeys(one.protocol for one in controls):
        ours = [one for one in controls if one.protocol == name]
        loaded = base_protocol(ours[0])
        progress.say(f"control: {name} without a fault")
        # A card that keeps its clock, where others throttle: a rule that nothing can break would prove nothing.
        has_gpu = any(one.throttled_gpu for one in ours)
        yield _outcome(name, None, _run(loaded, store, progress, has_gpu=has_gpu, throttles_in=None))
    for control in controls:
        loaded = control_protocol(base_protocol(control), control, _environment(control, progress))
        progress.say(f"control: {control.id} ({control.meaning}) under {control.protocol}")
        has_gpu = control.throttled_gpu
        end = _run(loaded, store, progress, has_gpu=has_gpu, throttles_in="candidate" if has_gpu else None)
        yield _outcome(control.protocol, control, end)


def _run(
    loaded: LoadedProtocol, store: Path, progress: Progress, *, has_gpu: bool, throttles_in: Arm | None
) -> CampaignEnd:
    with tempfile.TemporaryDirectory(prefix="assay-gpu-") as folder:
        gpu = MadeUpGpu(Path(folder), throttles_in=throttles_in) if has_gpu else None
        return run_loaded(loaded, loaded.path.parent, store, progress=progress, gpu=gpu)


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
        has_invalid_blocks=any(gate.inputs.get("invalid_blocks") for gate in end.facts.gates),
    )
