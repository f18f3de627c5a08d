"""References that lead nowhere, and arms that are one file, are refused at plan time at the line that names them."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.build import installed_build
from protocols.errors import EngineError


def refusal(world: Any, path: Path) -> str:
    ended = world.run("plan", path)
    assert ended.code == 2, ended.err
    return str(ended.err)


def with_engine(path: Path, arm: str, engine: str) -> None:
    """Replace the line of an arm."""
    lines = [
        f"  {arm}: {{engine: {{{engine}}}}}" if line.startswith(f"  {arm}:") else line
        for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines) + "\n")


LONG = "x" * 300
"""No file can have so long a name, and asking for one is an error of its own."""


@pytest.mark.parametrize(
    ("model", "place", "words"),
    [
        ("{path: tinny.gguf}", ":6: model.path", "there is no model file tinny.gguf"),
        ("{path: tiny.gguf, draft: {path: d.gguf}}", ":6: model.draft.path", "there is no file d.gguf"),
        (f"{{path: {LONG}}}", ":6: model.path", "there is no model file xxx"),
        (f"{{path: tiny.gguf, draft: {{path: {LONG}}}}}", ":6: model.draft.path", "there is no file xxx"),
        ("{name: smollm3}", ":6: model.name", "found the unknown model smollm3, expected one of qwen4exp-recall, smollm2"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_there_is_refused(world: Any, model: str, place: str, words: str) -> None:
    path = world.protocol()
    path.write_text(path.read_text().replace("{path: tiny.gguf}", model))
    found = refusal(world, path)
    assert f"{path.name}{place}" in found
    assert words in found


@pytest.mark.parametrize(
    ("engine", "key", "words"),
    [
        ("kind: llama-server, path: engines/none", "path", "there is no server engines/none"),
        (f"kind: llama-server, path: {LONG}", "path", "there is no server xxx"),
        (f"kind: folder, path: {LONG}", "path", "there is no build (a folder with receipt.json) xxx"),
        ("kind: folder, path: engines", "path", "there is no build (a folder with receipt.json) engines"),
        ("kind: bundled, faults: [leak, position-only-block]", "faults[1]", "write position-only-blocks"),
        ("kind: bundled, faults: [slow-decode]", "faults[0]", "expected slow-decode=P with P from 1 to 95"),
        ("kind: bundled, faults: [slow-decode=96]", "faults[0]", "expected slow-decode=P with P from 1 to 95"),
        ("kind: bundled, faults: [slow-decode=0]", "faults[0]", "expected slow-decode=P with P from 1 to 95"),
        ("kind: bundled, faults: [leak=3]", "faults[0]", "found leak=3, and leak takes no number"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(world: Any, engine: str, key: str, words: str) -> None:
    path = world.protocol()
    with_engine(path, "candidate", engine)
    found = refusal(world, path)
    assert f"{path.name}:10: arms.candidate.engine.{key}" in found
    assert words in found.replace("hint: ", "")


def test_two_names_of_one_file_are_refused_and_one_name_twice_is_an_a_a(world: Any) -> None:
    path = world.protocol()
    for arm in ("baseline", "candidate"):
        with_engine(path, arm, "kind: llama-server, path: engines/fake_engine.py")
    assert world.run("plan", path).code == 0
    other = world.engine.with_name("other_engine.py")
    shutil.copy2(world.engine, other)
    with_engine(path, "candidate", "kind: llama-server, path: engines/other_engine.py")
    found = refusal(world, path)
    assert f"{path.name}:10: arms.candidate.engine.path" in found
    assert "other_engine.py is the baseline's under another name" in found
    other.write_text(world.engine.read_text() + "\n# another build\n")
    assert world.run("plan", path).code == 0


def test_two_servers_that_differ_only_in_a_library_are_two_engines(world: Any) -> None:
    """A server of a shared build is a small wrapper, the same in every fork; what it loads makes the fork."""
    path = world.protocol()
    servers = []
    for arm, value in (("baseline", 1), ("candidate", 2)):
        folder = world.root / arm
        for name in ("bin", "lib"):
            (folder / name).mkdir(parents=True)
        source = folder / "code.cpp"
        source.write_text(f"int f() {{ return {value}; }}\n")
        library = folder / "lib" / "libllama.so.0"
        subprocess.run(["c++", "-shared", "-fPIC", source, "-Wl,-soname,libllama.so.0", "-o", library], check=True)
        source.write_text("int f();\nint main() { return f(); }\n")
        server = folder / "bin" / "llama-server"
        argv = ["c++", source, library, "-Wl,--build-id=none,-rpath,$ORIGIN/../lib", "-o", server]
        subprocess.run(argv, check=True)
        servers.append(server)
        with_engine(path, arm, f"kind: llama-server, path: {arm}/bin/llama-server")
    assert servers[0].read_bytes() == servers[1].read_bytes()
    assert world.run("plan", path).code == 0
    shutil.copy2(world.root / "baseline/lib/libllama.so.0", world.root / "candidate/lib/libllama.so.0")
    assert "llama-server is the baseline's under another name" in refusal(world, path)


def test_the_bundled_server_under_the_wrong_kind_is_refused_with_its_folder(world: Any) -> None:
    try:
        build = installed_build()
    except EngineError as error:
        pytest.skip(f"NOT_RUN: {error}")
    path = world.protocol()
    copied = Path(shutil.copytree(build.folder, world.root / "build"))
    renamed = copied / "bin" / "my-server"
    (copied / "bin" / "engine-server").rename(renamed)
    with_engine(path, "candidate", "kind: llama-server, path: build/bin/my-server")
    found = refusal(world, path)
    assert "build/bin/my-server is the bundled engine's server, which belongs to kind: folder" in found
    assert f"{path.name}:10: arms.candidate.engine.kind" in found
    assert "name the folder that `assay engine build` made" in found
    (copied / "receipt.json").write_text("{}")
    assert f"write {{kind: folder, path: {copied}}}" in refusal(world, path)


def test_private_codes_are_asked_only_of_the_model_that_gives_them_back(world: Any) -> None:
    path = world.protocol()
    check = "checks:\n  - {id: codes, kind: served_recall, distance_tokens: 512}\n"
    path.write_text(
        path.read_text().replace("gates:\n", check + "gates:\n  - {id: codes, kind: check, check: codes}\n")
    )
    found = refusal(world, path)
    assert (
        "served_recall asks for private codes, which only qwen4exp-recall gives back, and the model here is tiny"
        in found
    )
    assert f"{path.name}:17: checks[0]" in found
    path.write_text(
        path.read_text().replace("kind: served_recall, distance_tokens: 512", "kind: restart, prompt_tokens: 8")
    )
    assert "private codes" not in world.run("plan", path).err


def encoded(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


@pytest.mark.parametrize("key", ["path", "draft"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00", "wants 8 bytes past the end of the file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "counts 9223372036854775808 entries"),
    ],
)
def test_a_file_that_is_no_model_is_refused_at_the_line_that_names_it(
    world: Any, key: str, data: bytes, words: str
) -> None:
    path = world.protocol()
    (path.parent / "no.gguf").write_bytes(data)
    named = "{path: no.gguf}" if key == "path" else "{path: tiny.gguf, draft: {path: no.gguf}}"
    path.write_text(path.read_text().replace("{path: tiny.gguf}", named))
    found = refusal(world, path)
    assert f"{path.name}:6: model.{'path' if key == 'path' else 'draft.path'}" in found
    assert "no.gguf is no model file" in found
    assert words in found


def test_the_name_that_a_model_gives_itself_is_shown_on_one_short_line(world: Any) -> None:
    path = world.protocol()
    check = "checks:\n  - {id: codes, kind: served_recall, distance_tokens: 512}\n"
    path.write_text(
        path.read_text()
        .replace("gates:\n", check + "gates:\n  - {id: codes, kind: check, check: codes}\n")
        .replace("{path: tiny.gguf}", "{path: named.gguf}")
    )
    pair = encoded("general.name") + struct.pack("<I", 8) + encoded("error:\nmine" + "x" * 1_000_000)
    (path.parent / "named.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    found = refusal(world, path)
    assert "and the model here is error:\\nminexxx" in found
    assert len(found) < 1000
