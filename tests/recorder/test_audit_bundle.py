"""The audit of a bundle's manifest and of imported bundles: each way in which one can differ, named exactly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recorder.audit import audit_store
from recorder.bundle import unpack_bundle, write_bundle
from recorder.manifest import MANIFEST, VERIFIER, Manifest, file_sha256, parse_manifest
from recorder.redaction import parse_rule


@pytest.fixture
def unpacked(store_root: Path, tmp_path: Path) -> Path:
    unpack_bundle(write_bundle(store_root, tmp_path / "b.zst").path, tmp_path / "u")
    return tmp_path / "u"


def found(root: Path) -> list[tuple[str, str, str, str | None, str | None]]:
    return [(one.check, one.place, one.message, one.expected, one.found) for one in audit_store(root).findings]


def rewrite(root: Path, change: Callable[[Manifest], Manifest]) -> None:
    path = root / MANIFEST
    path.write_bytes(change(parse_manifest(path.read_bytes())).encode())


def with_file(name: str, **parts: object) -> Callable[[Manifest], Manifest]:
    """The manifest with another description of one file."""

    def change(manifest: Manifest) -> Manifest:
        files = [one._replace(**parts) if one.name == name else one for one in manifest.files]  # type: ignore[arg-type]
        return replace(manifest, files=tuple(files))

    return change


def a_blob(root: Path) -> str:
    """The first blob of the preflight, by its place: names of salted blobs would differ each time."""
    entries = [json.loads(line) for line in (root / "ledger.jsonl").read_bytes().splitlines()]
    preflight = next(one for one in entries if one["kind"] == "preflight.recorded")
    sha256 = preflight["payload"]["blobs"][0]["sha256"]
    return f"blobs/sha256/{sha256[:2]}/{sha256[2:]}"


def test_a_manifest_that_cannot_be_read_ends_the_audit(unpacked: Path):
    (unpacked / MANIFEST).write_bytes(b"{}")
    result = audit_store(unpacked)
    assert [(one.check, one.place.rpartition("/")[2]) for one in result.findings] == [("entries", MANIFEST)]
    assert [check.label for check in result.checks if check.state != "skipped"] == ["entries"]


def test_a_bundle_without_a_ledger_is_no_store_in_which_nothing_was_recorded_yet(unpacked: Path):
    (unpacked / "ledger.jsonl").unlink()
    assert found(unpacked) == [("entries", "ledger.jsonl", "the bundle has no ledger", None, None)]


def test_a_lost_manifest_is_told_by_the_program_that_lies_beside_it(unpacked: Path):
    (unpacked / MANIFEST).unlink()
    message = f"the bundle has lost it ({VERIFIER} lies here): what was left out on purpose is not known"
    assert ("manifest", MANIFEST, message, None, None) in found(unpacked)
    (unpacked / VERIFIER).unlink()
    assert not [one for one in found(unpacked) if one[0] == "manifest"]


@pytest.mark.parametrize("name", ["ledger.jsonl", VERIFIER, "blob"])
def test_another_size_than_that_of_the_file_is_found(unpacked: Path, name: str):
    name = a_blob(unpacked) if name == "blob" else name
    size = (unpacked / name).stat().st_size
    rewrite(unpacked, with_file(name, size=size + 1))
    assert found(unpacked) == [
        ("manifest", name, "not the size that the manifest names", str(size + 1), str(size)),
    ]


def test_another_hash_than_that_of_the_file_is_found(unpacked: Path):
    right = file_sha256(unpacked / "ledger.jsonl")
    rewrite(unpacked, with_file("ledger.jsonl", sha256="0" * 64))
    assert found(unpacked) == [("manifest", "ledger.jsonl", "not the file of the manifest", "0" * 64, right)]


def test_a_blob_whose_hash_is_not_its_name_is_found(unpacked: Path):
    name = a_blob(unpacked)
    rewrite(unpacked, with_file(name, sha256="0" * 64))
    assert found(unpacked) == [("manifest", f"{MANIFEST}: files", f"wrong hash of {name}", None, "0" * 64)]


def test_a_file_that_the_manifest_does_not_list_is_named(unpacked: Path):
    name = a_blob(unpacked)
    rewrite(unpacked, lambda one: replace(one, files=tuple(file for file in one.files if file.name != name)))
    assert found(unpacked) == [("manifest", f"{MANIFEST}: files", f"ledger and manifest differ in {name}", None, None)]


def test_a_listed_file_that_is_missing_is_named_once(unpacked: Path):
    (unpacked / VERIFIER).unlink()
    assert found(unpacked) == [("manifest", VERIFIER, "the file is missing", None, None)]
    name = a_blob(unpacked)
    (unpacked / name).unlink()
    assert found(unpacked)[0][:2] == ("files", name)
    assert [one[1] for one in found(unpacked) if one[0] == "manifest"] == [VERIFIER]


def test_a_blob_that_is_called_left_out_and_that_no_entry_names_is_found(store_root: Path, tmp_path: Path):
    made = write_bundle(store_root, tmp_path / "r.zst", rules=[parse_rule("log")])
    unpack_bundle(made.path, tmp_path / "u")
    assert found(tmp_path / "u") == []
    point = f"{made.left_out} blobs were left out on purpose: their hashes are sealed, their content is unproven"
    assert point in audit_store(tmp_path / "u").open_points
    rewrite(tmp_path / "u", lambda one: replace(one, left_out=one.left_out | {"0" * 64}))
    assert found(tmp_path / "u") == [
        ("manifest", f"{MANIFEST}: left_out", "no ledger entry names this blob", None, "0" * 64)
    ]


def test_a_program_that_is_not_ours_is_an_open_point(unpacked: Path):
    point = f"{VERIFIER} is not the one of this Assay: whoever made the bundle chose it; run one that you trust"
    assert point not in audit_store(unpacked).open_points
    (unpacked / VERIFIER).write_bytes(b"print('PASS')\n")
    rewrite(unpacked, with_file(VERIFIER, size=14, sha256=file_sha256(unpacked / VERIFIER)))
    assert found(unpacked) == []
    assert point in audit_store(unpacked).open_points


# --- bundles that a store imported ---------------------------------------------------------------------------------


def import_of(root: Path) -> Path:
    return next(path for path in (root / "imports").iterdir() if path.is_dir())


def test_an_imported_bundle_that_is_gone_is_named_with_its_entry(full: Path):
    folder = import_of(full)
    shutil.rmtree(folder)
    (one,) = [one for one in audit_store(full).findings if one.check == "imports"]
    assert one.place == folder.relative_to(full).as_posix()
    assert one.message.startswith("the bundle that ledger entry ")


def test_what_does_not_hold_in_an_imported_bundle_is_named_with_its_folder_and_check(full: Path):
    folder = import_of(full)
    name = a_blob(folder)
    (folder / name).write_bytes(b"x")
    place = folder.relative_to(full).as_posix()
    of_imports = [(one.place, one.message) for one in audit_store(full).findings if one.check == "imports"]
    assert any(found_place == f"{place}: {name}" and message.endswith("[blobs]") for found_place, message in of_imports)
