"""What one streamed event costs the client, beside other clients, over loopback, in one run.

``python tests/bench/bench_clients.py [--streams 64] [--rate 200] [--seconds 4] [--rounds 3]`` prints a table; `make bench`
runs it. A server process streams events of llama-server's shape, each with the monotonic time at which it was handed to
the kernel. Every client runs in a process of its own against all streams at once, interleaved over the rounds; the
median round counts. CPU time itself grows while neighbours share the core: "least" is that of the cheapest quarter of
a second of all rounds, the one in which they did least.

CPU us/event      CPU time of the client process (user and system) while the streams ran, by the events that came, and the
                  least, by the reads that came; "kernel" is the system's share of it, which no client can change
events/s/core     the reverse: what one core could take at most at this cost; "flat out" is measured with a server that
                  does not pace, where one read brings many events
TTFT error        time between the server's stamp in the first event and the client's own, median and 99th percentile:
                  what the client adds to each TTFT, kernel included
loop lag          how late a 5 ms timer of the client's loop fires, 99th percentile and largest

Before it stands a second table, for hosts that are never quiet: all streams bring one event at the same moment, and the
time until the client has them all is taken, often; the best time is that of a moment in which nothing else ran.

"assay, recorded" is the client as campaigns use it, with every read written to its spool file before anything else
happens. The others keep nothing but times and bytes in memory, or parse each line, as users of these libraries do.
httpx and aiohttp are in the extra ``bench``; what is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.client import build_request, exchange
from recorder.files import AppendFile, Files
from recorder.load_recorder import ExchangeSink
from recorder.secrets import SecretFilter

HOST = "127.0.0.1"
TICK_S = 0.001
WINDOW_S = 0.25
LEAST_READS = 1000
STAMP = b'"sent_ns":'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(index: int) -> bytes:
    """One chunk: about 330 bytes with its framing."""
    value = {
        "index": 0, "content": f" tok{index}", "tokens": [index], "stop": False, "id_slot": 0,
        "tokens_predicted": index, "tokens_evaluated": 512, "pad": "x" * 150, "sent_ns": time.monotonic_ns(),
    }  # fmt: skip
    data = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


# --- the server ------------------------------------------------------------------------------------------------------


async def serve(port: int, streams: int, rate: float, events: int) -> None:
    """Wait for all streams, then send each its events: paced and evenly staggered, or as fast as it goes (rate 0)."""
    writers: list[asyncio.StreamWriter] = []
    whole = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        writers.append(writer)
        if len(writers) == streams:
            whole.set()

    server = await asyncio.start_server(accept, HOST, port, backlog=streams)
    print("ready", flush=True)
    await whole.wait()
    await asyncio.sleep(0.3)
    if rate:
        await pace(writers, rate, events)
    else:
        for first in range(0, events, 20):
            for writer in writers:
                writer.write(b"".join(event(index + 1) for index in range(first, min(first + 20, events))))
                await writer.drain()
    for writer in writers:
        writer.write(b"0\r\n\r\n")
        writer.close()
    await asyncio.sleep(0.2)
    server.close()


async def pace(writers: list[asyncio.StreamWriter], rate: float, events: int) -> None:
    start, sent, total = time.monotonic(), 0, events * len(writers)
    while sent < total:
        due = min(int((time.monotonic() - start) * rate * len(writers)) + 1, total)
        for number in range(sent, due):
            writers[number % len(writers)].write(event(number // len(writers) + 1))
        sent = due
        await asyncio.sleep(TICK_S)


# --- the clients: each reads one stream and returns its reads or lines with their times --------------------------------

Log = list[tuple[int, bytes]]


class Kept:
    """A sink that keeps everything in memory."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def on_sent(self, t_ns: int) -> None:
        pass

    def on_read(self, t_ns: int, data: bytes) -> None:
        self.log.append((t_ns, data))


class Recorded(Kept):
    """The recorder's own sink; what is kept besides is for the table."""

    def __init__(self, log: Log, path: Path) -> None:
        super().__init__(log)
        journal: Any = SimpleNamespace(secrets=SecretFilter())
        self._sink = ExchangeSink(AppendFile(path, Files()), request_of(0), journal)
        self.on_sent = self._sink.on_sent  # type: ignore[method-assign]

    def on_read(self, t_ns: int, data: bytes) -> None:
        self._sink.on_read(t_ns, data)
        self.log.append((t_ns, data))


def request_of(port: int) -> bytes:
    return build_request("POST", "/completion", f"{HOST}:{port}", {}, b"{}")


async def assay(port: int, sink: Kept) -> None:
    end = await exchange(HOST, port, request_of(port), sink, total_s=120, idle_s=60)
    assert end.reason == "complete", end


async def assay_in_memory(port: int, _: Any, log: Log) -> None:
    await assay(port, Kept(log))


async def assay_recorded(port: int, _: Any, log: Log) -> None:
    with tempfile.NamedTemporaryFile(dir=os.environ.get("ASSAY_BENCH_DIR")) as file:
        await assay(port, Recorded(log, Path(file.name)))


class RawProtocol(asyncio.Protocol):
    def __init__(self, port: int, log: Log) -> None:
        self.log = log
        self.port = port
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(request_of(self.port))

    def data_received(self, data: bytes) -> None:
        self.log.append((time.monotonic_ns(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def raw_protocol(port: int, _: Any, log: Log) -> None:
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: RawProtocol(port, log), HOST, port)
    await protocol.ended


async def aiohttp_any(port: int, session: Any, log: Log) -> None:
    async with session.post(f"http://{HOST}:{port}/completion", data=b"{}") as response:
        async for data in response.content.iter_any():
            log.append((time.monotonic_ns(), data))


async def aiohttp_lines(port: int, session: Any, log: Log) -> None:
    async with session.post(f"http://{HOST}:{port}/completion", data=b"{}") as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                log.append((time.monotonic_ns(), line))
                json.loads(line[6:])


async def httpx_lines(port: int, session: Any, log: Log) -> None:
    async with session.stream("POST", f"http://{HOST}:{port}/completion", content=b"{}") as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                log.append((time.monotonic_ns(), line.encode()))
                json.loads(line[6:])


@contextlib.asynccontextmanager
async def no_session() -> Any:
    yield None


@contextlib.asynccontextmanager
async def aiohttp_session() -> Any:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield session


@contextlib.asynccontextmanager
async def httpx_session() -> Any:
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as session:
        yield session


Read = Callable[[int, Any, Log], Awaitable[None]]
CLIENTS: dict[str, tuple[Read, Callable[[], Any], str | None]] = {
    "assay, recorded": (assay_recorded, no_session, None),
    "assay, in memory": (assay_in_memory, no_session, None),
    "raw asyncio protocol, in memory": (raw_protocol, no_session, None),
    "aiohttp iter_any, in memory": (aiohttp_any, aiohttp_session, "aiohttp"),
    "aiohttp lines, json": (aiohttp_lines, aiohttp_session, "aiohttp"),
    "httpx aiter_lines, json": (httpx_lines, httpx_session, "httpx"),
}


async def measure(name: str, port: int, streams: int) -> dict[str, float]:
    """Run one client over all streams and return its row."""
    read, open_session, _ = CLIENTS[name]
    lags: list[float] = []
    marks: list[tuple[float, float, int]] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.005
            await asyncio.sleep(0.005)
            now = loop.time()
            lags.append(now - due)
            if not marks or now >= marks[-1][0] + WINDOW_S:
                marks.append((now, time.process_time(), sum(map(len, logs))))

    async with open_session() as session:
        logs: list[Log] = [[] for _ in range(streams)]
        watcher = asyncio.create_task(watch())
        before = os.times()
        await asyncio.gather(*(read(port, session, log) for log in logs))
        after = os.times()
        watcher.cancel()
    firsts = sorted(first_delay_us(log) for log in logs)
    events = sum(data.count(b'"tokens_predicted"') for log in logs for _, data in log)
    lags.sort()
    return {
        "events": events,
        "cpu_us": (after.user - before.user + after.system - before.system) / events * 1e6,
        "least_us": least_cost_us(marks),
        "kernel_us": (after.system - before.system) / events * 1e6,
        "ttft_us": statistics.median(firsts),
        "ttft_p99_us": firsts[int(len(firsts) * 0.99)],
        "lag_p99_us": lags[int(len(lags) * 0.99)] * 1e6,
        "lag_max_us": lags[-1] * 1e6,
    }


def least_cost_us(marks: list[tuple[float, float, int]]) -> float:
    """The least CPU time of a read between two marks, the first and the last of them aside: there streams begin or end."""
    costs = [
        (cpu_s - cpu_before_s) / (reads - reads_before) * 1e6
        for (_, cpu_before_s, reads_before), (_, cpu_s, reads) in pairwise(marks[1:-1])
        if reads - reads_before > LEAST_READS
    ]
    return min(costs, default=math.nan)


async def turns(name: str, streams: int, rounds: int) -> dict[str, float]:
    """Send every stream one event, and time how long the client takes until it has them all; many rounds."""
    read, open_session, _ = CLIENTS[name]
    with socket.create_server((HOST, 0), backlog=streams) as server:
        logs: list[Log] = [[] for _ in range(streams)]
        async with open_session() as session:
            port = server.getsockname()[1]
            tasks = [asyncio.ensure_future(read(port, session, log)) for log in logs]
            peers = await asyncio.to_thread(lambda: [accept(server) for _ in range(streams)])
            await asyncio.sleep(0.2)
            before = sum(map(len, logs))
            times = []
            for number in range(rounds):
                data = event(number + 1)
                for peer in peers:
                    peer.sendall(data)
                wanted = before + (number + 1) * streams
                started = time.perf_counter()
                while sum(map(len, logs)) < wanted:
                    await asyncio.sleep(0)
                times.append(time.perf_counter() - started)
            for peer in peers:
                peer.sendall(b"0\r\n\r\n")
                peer.close()
            await asyncio.gather(*tasks)
    times.sort()
    return {"best_us": times[0] / streams * 1e6, "p10_us": times[len(times) // 10] / streams * 1e6}


def accept(server: socket.socket) -> socket.socket:
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = b""
    while not received.endswith(b"{}"):
        received += peer.recv(65536)
    peer.sendall(HEAD)
    return peer


def first_delay_us(log: Log) -> float:
    t_ns, data = next((t_ns, data) for t_ns, data in log if STAMP in data)
    return (t_ns - int(data.partition(STAMP)[2].split(b"}")[0])) / 1e3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def run_server(port: int, streams: int, rate: float, events: int, ready: Any) -> None:
    sys.stdout = SimpleNamespace(write=lambda _: None, flush=ready.set)  # type: ignore[assignment]
    asyncio.run(serve(port, streams, rate, events))


def run_client(name: str, port: int, streams: int, out: Any) -> None:
    out.send(asyncio.run(measure(name, port, streams)))


def run_turns(name: str, streams: int, rounds: int, out: Any) -> None:
    out.send(asyncio.run(turns(name, streams, rounds)))


def quiet_cost(name: str, streams: int, rounds: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    inward, outward = context.Pipe(duplex=False)
    client = context.Process(target=run_turns, args=(name, streams, rounds, outward))
    client.start()
    assert inward.poll(180), f"{name} did not end"
    row: dict[str, float] = inward.recv()
    client.join()
    return row


def one_round(name: str, streams: int, rate: float, events: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    port, ready = free_port(), context.Event()
    server = context.Process(target=run_server, args=(port, streams, rate, events, ready))
    server.start()
    assert ready.wait(30)
    inward, outward = context.Pipe(duplex=False)
    client = context.Process(target=run_client, args=(name, port, streams, outward))
    client.start()
    assert inward.poll(180), f"{name} did not end"
    row: dict[str, float] = inward.recv()
    client.join()
    server.join()
    assert row["events"] == streams * events, f"{name} saw {row['events']} of {streams * events} events"
    return row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--streams", type=int, default=64)
    options.add_argument("--rate", type=float, default=200)
    options.add_argument("--seconds", type=float, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--turns", type=int, default=1000)
    options.add_argument("--only", default="")
    given = options.parse_args()
    events = int(given.rate * given.seconds)
    missing = {module for _, _, module in CLIENTS.values() if module and importlib.util.find_spec(module) is None}
    names = [name for name, (_, _, module) in CLIENTS.items() if module not in missing and given.only in name]
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; "
          f"{given.streams} streams bring one event each, {given.turns} times: us/event, best and 10th percentile")  # fmt: skip
    for name in names:
        if name.endswith("json"):
            continue  # these need many turns of the loop for an event, and would pay for the looking each time
        row = quiet_cost(name, given.streams, given.turns)
        print(f"{name:32} {row['best_us']:8.2f} {row['p10_us']:8.2f}", flush=True)
    if not given.rounds:
        return
    paced: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    flat: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(given.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            paced[name].append(one_round(name, given.streams, given.rate, events))
            flat[name].append(one_round(name, given.streams, 0, events))
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}; {given.streams} streams of "
          f"{given.rate:g} events/s, {events} events each; median of {given.rounds} rounds")  # fmt: skip
    print(f"{'client':32} {'CPU us/event':>13} {'least':>6} {'kernel':>7} {'events/s/core':>14} {'flat out':>9} "
          f"{'TTFT error us, p99':>20} {'loop lag us p99, max':>22}")  # fmt: skip
    for name in names:
        mid = {key: statistics.median(row[key] for row in paced[name]) for key in paced[name][0]}
        fast = statistics.median(row["cpu_us"] for row in flat[name])
        least = min(row["least_us"] for row in paced[name])
        print(f"{name:32} {mid['cpu_us']:13.2f} {least:6.2f} {mid['kernel_us']:7.2f} {1e6 / mid['cpu_us']:14,.0f} {1e6 / fast:9,.0f} "
              f"{mid['ttft_us']:12.0f} {mid['ttft_p99_us']:7.0f} {mid['lag_p99_us']:14.0f} {mid['lag_max_us']:7.0f}")  # fmt: skip
    for module in sorted(missing):
        print(f"{module} is not installed: left out")


if __name__ == "__main__":
    main()
