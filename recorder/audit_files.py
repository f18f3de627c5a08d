"""Checks of files: ledger lines, what lies in the store, the order of a campaign, blobs, and copies for people."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from protocols.canonical import sha256_hex
from protocols.errors import EvidenceError
from protocols.lock import parse_lock
from recorder.audit_bundle import import_prefixes, load_manifest
from recorder.audit_context import Audit, place_of
from recorder.blobs import TEMPORARY_PREFIX
from recorder.campaign_state import CampaignState
from recorder.journal import copies_of
from recorder.ledger import Entry, is_torn_append, parse_entry
from recorder.manifest import MANIFEST, VERIFIER
from recorder.merkle import leaf_hash
from recorder.recovery import TORN_PREFIX, recorded_torn_files, referenced_blobs

_TOP_FILES: Final = frozenset({"ledger.jsonl", "assay.sqlite", "store.lock"})
_BLOBS: Final = "blobs/sha256/"
_SIDE_FILES: Final = re.compile(r"assay\.sqlite-(wal|shm|journal)")

_BLOB: Final = {"bytes": int, "is_partial": bool, "name": str, "role": str, "sha256": str}
_MEMBERS: Final[dict[str, dict[str, type]]] = {
    "store.created": {"store": str, "format": int, "origin": str},
    "store.recovered": {"torn_count": int, "torn": list, "temporary_count": int},
    "key.added": {"name": str, "file": str, "key_hash": str, "verifier_key": str, "sha256": str},
    "bundle.imported": {
        "name": str,
        "store": str,
        "entries": int,
        "root": str,
        "manifest_sha256": str,
        "left_out_count": int,
        "trust": str,
    },
    "campaign.locked": {"campaign": str, "lock_sha256": str, "protocol_file_sha256": str, "blobs": list},
    "preflight.recorded": {"campaign": str, "count": int, "blobs": list},
    "receipt.recorded": {"receipt": str, "blobs": list},
    "load.opened": {"campaign": str, "load": str, "position": dict, "attempt": int},
    "load.sealed": {"campaign": str, "load": str, "state": str, "is_abandoned": bool},
    "campaign.interrupted": {"campaign": str},
    "campaign.resumed": {"campaign": str},
    "campaign.cancelled": {"campaign": str, "blobs": list},
    "verdict.recorded": {"campaign": str, "status": str, "exit_code": int, "gates": list, "blobs": list},
    "review.recorded": {
        "campaign": str,
        "verdict": int,
        "verdict_status": str,
        "decision": str,
        "status": str,
        "key_hash": str,
        "note": str,
        "blobs": list,
    },
    "report.recorded": {"campaign": str, "files": list, "blobs": list},
    "checkpoint.signed": {"size": int, "root": str, "key_hash": str, "note": str},
}


def check_entries(audit: Audit) -> None:
    """(1) Read the ledger. What cannot be read ends the audit: nothing after it could be told apart from forgery."""
    load_manifest(audit)
    # Looked at before the ledger is read: whatever a recorder beside us adds meanwhile comes after its entry.
    names = {path.name for path in audit.root.iterdir()}
    lines, torn = audit.read_ledger()
    entries: list[Entry] = []
    for seq, line in enumerate(lines):
        audit.items += 1
        try:
            entry = parse_entry(line, seq=seq)
            _check_members(entry)
        except EvidenceError as error:
            audit.find(error.where or f"ledger entry {seq}", message=str(error))
            audit.is_unreadable = True
            break
        entries.append(entry)
        audit.tree.append(leaf_hash(line))
    audit.entries = tuple(entries)
    audit.counts["entries"] = len(entries)
    if torn and not audit.is_unreadable:
        if is_torn_append(torn):
            audit.notes.append(f"ledger.jsonl: the last line is torn ({len(torn)} bytes of entry {len(lines)})")
        else:
            audit.find(f"ledger entry {len(lines)}", message="the last line is damaged: an append cannot leave it so")
            audit.is_unreadable = True
    if not entries and not audit.is_unreadable:
        audit.is_unreadable = True
        _judge_emptiness(audit, names)
    elif entries and entries[0].kind != "store.created":
        found = entries[0].kind
        audit.find("ledger entry 0: kind", message="another entry comes first", expected="store.created", found=found)


def _judge_emptiness(audit: Audit, names: set[str]) -> None:
    """Tell a store in which nothing was recorded yet from a wrong folder, and from a store that was emptied."""
    if audit.manifest is not None:
        audit.find("ledger.jsonl", message="the bundle has no ledger")
    elif not names & _TOP_FILES:
        audit.find(".", message="there is no store here")
    elif audit.is_pinned or any(name not in _TOP_FILES and not _SIDE_FILES.fullmatch(name) for name in names):
        audit.find("ledger.jsonl", message="the ledger holds no entry")
    else:
        audit.notes.append("nothing was recorded yet")


def _check_members(entry: Entry) -> None:
    for name, kind in _MEMBERS[entry.kind].items():
        value = entry.payload.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise EvidenceError(f"payload.{name} is no {kind.__name__}", where=place_of(entry, f"payload.{name}"))
    for number, item in enumerate(entry.blobs()):
        for name, kind in _BLOB.items():
            if not isinstance(item.get(name), kind) or (name == "sha256" and len(str(item[name])) != 64):
                where = place_of(entry, f"payload.blobs[{number}].{name}")
                raise EvidenceError(f"this is no {name} of a blob", where=where)


def check_files(audit: Audit) -> None:
    """(6) Compare what lies in the store with what the ledger names."""
    files = _files_of(audit.root)
    now = audit.entries_by_now()
    copies, torn, blobs = (
        _copies(audit, audit.entries),
        recorded_torn_files(audit.entries),
        _blob_files(audit, audit.entries),
    )
    audit.expected_files = copies | torn.keys() | blobs.keys()
    expected = _copies(audit, now) | recorded_torn_files(now).keys() | _blob_files(audit, now).keys() | _TOP_FILES
    if audit.manifest is not None:
        expected |= {MANIFEST, VERIFIER}
    spools, imported = _spools(now), import_prefixes(audit)
    present: set[str] = set()
    for name, file in files.items():
        if name.startswith(imported):
            audit.expected_files.add(name)  # by check 19
            continue
        present.add(name)
        audit.items += 1
        if _is_plain(audit, file, name, blobs) and name not in expected and not _SIDE_FILES.fullmatch(name):
            _check_stray(audit, name, spools)
    for name in sorted(name for name in _TOP_FILES if (audit.root / name).is_dir()):
        audit.find(name, message="a folder stands where a file is expected")
    for name in sorted(copies - present):
        audit.tolerate(name, message="the file is missing")
    for name in sorted(torn.keys() - present):
        audit.find(name, message="the file is missing")
    for name in sorted(blobs.keys() - present):
        audit.broken_blobs.add(blobs[name])
        audit.find(name, message=f"the blob is missing; {place_of(_naming(audit, blobs[name]))} names it")


def _copies(audit: Audit, entries: Sequence[Entry]) -> set[str]:
    return {name for entry in entries for name in _copy_names(entry, audit.left_out)}


def _blob_files(audit: Audit, entries: Sequence[Entry]) -> dict[str, str]:
    named = referenced_blobs(entries) - audit.left_out
    return {f"{_BLOBS}{sha256[:2]}/{sha256[2:]}": sha256 for sha256 in named}


def _is_plain(audit: Audit, file: os.DirEntry[str], name: str, blobs: Mapping[str, str]) -> bool:
    """Whether a plain file lies here; say so if it is a link, a pipe or a device."""
    if file.is_symlink():
        audit.find(name, message="a link stands where a file is expected")
        return False
    if not file.is_file() and Path(file.path).exists():  # a recorder beside us may have removed it meanwhile
        audit.find(name, message="no regular file stands where a file is expected")
        if name in blobs:
            audit.broken_blobs.add(blobs[name])
        return False
    return True


def _naming(audit: Audit, sha256: str) -> Entry:
    return next(entry for entry in audit.entries if any(item["sha256"] == sha256 for item in entry.blobs()))


def _check_stray(audit: Audit, name: str, spools: dict[str, bool]) -> None:
    """Say what a file is that the ledger does not name: the rest of a killed recorder's work, or something foreign."""
    if name.startswith("spool/"):
        _check_spool_file(audit, name, spools)
    elif name.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
        audit.tolerate(name, message="a temporary file was not finished")
    elif name.startswith(_BLOBS):
        audit.tolerate(name, message="no ledger entry names this blob")
    elif name.startswith("imports/"):
        audit.tolerate(name, message="a bundle was not imported to its end")
    elif name.startswith(TORN_PREFIX):
        audit.tolerate(name, message="no ledger entry names this torn line")
    else:
        audit.find(name, message="the ledger does not name this file")


def _files_of(root: Path) -> dict[str, os.DirEntry[str]]:
    """Return every file and link of the store by name, sorted; folders that a recorder removes are passed over.

    What the folder itself says of a file is enough: a look at each of them would cost more than all that is done here.
    """
    found: dict[str, os.DirEntry[str]] = {}
    folders = [("", str(root))]
    while folders:
        prefix, folder = folders.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((f"{prefix}{entry.name}/", entry.path))
                else:
                    found[prefix + entry.name] = entry
    return dict(sorted(found.items(), key=lambda one: one[0].split("/")))


def _copy_names(entry: Entry, left_out: frozenset[str]) -> list[str]:
    if entry.kind == "checkpoint.signed":
        return [f"checkpoints/{entry.number('size')}.note"]
    if entry.kind == "key.added":
        return [f"keys/{entry.text('file')}"]
    if entry.kind not in {"campaign.locked", "report.recorded"}:
        return []
    folder, roles = f"campaigns/{entry.text('campaign')}", {"lock", "protocol", "report"}
    kept = [item for item in entry.blobs() if item["sha256"] not in left_out]
    return [f"{folder}/{item['name']}" for item in kept if item.get("role") in roles]


def _spools(entries: Sequence[Entry]) -> dict[str, bool]:
    """Return the spool folder of each load, and whether the load is still open."""
    is_open: dict[str, bool] = {}
    for entry in entries:
        if entry.kind in {"load.opened", "load.sealed"}:
            is_open[f"spool/{entry.text('load')}/"] = entry.kind == "load.opened"
    return is_open


def _check_spool_file(audit: Audit, name: str, spools: dict[str, bool]) -> None:
    for folder, is_open in spools.items():
        if name.startswith(folder):
            if not is_open:
                audit.tolerate(name, message="the spool of a sealed load was not removed")
            return
    audit.find(name, message="no load was opened for this spool file")


def check_order(audit: Audit) -> None:
    """(7) Follow each campaign through its entries."""
    campaigns = audit.campaigns()
    audit.counts["campaigns"] = len(campaigns)
    audit.counts["loads"] = sum(len(state.loads) for state in campaigns.values())
    for state in campaigns.values():
        audit.items += 1
        _check_loads(audit, state)
        for load in state.open_loads():
            audit.notes.append(f"{load.load_id} was opened and not sealed")
        if not state.verdicts:
            audit.notes.append(f"{state.campaign_id} has no verdict yet")


def _check_loads(audit: Audit, state: CampaignState) -> None:
    schedule = _schedule_of(audit, state)
    complete: set[int] = set()
    attempts: dict[int, int] = {}
    free_from = -1
    for load in state.loads.values():
        audit.items += 1
        where, index = place_of(load.opened), load.index
        if schedule is not None and dict(load.position) not in schedule:
            message = "the locked schedule has no such place"
            audit.find(f"{where}: payload.position", message=message, found=load.position)
        if load.opened.seq < free_from:
            audit.find(where, message="the load was opened while another one was open")
        if index in complete:
            audit.find(where, message=f"place {index} had its COMPLETE load already", found=load.load_id)
        attempts[index] = attempts.get(index, 0) + 1
        if load.attempt != attempts[index]:
            expected = attempts[index]
            audit.find(f"{where}: payload.attempt", message="wrong number", expected=expected, found=load.attempt)
        if load.state == "COMPLETE":
            complete.add(index)
        free_from = load.sealed.seq if load.sealed is not None else len(audit.entries)
    if schedule is not None and state.verdicts and state.open_loads():
        audit.find(place_of(state.verdicts[-1]), message="the verdict was recorded while a load was open")


def _schedule_of(audit: Audit, state: CampaignState) -> list[dict[str, Any]] | None:
    try:
        lock = parse_lock(audit.read_blob(state.locked.blob("lock")))
    except EvidenceError as error:
        audit.find(error.where or place_of(state.locked), message=str(error))
        return None
    return [place.model_dump(mode="json") for place in lock.schedule]


def check_blobs(audit: Audit) -> None:
    """(8) Hash every blob."""
    total = 0
    for entry in audit.entries:
        for item in entry.blobs():
            sha256 = str(item["sha256"])
            audit.items += 1
            if sha256 in audit.broken_blobs or sha256 in audit.left_out:
                continue  # named by check 6; opening a pipe would wait for its writer
            found = audit.blobs.digest(sha256)
            if found is None:
                continue  # named by check 6
            path = audit.blobs.path_of(sha256)
            total += found.content_bytes
            if found.sha256 != sha256:
                audit.broken_blobs.add(sha256)
                message = f"the bytes of the blob changed; {place_of(entry)} names it as {item['name']}"
                audit.find(path, message=message, expected=sha256, found=found.sha256)
            elif found.content_bytes != item["bytes"]:
                where = place_of(entry, f"payload.blobs {item['name']}: bytes")
                audit.find(where, message="wrong size", expected=item["bytes"], found=found.content_bytes)
    audit.counts["blobs"], audit.counts["blob_bytes"] = audit.items, total


def check_copies(audit: Audit) -> None:
    """(9) Compare the copies for people, and the hashes in payloads, with what was recorded."""
    newest: dict[str, str] = {}
    older: dict[str, set[str]] = {}
    for entry in audit.entries:
        if any(str(item["sha256"]) in audit.broken_blobs for item in entry.blobs()):
            continue
        _check_payload_hashes(audit, entry)
        for name, content in copies_of(entry, audit.blobs, left_out=audit.left_out).items():
            if name in newest:
                older.setdefault(name, set()).add(newest[name])
            newest[name] = sha256_hex(content)
    newest |= recorded_torn_files(audit.entries)
    wrong: list[tuple[str, str, str]] = []
    for name, expected in sorted(newest.items()):
        path = audit.root / name
        audit.items += 1
        if not path.is_file():
            continue  # named by check 6
        found = sha256_hex(path.read_bytes())
        if found in older.get(name, set()) and found != expected:
            audit.tolerate(name, message="the copy is an older version", expected=expected, found=found)
        elif found != expected:
            wrong.append((name, expected, found))
    _check_wrong_copies(audit, wrong)


def _check_wrong_copies(audit: Audit, wrong: Sequence[tuple[str, str, str]]) -> None:
    """Name copies that nobody recorded; one may have been written again while this audit read."""
    added = audit.entries_by_now()[len(audit.entries) :] if wrong else ()
    copies = [item for entry in added for item in copies_of(entry, audit.blobs).items()]
    written = {(name, sha256_hex(content)) for name, content in copies}
    for name, expected, found in wrong:
        if (name, found) not in written:
            audit.find(name, message="the copy is not what was recorded", expected=expected, found=found)


def _check_payload_hashes(audit: Audit, entry: Entry) -> None:
    if entry.kind == "campaign.locked":
        for member, role in (("lock_sha256", "lock"), ("protocol_file_sha256", "protocol")):
            found = sha256_hex(audit.read_blob(entry.blob(role)))
            if found != entry.text(member):
                where = place_of(entry, f"payload.{member}")
                audit.find(where, message=f"not the hash of the {role}", expected=found, found=entry.text(member))
    elif entry.kind == "report.recorded":
        files = entry.payload["files"]
        recorded = [[one["name"], one["sha256"]] for one in files] if isinstance(files, list) else []  # type: ignore[index,call-overload]
        kept = [item for item in entry.blobs() if item["sha256"] not in audit.left_out]
        found_files = [[item["name"], sha256_hex(audit.read_blob(str(item["sha256"])))] for item in kept]
        gone = {item["name"] for item in entry.blobs()} - {item["name"] for item in kept}
        recorded = [one for one in recorded if one[0] not in gone]
        if recorded != found_files:
            where = place_of(entry, "payload.files")
            audit.find(where, message="not the hashes of the report's files", expected=found_files, found=recorded)
    elif entry.kind == "key.added":
        found = sha256_hex(f"{entry.text('verifier_key')}\n".encode())
        if found != entry.text("sha256"):
            where = place_of(entry, "payload.sha256")
            audit.find(where, message="not the hash of the key", expected=found, found=entry.text("sha256"))
