"""The engine's process tree."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from recorder.telemetry.process import ProcessProvider, parse_stat
from recorder.telemetry.reader import FileReader


def stat(
    pid: int,
    *,
    start: int = 5000,
    comm: str = "engine",
    state: str = "S",
    threads: int = 1,
    minflt=0,
    majflt=0,
    utime=0,
    stime=0,
) -> str:
    rest = [
        state,
        1,
        pid,
        pid,
        0,
        -1,
        4194304,
        minflt,
        0,
        majflt,
        0,
        utime,
        stime,
        0,
        0,
        20,
        0,
        threads,
        0,
        start,
        1000,
        20,
    ]
    return f"{pid} ({comm}) " + " ".join(str(part) for part in rest)


def process(
    tree,
    pid: int,
    *,
    rss_kb: int = 100,
    read_bytes: int = 0,
    threads: dict[int, tuple[int, int, int, int]] | None = None,
    children: str = "",
    **fields: object,
) -> None:
    """Write one process. ``threads`` maps a thread to (run ns, wait ns, voluntary, involuntary)."""
    threads = threads or {pid: (0, 0, 0, 0)}
    files: dict[str, object] = {
        f"/proc/{pid}/stat": stat(pid, threads=len(threads), **fields),
        f"/proc/{pid}/status": f"Name:\tx\nVmHWM:\t{rss_kb + 7} kB\nVmRSS:\t{rss_kb} kB\nVmSwap:\t0 kB\nRssFile:\t{rss_kb // 2} kB\nVmLck:\t{rss_kb // 4} kB",
        f"/proc/{pid}/io": f"rchar: 1\nwchar: 2\nread_bytes: {read_bytes}\nwrite_bytes: 4096",
    }
    for thread, (run, wait, voluntary, involuntary) in threads.items():
        folder = f"/proc/{pid}/task/{thread}"
        files[f"{folder}/schedstat"] = f"{run} {wait} 3"
        files[f"{folder}/status"] = f"voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}"
        files[f"{folder}/children"] = children if thread == pid else ""
    tree.write(files)


def values(provider: ProcessProvider, tick: int = 0) -> dict[str, int | None]:
    return {reading.field.key: reading.raw for reading in provider.read(tick)}


def end_thread(tree, pid: int, thread: int) -> None:
    for name in ("schedstat", "status", "children"):
        tree.remove(f"/proc/{pid}/task/{thread}/{name}")
    (tree.root / f"proc/{pid}/task/{thread}").rmdir()


def test_a_tree_is_summed_over_its_processes_and_threads(tree) -> None:
    process(
        tree,
        10,
        utime=5,
        stime=2,
        minflt=100,
        majflt=3,
        read_bytes=50,
        children="11 12 ",
        threads={10: (1, 10, 4, 1), 13: (2, 20, 5, 2)},
    )
    process(tree, 11, utime=1, majflt=1, rss_kb=50, threads={11: (100, 1000, 7, 0)}, start=5001)
    process(tree, 12, state="Z", start=5002)
    provider = ProcessProvider(10, tree.reader())
    assert provider.probe().state == "present"
    assert values(provider) == {
        "proc_count": 2,
        "proc_thread_count": 3,
        "proc_utime_ticks": 6,
        "proc_stime_ticks": 2,
        "proc_minflt_count": 100,
        "proc_majflt_count": 4,
        "proc_rss_bytes": 150 * 1024,
        "proc_rss_peak_bytes": 164 * 1024,
        "proc_rss_file_bytes": 75 * 1024,
        "proc_locked_bytes": 37 * 1024,
        "proc_swap_bytes": 0,
        "proc_read_bytes": 50,
        "proc_write_bytes": 8192,
        "proc_run_ns": 103,
        "proc_runq_wait_ns": 1030,
        "proc_voluntary_switch_count": 16,
        "proc_involuntary_switch_count": 3,
    }


def test_a_thread_that_ended_keeps_its_share(tree) -> None:
    process(tree, 10, threads={10: (1, 10, 0, 0), 13: (500, 70, 0, 0)})
    provider = ProcessProvider(10, tree.reader())
    provider.probe()
    assert values(provider)["proc_run_ns"] == 501
    end_thread(tree, 10, 13)
    process(tree, 10, threads={10: (4, 12, 0, 0)})
    assert (values(provider, 1)["proc_run_ns"], values(provider, 2)["proc_runq_wait_ns"]) == (504, 82)


def test_a_reused_thread_id_adds_to_the_one_before(tree) -> None:
    process(tree, 10, threads={10: (0, 0, 0, 0), 13: (500, 0, 0, 0)})
    provider = ProcessProvider(10, tree.reader())
    provider.probe()
    process(tree, 10, threads={10: (0, 0, 0, 0), 13: (20, 0, 0, 0)})
    assert values(provider)["proc_run_ns"] == 520
    process(tree, 10, threads={10: (0, 0, 0, 0), 13: (30, 0, 0, 0)})
    assert values(provider)["proc_run_ns"] == 530


def test_a_child_that_ended_keeps_its_share_of_the_counters_and_none_of_the_gauges(tree) -> None:
    process(tree, 10, children="11", utime=5)
    process(tree, 11, utime=90, rss_kb=900, start=5001)
    provider = ProcessProvider(10, tree.reader())
    provider.probe()
    process(tree, 10, utime=6)
    after = values(provider)
    assert (after["proc_utime_ticks"], after["proc_rss_bytes"], after["proc_count"]) == (96, 100 * 1024, 1)


def test_context_switches_are_due_every_20th_tick_and_never_fall_between(tree) -> None:
    process(tree, 10, threads={10: (0, 0, 5, 6)})
    provider = ProcessProvider(10, tree.reader())
    provider.probe()
    assert "proc_voluntary_switch_count" not in values(provider, 1)
    assert values(provider, 20)["proc_voluntary_switch_count"] == 5
    process(tree, 10, threads={10: (0, 0, 9, 6)})
    values(provider, 21)
    assert values(provider, 40)["proc_voluntary_switch_count"] == 9


def test_a_process_that_is_gone_has_no_values_and_no_zeros(tree) -> None:
    process(tree, 10)
    provider = ProcessProvider(10, tree.reader())
    provider.probe()
    tree.remove("/proc/10/stat")
    readings = list(provider.read(0))
    assert len(readings) == 17
    assert {(reading.raw, reading.status) for reading in readings} == {(None, "error")}


@pytest.mark.parametrize("after", [{"start": 6000}, {"state": "Z"}])
def test_another_process_with_the_same_id_and_a_dead_one_are_not_the_engine(tree, after) -> None:
    process(tree, 10)
    provider = ProcessProvider(10, tree.reader())
    provider.probe()
    process(tree, 10, **after)
    assert set(values(provider).values()) == {None}


def test_files_that_may_not_be_read_have_no_field(tree) -> None:
    process(tree, 10)
    reader = tree.reader()
    reader.faults = {"/proc/10/io": tree.EACCES}
    provider = ProcessProvider(10, reader)
    report = provider.probe()
    assert (report.state, set(report.refused)) == ("partial", {"proc_read_bytes", "proc_write_bytes"})
    assert "proc_read_bytes" not in values(provider)


def test_a_process_that_does_not_exist_is_absent(tree) -> None:
    report = ProcessProvider(10, tree.reader()).probe()
    assert (report.state, report.reason) == ("absent", "process 10: ENOENT")
    tree.write({"/proc/10/stat": "10 (x"})
    assert ProcessProvider(10, tree.reader()).probe().reason == "process 10: unreadable stat file"


def test_a_command_with_brackets_and_blanks_is_read_past_its_last_bracket() -> None:
    found = parse_stat(stat(7, comm="a) S 1 (b", majflt=9).encode())
    assert found is not None
    assert (found.state, found.start_ticks, found.values["proc_majflt_count"]) == ("S", 5000, 9)
    assert parse_stat(b"") is None
    assert parse_stat(b"1 (x) S 1 2") is None


def test_a_real_tree_is_counted_with_its_threads_and_children() -> None:
    """Live: this Python with a busy thread, and a child process."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    provider = ProcessProvider(os.getpid(), FileReader())
    try:
        assert provider.probe().state in {"present", "partial"}
        before = values(provider)
        thread = threading.Thread(target=lambda: sum(range(6_000_000)))
        thread.start()
        thread.join()
        after = values(provider)
        assert after["proc_count"] >= 2
        # The thread is gone; what it ran must show all the same in the process's ticks.
        assert after["proc_utime_ticks"] > before["proc_utime_ticks"]
        assert after["proc_rss_bytes"] > 5_000_000
    finally:
        child.communicate()
    deadline = time.monotonic() + 5
    while values(provider)["proc_count"] >= after["proc_count"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert values(provider)["proc_count"] < after["proc_count"]
