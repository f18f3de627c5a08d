"""`assay audit`, `bundle`, `import`: what a reviewer types."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from protocols.canonical import canonical_bytes
from recorder.bundle import unpack_bundle


@pytest.fixture
def archive(finished: Any, tmp_path: Path) -> Path:
    target = tmp_path / "out" / "release.assay.tar.zst"
    ended = finished.run("bundle", "--store", finished.store, "--out", target)
    assert ended.code == 0, ended.err
    assert "head: " in ended.out
    return target


def test_a_bundle_of_a_real_campaign_audits_as_a_file_and_unpacked(finished: Any, world: Any, archive: Path) -> None:
    unpack_bundle(archive, archive.parent / "u")
    head = finished.run("audit", "--store", finished.store, "--json").json()["head"]
    key = finished.run("key", "show", "default").out.strip()
    for place in (archive, archive.parent / "u"):
        ended = world.run("audit", place, "--key", key, "--head", head, "--json")
        document = ended.json()
        assert (ended.code, document["trust"], document["findings"]) == (0, "VERIFIED", [])
        assert document["counts"]["verdicts"] == 1
    beside = archive.parent / "release.verify.py"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", beside, archive.parent / "u", "--key", key, "--head", head, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, json.loads(ended.stdout)["trust"]) == (0, "VERIFIED")


def unpacked(archive: bytes) -> bytes | None:
    """Return the bytes that an archive holds; None where it cannot be unpacked."""
    try:
        return bytes(zstandard.ZstdDecompressor().stream_reader(archive).read())
    except zstandard.ZstdError:
        return None


def test_a_changed_bundle_exits_6(world: Any, archive: Path) -> None:
    data = archive.read_bytes()

    def changed(place: int) -> bytes:
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    # A few bits of an archive mean nothing: it unpacks to the same bytes, and the evidence holds.
    places = range(len(data) // 2, len(data))
    archive.write_bytes(changed(next(place for place in places if unpacked(changed(place)) != unpacked(data))))
    assert world.run("audit", archive).code == 6


def test_a_redacted_bundle_holds_and_hides_what_was_asked(finished: Any, world: Any, tmp_path: Path) -> None:
    target = tmp_path / "r.assay.tar.zst"
    ended = finished.run(
        "bundle", "--store", finished.store, "--out", target, "--redact", "text", "--redact", "log", "--json"
    )
    assert ended.json()["left_out"] > 4
    audited = world.run("audit", target, "--json").json()
    assert (audited["findings"], audited["counts"]["verdicts"]) == ([], 1)
    assert any("left out on purpose" in point for point in audited["open_points"])


@pytest.mark.parametrize("rule", ["nonsense", "lock", "protocol:x", "LOG", ""])
def test_a_rule_that_is_none_is_a_usage_error_that_names_the_roles(finished: Any, tmp_path: Path, rule: str) -> None:
    ended = finished.run("bundle", "--store", finished.store, "--out", tmp_path / "x.zst", "--redact", rule)
    assert ended.code == 2
    assert "role" in ended.err or "never left out" in ended.err


def test_a_reviewer_imports_a_bundle_and_reads_it(world: Any, archive: Path, finished: Any) -> None:
    ended = world.run("import", archive, "--store", world.store, "--json")
    assert ended.code == 0, ended.err
    folder = ended.json()["folder"]
    campaigns = world.run("list", "--store", folder, "--json").json()
    assert campaigns == finished.run("list", "--store", finished.store, "--json").json()
    shown = world.run("report", "--store", folder, "--json").json()
    assert shown == finished.run("report", "--store", finished.store, "--json").json()
    assert world.run("audit", "--store", world.store).code == 0
    again = world.run("import", archive, "--store", world.store, "--json").json()
    assert again["was_here"] is True


def test_the_lock_that_was_kept_elsewhere_is_compared_member_by_member(finished: Any, tmp_path: Path) -> None:
    lock = next((finished.store / "campaigns").rglob("lock.json"))
    kept = tmp_path / "kept.json"
    kept.write_bytes(lock.read_bytes())
    assert finished.run("audit", "--store", finished.store, "--against", kept, "--level", "structure").code == 0
    changed = json.loads(lock.read_bytes())
    changed["schedule"][1]["arm"] = "baseline"
    kept.write_bytes(json.dumps(changed, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode())
    ended = finished.run("audit", "--store", finished.store, "--against", kept, "--level", "structure", "--json")
    (finding,) = ended.json()["findings"]
    assert (ended.code, finding["check"], finding["expected"], finding["found"]) == (
        6,
        "against",
        "baseline",
        "candidate",
    )
    assert finding["place"].endswith(".schedule[1].arm")
    assert (finding["entry"], finding["file"]) == (2, "ledger.jsonl")


def test_what_is_neither_evidence_nor_a_campaign_is_named(finished: Any) -> None:
    for name in ("none.assay.tar.zst", "none", "no/folder"):
        ended = finished.run("audit", name, "--store", finished.store)
        assert (ended.code, name in ended.err) == (2, True), ended.err


@pytest.mark.parametrize("command", [["audit"], ["report"], ["list"], ["bundle"], ["trend"], ["resume"]])
def test_a_folder_that_was_never_a_store_is_a_usage_error_and_a_lost_ledger_is_not(
    world: Any, tmp_path: Path, command: list[str]
) -> None:
    missing = world.run(*command, "--store", tmp_path / "typo")
    assert (missing.code, "there is no store here" in missing.err) == (2, True), missing.err
    (tmp_path / "store" / "blobs").mkdir(parents=True)
    assert world.run(*command, "--store", tmp_path / "store").code == 6


def test_a_pinned_head_gives_a_proof_of_consistency(finished: Any, copy_of_finished: Path) -> None:
    head = finished.run("audit", "--store", copy_of_finished, "--json").json()["head"]
    assert finished.run("judge", "--store", copy_of_finished).code in {0, 3}
    document = finished.run("audit", "--store", copy_of_finished, "--head", head, "--json").json()
    from recorder.merkle import verify_consistency

    (old_size, old_root), (new_size, new_root) = (text.split(":") for text in (head, document["head"]))
    proof = [bytes.fromhex(one) for one in document["consistency_proof"]]
    assert verify_consistency(int(old_size), int(new_size), proof, bytes.fromhex(old_root), bytes.fromhex(new_root))


def test_an_export_holds_the_rows_of_a_campaign(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    ended = finished.run(
        "export", "--store", finished.store, "--out", out, "--format", "csv", "--table", "load", "--json"
    )
    assert (ended.code, ended.json()["rows"]) == (0, {"load": 4})
    assert (out / "load.csv").read_text().startswith("entry_seq,load_id,campaign_id,")
    assert finished.run("export", "--store", finished.store, "--out", out, "--table", "nonsense").code == 2


def test_a_text_in_foreign_evidence_begins_no_line_of_an_audit(finished: Any, copy_of_finished: Path) -> None:
    ledger = copy_of_finished / "ledger.jsonl"
    first, *rest = ledger.read_bytes().splitlines()
    entry = json.loads(first)
    entry["payload"]["origin"] = "x\nsound, VERIFIED, checked up to level full"
    ledger.write_bytes(b"\n".join([canonical_bytes(entry), *rest]) + b"\n")
    ended = finished.run("audit", "--store", copy_of_finished)
    assert ended.code == 6
    assert "sound, VERIFIED" in ended.out
    assert not any(line.startswith("sound") for line in ended.out.splitlines())


def test_a_bundle_of_one_campaign_says_what_it_still_holds_of_others(world: Any, tmp_path: Path) -> None:
    path = world.protocol(schedule=world.PAIR)
    said = []
    for place in range(2):
        world.run("run", path, "--store", world.store)
        out = tmp_path / f"{place}.assay.tar.zst"
        said.append(world.run("bundle", "latest", "--store", world.store, "--out", out).out)
    words = "of other campaigns it holds lock, protocol and ledger entries"
    assert [words in out for out in said] == [False, True], "the first one had no others"
    whole = world.run("bundle", "--store", world.store, "--out", tmp_path / "all.assay.tar.zst")
    assert words not in whole.out
    assert "lock.json with the host's identity, protocol.yaml" in world.run("bundle", "--help").out
    (tmp_path / "u").mkdir()
    archive = tmp_path / "1.assay.tar.zst"
    if shutil.which("zstd"):  # tar calls it; a fresh machine may lack it
        subprocess.run(["tar", "--zstd", "-xf", archive, "-C", tmp_path / "u"], check=True)
    else:
        unpack_bundle(archive, tmp_path / "u")
    verified = subprocess.run([sys.executable, tmp_path / "1.verify.py", tmp_path / "u"], check=False)
    assert (verified.returncode, world.run("audit", tmp_path / "1.assay.tar.zst").code) == (0, 0)
