"""Speed and memory of the audit: `--level hashes` beside sha256sum on the same files, `--level recompute` of large loads.

    python tests/bench/bench_audit.py hashes --gb 1 --blob-kb 2500
    python tests/bench/bench_audit.py recompute --gb 2
    python tests/bench/bench_audit.py memory --gb 0.5 1 2 4 10 --tokens 20000

`recompute` audits the store, with its database, and the unpacked bundle of it, which has none: there everything is
derived from the raw bytes and nothing is compared with rows. `memory` lets one store grow to so many bytes altogether,
the database included, and audits it at each size; at the last one its unpacked bundle, too.

Rounds alternate; medians are printed. The files are read once before, so that both find them in the page cache (a
store larger than the free memory is read from the disk by both). Memory is the peak resident set of a process that does
nothing but the audit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from recorder.bundle import unpack_bundle, write_bundle

CHILD = """
import json, re, sys, time
from pathlib import Path
from recorder.audit import audit_store
start, cpu = time.perf_counter(), time.process_time()
result = audit_store(Path(sys.argv[1]), level=sys.argv[2])
print(json.dumps({"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu, "counts": dict(result.counts),
    "findings": [str(one) for one in result.findings[:3]], "peak_mb": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024}))
"""


def synthetic() -> ModuleType:
    """The driver of the recorder's tests."""
    path = Path(__file__).parents[1] / "recorder" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("assay_test_synthetic", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["assay_test_synthetic"] = module
    spec.loader.exec_module(module)
    return module


def fill_with_blobs(root: Path, total: int, size: int) -> None:
    """Record receipts whose attachments are random bytes, around this size each."""
    driver, dice = synthetic(), random.Random(1)
    driver.run_campaign(root)
    with driver.open_store(root) as store:
        campaign = store.campaign_recorder("latest")
        number = 0
        while total > 0:
            attachments = {}
            for _ in range(64):
                length = int(size * dice.uniform(0.5, 1.5))
                attachments[f"file-{number}"] = dice.randbytes(length)
                number, total = number + 1, total - length
            campaign.record_receipt("bench", {"files": len(attachments)}, attachments)


def streamed(driver: ModuleType, ids: range, pad: int) -> list[tuple[int, bytes]]:
    """The reads of a streamed answer, each event with so many bytes beside what is read of it."""
    reads: list[tuple[int, bytes]] = driver.completion_reads(ids=tuple(ids), step_ns=1_000_000)
    padding = b', "pad": "' + b"x" * pad + b'"}\n\n'
    for row, (t_ns, data) in enumerate(reads[1:-1] if pad else (), start=1):
        event = data.partition(b"\r\n")[2].removesuffix(b"}\n\n\r\n")
        reads[row] = (t_ns, driver.chunk(event + padding))
    return reads


def fill_with_streams(root: Path, total: int, tokens: int, pad: int) -> None:
    """Record loads whose measured request streamed this many tokens, until the blobs hold this many more bytes.

    The loads of a campaign have the same ids, those of another campaign others.
    """
    driver = synthetic()
    with driver.open_store(root) as store:
        while total > 0:
            first = len(store.entries()) * tokens
            reads = streamed(driver, range(first, first + tokens), pad)
            campaign = store.begin_campaign(**driver.lock_parts())
            for place in driver.positions():
                load = campaign.open_load(place)
                sink = load.exchange(
                    name="tiny",
                    route="/completion",
                    kind="native",
                    workload="tiny",
                    repeat=0,
                    is_warmup=False,
                    request=driver.http_request("/completion", driver.REQUESTS["requests/tiny.json"]),
                )
                driver.play(sink, reads, 10**9)
                total -= sum(len(data) for _, data in reads)
                load.seal(state="COMPLETE", reason=None)
            driver.judge(store, campaign)


def audit(root: Path, level: str) -> dict[str, Any]:
    """Audit in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), level], capture_output=True, text=True, check=True, timeout=3600
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["findings"] == [], found["findings"]
    return found


def sha256sum(root: Path) -> float:
    """Hash every blob with the common program."""
    start = time.perf_counter()
    command = "find blobs -type f -print0 | xargs -0 sha256sum > /dev/null"
    subprocess.run(["sh", "-c", command], cwd=root, check=True, timeout=3600)
    return time.perf_counter() - start


def unpacked(root: Path) -> Path:
    """Bundle a store and unpack the bundle beside it."""
    made = write_bundle(root, root.with_name("bundle.zst"))
    unpack_bundle(made.path, root.with_name("bundle"))
    made.path.unlink()
    return root.with_name("bundle")


def show_rounds(name: str, root: Path, size: int, rounds: int) -> None:
    """Audit in several processes, one after the other; print speed and memory."""
    # CPU time itself grows while neighbours share the core: the least is nearest to what the work takes.
    tries = [audit(root, "recompute") for _ in range(rounds)]
    found = min(tries, key=lambda one: float(one["cpu_s"]))
    rates = [size / one["cpu_s"] / 1e6 for one in tries]
    peak = max(one["peak_mb"] for one in tries)
    print(f"{name}: {found['cpu_s']:.2f} s of CPU, {max(rates):.1f} MB a CPU second ({min(rates):.1f} at worst)")
    print(f"  {found['s']:.2f} s; peak memory {peak:.0f} MB; {found['counts']}", flush=True)


def show_memory(root: Path, sizes: list[int], tokens: int, pad: int) -> None:
    """Let a store grow, and audit it at each size; print what each audit took."""
    for total in sizes:
        while not root.exists() or bytes_of(root) < total:
            fill_with_streams(root, min(total // 10, 50_000_000), tokens, pad)
        show_audits(root, "hashes", "recompute")
    show_audits(unpacked(root), "recompute")


def show_audits(root: Path, *levels: str) -> None:
    """Audit up to each level; print memory and time."""
    size = bytes_of(root)
    for level in levels:
        found = audit(root, level)
        print(
            f"{root.name} of {size / 1e9:.2f} GB, --level {level}: peak memory {found['peak_mb']:.0f} MB; "
            f"{found['cpu_s']:.1f} s of CPU, {found['s']:.1f} s; {found['counts']}",
            flush=True,
        )


def bytes_of(root: Path) -> int:
    """How many bytes the files of a folder have."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def main() -> None:
    """Fill a store, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("hashes", "recompute", "memory"))
    parser.add_argument("--gb", type=float, nargs="+", default=[1.0])
    parser.add_argument("--blob-kb", type=int, default=2500)
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens of each stream")
    parser.add_argument("--pad", type=int, default=180, help="bytes that each event carries beside what is read of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the store is made  [default: the temporary folder]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-bench-", dir=chosen.folder) as folder:
        os.environ["ASSAY_KEY_HOME"] = str(Path(folder) / "keys")
        root, total = Path(folder) / "store", int(chosen.gb[0] * 1e9)
        start = time.perf_counter()
        if chosen.what == "hashes":
            fill_with_blobs(root, total, chosen.blob_kb * 1000)
        elif chosen.what == "memory":
            show_memory(root, [int(gb * 1e9) for gb in chosen.gb], chosen.tokens, chosen.pad)
            return
        else:
            fill_with_streams(root, total, chosen.tokens, chosen.pad)
        filled = time.perf_counter() - start
        files = [path for path in (root / "blobs").rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        database = (root / "assay.sqlite").stat().st_size
        print(
            f"{len(files)} blobs, {size / 1e9:.2f} GB; database {database / 1e9:.2f} GB; filled in {filled:.0f} s",
            flush=True,
        )
        if chosen.what == "recompute":
            show_rounds("store", root, size, chosen.rounds)
            show_rounds("unpacked bundle", unpacked(root), size, chosen.rounds)
            return
        sha256sum(root)
        rounds = [(audit(root, "hashes"), sha256sum(root)) for _ in range(chosen.rounds)]
        ours, theirs = (statistics.median(times) for times in zip(*((a["s"], b) for a, b in rounds), strict=True))
        ratios = [b / a["s"] for a, b in rounds]
        print(
            f"audit --level hashes: {ours:.2f} s, {size / ours / 1e6:.0f} MB/s; peak {rounds[0][0]['peak_mb']:.0f} MB"
        )
        print(f"sha256sum:            {theirs:.2f} s, {size / theirs / 1e6:.0f} MB/s")
        print(
            f"our speed / its speed, median: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
