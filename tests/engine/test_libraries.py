"""The libraries that a program will load, against what the dynamic linker really maps: small programs, compiled here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from engine.identity import identify_executable, mapped_files, mapping_problems
from engine.libraries import interpreter_folders, is_system, loaded_libraries, system_folders

Compile = Callable[..., Path]
WAITS = '#include <cstdio>\n#include <unistd.h>\nint f();\nint main() { std::printf("%d\\n", f()); std::fflush(stdout); pause(); }\n'
OPENS = (
    "#include <cstdio>\n#include <dlfcn.h>\n#include <unistd.h>\n"
    'int main() { std::printf("%d\\n", dlopen("BACKEND", RTLD_NOW) != nullptr); std::fflush(stdout); pause(); }\n'
)


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    """Compile a source to a file; a name with `.so` in it becomes a library with that SONAME."""

    def make(name: str, source: str, *flags: str | Path, soname: str | None = None) -> Path:
        out = tmp_path / name
        out.parent.mkdir(parents=True, exist_ok=True)
        code = tmp_path / "code.cpp"
        code.write_text(source)
        shared = ["-shared", "-fPIC", f"-Wl,-soname,{soname or out.name}"] if ".so" in out.name else []
        argv = ["c++", "-g0", "-Wl,--no-as-needed", code, *shared, *flags, "-o", out]
        subprocess.run([str(one) for one in argv], check=True)
        return out

    return make


def mapped_outside(program: Path, environment: Mapping[str, str] | None = None) -> set[Path]:
    """Start a program that prints a line once all is loaded, and return what it mapped outside the system's folders."""
    process = subprocess.Popen(
        [program], stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], **(environment or {})}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        mapped = mapped_files(process.pid)
    finally:
        process.kill()
        process.communicate()
    locked = identify_executable(program, environment).files
    assert mapping_problems(locked, mapped) == ()
    return {Path(file.name) for file in mapped if not is_system(file.name)} - {program}


def found(program: Path, environment: Mapping[str, str] | None = None) -> set[Path]:
    return set(loaded_libraries([program], environment or {}))


@pytest.mark.parametrize("tags", [["-Wl,--enable-new-dtags"], ["-Wl,--disable-new-dtags"]])
def test_an_installed_program_is_followed_into_its_lib_folder_and_on(compiled: Compile, tags: Sequence[str]) -> None:
    """The layout of `cmake --install`: libraries in ../lib, behind links, that need each other."""
    base = compiled("lib/libbase.so.0.1.2", "int g() { return 1; }\n", soname="libbase.so.0")
    base.with_name("libbase.so.0").symlink_to(base.name)
    # The library has no path of its own for libbase: only an inherited DT_RPATH leads there.
    own = [] if "disable" in tags[0] else ["-Wl,-rpath,$ORIGIN"]
    top = compiled("lib/libtop.so.0.3", "int g();\nint f() { return g(); }\n", base, *tags, *own, soname="libtop.so.0")
    top.with_name("libtop.so.0").symlink_to(top.name)
    program = compiled("bin/server", WAITS, top, *tags, "-Wl,-rpath,$ORIGIN/../lib", f"-Wl,-rpath-link,{base.parent}")
    assert found(program) == mapped_outside(program) == {base, top}


def test_a_runpath_is_not_inherited_as_the_linker_does_not(compiled: Compile) -> None:
    base = compiled("lib/libbase.so", "int g() { return 1; }\n")
    top = compiled("lib/libtop.so", "int g();\nint f() { return g(); }\n", base)
    program = compiled(
        "bin/server", WAITS, top, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib", f"-Wl,-rpath-link,{base.parent}"
    )
    assert found(program) == {top}
    assert subprocess.run([program], env={}, capture_output=True, check=False).returncode == 127
    environment = {"LD_LIBRARY_PATH": f"/nowhere:{base.parent}"}
    assert found(program, environment) == mapped_outside(program, environment) == {base, top}


@pytest.mark.parametrize(("tags", "winner"), [("--enable-new-dtags", "b"), ("--disable-new-dtags", "a")])
def test_the_environment_wins_over_a_runpath_and_not_over_an_rpath(compiled: Compile, tags: str, winner: str) -> None:
    libraries = {name: compiled(f"{name}/libf.so", "int f() { return 1; }\n") for name in "ab"}
    program = compiled("server", WAITS, libraries["a"], f"-Wl,{tags},-rpath,$ORIGIN/a")
    environment = {"LD_LIBRARY_PATH": str(libraries["b"].parent)}
    assert found(program, environment) == mapped_outside(program, environment) == {libraries[winner]}


def test_a_preloaded_library_is_found(compiled: Compile) -> None:
    extra = compiled("extra/libextra.so", "int extra() { return 1; }\n")
    program = compiled("server", "int f() { return 1; }\n" + WAITS.replace("int f();\n", ""))
    environment = {"LD_PRELOAD": str(extra)}
    assert found(program, environment) == mapped_outside(program, environment) == {extra}


def test_a_back_end_that_is_opened_at_run_time_is_found_with_what_it_needs(compiled: Compile) -> None:
    needed = compiled("more/libneeded.so", "int g() { return 1; }\n")
    source = "int g();\nint f() { return g(); }\n"
    back_end = compiled("lib/libggml-cpu-x.so", source, needed, "-Wl,-rpath,$ORIGIN/../more")
    ggml = compiled("lib/libggml.so.0", "int ggml() { return 1; }\n")
    program = compiled("bin/server", OPENS.replace("BACKEND", str(back_end)), ggml, "-Wl,-rpath,$ORIGIN/../lib")
    assert found(program) == mapped_outside(program) == {ggml, back_end, needed}


def test_a_library_that_is_missing_or_damaged_breaks_nothing(compiled: Compile) -> None:
    library = compiled("lib/libf.so", "int f() { return 1; }\n")
    program = compiled("server", WAITS, library, "-Wl,-rpath,$ORIGIN/lib")
    library.write_bytes(b"\x7fELF and nothing more")
    assert found(program) == {library}
    library.unlink()
    assert found(program) == set()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", True),
        ("/lib64/ld-linux-x86-64.so.2", True),
        ("/opt/rocm-6.4.1/lib/libamdhip64.so.6.4", True),
        ("/usr/local/cuda-12.8/targets/x86_64-linux/lib/libcublas.so.12", True),
        ("/usr/local/lib/libllama.so", False),
        ("/opt/fork/lib/libllama.so", False),
        ("/opt/rocmfork/lib/libllama.so", False),
        ("/srv/me/usr/lib/libllama.so", False),
    ],
)
def test_what_belongs_to_the_system(path: str, expected: bool) -> None:
    assert is_system(path) is expected


def test_the_folders_of_the_linkers_configuration_come_first(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.conf").write_text("# ours\n/opt/a/lib\n")
    main = tmp_path / "ld.so.conf"
    main.write_text("include conf.d/*.conf\n/opt/b/lib # later\n")
    assert system_folders(main)[:3] == (Path("/opt/a/lib"), Path("/opt/b/lib"), Path("/lib64"))
    main.write_text("include ld.so.conf\n")  # a circle ends
    assert system_folders(tmp_path / "none")[0] == Path("/lib64")


def test_a_scripts_interpreter_is_found_and_a_program_has_none(tmp_path: Path) -> None:
    script = tmp_path / "script"
    for line in (f"#!{sys.executable} -I", "#!/usr/bin/env python3"):
        script.write_text(line + "\n")
        environment = {"PATH": str(Path(sys.executable).parent)}
        folders = interpreter_folders(script, environment)
        assert Path(sys.executable).parent.parent in folders
        assert Path("/") not in folders
    script.write_text("#!/bin/sh\n")
    assert all(is_system(f"{folder}/x") for folder in interpreter_folders(script, {}))
    script.write_bytes(b"\x7fELF")
    assert interpreter_folders(script, {}) == ()
