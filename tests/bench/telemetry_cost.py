"""CPU time of the telemetry on this host: each provider's ticks, each NVML query, and the sampler as a whole.

python tests/bench/telemetry_cost.py --pid PID [--seconds 30] [--edges-per-s 1]
Give the PID of a busy engine: its threads, and the GPU's state, are part of the cost. Prints a table of microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable

from recorder.load_files import SampleWriter
from recorder.telemetry.nvml import NvmlProvider
from recorder.telemetry.nvml_queries import Tick
from recorder.telemetry.registry import select_providers
from recorder.telemetry.sampler import Sampler

REPEATS = 40
PAUSE_S = 0.02
"""Between two calls: answers that a driver keeps for some ms would look cheap."""


def cpu_us(call: Callable[[], object]) -> tuple[float, float]:
    """Return mean and median of the thread's CPU time of a call."""
    costs = []
    for _ in range(REPEATS):
        time.sleep(PAUSE_S)
        start_ns = time.thread_time_ns()
        call()
        costs.append((time.thread_time_ns() - start_ns) / 1000)
    return statistics.mean(costs), statistics.median(costs)


def show(name: str, call: Callable[[], object]) -> None:
    mean_us, median_us = cpu_us(call)
    print(f"{name:45} {mean_us:8.0f} {median_us:8.0f}", flush=True)


def show_queries(provider: NvmlProvider) -> None:
    nvml, handle = provider._nvml, provider._handle
    for query, _ in provider._queries:
        ids = (getattr(nvml, query.call),) if isinstance(query.call, str) else ()
        show(f"nvml {query.name}", lambda query=query, ids=ids: provider._ask(query, Tick(nvml, handle, ids)))
    show("nvml edge", lambda: list(provider.read_edge()))


def show_sampler(pid: int, seconds: float, edges_per_s: float) -> None:
    """Sample as a load does, its encoding included, while edges are announced at a steady rate."""
    kept: list[bytes] = []
    writer = SampleWriter()
    sampler = Sampler(sink=lambda sample: kept.append(writer.encode(sample)), pid=pid)
    over = threading.Event()
    sampler.start()

    def announce() -> None:
        while edges_per_s and not over.wait(1 / edges_per_s):
            sampler.edge()

    thread = threading.Thread(target=announce)
    thread.start()
    time.sleep(seconds)
    over.set()
    thread.join()
    report = sampler.stop()
    assert report is not None
    print(
        f"sampler: {100 * report.cpu_ns / report.span_ns:.2f} % of a core over {report.span_ns / 1e9:.0f} s"
        f" ({report.ticks_taken} ticks, {report.ticks_missed} missed, {report.edges_taken} edges,"
        f" {report.edges_skipped} skipped, worst tick {report.worst_tick_cpu_ns / 1e6:.1f} ms)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the telemetry on this host.")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--edges-per-s", type=float, default=0)
    chosen = parser.parse_args()
    print(f"{'CPU us a call':45} {'mean':>8} {'median':>8}")
    for provider in select_providers(chosen.pid).providers:
        for tick in (0, 1, 4):
            show(f"{provider.name} tick {tick}", lambda provider=provider, tick=tick: list(provider.read(tick)))
        if isinstance(provider, NvmlProvider):
            show_queries(provider)
    show_sampler(chosen.pid, chosen.seconds, chosen.edges_per_s)


if __name__ == "__main__":
    main()
