"""Runs a protocol over two right builds again and again, and tells what every gate said each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.progress import Progress
from harness.runner import run_loaded
from protocols.errors import HostError
from protocols.load import LoadedProtocol


def run_fault_free(
    loaded: LoadedProtocol, campaigns: int, store: Path, *, progress: Progress
) -> Iterator[tuple[tuple[str, str], ...]]:
    """Run so many campaigns of a protocol, and yield (gate id, status) of every gate of each.

    Raises HostError where a campaign ended without a verdict: it says nothing about the gates.
    """
    for number in range(1, campaigns + 1):
        progress.say(f"campaign {number} of {campaigns}: {loaded.protocol.id}")
        end = run_loaded(loaded, loaded.path.parent, store, progress=progress)
        if end.facts.verdict is None:
            raise HostError(f"campaign {end.campaign_id} ended without a verdict", hint="assay report says why")
        yield tuple((gate.id, gate.status) for gate in end.facts.gates)
