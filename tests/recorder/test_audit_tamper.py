"""Whatever one changes in a store, the audit finds it and names the place."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from protocols.canonical import canonical_bytes, sha256_hex
from recorder.audit import AuditResult, Level, audit_store
from recorder.blobs import BlobStore, salted
from recorder.checkpoint import Checkpoint, sign_checkpoint
from recorder.files import Files
from recorder.importing import import_bundle
from recorder.keys import Signer
from recorder.ledger import FIRST_PREV, encode_entry, parse_entry
from recorder.merkle import leaf_hash, root_of
from recorder.receipts import record_receipt
from recorder.tables import DERIVED

RANDOM = random.Random(20261129)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory, synthetic) -> Path:
    """A store with a row in every table: interrupted, crashed, recovered, resumed, judged, reported twice."""
    root = tmp_path_factory.mktemp("rich") / "store"
    with synthetic.open_store(root) as store:
        campaign = store.begin_campaign(**synthetic.lock_parts())
        campaign.record_preflight([{"check": "governor", "found": "performance"}])
        campaign.record_receipt("build", {"seconds": 3}, {"build.log": b"ok\n"})
        load = campaign.open_load(synthetic.positions()[0])
        sink = load.exchange(
            name="tiny",
            route="/completion",
            kind="native",
            workload="tiny",
            repeat=0,
            is_warmup=False,
            request=synthetic.http_request("/completion", synthetic.REQUESTS["requests/tiny.json"]),
        )
        synthetic.play(
            sink, [pair for pair in synthetic.completion_reads() if b'"tokens_predicted": 3' not in pair[1]], 10**9
        )
        load.seal(state="PARTIAL", reason="a token was lost")
        campaign.record_interruption("stopped by the user")
    (root / "store.lock").write_text("a killed recorder")
    with (root / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"kind":"load.open')
    BlobStore(root / "blobs" / "sha256", Files()).put(b"nobody names me")
    (root / "blobs" / "sha256" / ".tmp-00").write_bytes(b"unfinished")
    synthetic.resume_campaign(root, clock=synthetic.StepClock(1_800_000_100_000_000_000))
    with synthetic.open_store(root) as store:
        campaign = store.campaign_recorder("latest")
        campaign.record_report({"report.md": b"a second report\n"})
    assert audit_store(root).findings == ()
    return root


@pytest.fixture(scope="module")
def fuller(rich: Path, synthetic, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with what came later: judged again, reviewed, a receipt of its own, a bundle of another store."""
    root = tmp_path_factory.mktemp("fuller") / "store"
    shutil.copytree(rich, root)
    with synthetic.open_store(root) as store:
        synthetic.judge(store, store.campaign_recorder("latest"))
        synthetic.review(store, decision="overrides", status="INCONCLUSIVE")
        record_receipt(store.writer, "smoke", {"seconds": 1}, {})
        import_bundle(store, synthetic.foreign_bundle(root.parent))
    return root


@pytest.fixture
def root(rich: Path, fast_path: Path) -> Path:
    copy = fast_path / "store"
    shutil.copytree(rich, copy)
    return copy


@pytest.fixture
def full(fuller: Path, fast_path: Path) -> Path:
    copy = fast_path / "full"
    shutil.copytree(fuller, copy)
    return copy


def assert_found(result: AuditResult, *words: str) -> None:
    assert result.findings, "nothing was found"
    assert result.trust == "SELF_CONSISTENT"
    text = "\n".join(f"{finding.place} {finding.message}" for finding in result.findings)
    assert any(word in text for word in words), text


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def places(size: int, count: int) -> list[int]:
    chosen = {0, size // 2, size - 1} | {RANDOM.randrange(size) for _ in range(count)}
    return sorted(chosen)


def restored(root: Path, path: Path, change: Callable[[], object], level: Level = "recompute") -> AuditResult:
    """Audit with a change, and take the change back."""
    before = path.read_bytes()
    change()
    try:
        return audit_store(root, level=level)
    finally:
        path.write_bytes(before)


def test_an_untouched_store_has_no_findings_and_rows_in_every_table(fuller: Path):
    result = audit_store(fuller)
    assert (result.findings, result.is_partial, result.notes) == ((), False, ())
    connection = sqlite3.connect(fuller / "assay.sqlite")
    empty = [t.name for t in DERIVED if not connection.execute(f"SELECT count(*) FROM {t.name}").fetchone()[0]]
    assert empty == []


def test_one_changed_byte_of_the_ledger_is_found_and_the_entry_named(root: Path):
    path = root / "ledger.jsonl"
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    newlines = [starts[3] - 1, starts[-1] - 1]
    last_line = list(range(starts[-2], starts[-1] - 1, 97))
    for place in [*places(len(data), 8), *newlines, *last_line]:
        result = restored(root, path, lambda place=place: flip(path, place))
        seq = max(number for number, start in enumerate(starts) if start <= place)
        assert_found(
            result, f"ledger entry {seq}", f"ledger entry {seq + 1}", f"entry_seq {seq}", f"seq {seq},", "ledger.jsonl"
        )


def test_each_line_of_the_ledger_that_is_removed_repeated_or_swapped_is_found(root: Path):
    path = root / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for seq in [0, 1, 2, len(lines) // 2, len(lines) - 2, len(lines) - 1]:
        for changed in (
            [*lines[:seq], *lines[seq + 1 :]],
            [*lines[: seq + 1], *lines[seq:]],
            [*lines[: seq - 1], lines[seq], lines[seq - 1], *lines[seq + 1 :]]
            if seq
            else [lines[1], lines[0], *lines[2:]],
        ):
            result = restored(root, path, lambda changed=changed: path.write_bytes(b"".join(changed)))
            assert_found(result, "ledger")


def test_a_cut_ledger_is_found(root: Path):
    path = root / "ledger.jsonl"
    size = path.stat().st_size
    for length in (0, 1, size // 3, size - 200, size - 2, size - 1):
        result = restored(root, path, lambda length=length: path.write_bytes(path.read_bytes()[:length]))
        assert_found(result, "ledger")


def test_one_changed_byte_of_a_blob_of_each_role_is_found_and_the_blob_named(root: Path):
    seen: set[str] = set()
    for line in (root / "ledger.jsonl").read_bytes().splitlines():
        for item in json.loads(line)["payload"].get("blobs", []):
            if item["role"] in seen:
                continue
            seen.add(item["role"])
            path = root / "blobs" / "sha256" / item["sha256"][:2] / item["sha256"][2:]
            for place in places(path.stat().st_size, 1):
                result = restored(root, path, lambda path=path, place=place: flip(path, place, 0x20), "hashes")
                assert_found(result, f"blobs/sha256/{item['sha256'][:2]}/{item['sha256'][2:]}")
    assert seen >= {
        "lock",
        "protocol",
        "request",
        "requests",
        "text",
        "detail",
        "exchange",
        "events",
        "telemetry",
        "log",
        "report",
        "reason",
        "orphan",
        "attachment",
    }


def test_two_blobs_that_changed_places_are_found(root: Path):
    first, second = sorted(path for path in (root / "blobs").rglob("*") if path.is_file())[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    result = audit_store(root)
    assert sum(finding.check == "blobs" for finding in result.findings) == 2


def test_missing_and_foreign_blobs_are_found(root: Path):
    path = next(path for path in sorted((root / "blobs").rglob("*")) if path.is_file())
    data = path.read_bytes()
    path.unlink()
    assert_found(audit_store(root, level="structure"), path.relative_to(root).as_posix())
    path.write_bytes(data)
    foreign = BlobStore(root / "blobs" / "sha256", Files()).put(b"foreign")
    assert_found(audit_store(root, level="structure"), foreign.sha256[2:])


@pytest.mark.parametrize(
    "kind", ["lock.json", "protocol.yaml", "report.md", "report.json", ".note", ".pub", "ledger.torn-"]
)
def test_one_changed_byte_of_every_other_kind_of_file_is_found_and_the_file_named(root: Path, kind: str):
    files = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.name.endswith(kind) or path.name.startswith(kind))
    ]
    assert files
    for path in files[:3]:
        for place in places(path.stat().st_size, 1):
            result = restored(root, path, lambda path=path, place=place: flip(path, place), "hashes")
            assert_found(result, path.relative_to(root).as_posix())


@pytest.mark.parametrize("kind", ["lock.json", "protocol.yaml", "report.md", ".note", ".pub", "ledger.torn-"])
def test_every_kind_of_file_that_is_removed_is_named(root: Path, kind: str):
    path = next(
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.name.endswith(kind) or path.name.startswith(kind))
    )
    path.unlink()
    assert_found(audit_store(root, level="structure"), path.relative_to(root).as_posix())


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "campaigns/other/lock.json",
        "checkpoints/999.note",
        "keys/x.pub",
        "spool/x/y",
        "blobs/x",
        "ledger.torn-1",
        ".tmp-1",
    ],
)
def test_a_foreign_file_is_named(root: Path, name: str):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(b"x")
    assert_found(audit_store(root, level="structure"), name)


def test_a_link_in_place_of_a_file_is_found(root: Path):
    path = next((root / "campaigns").rglob("report.md"))
    elsewhere = root.parent / "elsewhere.md"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert_found(audit_store(root, level="structure"), "report.md")


def test_an_old_report_put_back_is_found(root: Path):
    blobs = BlobStore(root / "blobs" / "sha256", Files())
    entries = [parse_entry(line, seq=seq) for seq, line in enumerate((root / "ledger.jsonl").read_bytes().splitlines())]
    older = next(entry for entry in entries if entry.kind == "report.recorded")
    path = next((root / "campaigns").rglob("report.md"))
    path.write_bytes(blobs.read(next(str(item["sha256"]) for item in older.blobs() if item["name"] == "report.md")))
    assert_found(audit_store(root), "report.md")


# --- the database --------------------------------------------------------------------------------------------------


def other_value(value: object) -> object:
    if isinstance(value, int):
        return 1 - value if value in {0, 1} else value + 1
    if isinstance(value, float):
        return value + 1.0
    if isinstance(value, bytes):
        return value + b"x"
    return f"{value or ''}x"


@pytest.mark.parametrize("table", [table.name for table in DERIVED])
def test_one_changed_value_in_any_column_is_found_and_named(full: Path, table: str):
    schema = next(one for one in DERIVED if one.name == table)
    keys = [column.name for column in schema.primary_key.columns]
    # A changed entry_seq takes a row to another entry: that is a row missing here and a row too many there.
    rest = [column.name for column in schema.columns if column.name not in {*keys, "entry_seq"}]
    connection = sqlite3.connect(full / "assay.sqlite", isolation_level=None)
    row = connection.execute(f"SELECT * FROM {table} ORDER BY {', '.join(keys)} LIMIT 1").fetchone()
    values = dict(zip([column.name for column in schema.columns], row, strict=True))
    where = " AND ".join(f"{key} = ?" for key in keys)
    for column in rest:
        new = other_value(values[column])
        if values[column] is None:
            new = 1 if str(schema.c[column].type) in {"INTEGER", "BIGINT", "DOUBLE"} else "x"
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *[values[key] for key in keys]))
    connection.close()
    result = audit_store(full, level="tables")
    named = {finding.place.rpartition(" ")[2] for finding in result.findings if f": {table}, " in finding.place}
    assert set(rest) <= named, result.findings[:5]
    assert any(f": {table}, {keys[0]} {values[keys[0]]}" in finding.place for finding in result.findings)


@pytest.mark.parametrize("table", [table.name for table in DERIVED if table.name != "ledger_entry"])
def test_a_removed_row_and_a_row_too_many_are_found_in_every_table(full: Path, table: str):
    schema = next(one for one in DERIVED if one.name == table)
    keys = [column.name for column in schema.primary_key.columns]
    path = full / "assay.sqlite"
    before = path.read_bytes()
    connection = sqlite3.connect(path, isolation_level=None)
    row = connection.execute(f"SELECT {', '.join(keys)} FROM {table} LIMIT 1").fetchone()
    connection.execute(f"DELETE FROM {table} WHERE " + " AND ".join(f"{key} = ?" for key in keys), row)
    connection.close()
    assert_found(audit_store(full, level="tables"), f"{table}, ")
    path.write_bytes(before)
    connection = sqlite3.connect(path, isolation_level=None)
    whole = list(connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone())
    place = [column.name for column in schema.columns].index(keys[-1])
    whole[place] = (
        4 if keys == ["entry_seq"] else (whole[place] + 1000 if isinstance(whole[place], int) else f"{whole[place]}x")
    )
    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(whole))})", whole)
    connection.close()
    assert_found(audit_store(full, level="tables"), f"{table}, ")


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("DELETE FROM ledger_entry WHERE seq = 3", "ledger_entry"),
        ("CREATE TABLE further (x)", "table further"),
        ("CREATE TRIGGER t AFTER INSERT ON verdict BEGIN DELETE FROM verdict; END", "trigger t"),
        ("DROP TABLE token", "table token"),
        ("PRAGMA user_version = 9", "user_version"),
        ("PRAGMA application_id = 9", "application_id"),
    ],
)
def test_a_changed_schema_is_found(root: Path, sql: str, word: str):
    connection = sqlite3.connect(root / "assay.sqlite", isolation_level=None)
    connection.execute(sql)
    connection.close()
    assert_found(audit_store(root, level="tables"), word)


def test_a_missing_a_damaged_and_an_empty_database_are_found(root: Path):
    path = root / "assay.sqlite"
    for content in (None, b"", b"damaged" * 999, path.read_bytes()[: path.stat().st_size // 2]):
        if content is None:
            result = restored(root, path, path.unlink)
        else:
            result = restored(root, path, lambda content=content: path.write_bytes(content))
        assert_found(result, "database", "assay.sqlite", "malformed")


# --- whoever can write everything ---------------------------------------------------------------------------------


def rechained(root: Path, change: Callable[[int, str, dict], dict], signer: Signer | None = None) -> None:
    """Forge the ledger: change payloads, chain it anew, and sign the checkpoints anew if there is a key."""
    entries, leaves, prev = [], [], FIRST_PREV
    old = [parse_entry(line, seq=seq) for seq, line in enumerate((root / "ledger.jsonl").read_bytes().splitlines())]
    for entry in old:
        payload = change(entry.seq, entry.kind, json.loads(canonical_bytes(entry.payload)))
        if entry.kind == "checkpoint.signed":
            payload["root"] = root_of(leaves).hex()
            if signer is not None:
                head = Checkpoint(origin=old[0].text("origin"), size=entry.seq, root=root_of(leaves))
                payload["note"] = sign_checkpoint(head, signer).decode()
                payload["key_hash"] = signer.public(head.origin).key_hash.hex()
                (root / "checkpoints" / f"{entry.seq}.note").write_text(payload["note"])
        new = encode_entry(
            seq=entry.seq,
            kind=entry.kind,
            lock=entry.lock,
            prev=prev,
            utc_ns=entry.utc_ns,
            monotonic_ns=entry.monotonic_ns,
            payload=payload,
        )
        prev = new.sha256
        leaves.append(leaf_hash(new.line))
        entries.append(new.line + b"\n")
    (root / "ledger.jsonl").write_bytes(b"".join(entries))


def replaced_blob(root: Path, payload: dict, role: str, change: Callable[[bytes], bytes]) -> None:
    blobs = BlobStore(root / "blobs" / "sha256", Files())
    for item in payload.get("blobs", []):
        if item["role"] == role:
            content = change(blobs.read(item["sha256"]))
            blobs.path_of(item["sha256"]).unlink()
            item["sha256"] = blobs.put(content).sha256
            item["bytes"] = len(content)


def forge_verdict(root: Path) -> Callable[[int, str, dict], dict]:
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "verdict.recorded":
            payload["status"], payload["exit_code"] = "PASS", 0
            replaced_blob(
                root,
                payload,
                "detail",
                lambda data: data.replace(b'"status":"SCREEN_ONLY"', b'"status":"PASS"').replace(
                    b'"exit_code":3', b'"exit_code":0'
                ),
            )
            for gate in payload["gates"]:
                gate["status"] = "PASS"
        return payload

    return change


def rebuild(root: Path) -> None:
    from recorder.store import rebuild_database

    rebuild_database(root)


def test_a_forged_verdict_is_found_by_judging_again_even_with_the_key(root: Path, synthetic):
    rechained(root, forge_verdict(root), synthetic.SIGNER)
    rebuild(root)
    result = audit_store(root, trusted_keys=[synthetic.SIGNER.public()])
    assert {finding.check for finding in result.findings} == {"gates", "verdict"}
    first = result.findings[0]
    assert "gate loss.status" in first.place
    assert (first.expected, first.found) == ("SCREEN_ONLY", "PASS")


def test_forged_token_ids_are_found_even_with_the_key(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "load.sealed" and payload["state"] == "COMPLETE" and payload["load"].endswith("C1"):
            replaced_blob(root, payload, "exchange", lambda data: data.replace(b"[12305]", b"[12306]"))
        return payload

    rechained(root, change, synthetic.SIGNER)
    rebuild(root)
    result = audit_store(root)
    assert_found(result, "gate tokens")
    assert result.findings[0].check == "gates"


def test_a_ledger_chained_anew_without_the_key_breaks_at_the_first_checkpoint(root: Path):
    rechained(root, forge_verdict(root))
    rebuild(root)
    result = audit_store(root)
    assert result.findings[0].check == "checkpoints"


def test_a_ledger_signed_anew_with_another_key_is_only_self_consistent(root: Path, synthetic):
    thief = Signer(name="tester", seed=bytes(32))
    origin = json.loads((root / "ledger.jsonl").read_bytes().splitlines()[0])["payload"]["origin"]
    key = thief.public(origin)

    def change(seq: int, kind: str, payload: dict) -> dict:
        if kind == "key.added":
            payload |= {
                "key_hash": key.key_hash.hex(),
                "verifier_key": key.text(),
                "sha256": sha256_hex(f"{key.text()}\n".encode()),
            }
            (root / "keys" / payload["file"]).write_text(f"{key.text()}\n")
        return payload

    rechained(root, change, thief)
    rebuild(root)
    result = audit_store(root, trusted_keys=[synthetic.SIGNER.public()])
    assert (result.findings, result.trust) == ((), "SELF_CONSISTENT")
    assert any("made all of it up" in point for point in result.open_points)


def test_another_request_than_the_locked_one_is_found_even_with_the_key(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "load.sealed" and payload["state"] == "COMPLETE":
            replaced_blob(
                root, payload, "exchange", lambda data: data.replace(b'"prompt":[1,2,3]', b'"prompt":[1,2,4]')
            )
        return payload

    rechained(root, change, synthetic.SIGNER)
    rebuild(root)
    result = audit_store(root)
    assert {finding.check for finding in result.findings} == {"requests"}


def test_another_protocol_than_the_locked_one_is_found_even_with_the_key(root: Path, synthetic):
    def change(_seq: int, kind: str, payload: dict) -> dict:
        if kind == "campaign.locked":
            replaced_blob(
                root, payload, "protocol", lambda data: data.replace(b'max_loss_pct: "10"', b'max_loss_pct: "50"')
            )
            content = BlobStore(root / "blobs" / "sha256", Files()).read(
                next(item["sha256"] for item in payload["blobs"] if item["role"] == "protocol")
            )
            payload["protocol_file_sha256"] = sha256_hex(content)
            next((root / "campaigns").rglob("protocol.yaml")).write_bytes(content)
        return payload

    rechained(root, change, synthetic.SIGNER)
    rebuild(root)
    assert audit_store(root).findings[0].check == "promises"


def test_a_lock_without_its_checkpoint_is_found(root: Path):
    """Entries after a lock without a signature in between would let the lock be chosen after the fact."""
    lines = (root / "ledger.jsonl").read_bytes().splitlines()
    entries = [parse_entry(line, seq=seq) for seq, line in enumerate(lines)]
    kept = [entry for entry in entries if entry.seq != 3]
    assert entries[3].kind == "checkpoint.signed"
    new, prev = [], FIRST_PREV
    for seq, entry in enumerate(kept[:4]):
        line = encode_entry(
            seq=seq, kind=entry.kind, lock=entry.lock, prev=prev, utc_ns=1, monotonic_ns=1, payload=entry.payload
        )
        new.append(line.line + b"\n")
        prev = line.sha256
    (root / "ledger.jsonl").write_bytes(b"".join(new))
    result = audit_store(root, level="chain")
    assert any("no checkpoint follows" in finding.message for finding in result.findings)


def test_a_store_marked_as_left_open_hides_no_change(root: Path):
    """Anyone can write into store.lock; that turns missing copies into notes and nothing else."""
    (root / "store.lock").write_text("x")
    path = next((root / "campaigns").rglob("report.md"))
    flip(path, 0)
    assert_found(audit_store(root), "report.md")


def test_salted_blobs_of_one_text_have_different_names():
    assert salted(b"x") != salted(b"x")
