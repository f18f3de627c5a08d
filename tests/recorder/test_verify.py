"""The single-file verifier: standard library only, agrees with the audit, and says what it skips."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.canonical import canonical_bytes
from protocols.errors import EvidenceError
from recorder import verify
from recorder.audit import audit_store
from recorder.bundle import unpack_bundle, write_bundle
from recorder.keys import Signer
from recorder.merkle import leaf_hash, root_of
from recorder.redaction import parse_rule

SOURCE = Path(verify.__file__)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def folder(store_root: Path, tmp_path: Path) -> Path:
    unpack_bundle(write_bundle(store_root, tmp_path / "b.zst").path, tmp_path / "u")
    return tmp_path / "u"


def run(folder: Path, *arguments: str) -> tuple[int, dict]:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(folder / "verify.py"), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_it_is_one_short_file_of_the_standard_library():
    tree = ast.parse(SOURCE.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    assert len(SOURCE.read_text().splitlines()) < 500


def test_an_unpacked_bundle_holds_without_any_installed_package(folder: Path, synthetic):
    code, result = run(folder)
    assert result["findings"] == []
    assert (code, result["is_sound"], result["trust"]) == (0, True, "SELF_CONSISTENT")
    assert result["skipped"] == ["database", "rows", "promises", "requests", "gates", "verdict", "telemetry"]
    audited = audit_store(folder)
    assert result["head"] == audited.head
    key = synthetic.SIGNER.public().text()
    code, result = run(folder, "--key", key, "--head", str(audited.head))
    assert (code, result["trust"]) == (0, "VERIFIED")


def test_a_store_and_a_redacted_bundle_hold_too(store_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert verify.main([str(store_root)]) == 0
    assert "no manifest" in capsys.readouterr().out
    made = write_bundle(store_root, tmp_path / "r.zst", rules=[parse_rule("exchange"), parse_rule("report:*.md")])
    unpack_bundle(made.path, tmp_path / "u")
    assert verify.main([str(tmp_path / "u")]) == 0
    out = capsys.readouterr().out
    assert f"{made.left_out} blobs were left out" in out
    assert "skipped (`assay audit`): database, rows" in out


def test_a_pipe_in_place_of_any_file_is_named_and_never_waited_for(folder: Path, synthetic):
    trusted = [synthetic.SIGNER.public().raw]
    for victim in [path for path in folder.rglob("*") if path.is_file()]:
        name, content = victim.relative_to(folder).as_posix(), victim.read_bytes()
        victim.unlink()
        os.mkfifo(victim)
        verifier = verify.Verifier(folder, trusted, None)
        verifier.run()
        assert any(name in f"{one['place']} {one['message']}" for one in verifier.findings), name
        victim.unlink()
        victim.write_bytes(content)


def test_an_imported_bundle_inside_is_verified_as_well(store_root: Path, tmp_path: Path, synthetic, capsys):
    from recorder.importing import import_bundle

    with synthetic.open_store(store_root) as store:
        name = import_bundle(store, synthetic.foreign_bundle(tmp_path)).folder
    unpack_bundle(write_bundle(store_root, tmp_path / "b.zst").path, tmp_path / "u")
    assert verify.main([str(tmp_path / "u")]) == 0
    path = next(path for path in sorted((tmp_path / "u" / name / "blobs").rglob("*")) if path.is_file())
    path.write_bytes(path.read_bytes() + b"x")
    assert verify.main([str(tmp_path / "u")]) == 6
    assert name in capsys.readouterr().out


def test_an_untrusted_key_and_another_head_are_said(folder: Path):
    other = Signer(name="x", seed=bytes(32)).public().text()
    assert run(folder, "--key", other)[1]["trust"] == "SELF_CONSISTENT"
    code, result = run(folder, "--head", "3:" + "0" * 64)
    assert (code, result["findings"][0]["check"]) == (6, "head")


@pytest.mark.parametrize("arguments", [["--head", "x"], ["--key", "no key"], ["--nothing"]])
def test_a_wrong_argument_is_a_usage_error(folder: Path, arguments: list[str]):
    with pytest.raises(SystemExit) as caught:
        verify.main([str(folder), *arguments])
    assert caught.value.code == 2


def test_a_mistyped_path_and_a_packed_bundle_are_usage_errors_and_no_forgeries(tmp_path: Path, capsys):
    packed = tmp_path / "release.assay.tar.zst"
    packed.write_bytes(b"x")
    (tmp_path / "verify.py").touch()
    for path, words in (
        (tmp_path / "typo", f"there is no bundle in {tmp_path / 'typo'}"),
        (tmp_path, "there is no bundle in"),
        (packed, f"unpack first: tar --zstd -xf {packed}"),
    ):
        with pytest.raises(SystemExit) as caught:
            verify.main([str(path)])
        said = capsys.readouterr()
        assert (caught.value.code, words in said.err, "NOT SOUND" in said.out) == (2, True, False)


def test_a_bundle_that_lost_its_ledger_does_not_hold(tmp_path: Path):
    (tmp_path / "blobs").mkdir()
    assert verify.main([str(tmp_path)]) == 6
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    assert verify.main([str(tmp_path)]) == 6


@given(JSON)
def test_its_canonical_form_is_that_of_the_recorder(value: object):
    try:
        expected = canonical_bytes(value)
    except EvidenceError:  # a lone surrogate has no form
        return
    assert verify.canonical(value).encode() == expected


@pytest.mark.parametrize("value", [1.5, 2**53, b"x", {"a": 1.0}])
def test_what_may_not_be_hashed_is_refused(value: object):
    with pytest.raises(ValueError, match="may not stand in hashed JSON"):
        verify.canonical(value)


@given(st.lists(st.binary(max_size=8), max_size=70))
def test_its_roots_are_those_of_the_recorder(lines: list[bytes]):
    leaves = [leaf_hash(line) for line in lines]
    assert verify.roots_of(lines) == [root_of(leaves[:size]) for size in range(len(lines) + 1)]


# RFC 8032, section 7.1: tests 1, 2 and 3.
RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("key", "message", "signature"), RFC_8032)
def test_the_published_signatures_hold_and_no_changed_one_does(key: str, message: str, signature: str):
    raw, text, signed = bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature)
    assert verify.is_signature(raw, signed, text)
    assert not verify.is_signature(raw, signed, text + b"x")
    for place in range(0, 64, 5):
        changed = signed[:place] + bytes([signed[place] ^ 1]) + signed[place + 1 :]
        assert not verify.is_signature(raw, changed, text)
    assert not verify.is_signature(
        raw, signed[:32] + (int.from_bytes(signed[32:], "little") + verify.Q).to_bytes(32, "little"), text
    )
    assert not verify.is_signature(raw[:-1], signed, text)


@settings(max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.binary(min_size=64, max_size=64))
def test_it_agrees_with_a_common_library(seed: bytes, message: bytes, noise: bytes):
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert verify.is_signature(key, signature, message)
    assert not verify.is_signature(key, noise, message)


def test_it_is_loaded_from_its_bytes_alone(folder: Path):
    spec = importlib.util.spec_from_file_location("loaded", folder / "verify.py")
    assert spec is not None
    assert (folder / "verify.py").read_bytes() == SOURCE.read_bytes()


def test_a_text_of_others_forges_no_line_and_steers_no_terminal(folder: Path, capsys: pytest.CaptureFixture[str]):
    lines = (folder / "ledger.jsonl").read_bytes().splitlines()
    entry = json.loads(lines[1])
    entry |= {"kind": "x\nsound, VERIFIED; head \x1b[31m\u202e", "payload": {"campaign": "never"}}
    lines[1] = verify.canonical(entry).encode()
    (folder / "ledger.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert verify.main([str(folder)]) == 6
    out = capsys.readouterr().out
    assert "x\\nsound, VERIFIED; head \\x1b[31m\\u202e" in out
    assert not any(line.startswith("sound") for line in out.splitlines())
    assert out.isascii()
    assert "\x1b" not in out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["..", "link", "twice"])
def test_imports_that_lead_back_are_not_followed(folder: Path, name: str):
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines()
    (folder / "imports").mkdir()
    if name == "link":
        (folder / "imports" / name).symlink_to("..")
    elif name == "twice":
        shutil.copytree(folder, folder / "imports" / name, ignore=shutil.ignore_patterns("imports"))
    payload = {"entries": 1, "manifest_sha256": "0" * 64, "name": name, "root": "0" * 64, "blobs": []}
    for _ in range(2):
        entry = json.loads(lines[0]) | {"kind": "bundle.imported", "payload": payload, "seq": len(lines)}
        lines.append(verify.canonical(entry).encode())
    ledger.write_bytes(b"\n".join(lines) + b"\n")
    code, result = run(folder)
    assert code == 6
    assert any(one["check"] == "imports" for one in result["findings"])


def test_folders_deeper_than_any_recursion_are_a_finding(folder: Path, tmp_path: Path):
    with contextlib.chdir(folder):
        for _ in range(1200):
            os.mkdir("d")  # noqa: PTH102 - its path is longer than one may be
            os.chdir("d")
    try:
        code, result = run(folder)
        assert code in {0, 6}
        assert result["is_sound"] == (code == 0)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
