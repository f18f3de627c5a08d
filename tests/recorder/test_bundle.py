"""Bundles: the same bytes for the same store, nothing lost, nothing private, and hostile archives refused."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from protocols.errors import EvidenceError, HostError
from recorder.archive import END, Member, pack_member, read_members
from recorder.audit import audit_store
from recorder.bundle import unpack_bundle, verifier_source, write_bundle
from recorder.manifest import MANIFEST, VERIFIER, BundleFile, Manifest, described, parse_manifest
from recorder.redaction import parse_rule
from recorder.verify import Verifier


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def members_of(archive: Path) -> list[tuple[str, bytes]]:
    with archive.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file)
        return [(member.name, b"".join(pieces)) for member, pieces in read_members(reader)]


@pytest.fixture
def archive(store_root: Path, tmp_path: Path) -> Path:
    return write_bundle(store_root, tmp_path / "out" / "a.assay.tar.zst").path


def packed(target: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    data = b"".join(b"".join(pack_member(Member(name, len(data)), (data,))) for name, data in files) + END
    target.write_bytes(zstandard.compress(data))
    return target


def test_the_same_store_gives_the_same_bytes(store_root: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(store_root, copy)
    for path in copy.rglob("*"):
        path.touch()
    one, other = write_bundle(store_root, tmp_path / "1.zst"), write_bundle(copy, tmp_path / "2.zst")
    assert one.path.read_bytes() == other.path.read_bytes()
    assert one.sha256 == other.sha256 == hashlib.sha256(one.path.read_bytes()).hexdigest()


def test_a_bundle_of_an_unpacked_bundle_is_the_same_bundle(archive: Path, tmp_path: Path):
    unpack_bundle(archive, tmp_path / "u")
    again = write_bundle(tmp_path / "u", tmp_path / "again.zst")
    assert again.path.read_bytes() == archive.read_bytes()


def test_a_bundle_holds_every_file_of_the_store_but_the_derived_ones(store_root: Path, archive: Path, tmp_path: Path):
    unpack_bundle(archive, tmp_path / "u")
    stored, unpacked = files_of(store_root), files_of(tmp_path / "u")
    assert unpacked.keys() - stored.keys() == {MANIFEST, VERIFIER}
    assert stored.keys() - unpacked.keys() == {"assay.sqlite", "store.lock"}
    assert all(unpacked[name] == stored[name] for name in unpacked.keys() & stored.keys())


def test_the_verifier_lies_in_the_bundle_and_beside_it(archive: Path):
    names = dict(members_of(archive))
    assert names[VERIFIER] == verifier_source() == (archive.parent / "a.verify.py").read_bytes()
    assert [name for name, _ in members_of(archive)][:2] == [MANIFEST, VERIFIER]


def test_no_private_key_enters_a_bundle(archive: Path, synthetic):
    secret = synthetic.SIGNER.text().encode()
    assert not [name for name, data in members_of(archive) if b"PRIVATE" in data or secret[-30:] in data]


def test_a_common_tar_program_unpacks_it(archive: Path, tmp_path: Path):
    if shutil.which("tar") is None or shutil.which("zstd") is None:
        tar = tmp_path / "plain.tar"
        with archive.open("rb") as file:
            tar.write_bytes(zstandard.ZstdDecompressor().stream_reader(file).read())
        command = ["tar", "-xf", str(tar)]
    else:
        command = ["tar", "--zstd", "-xf", str(archive)]
    folder = tmp_path / "by-tar"
    folder.mkdir()
    subprocess.run([*command, "-C", str(folder)], check=True, timeout=60)
    unpack_bundle(archive, tmp_path / "by-us")
    assert files_of(folder) == files_of(tmp_path / "by-us")


def test_an_existing_file_is_not_overwritten(store_root: Path, archive: Path):
    before = archive.read_bytes()
    with pytest.raises(HostError, match="exists already"):
        write_bundle(store_root, archive)
    assert archive.read_bytes() == before


def test_a_store_with_a_changed_or_missing_blob_gives_no_bundle(store_root: Path, tmp_path: Path):
    path = sorted(path for path in (store_root / "blobs").rglob("*") if path.is_file())[3]
    data = path.read_bytes()
    for change in (lambda: path.write_bytes(data[:-1] + b"~"), path.unlink):
        change()
        with pytest.raises(EvidenceError):
            write_bundle(store_root, tmp_path / "b.zst")
        assert not [one for one in tmp_path.iterdir() if one.is_file()]


def test_a_changed_copy_for_people_does_not_enter_a_bundle(store_root: Path, tmp_path: Path):
    """Copies are made from the blobs: what lies about is not what was recorded."""
    next((store_root / "campaigns").rglob("report.md")).write_text("# PASS\n")
    unpack_bundle(write_bundle(store_root, tmp_path / "b.zst").path, tmp_path / "u")
    assert audit_store(tmp_path / "u").findings == ()


def test_store_bundle_and_unpacked_folder_give_the_same_audit(
    store_root: Path, archive: Path, tmp_path: Path, synthetic
):
    keys, head = [synthetic.SIGNER.public()], audit_store(store_root).head
    unpack_bundle(archive, tmp_path / "u")
    results = [audit_store(place, trusted_keys=keys, head=head) for place in (store_root, archive, tmp_path / "u")]
    assert [result.findings for result in results] == [(), (), ()]
    assert {result.trust for result in results} == {"VERIFIED"}
    assert {result.head for result in results} == {head}
    assert results[1].checks == results[2].checks
    skipped = {check.label for check in results[1].checks if check.state == "skipped"}
    assert skipped == {"database", "rows"}
    assert any("no database" in point for point in results[1].open_points)


# --- redaction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "word"),
    [
        (["log"], b"engine: loaded tiny"),
        (["text:argv.*"], b"engine-server\0--model"),
        (["exchange"], b"w71093"),
        (["request", "requests"], b'"prompt":[1,2,3]'),
        (["attachment"], b'{"files":["engine-server"]}'),
        (["report"], b"# tiny-pair"),
    ],
)
def test_what_a_rule_names_is_left_out_and_every_hash_still_verifies(
    store_root: Path, tmp_path: Path, synthetic, rules: list[str], word: bytes
):
    whole = write_bundle(store_root, tmp_path / "whole.zst")
    made = write_bundle(store_root, tmp_path / "r.zst", rules=[parse_rule(rule) for rule in rules])
    assert made.left_out > 0
    assert any(word in data for _, data in members_of(whole.path))
    found = [name for name, data in members_of(made.path) if word in data]
    if rules[0] == "request":  # the measured requests hold the same bodies
        found = [name for name in found if name.startswith("campaigns")]
    assert found == []
    result = audit_store(made.path, trusted_keys=[synthetic.SIGNER.public()], head=made.head)
    assert (result.findings, result.trust) == ((), "VERIFIED")
    assert any("left out on purpose" in point for point in result.open_points)


def test_an_audit_names_what_it_could_not_check_without_the_left_out_blobs(store_root: Path, tmp_path: Path):
    made = write_bundle(store_root, tmp_path / "r.zst", rules=[parse_rule("exchange")])
    points = "\n".join(audit_store(made.path).open_points)
    assert "gates and verdict cannot be checked" in points
    assert points.count("the requests of") == 4


def test_a_blob_that_is_missing_without_being_listed_is_found(store_root: Path, tmp_path: Path):
    made = write_bundle(store_root, tmp_path / "r.zst", rules=[parse_rule("log")])
    unpack_bundle(made.path, tmp_path / "u")
    path = next(path for path in sorted((tmp_path / "u" / "blobs").rglob("*")) if path.is_file())
    path.unlink()
    assert {"files", "manifest"} & {finding.check for finding in audit_store(tmp_path / "u").findings}


@pytest.mark.parametrize("member", ["store", "entries", "root"])
def test_a_manifest_of_another_ledger_is_told_by_its_member(archive: Path, tmp_path: Path, member: str):
    unpack_bundle(archive, tmp_path / "u")
    path = tmp_path / "u" / MANIFEST
    manifest = parse_manifest(path.read_bytes())
    other = {"store": "assay/other", "entries": manifest.entries + 1, "root": "0" * 64}[member]
    path.write_bytes(replace(manifest, **{member: other}).encode())
    (found,) = [one for one in audit_store(tmp_path / "u").findings if one.check == "manifest"]
    assert (found.place, found.expected, found.found) == (
        f"{MANIFEST}: {member}",
        str(getattr(manifest, member)),
        str(other),
    )


def test_a_bundle_that_lost_its_manifest_says_so(store_root: Path, tmp_path: Path):
    made = write_bundle(store_root, tmp_path / "r.zst", rules=[parse_rule("log")])
    unpack_bundle(made.path, tmp_path / "u")
    (tmp_path / "u" / MANIFEST).unlink()
    assert MANIFEST in {finding.place for finding in audit_store(tmp_path / "u").findings}
    verifier = Verifier(tmp_path / "u", [], None)
    verifier.run()
    assert MANIFEST in {finding["place"] for finding in verifier.findings}


def test_only_one_campaign_can_be_bundled_and_the_ledger_stays_whole(store_root: Path, tmp_path: Path, synthetic):
    other = synthetic.run_campaign(store_root, clock=synthetic.StepClock(1_900_000_000_000_000_000))
    made = write_bundle(store_root, tmp_path / "one.zst", only_campaign=other)
    result = audit_store(made.path, campaign=other)
    assert (result.findings, result.counts["campaigns"], result.counts["verdicts"]) == ((), 2, 1)
    assert not any(point.startswith("ledger entry") for point in result.open_points)
    assert made.content_bytes < write_bundle(store_root, tmp_path / "both.zst").content_bytes
    unpack_bundle(made.path, tmp_path / "one")
    kept = {path.parent.name: set() for path in (tmp_path / "one" / "campaigns").glob("*/*")}
    for path in (tmp_path / "one" / "campaigns").glob("*/*"):
        kept[path.parent.name].add(path.name)
    assert kept.pop(other) > {"lock.json", "protocol.yaml"}
    assert list(kept.values()) == [{"lock.json", "protocol.yaml"}], "of the others what was promised, and no more"
    verifier = Verifier(tmp_path / "one", [], None)
    verifier.run()
    assert verifier.findings == []


# --- hostile archives ----------------------------------------------------------------------------------------------


def tar_bytes(archive: Path) -> bytes:
    with archive.open("rb") as file:
        return bytes(zstandard.ZstdDecompressor().stream_reader(file).read())


def is_refused(archive: Path) -> bool:
    try:
        return not audit_store(archive, level="chain").is_sound
    except EvidenceError:
        return True


def test_any_changed_byte_of_a_bundle_is_refused_or_found(archive: Path, tmp_path: Path):
    data = archive.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 60)):
        changed = tmp_path / "changed.zst"
        changed.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        # About one bit in two thousand means nothing: the archive unpacks to the same bytes, and the evidence holds.
        assert is_refused(changed) or tar_bytes(changed) == tar_bytes(archive), place


def test_any_cut_of_a_bundle_is_refused(archive: Path, tmp_path: Path):
    data = archive.read_bytes()
    for length in (0, 1, 10, len(data) // 3, len(data) - 200, len(data) - 40):
        cut = tmp_path / "cut.zst"
        cut.write_bytes(data[:length])
        with pytest.raises(EvidenceError):
            unpack_bundle(cut, tmp_path / f"u{length}")


def hostile(tmp_path: Path, archive: Path, change: Callable[[list[tuple[str, bytes]]], object]) -> Path:
    files = members_of(archive)
    change(files)
    return packed(tmp_path / "hostile.zst", files)


def test_members_that_are_missing_more_repeated_or_in_another_order_are_refused(archive: Path, tmp_path: Path):
    changes: list[Callable[[list[tuple[str, bytes]]], object]] = [
        lambda files: files.pop(0),
        lambda files: files.pop(),
        lambda files: files.append(("more", b"x")),
        lambda files: files.append(files[-1]),
        lambda files: files.insert(4, files[3]),
        lambda files: files.reverse(),
        lambda files: files.__setitem__(5, (files[5][0], files[5][1][:-1] + b"~")),
        lambda files: files.__setitem__(5, ("elsewhere", files[5][1])),
    ]
    for number, change in enumerate(changes):
        with pytest.raises(EvidenceError):
            unpack_bundle(hostile(tmp_path, archive, change), tmp_path / f"u{number}")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path):
    huge = tuple(BundleFile(f"f{number}", 4 << 30, "0" * 64) for number in range(9))
    manifest = Manifest(store="assay/x", entries=1, root="0" * 64, files=huge, left_out=frozenset())
    bomb = packed(tmp_path / "bomb.zst", [(MANIFEST, manifest.encode())])
    with pytest.raises(EvidenceError, match="claims to hold"):
        unpack_bundle(bomb, tmp_path / "u")
    assert list((tmp_path / "u").iterdir()) == []


def test_a_bomb_in_the_place_of_the_manifest_is_not_read(tmp_path: Path):
    file = io.BytesIO()
    with zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False) as stream:
        for piece in pack_member(Member(MANIFEST, 1 << 30), (bytes(1 << 20) for _ in range(1024))):
            stream.write(piece)
    bomb = tmp_path / "bomb.zst"
    bomb.write_bytes(file.getvalue())
    with pytest.raises(EvidenceError, match="no bundle"):
        unpack_bundle(bomb, tmp_path / "u")


def test_a_manifest_in_any_other_form_is_refused():
    good = Manifest(
        store="assay/x",
        entries=1,
        root="0" * 64,
        files=(described("a", b"x"), described("b/c", b"y")),
        left_out=frozenset(),
    ).encode()
    assert parse_manifest(good).encode() == good
    for old, new in (
        (b'"a"', b'"../a"'),
        (b'"a"', b'"/a"'),
        (b'"a"', b'"b"'),
        (b'"a"', b'"z"'),
        (b'"a"', b'"b/c"'),
        (b'"a"', b'"manifest.json"'),
        (b'"bytes":1', b'"bytes":-1'),
        (b'"bytes":1', b'"bytes":1.5'),
        (b'"bytes":1', b'"bytes":true'),
        (b'"entries":1', b'"entries":"1"'),
        (b"assay.bundle.v1", b"assay.bundle.v2"),
        (b'"left_out":[]', b'"left_out":["x"]'),
        (b"{", b"{ "),
        (b'"store"', b'"store":"x","store"'),
    ):
        with pytest.raises(EvidenceError):
            parse_manifest(good.replace(old, new, 1))
    for text in (b"", b"[]", b"{}", b"null", b"\xff", b"[" * 5000):
        with pytest.raises(EvidenceError):
            parse_manifest(text)


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path):
    for content in (b"", b"hello", zstandard.compress(b"hello"), zstandard.compress(bytes(2048))):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(EvidenceError):
            audit_store(tmp_path / "x")
