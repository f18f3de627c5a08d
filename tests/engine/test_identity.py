"""Identity of files, builds, models and of what a process really mapped."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.identity import (
    FileIdentity,
    identify_build,
    identify_executable,
    identify_file,
    identify_model,
    mapped_files,
    mapping_problems,
    with_libraries,
)
from engine.libraries import own_folders
from protocols.errors import EngineError

Encode = Callable[..., bytes]
TOKENIZER = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.token_type": [1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture
def compiled_pair(tmp_path: Path) -> Path:
    """Return a folder with a program and the library that it needs, found through a relative run path."""
    folder = tmp_path / "pair"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    (tmp_path / "one.cpp").write_text("int one() { return 1; }\n")
    (tmp_path / "main.cpp").write_text(
        '#include <cstdio>\n#include <unistd.h>\nint one();\nint main() { std::printf("%d\\n", one()); std::fflush(stdout); pause(); }\n'
    )
    compile_ = ["c++", "-g0", "-Wl,--build-id=sha1"]
    subprocess.run(
        [
            *compile_,
            "-shared",
            "-fPIC",
            "-Wl,-soname,libone.so.1",
            tmp_path / "one.cpp",
            "-o",
            folder / "lib" / "libone.so.1",
        ],
        check=True,
    )
    subprocess.run(
        [
            *compile_,
            tmp_path / "main.cpp",
            folder / "lib" / "libone.so.1",
            "-Wl,-rpath,$ORIGIN/../lib",
            "-o",
            folder / "bin" / "program",
        ],
        check=True,
    )
    return folder


@contextmanager
def running(argv: list[str | Path]) -> Iterator[int]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_file_is_named_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"hello")
    found = identify_file(path)
    assert found == FileIdentity(name="a.bin", bytes=5, sha256=hashlib.sha256(b"hello").hexdigest())


def test_elf_facts_are_those_that_the_linker_wrote(compiled_pair: Path) -> None:
    library = identify_file(compiled_pair / "lib" / "libone.so.1")
    program = identify_file(compiled_pair / "bin" / "program")
    assert library.soname == "libone.so.1"
    assert program.soname is None
    assert "libone.so.1" in program.needed
    assert program.search_path == "$ORIGIN/../lib"
    notes = subprocess.run(
        ["readelf", "-n", compiled_pair / "bin" / "program"], capture_output=True, text=True, check=True
    )
    assert program.build_id is not None
    assert f"Build ID: {program.build_id}" in notes.stdout
    assert program.build_id != library.build_id


def test_a_rewritten_file_never_keeps_its_old_identity(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"first")
    before = identify_file(path)
    status = path.stat()
    path.write_bytes(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size, same times
    assert identify_file(path).sha256 == hashlib.sha256(b"other").hexdigest() != before.sha256


@pytest.mark.parametrize("data", [b"\x7fELF", b"\x7fELF" + b"\xff" * 200, b"\x7fELF\x02\x01\x01" + bytes(9)])
def test_a_damaged_elf_file_is_still_named_by_its_hash(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(data)
    found = identify_file(path)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert (found.build_id, found.needed) == (None, ())


def test_an_elf_file_cut_anywhere_is_still_named_by_its_hash(tmp_path: Path, compiled_pair: Path) -> None:
    whole = (compiled_pair / "lib" / "libone.so.1").read_bytes()
    for size in range(5, len(whole), 997):
        path = tmp_path / f"cut-{size}.so"
        path.write_bytes(whole[:size])
        assert identify_file(path).bytes == size


def test_an_elf_file_with_a_forged_section_is_still_named_by_its_hash(tmp_path: Path, compiled_pair: Path) -> None:
    """Each field of each section header in turn: type, offset, size, link, entry size (ELF64)."""
    whole = (compiled_pair / "lib" / "libone.so.1").read_bytes()
    table, count = int.from_bytes(whole[40:48], "little"), int.from_bytes(whole[60:62], "little")
    fields = [(4, 4, 6), (24, 8, 2**64 - 1), (24, 8, 2**63 - 1), (32, 8, 2**64 - 1), (40, 4, 0), (56, 8, 0)]
    path = tmp_path / "forged.so"
    for section in range(count):
        for place, width, value in fields:
            start = table + 64 * section + place
            data = whole[:start] + value.to_bytes(width, "little") + whole[start + width :]
            path.write_bytes(data)
            assert identify_file(path).sha256 == hashlib.sha256(data).hexdigest()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(EngineError):
            identify_file(path)


def test_a_build_lists_every_file_but_its_receipt(compiled_pair: Path) -> None:
    (compiled_pair / "receipt.json").write_text("{}")
    names = [file.name for file in identify_build(compiled_pair).files]
    assert names == ["bin/program", "lib/libone.so.1"]
    locked = identify_build(compiled_pair).locked()
    assert [file.name for file in locked] == ["libone.so.1", "program"]


def test_an_empty_missing_or_odd_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no build"):
        identify_build(tmp_path / "missing")
    folder = tmp_path / "odd"
    folder.mkdir()
    with pytest.raises(EngineError, match="empty"):
        identify_build(folder)
    os.mkfifo(folder / "pipe")
    with pytest.raises(EngineError, match="only files"):
        identify_build(folder)


def test_a_foreign_program_is_identified_with_the_libraries_beside_it_and_those_that_it_loads(
    compiled_pair: Path,
) -> None:
    shutil.copy(compiled_pair / "lib" / "libone.so.1", compiled_pair / "bin" / "libbeside.so")
    # Of two files of one name, the one that is loaded counts.
    (compiled_pair / "bin" / "libone.so.1").write_bytes(b"not loaded")
    found = identify_executable(compiled_pair / "bin" / "program").files
    assert [file.name for file in found] == ["program", "libbeside.so", "libone.so.1"]
    assert found[2].sha256 == identify_file(compiled_pair / "lib" / "libone.so.1").sha256
    (compiled_pair / "bin" / "text").write_text("x")
    with pytest.raises(EngineError, match="no executable"):
        identify_executable(compiled_pair / "bin" / "text")


def test_mapped_files_are_those_of_the_process(compiled_pair: Path) -> None:
    with running([compiled_pair / "bin" / "program"]) as pid:
        mapped = mapped_files(pid)
    names = {Path(file.name).name for file in mapped}
    assert {"program", "libone.so.1", "libc.so.6"} <= names
    assert all(file.name.startswith("/") for file in mapped)
    assert mapping_problems(identify_build(compiled_pair).files, mapped) == ()


def test_a_library_replaced_before_the_start_is_seen(compiled_pair: Path) -> None:
    locked = identify_build(compiled_pair).files
    library = compiled_pair / "lib" / "libone.so.1"
    library.write_bytes(library.read_bytes() + b"\x00")
    with running([compiled_pair / "bin" / "program"]) as pid:
        problems = mapping_problems(locked, mapped_files(pid))
    assert len(problems) == 1
    assert problems[0].startswith("libone.so.1 was mapped with SHA-256")


def test_a_library_replaced_while_it_is_mapped_counts_as_it_was_mapped(compiled_pair: Path) -> None:
    library = compiled_pair / "lib" / "libone.so.1"
    original = identify_file(library)
    with running([compiled_pair / "bin" / "program"]) as pid:
        library.rename(library.with_suffix(".old"))
        library.write_bytes(b"not what runs")
        if os.geteuid() == 0:
            mapped = {Path(file.name).name: file for file in mapped_files(pid)}
            assert mapped["libone.so.old"].sha256 == original.sha256
        library.with_suffix(".old").unlink()
        if os.geteuid() == 0:
            (deleted,) = [file for file in mapped_files(pid) if "libone" in file.name]
            assert deleted.sha256 == original.sha256
        else:
            with pytest.raises(EngineError, match="replaced or removed"):
                mapped_files(pid)


def test_a_mapped_file_that_no_lock_names_is_a_problem_unless_it_is_the_systems(compiled_pair: Path) -> None:
    program = compiled_pair / "bin" / "program"
    locked = [file for file in identify_executable(program).files if file.name == "program"]
    with running([program]) as pid:
        problems = mapping_problems(locked, mapped_files(pid))
    library = compiled_pair / "lib" / "libone.so.1"
    assert problems == (f"{library} was mapped, and no file of that name is locked",)


def test_a_gpu_runtime_may_open_parts_of_itself_and_nothing_else_may() -> None:
    def mapped(name: str, digit: str) -> FileIdentity:
        return FileIdentity(name=name, bytes=1, sha256=digit * 64)

    server, runtime = mapped("/srv/me/fork/bin/llama-server", "a"), mapped("/srv/me/rocm/lib/libamdhip64.so.7.1", "b")
    part, other = mapped("/srv/me/rocm/lib/llvm/lib/libamd_comgr.so.3", "c"), mapped("/srv/me/lib/libx.so", "d")
    locked = (server, runtime)
    assert mapping_problems(locked, (server, runtime, part)) == ()
    assert mapping_problems(locked, (server, part)) == (f"{part.name} was mapped, and no file of that name is locked",)
    assert len(mapping_problems(locked, (server, runtime, part, other))) == 1


def test_of_two_locked_files_of_one_name_either_may_be_mapped() -> None:
    files = [FileIdentity(name=f"/f/{folder}/libggml-cpu.so", bytes=1, sha256=folder * 64) for folder in "abc"]
    assert mapping_problems(files[:2], files[:1]) == mapping_problems(files[:2], files[1:2]) == ()
    (problem,) = mapping_problems(files[:2], files[2:])
    assert f"{'a' * 64} or {'b' * 64} is locked" in problem


def test_a_program_behind_a_link_is_named_as_the_kernel_names_it(compiled_pair: Path) -> None:
    link = compiled_pair / "server"
    link.symlink_to("bin/program")
    locked = identify_executable(link)
    assert [file.name for file in locked.files] == ["program", "libone.so.1"]
    with running([link]) as pid:
        assert mapping_problems(locked.files, mapped_files(pid)) == ()


def test_a_build_is_identified_with_what_it_loads_from_outside(compiled_pair: Path, tmp_path: Path) -> None:
    inside = identify_build(compiled_pair)
    assert with_libraries(inside, compiled_pair, {}) == inside
    build = tmp_path / "build"
    (build / "bin").mkdir(parents=True)
    shutil.copy(compiled_pair / "bin" / "program", build / "bin")
    shutil.move(compiled_pair / "lib", tmp_path / "elsewhere")
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "elsewhere")}
    found = with_libraries(identify_build(build), build, environment).files
    assert [file.name for file in found] == ["bin/program", "libone.so.1"]
    (build / "lib").mkdir()
    shutil.copy(tmp_path / "elsewhere" / "libone.so.1", build / "lib")
    owned = identify_build(build)
    assert with_libraries(owned, build, environment) == owned, "a namesake takes no place of a build's own library"


def test_a_process_that_maps_nothing_locked_is_a_problem(compiled_pair: Path) -> None:
    locked = identify_build(compiled_pair).files
    problems = mapping_problems(locked, mapped_files(os.getpid()), hosts=own_folders())
    assert problems == ("the process mapped none of the locked files",)


def test_a_process_that_is_gone_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(EngineError, match="memory map"):
        mapped_files(process.pid)


def test_a_model_is_named_by_its_bytes_and_by_what_decides_text(tmp_path: Path, gguf_bytes: Encode) -> None:
    data = gguf_bytes(TOKENIZER, {"a": (3, 4), "b": (5,)})
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    found = identify_model(path)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert (found.bytes, found.architecture, found.name, found.parameters) == (len(data), "llama", "Tiny", 17)
    assert found.chat_template_sha256 == hashlib.sha256(b"{{ messages }}").hexdigest()
    assert found.tokenizer_sha256 is not None
    assert found.locked().tokenizer_sha256 == found.tokenizer_sha256


def test_what_an_elf_file_says_of_itself_is_cut_to_what_a_lock_holds() -> None:
    said = FileIdentity(
        name="l.so", bytes=1, sha256="0" * 64, build_id="00" * 65, soname="s" * 257, needed=("", "n" * 257)
    )
    found = said.locked()
    assert (found.build_id, found.soname, found.needed) == (None, "s" * 256, ("n" * 256,))
    kept = replace(said, build_id="00" * 64, soname="s", needed=("n",)).locked()
    assert (kept.build_id, kept.soname, kept.needed) == ("00" * 64, "s", ("n",))


def test_a_name_that_is_no_text_cannot_be_locked(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"engine-\xff")
    path.write_bytes(b"x")
    with pytest.raises(EngineError, match="a name that is not Unicode"):
        identify_file(path).locked()


def test_what_a_model_says_of_itself_is_cut_to_what_a_lock_holds(tmp_path: Path, gguf_bytes: Encode) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({"general.name": "n" * 257, "general.architecture": ""}))
    found = identify_model(path).locked()
    assert (found.name, found.architecture) == ("n" * 256, None)


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.tokens": ["a", "b", "ba"]},
        {"tokenizer.ggml.tokens": ["ab", "", "ab"]},
        {"tokenizer.ggml.token_type": [1, 3, 1]},
        {"tokenizer.ggml.merges": ["b a"]},
        {"tokenizer.ggml.merges": []},
        {"tokenizer.ggml.pre": "gpt2"},
        {"tokenizer.ggml.model": "llama"},
        {"tokenizer.ggml.bos_token_id": 2},
        {"tokenizer.ggml.add_bos_token": True},
    ],
)
def test_any_change_of_the_tokenizer_changes_its_hash(
    tmp_path: Path, gguf_bytes: Encode, change: dict[str, object]
) -> None:
    hashes = set()
    for index, metadata in enumerate((TOKENIZER, TOKENIZER | change)):
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(gguf_bytes(metadata))
        hashes.add(identify_model(path).tokenizer_sha256)
    assert len(hashes) == 2


def test_what_is_not_the_tokenizer_leaves_its_hash_alone(tmp_path: Path, gguf_bytes: Encode) -> None:
    hashes = set()
    for index, change in enumerate(({}, {"general.name": "Other", "tokenizer.chat_template": "x"})):
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(gguf_bytes(TOKENIZER | change, {"w": (index + 1,)}))
        hashes.add(identify_model(path).tokenizer_sha256)
    assert len(hashes) == 1


def test_a_model_without_tokenizer_or_template_says_so(tmp_path: Path, gguf_bytes: Encode) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "llama"}))
    found = identify_model(path)
    assert (found.tokenizer_sha256, found.chat_template_sha256, found.name) == (None, None, None)
