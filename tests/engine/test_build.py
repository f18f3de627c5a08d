"""Builds: what they reuse, what they refuse, and what their receipts say. A tiny source stands in for the engine."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from qwen_data import tiny_model

from engine.build import (
    BuildError,
    BuildSpec,
    EngineBuild,
    build_engine,
    copy_build,
    installed_build,
    open_build,
)
from engine.cache import cache_folder
from engine.source_tree import hash_sources, source_folder
from engine.toolchain import find_toolchain
from engine.worker import EngineWorker, Session
from protocols.errors import EngineError


def build(source: Path, cache: Path, *, salt: int = 0, faults: tuple[str, ...] = ()) -> tuple[EngineBuild, list[str]]:
    lines: list[str] = []
    spec = BuildSpec(name="tiny", layout_salt=salt, faults=faults, path=source)
    return build_engine(spec, cache=cache, log=lines.append), lines


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for the tests that need no fresh tree; a build in it may stem from another test."""
    return tmp_path_factory.mktemp("cache")


def said(made: EngineBuild) -> str:
    return subprocess.run([made.server], capture_output=True, text=True, check=True).stdout.strip()


def compiled(cache: Path, made: EngineBuild) -> list[str]:
    log = (cache / "logs" / f"{made.receipt['key']}.log").read_text()
    return sorted({name for name in ("big.cpp", "pace.cpp", "info.cpp", "main.cpp") if f"{name}.o" in log})


def test_a_build_runs_and_its_receipt_names_inputs_tools_and_outputs(tiny_source: Path, cache: Path) -> None:
    made, _ = build(tiny_source, cache, salt=3, faults=("slow-decode=30",))
    assert said(made) == "3 30 7"
    receipt = json.loads((made.folder / "receipt.json").read_text())
    assert receipt == made.receipt
    assert receipt["outcome"] == "built"
    assert receipt["layout_salt"] == 3
    assert receipt["faults"] == ["slow-decode=30"]
    assert receipt["qsa_path"] == "guarded"
    assert set(receipt["inputs"]) == {
        "CMakeLists.txt",
        "include/tiny.h",
        "src/big.cpp",
        "src/info.cpp",
        "src/main.cpp",
        "src/pace.cpp",
    }
    assert receipt["inputs"] == receipt["inputs_after"] == hash_sources(tiny_source)
    assert set(receipt["outputs"]) == {"bin/engine-server", "lib/libassay-engine.so"}
    assert receipt["duration_ns"] > 0
    assert receipt["compiler_version"] == find_toolchain().compiler_version
    assert {"libggml.so", "libggml-base.so", "libggml-cpu.so", "ggml.h"} <= set(receipt["library_hashes"])
    assert any("-DPACE=30" in command for command in receipt["compile_commands"])


def test_receipts_hold_no_real_numbers_so_that_they_can_be_hashed(tiny_source: Path, cache: Path) -> None:
    made, _ = build(tiny_source, cache)

    def refuse(text: str) -> float:
        raise AssertionError(text)

    json.loads((made.folder / "receipt.json").read_text(), parse_float=refuse)


def test_another_salt_or_fault_recompiles_only_the_files_that_hold_it(tiny_source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, _ = build(tiny_source, cache, salt=1)
    assert compiled(cache, first) == ["big.cpp", "info.cpp", "main.cpp", "pace.cpp"]
    second, _ = build(tiny_source, cache, salt=2)
    assert compiled(cache, second) == ["info.cpp"]
    third, _ = build(tiny_source, cache, salt=2, faults=("slow-decode=5",))
    assert compiled(cache, third) == ["pace.cpp"]
    assert [said(made) for made in (first, second, third)] == ["1 0 7", "2 0 7", "2 5 7"]
    assert len({made.folder for made in (first, second, third)}) == 3


def test_a_finished_build_is_reused(tiny_source: Path, cache: Path) -> None:
    first, _ = build(tiny_source, cache)
    again, lines = build(tiny_source, cache)
    assert lines == ["reusing the finished build of tiny"]
    assert again == first


@pytest.mark.parametrize("damage", ["flip", "remove", "add", "receipt"])
def test_a_damaged_build_is_refused_and_built_again(tiny_source: Path, cache: Path, damage: str) -> None:
    first, _ = build(tiny_source, cache)
    library = first.folder / "lib" / "libassay-engine.so"
    if damage == "flip":
        data = bytearray(library.read_bytes())
        data[-1] ^= 1
        library.write_bytes(data)
    elif damage == "remove":
        library.unlink()
    elif damage == "add":
        (first.folder / "lib" / "extra.so").write_text("x")
    else:
        (first.folder / "receipt.json").write_text("{")
    with pytest.raises(EngineError):
        open_build(first.folder)
    again, _ = build(tiny_source, cache)
    assert again.receipt["outputs"] == first.receipt["outputs"]
    assert open_build(first.folder).receipt["outputs"] == first.receipt["outputs"]


def test_the_same_source_elsewhere_is_the_same_build(tiny_source: Path, cache: Path, tmp_path: Path) -> None:
    first, _ = build(tiny_source, cache)
    moved = tiny_source.rename(tmp_path / "moved")
    again, lines = build(moved, cache)
    assert lines == ["reusing the finished build of tiny"]
    assert again.folder == first.folder


def test_a_changed_source_is_another_build(tiny_source: Path, cache: Path) -> None:
    first, _ = build(tiny_source, cache)
    (tiny_source / "src" / "big.cpp").write_text("int big() { return 8; }\n")
    second, _ = build(tiny_source, cache)
    assert (said(first), said(second)) == ("0 0 7", "0 0 8")


def test_compiler_flags_of_the_environment_make_another_build(
    tiny_source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = build(tiny_source, cache)
    monkeypatch.setenv("CXXFLAGS", "-DTINY_EXTRA")
    second, _ = build(tiny_source, cache)
    assert first.folder != second.folder
    assert second.receipt["flags"] == {"CXXFLAGS": "-DTINY_EXTRA"}
    assert all("-DTINY_EXTRA" in command for command in second.receipt["compile_commands"])


def test_a_failing_compile_names_the_first_error_and_the_log_and_leaves_a_receipt(
    tiny_source: Path, tmp_path: Path
) -> None:
    (tiny_source / "src" / "big.cpp").write_text("int big() { return nonsense; }\n")
    with pytest.raises(BuildError) as caught:
        build(tiny_source, tmp_path / "cache")
    assert "big.cpp:1:20: error:" in str(caught.value)
    assert "nonsense" in str(caught.value)
    assert caught.value.where is not None
    assert "nonsense" in Path(caught.value.where).read_text()
    assert caught.value.receipt["outcome"] == "failed"
    assert caught.value.receipt["duration_ns"] > 0
    (kept,) = (tmp_path / "cache" / "failures").iterdir()
    assert json.loads(kept.read_text()) == caught.value.receipt
    assert list((tmp_path / "cache" / "builds").iterdir()) == []


def test_a_name_that_is_missing_in_many_places_is_shown_once(tiny_source: Path, tmp_path: Path) -> None:
    uses = "".join(f"int use_{index}() {{ return lost() + {index}; }}\n" for index in range(20))
    main = (tiny_source / "src" / "main.cpp").read_text()
    (tiny_source / "src" / "main.cpp").write_text(f"int lost();\n{uses}{main}")
    with pytest.raises(BuildError) as caught:
        build(tiny_source, tmp_path / "cache")
    assert str(caught.value).count("undefined reference to `lost()'") == 1


def test_an_unknown_fault_is_refused_by_the_source_with_its_own_words(tiny_source: Path, cache: Path) -> None:
    with pytest.raises(BuildError, match="CMake Error"):
        build(tiny_source, cache, faults=("fast-decode=3",))


@pytest.mark.parametrize("faults", [("slow decode",), ("slow-decode=x",), ("a;b",), ("slow-decode=3", "slow-decode=3")])
def test_a_malformed_fault_never_reaches_the_build(tiny_source: Path, tmp_path: Path, faults: tuple[str, ...]) -> None:
    with pytest.raises(EngineError):
        build(tiny_source, tmp_path / "cache", faults=faults)
    assert not (tmp_path / "cache").exists()


def test_a_build_that_installs_no_server_fails(tiny_source: Path, tmp_path: Path) -> None:
    text = (tiny_source / "CMakeLists.txt").read_text()
    (tiny_source / "CMakeLists.txt").write_text(
        text.replace("install(TARGETS assay-engine engine-server", "install(TARGETS assay-engine")
    )
    with pytest.raises(BuildError, match="installed no bin/engine-server"):
        build(tiny_source, tmp_path / "cache")


def test_what_a_killed_attempt_left_is_removed(tiny_source: Path, tmp_path: Path) -> None:
    made, _ = build(tiny_source, tmp_path / "cache")
    builds = tmp_path / "cache" / "builds"
    made.server.unlink()
    (builds / f".{made.receipt['key']}-killed").mkdir()
    build(tiny_source, tmp_path / "cache")
    assert [path.name for path in builds.iterdir()] == [made.folder.name]


def test_a_folder_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no engine source"):
        build(tmp_path, tmp_path / "cache")


def test_a_missing_compiler_is_named_with_what_to_install(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match="'no-such-compiler' named by CXX"):
        build(tiny_source, tmp_path / "cache")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"no C\+\+ compiler") as caught:
        build(tiny_source, tmp_path / "cache")
    assert caught.value.hint is not None
    assert "apt-get install g++" in caught.value.hint


def test_two_builds_at_once_share_one_tree_and_both_are_right(tiny_source: Path, tmp_path: Path) -> None:
    made: dict[int, EngineBuild] = {}

    def one(salt: int) -> None:
        made[salt], _ = build(tiny_source, tmp_path / "cache", salt=salt)

    threads = [threading.Thread(target=one, args=(salt,)) for salt in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {salt: said(result) for salt, result in made.items()} == {1: "1 0 7", 2: "2 0 7"}
    assert len(list((tmp_path / "cache" / "trees").glob("*.lock"))) == 1


def test_a_copy_opens_and_an_existing_folder_is_never_overwritten(
    tiny_source: Path, cache: Path, tmp_path: Path
) -> None:
    made, _ = build(tiny_source, cache)
    copied = copy_build(made, tmp_path / "out" / "mine")
    assert copied.receipt == made.receipt
    assert said(copied) == said(made)
    with pytest.raises(EngineError, match="exists already"):
        copy_build(made, tmp_path / "out" / "mine")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ASSAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "assay"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "assay"


def test_another_layout_of_the_bundled_engine_changes_its_own_binaries_only(bundled_build: EngineBuild) -> None:
    other = build_engine(BuildSpec(name="other", layout_salt=2))
    first, second = bundled_build.receipt, other.receipt
    assert first["tree_key"] == second["tree_key"]
    assert first["inputs"] == second["inputs"] == hash_sources(source_folder())
    changed = {name for name, sha256 in first["outputs"].items() if second["outputs"][name] != sha256}
    assert "lib/libassay-engine.so" in changed
    assert changed <= {"lib/libassay-engine.so", "bin/engine-server", "bin/engine-bench"}
    assert set(first["outputs"]) == set(second["outputs"])
    assert open_build(other.folder).receipt["layout_salt"] == 2


def slowed_build() -> EngineBuild:
    faults = ("slow-decode=30", "slow-prefill-after=255")
    return build_engine(BuildSpec(name="slowed", layout_salt=1, faults=faults))


def prefill_s(worker: EngineWorker, start: int) -> float:
    """Seconds of one prefill step of 256 tokens that begins at `start`."""
    worker.remove(sequence=0)
    if start:
        worker.fill_zero(start)
    before_s = time.monotonic()
    worker.decode([1, 2, 3, 4] * 64, start=start, rows="none")
    return time.monotonic() - before_s


def test_prefill_beyond_the_position_of_the_fault_takes_twice_its_time(bundled_build: EngineBuild) -> None:
    """Equal work, one position apart: each at its fastest, so that what else this host does matters little."""
    del bundled_build  # shares its objects
    with EngineWorker(slowed_build().library) as worker:
        worker.load(tiny_model("tiny-a"))
        worker.open_session(Session(context_tokens=1024, threads=1))
        times_s = [(prefill_s(worker, 0), prefill_s(worker, 1)) for _ in range(15)]
    before_s, beyond_s = (min(column) for column in zip(*times_s, strict=True))
    assert beyond_s > 1.25 * before_s


def test_a_fault_of_the_bundled_engine_is_named_by_its_build(bundled_build: EngineBuild) -> None:
    slowed = slowed_build()
    with EngineWorker(bundled_build.library) as sound, EngineWorker(slowed.library) as faulty:
        assert (sound.build_info()["faults"], sound.build_info()["layout_salt"]) == ([], 1)
        assert faulty.build_info()["faults"] == ["slow-decode=30", "slow-prefill-after=255"]
    assert slowed.receipt["outputs"]["lib/libggml.so"] == bundled_build.receipt["outputs"]["lib/libggml.so"]


def test_an_unknown_fault_of_the_bundled_engine_lists_the_known_ones() -> None:
    with pytest.raises(BuildError, match="slow-decode=P"):
        build_engine(BuildSpec(name="unknown", faults=("fast-decode=3",)))


@pytest.mark.parametrize(
    "fault",
    [
        "slow-decode",
        "slow-decode=0",
        "slow-decode=96",
        "image-one-block=3",
        "slow-prefill-after=0",
        "slow-prefill-after",
    ],
)
def test_a_fault_whose_value_is_missing_too_much_or_out_of_range_is_refused(fault: str) -> None:
    with pytest.raises(BuildError, match=f"{fault}: "):
        build_engine(BuildSpec(name="unknown", faults=(fault,)))


def test_an_unknown_path_of_block_selection_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EngineError, match="is no path of block selection") as caught:
        build_engine(BuildSpec(name="unknown", qsa_path="fast"))
    assert "guarded, general-only" in str(caught.value.hint)


@pytest.mark.parametrize("choice", [{"faults": ("position-only-blocks",)}, {"qsa_path": "general-only"}])
def test_a_choice_that_concerns_block_selection_replaces_its_library_and_no_other_file(
    bundled_build: EngineBuild, choice: dict[str, Any]
) -> None:
    other = build_engine(BuildSpec(name="other", layout_salt=1, **choice))
    first, second = bundled_build.receipt["outputs"], other.receipt["outputs"]
    assert {name for name in first if first[name] != second[name]} == {"lib/libassay-qsa.so"}
    assert set(first) == set(second)
    with EngineWorker(other.library) as worker:
        info = worker.build_info()
    assert (info["faults"], info["qsa_path"]) == (list(choice.get("faults", ())), choice.get("qsa_path", "guarded"))


def test_the_wheels_engine_is_byte_for_byte_the_build_of_salt_0() -> None:
    try:
        wheel = installed_build()
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    assert build_engine(BuildSpec(name="plain")).receipt["outputs"] == wheel.receipt["outputs"]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_bundled_source_can_be_configured_with_sanitizers(tmp_path: Path, sanitizers: str) -> None:
    """`make nightly` and `make threads` build so; a list of them must not end as a list of a generator's arguments."""
    tools = find_toolchain()
    argv = [tools.cmake, "-G", "Ninja", "-S", source_folder(), "-B", tmp_path, *tools.definitions()]
    argv += ["-DCMAKE_BUILD_TYPE=Release", "-DASSAY_TESTS=ON", f"-DASSAY_SANITIZE={sanitizers}"]
    made = subprocess.run(argv, env=tools.environment(), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    flags = json.loads((tmp_path / "compile_commands.json").read_text())[0]["command"].split()
    assert f"-fsanitize={sanitizers}" in flags
    assert ("-Wno-tsan" in flags) == (sanitizers == "thread")
