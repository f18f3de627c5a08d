"""What the wheel holds, and that what is tested is what a user gets."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sysconfig
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest

from engine.identity import identify_build

ROOT = Path(__file__).resolve().parents[1]
HOUSES = ("protocols", "engine", "recorder", "reports", "harness")
NATIVE = {
    "engine/native/bin/engine-bench",
    "engine/native/bin/engine-server",
    "engine/native/bin/operator_suites",
    "engine/native/bin/qsa_bench",
    "engine/native/bin/qsa_suites",
    "engine/native/lib/libassay-engine.so",
    "engine/native/lib/libassay-qsa.so",
    "engine/native/lib/libggml-base.so",
    "engine/native/lib/libggml-cpu.so",
    "engine/native/lib/libggml.so",
}
# Every file of the wheel matches exactly one of these.
LISTED = [
    rf"({'|'.join(HOUSES)})/([a-z0-9_]+/)*[a-z0-9_]+\.py",
    rf"({'|'.join(HOUSES)})/py\.typed",
    r"protocols/library/[a-z0-9-]+\.yaml",
    r"protocols/controls\.yaml",
    r"protocols/requests/[a-z0-9-]+\.(json|txt)",
    r"engine/CMakeLists\.txt",
    r"engine/include/[a-z_]+\.h",
    r"engine/src/([a-z_]+/)*[a-z0-9_]+\.(cpp|h|inc)",
    rf"({'|'.join(re.escape(name) for name in sorted(NATIVE))})",
    r"assay-[0-9.]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|licenses/LICENSE)",
]
# What installers add beside the wheel's own files.
INSTALLER = re.compile(
    r"(.*/)?__pycache__/.*|assay-[0-9.]+\.dist-info/(INSTALLER|REQUESTED|direct_url\.json)|\.\./.*/bin/assay"
)
SKIPPED_FOLDERS = {"__pycache__", "tests", "tools", "fuzz", "native"}


def installed() -> metadata.Distribution:
    try:
        return metadata.distribution("assay")
    except metadata.PackageNotFoundError:
        pytest.skip("NOT_RUN: assay is not installed; `make test` installs its wheel")


def packaged_files() -> set[str]:
    files = installed().files
    assert files is not None
    return {str(path) for path in files if not INSTALLER.fullmatch(str(path))}


def parts(requirement: str) -> tuple[str, frozenset[str]]:
    """Return the name and the version bounds of a requirement; their order means nothing."""
    name = re.match(r"[A-Za-z0-9-]+", requirement)
    assert name is not None
    return name[0].lower(), frozenset(requirement[name.end() :].replace(" ", "").split(","))


def checkout_files() -> dict[str, Path]:
    """Return every file of the checkout that belongs into the wheel."""
    return {
        path.relative_to(ROOT).as_posix(): path
        for house in HOUSES
        for path in sorted((ROOT / house).rglob("*"))
        if path.is_file() and path.name != "README.md" and not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts[1:-1])
    }


def test_the_wheel_holds_nothing_that_is_not_listed() -> None:
    rules = [re.compile(rule) for rule in LISTED]
    unlisted = [name for name in sorted(packaged_files()) if sum(bool(rule.fullmatch(name)) for rule in rules) != 1]
    assert not unlisted


def test_the_wheel_holds_every_file_of_the_checkout_with_the_same_bytes() -> None:
    distribution = installed()
    expected = checkout_files()
    assert set(expected) == {name for name in packaged_files() if name.startswith(HOUSES)} - NATIVE
    different = [
        name
        for name, path in expected.items()
        if Path(str(distribution.locate_file(name))).read_bytes() != path.read_bytes()
    ]
    assert not different, "the installed wheel is older than the checkout; run `make test`"


def test_the_packages_under_test_are_the_installed_ones() -> None:
    installed()
    purelib = Path(sysconfig.get_path("purelib"))
    for house in HOUSES:
        assert Path(str(import_module(house).__file__)).is_relative_to(purelib)


def test_the_native_files_are_there_and_no_others() -> None:
    folder = Path(str(installed().locate_file("engine/native")))
    assert {f"engine/native/{file.name}" for file in identify_build(folder).files} == NATIVE


def test_no_binary_needs_a_library_by_path_or_searches_outside_its_own_folder() -> None:
    for file in identify_build(Path(str(installed().locate_file("engine/native")))).files:
        assert file.build_id is not None, file.name
        assert file.needed, file.name
        assert not [name for name in file.needed if "/" in name], file.name
        assert file.search_path is not None, file.name
        for part in file.search_path.split(":"):
            assert part in {"$ORIGIN", "$ORIGIN/../lib"}, file.name


def test_binaries_hold_no_path_of_the_machine_that_built_them() -> None:
    folder = Path(str(installed().locate_file("engine/native")))
    for name in sorted(name.removeprefix("engine/native/") for name in NATIVE if "ggml" not in name):
        data = (folder / name).read_bytes()
        assert str(ROOT).encode() not in data, name
        assert b"site-packages" not in data, name


def test_every_library_that_the_server_needs_is_found() -> None:
    server = Path(str(installed().locate_file("engine/native/bin/engine-server")))
    found = subprocess.run(["ldd", server], capture_output=True, text=True, check=True).stdout
    assert "not found" not in found
    ours = [
        line.split("=>")[1].split("(")[0].strip() for line in found.splitlines() if "ggml" in line or "assay" in line
    ]
    assert ours
    assert all(Path(path).resolve().parent == server.parents[1] / "lib" for path in ours)


def test_an_unknown_flag_ends_the_installed_server_with_2_and_the_valid_list() -> None:
    server = Path(str(installed().locate_file("engine/native/bin/engine-server")))
    result = subprocess.run([server, "--no-such-flag"], capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 2
    assert "--no-such-flag" in result.stderr
    assert "--ubatch-size" in result.stderr


def test_the_metadata_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    facts = installed().metadata
    assert facts["Version"] == project["version"]
    assert facts["License-Expression"] == "Apache-2.0"
    runtime = {parts(text) for text in installed().requires or () if "extra ==" not in text}
    assert runtime == {parts(text) for text in project["dependencies"]}


def test_what_the_engine_is_built_with_is_what_it_runs_with() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {name for name in whole["build-system"]["requires"] if not name.startswith("scikit-build-core")}
    assert pins <= set(whole["project"]["dependencies"])


def test_the_wheel_needs_no_certain_python() -> None:
    wheel = installed().read_text("WHEEL")
    assert wheel is not None
    assert re.search(r"^Tag: py3-none-linux_", wheel, re.MULTILINE)


def test_the_record_of_the_installation_holds() -> None:
    """A file changed after the installation would be tested, but is not what the wheel holds."""
    for file in installed().files or ():
        if file.hash is not None and not INSTALLER.fullmatch(str(file)):
            digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value, str(file)
