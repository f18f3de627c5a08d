"""Fills the context that the settings promise, and watches the host's memory meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from harness.arm_server import greedy_body
from harness.checks.context import CheckContext, Unmet
from harness.checks.restart import LEAST_VOCABULARY
from harness.checks.served import arm_server
from protocols.canonical import JsonValue
from protocols.check_schema import split_mix
from protocols.checks.capacity import CapacityCheck

PERIOD_S = 0.1
KIB_PER_MIB = 1024


def run_capacity(context: CheckContext, check: CapacityCheck) -> dict[str, JsonValue]:
    """Return the exchanges `whole` and `over`, the server's health afterwards, and the least available memory."""
    tokens = check.context_tokens or context.prepared.protocol.settings_of(context.arm).context_tokens
    free = available_mib()
    if free is None:
        raise Unmet("this host does not say how much memory is available")
    if free < check.memory_floor_mib:
        raise Unmet(f"{free} MiB of memory are available before the start, below the floor of {check.memory_floor_mib}")
    start = split_mix(check.seed)
    ids = [split_mix(start + place) % LEAST_VOCABULARY for place in range(tokens + 1)]
    facts: dict[str, JsonValue] = {"context_tokens": tokens}
    with arm_server(context, changes={"slots": 1, "context_tokens": tokens}) as server:
        with _Floor(check.memory_floor_mib, stop=lambda: server.process.stop(0)) as floor:
            body = greedy_body(ids[: tokens - check.generated_tokens], check.generated_tokens, cache_prompt=False)
            facts["whole"] = server.ask("whole", body)
            facts["over"] = server.ask("over", greedy_body(ids, check.generated_tokens, cache_prompt=False))
            facts["health_status"] = server.send("health", None, "/health")["status"]
        facts["was_stopped"], facts["lowest_available_mib"] = floor.was_stopped, floor.lowest_mib
    return facts


class _Floor:
    """Watches the available memory in a thread, and calls `stop` once where it falls below the floor."""

    def __init__(self, floor_mib: int, *, stop: Callable[[], object]) -> None:
        self.lowest_mib = available_mib() or 0
        self.was_stopped = False
        self._floor_mib = floor_mib
        self._stop = stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD_S):
            self.lowest_mib = min(self.lowest_mib, available_mib() or 0)
            if self.lowest_mib < self._floor_mib and not self.was_stopped:
                self.was_stopped = True
                self._stop()


def available_mib(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory that new work can have without swapping, in MiB; None where the host does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) // KIB_PER_MIB for line in lines if line.startswith("MemAvailable:")), None)
