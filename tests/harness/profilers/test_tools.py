"""What profilers need and what their files show: golden files, arbitrary bytes, prerequisites that are not met."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.profilers.diagnostics import unmet
from harness.profilers.tools import (
    PROFILERS,
    judge_nsys,
    judge_perf,
    judge_rocprof,
    program_need,
    rocprof_needs_of_process,
    version_of,
)

PERF = """# started on Sun Nov 29 23:31:26 2026

<not supported>,,instructions,0,100.00,,
123456,,cycles,1000,100.00,,
0.69,msec,task-clock,694014,100.00,0.192,CPUs utilized
<not counted>,,page-faults,0,0.00,,
"""
KERNELS = """"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"
"KERNEL_DISPATCH","mul_mat(a, b)",1000,1500
"KERNEL_DISPATCH","mul_mat(a, b)",2000,2600
"KERNEL_DISPATCH","rms_norm",3000,bad
"""


def fake_program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return program


def test_perf_counts_what_it_can_and_says_of_the_rest_why_not(tmp_path: Path) -> None:
    (tmp_path / "perf.csv").write_text(PERF)
    trace = judge_perf(tmp_path)
    assert (trace.rows, trace.problem) == (2, None)
    assert trace.numbers == {
        "instructions": "not supported",
        "cycles": 123456,
        "task-clock (msec)": 0.69,
        "page-faults": "not counted",
    }


def test_perf_that_counted_nothing_or_wrote_nothing_is_no_trace(tmp_path: Path) -> None:
    assert judge_perf(tmp_path).problem == "perf wrote no file"
    (tmp_path / "perf.csv").write_text("<not counted>,,cycles,0,0.00,,\n")
    assert judge_perf(tmp_path).problem == "perf counted nothing of the engine"


def test_kernels_are_counted_in_every_trace_file_of_rocprof(tmp_path: Path) -> None:
    for name in ("a/1_kernel_trace.csv", "b/2_kernel_trace.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(KERNELS)
    trace = judge_rocprof(tmp_path)
    assert (trace.rows, trace.problem) == (6, None)
    assert trace.numbers == {"kernels": 6, "kernel names": 2, "kernel ns": 2200}


def test_a_header_without_a_kernel_is_no_trace_whatever_the_exit_code_said(tmp_path: Path) -> None:
    assert judge_rocprof(tmp_path).rows == 0
    (tmp_path / "x_kernel_trace.csv").write_text(KERNELS.splitlines()[0] + "\n")
    trace = judge_rocprof(tmp_path)
    assert (trace.rows, trace.problem) == (0, "no trace file holds a kernel, whatever the exit code says")


def test_nsys_is_asked_for_the_kernels_of_its_report(tmp_path: Path, monkeypatch) -> None:
    script = """echo 'Processing...'
echo 'Time (%),Total Time (ns),Instances,Name'
echo '90.0,5000,12,"mul_mat<a, b>"'
echo '10.0,500,3,rms_norm'
"""
    fake_program(tmp_path / "bin", "nsys", script, monkeypatch)
    assert judge_nsys(tmp_path).problem == "nsys wrote no report"
    (tmp_path / "trace.nsys-rep").write_bytes(b"")
    assert judge_nsys(tmp_path).problem == "nsys wrote no report"
    (tmp_path / "trace.nsys-rep").write_bytes(b"x")
    trace = judge_nsys(tmp_path)
    assert (trace.rows, dict(trace.numbers)) == (15, {"kernels": 15, "kernel names": 2, "kernel ns": 5500})
    fake_program(tmp_path / "bin", "nsys", "echo 'SKIPPED: does not contain CUDA kernel data'", monkeypatch)
    assert judge_nsys(tmp_path).problem == "the report holds no kernel"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_break_a_judge(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "perf.csv").write_bytes(data)
    (tmp_path / "y_kernel_trace.csv").write_bytes(KERNELS.encode()[:60] + data)
    assert judge_perf(tmp_path).rows >= 0
    assert judge_rocprof(tmp_path).rows >= 0


def proc(root: Path, *, paranoid: int | None, capabilities: int, scope: int | None = None) -> Path:
    (root / "self").mkdir(parents=True)
    (root / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
    for name, value in (("sys/kernel/perf_event_paranoid", paranoid), ("sys/kernel/yama/ptrace_scope", scope)):
        if value is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("paranoid", "capabilities", "is_met"),
    [(2, 0, True), (3, 0, False), (4, 1 << 38, True), (4, 1 << 21, True), (None, 1 << 38, False), (-1, 0, True)],
)
def test_perf_needs_a_kernel_that_lets_this_user_count(
    tmp_path: Path, paranoid, capabilities: int, is_met: bool
) -> None:
    needs = {
        need.name: need
        for need in PROFILERS["perf-stat"].needs(proc(tmp_path / "proc", paranoid=paranoid, capabilities=capabilities))
    }
    assert needs["perf_event_paranoid"].is_met is is_met
    assert (needs["perf_event_paranoid"].help is None) is is_met


@pytest.mark.parametrize(
    ("scope", "capabilities", "is_met"), [(None, 0, True), (0, 0, True), (1, 0, False), (1, 1 << 19, True)]
)
def test_an_attachment_needs_the_right_to_trace(tmp_path: Path, scope, capabilities: int, is_met: bool) -> None:
    root = proc(tmp_path / "proc", paranoid=2, capabilities=capabilities, scope=scope)
    needs = {need.name: need for need in PROFILERS["rocprofv3-attach"].needs(root)}
    assert needs["ptrace"].is_met is is_met


def test_an_engine_is_ready_for_rocprof_by_its_environment_and_its_library_or_thread(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    (folder / "task" / "43").mkdir(parents=True)
    (folder / "environ").write_bytes(b"PATH=/bin\0ROCP_TOOL_ATTACH=0\0")
    assert [need.is_met for need in rocprof_needs_of_process(42, tmp_path)] == [False, False]
    (folder / "environ").write_bytes(b"PATH=/bin\0ROCP_TOOL_ATTACH=1\0")
    (folder / "task" / "43" / "comm").write_text("rocp-bg-attach\n")
    assert [need.is_met for need in rocprof_needs_of_process(42, tmp_path)] == [True, True]
    (folder / "task" / "43" / "comm").write_text("engine\n")
    (folder / "maps").write_text("7f00 r-xp /opt/rocm/lib/librocprofiler-sdk-attach.so.1\n")
    assert [need.is_met for need in rocprof_needs_of_process(42, tmp_path)] == [True, True]
    assert [need.is_met for need in rocprof_needs_of_process(43, tmp_path)] == [False, False]


def test_what_is_missing_is_named_with_what_would_help() -> None:
    assert unmet((program_need("sh", "x"),)) is None
    assert unmet((program_need("no-such-program", "install it"),)) == "no-such-program: not found (install it)"
    assert version_of("no-such-program") is None


def test_every_command_names_its_target_and_its_folder(tmp_path: Path) -> None:
    for profiler in PROFILERS.values():
        words = [*profiler.command("/bin/tool", 4242, tmp_path, 7)]
        assert words[0] == "/bin/tool"
        assert any(str(tmp_path) in word for word in words)
        assert ("4242" in words) is (profiler.mode == "attach")
    assert PROFILERS["rocprofv3-launch"].command("t", 0, tmp_path, 1)[-1] == "--"
    assert "--kill=none" in PROFILERS["nsys"].command("t", 0, tmp_path, 1)
