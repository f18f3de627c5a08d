#!/usr/bin/env python3
"""Checks an unpacked bundle (or a store) with nothing but Python's standard library.

``python3 verify.py [FOLDER] [--key KEY] [--revoked KEY] [--head HEAD]``, by default on the folder that it lies in.
What must hold, each with its label:

 1. entries      every line of ledger.jsonl is an entry in RFC 8785 form, numbered in order
 2. chain        every entry names the SHA-256 of the line before it
 3. locks        every entry of a campaign carries the hash of its lock
 4. checkpoints  every checkpoint is signed (Ed25519) by a recorded key over the RFC 6962 root of all lines before it
 5. head         the ledger continues the pinned head, where --head gives one
 6. files        every file is one that ledger or manifest names, none is missing but what was left out
 7. order        loads are opened once at a time and sealed once
 8. blobs        every blob has the hash and the size that its entry names
 9. copies       lock, protocol, reports, notes and keys are byte for byte what was recorded
10. imports      every imported bundle is the one that its entry names, and holds by itself

Skipped, because they need Assay itself (`assay audit`): database, rows, promises, requests, gates, verdict, telemetry.
A result is VERIFIED if a key given with --key, or a successor that it signed for, signed the newest checkpoint, and no
--revoked key did; else SELF_CONSISTENT: it agrees with itself, and whoever made all of it could have made it up.
Exit codes: 0 holds, 6 does not hold, 2 usage.
Sources: RFC 8785 (JSON), RFC 6962 (tree), RFC 8032 (Ed25519), C2SP signed-note and tlog-checkpoint.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

SKIPPED = ("database", "rows", "promises", "requests", "gates", "verdict", "telemetry")
Entry = dict[str, Any]
Key = tuple[str, str, bytes]  # name, hash, 32 bytes
Point = tuple[int, int, int, int]  # extended coordinates

CHECKS = ("entries", "chain", "locks", "checkpoints", "head", "files", "order", "blobs", "copies", "imports")
KEYS = {"kind", "lock", "monotonic_ns", "payload", "prev", "seq", "utc_ns"}
OWN_FILES = {"ledger.jsonl", "manifest.json", "verify.py", "assay.sqlite", "store.lock"}
SIDE_FILES = re.compile(r"assay\.sqlite-(wal|shm|journal)")
CHECKPOINTED = {"campaign.locked", "load.sealed", "verdict.recorded", "report.recorded", "review.recorded"}
CHECKPOINTED |= {"campaign.cancelled", "bundle.imported"}
HOUSEKEEPING = {"store.recovered", "key.added"}
ROTATION, REVOCATION = "assay/key-rotation/v1", "assay/key-revocation/v1"
HEX, COUNT, SALT_BYTES = re.compile(r"[0-9a-f]{64}"), re.compile(r"0|[1-9][0-9]{0,19}"), 16


def canonical(value: object) -> str:
    """Return the one text of a value."""
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and abs(value) < 2**53:
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in keys) + "}"
    raise ValueError(f"{value!r:.60} may not stand in hashed JSON")


def read_canonical(data: bytes, where: str) -> Entry:
    """Read an object that must be in canonical form."""
    with suppress(ValueError, RecursionError):
        value = json.loads(data.decode("utf-8"))
        if isinstance(value, dict) and canonical(value).encode("utf-8") == data:
            return value
    raise ValueError(f"{where} is not in RFC 8785 form")


def parse_entry(line: bytes, seq: int) -> Entry:
    """Read one line of the ledger."""
    entry = read_canonical(line, "the line")
    if entry.keys() != KEYS or entry["seq"] != seq or not isinstance(entry["payload"], dict):
        raise ValueError("no entry with this number")
    forms = (COUNT, entry["utc_ns"]), (COUNT, entry["monotonic_ns"]), (HEX, entry["lock"] or "0" * 64)
    if not all(form.fullmatch(str(value)) for form, value in forms):
        raise ValueError("an entry of the wrong form")
    return entry


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).digest()


def roots_of(lines: list[bytes]) -> list[bytes]:
    """Return the root over the first 0, 1, 2, ... lines."""
    roots, peaks = [sha256(b"")], list[bytes]()  # peaks: roots of the full subtrees, largest first
    for size, line in enumerate(lines, 1):
        root = sha256(b"\0" + line)
        for _ in range((size & -size).bit_length() - 1):
            root = sha256(b"\1" + peaks.pop() + root)
        peaks.append(root)
        for peak in reversed(peaks[:-1]):
            root = sha256(b"\1" + peak + root)
        roots.append(root)
    return roots


P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # of -1


def decompress(data: bytes) -> Point | None:
    """Return the point of Ed25519 that 32 bytes name; None if there is none."""
    number = int.from_bytes(data, "little")
    y, sign = number & (2**255 - 1), number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and sign) or y >= P:
        return None
    x = P - x if x & 1 != sign else x
    return (x, y, 1, x * y % P)


def add(one: Point, other: Point) -> Point:
    """Return the sum of two points."""
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % P, (one[1] + one[0]) * (other[1] + other[0]) % P
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def times(number: int, point: Point) -> Point:
    """Return a multiple of a point."""
    result: Point = (0, 1, 1, 0)
    for bit in f"{number:b}":
        result = add(result, result)
        result = add(result, point) if bit == "1" else result
    return result


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little")) or (0, 1, 1, 0)


def is_signature(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether an Ed25519 key made this signature."""
    point, r = decompress(key), decompress(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if len(key) != 32 or len(signature) != 64 or point is None or r is None or s >= Q:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % Q
    one, other = times(s, BASE), add(r, times(k, point))
    return all((one[i] * other[2] - other[i] * one[2]) % P == 0 for i in (0, 1))


def b64(text: str) -> bytes:
    """Read base64 in its one form."""
    if base64.b64encode(data := base64.b64decode(text, validate=True)).decode() != text:
        raise ValueError("base64 that is not in its one form")
    return data


def parse_key(text: str) -> Key:
    """Return name, hash and the 32 bytes of a verifier key ``name+hash+base64``."""
    parts = text.strip().split("+", 2)
    if len(parts) != 3:
        raise ValueError("no verifier key: its form is name+hash+base64")
    blob = b64(parts[2])
    if len(blob) != 33 or blob[0] != 1 or sha256(parts[0].encode() + b"\n" + blob)[:4].hex() != parts[1]:
        raise ValueError("the verifier key does not have its hash, or is no Ed25519 key")
    return parts[0], parts[1], blob[1:]


def open_note(note: str, keys: list[Key]) -> tuple[list[str], list[Key]]:
    """Return the lines of a signed note, and those of the keys that signed it."""
    text, blank, tail = note.rpartition("\n\n")
    if not blank or not tail.endswith("\n"):
        raise ValueError("no signed note")
    signers: list[Key] = []
    for parts in (line.split(" ") for line in tail[:-1].split("\n")):
        if len(parts) != 3 or parts[0] != "\u2014":
            raise ValueError("a malformed signature line")
        blob = b64(parts[2])
        for key in keys:
            if (parts[1], blob[:4].hex()) == key[:2]:
                if not is_signature(key[2], blob[4:], (text + "\n").encode()):
                    raise ValueError(f"the signature is not of the key {key[1]}")
                signers.append(key)
    return text.split("\n"), signers


def parse_rotations(notes: list[str], key: Key) -> list[tuple[bytes, bytes]]:
    """Return keys and their successors from statements that both signed; the last one names this key."""
    found = []
    for note in notes:
        old, new = (parse_key(line) for line in [*note.split("\n"), "", ""][1:3])
        lines, signers = open_note(note, [old, new])
        if lines[0] != ROTATION or len(lines) != 3 or len({one[2] for one in signers}) != 2:
            raise ValueError("no key rotation that the old and the new key signed")
        found.append((old[2], new[2]))
    if found and found[-1][1] != key[2]:
        raise ValueError("the rotations do not lead to this key")
    return found


def parse_revoked(text: str) -> bytes:
    """Return the key that a revocation ends (its signature may lack, but not be wrong), or a key given as such."""
    lines = [*text.split("\n"), ""]
    key = parse_key(lines[1] if lines[0] == REVOCATION else text)
    if lines[0] == REVOCATION and "\n\n" in text and not open_note(text, [key])[1]:
        raise ValueError("the key revocation is not signed by the key that it revokes")
    return key[2]


class Verifier:
    """One run over one folder."""

    def __init__(self, folder: Path, trusted: list[bytes], head: str | None, revoked: Iterable[bytes] = ()) -> None:
        self.folder, self.trusted, self.head, self.revoked = folder, trusted, head, set(revoked)
        self.findings: list[dict[str, Any]] = []
        self.open_points: list[str] = []
        self.entries: list[Entry] = []
        self.lines: list[bytes] = []
        self.manifest: dict[str, Any] = {}
        self.left_out: set[str] = set()
        self.trust, self.found_head, self.check = "SELF_CONSISTENT", "", ""

    def run(self) -> None:
        """Run every check; behind an entry that cannot be read nothing could be told from forgery."""
        for self.check in CHECKS:
            try:
                getattr(self, f"_check_{self.check}")()
            except Exception as error:  # noqa: BLE001 - whatever hostile bytes lead to is a finding
                self._find(".", f"cannot be checked: {type(error).__name__}: {error}")
            if self.check == "entries" and self.findings:
                break
        self.trust = "SELF_CONSISTENT" if self.findings else self.trust

    def _find(self, place: str, message: str, expected: object = None, found: object = None) -> None:
        named = {"check": self.check, "place": place, "message": message}
        self.findings.append({**named, "expected": expected, "found": found})

    def _blobs(self) -> Iterator[tuple[Entry, Entry, str]]:
        """Yield each blob that an entry names, with that entry and the name of its file."""
        for entry in self.entries:
            for item in entry["payload"].get("blobs", []):
                if not HEX.fullmatch(item["sha256"]):
                    raise ValueError(f"ledger entry {entry['seq']} names a blob in the wrong form")
                yield entry, item, f"blobs/sha256/{item['sha256'][:2]}/{item['sha256'][2:]}"

    def _imports(self) -> tuple[str, ...]:
        """Return the folder of each imported bundle."""
        kept = (entry["payload"] for entry in self.entries if entry["kind"] == "bundle.imported")
        return tuple(f"imports/{one['name']}/" for one in kept if one["manifest_sha256"] not in self.left_out)

    def _read(self, name: str) -> bytes:
        if {"/", ".."} & {*Path(name).parts} or not (self.folder / name).is_file():  # a pipe waits for its writer
            raise ValueError(f"{name} is not a regular file of this folder")
        return (self.folder / name).read_bytes()

    def _content_sha256(self, blob: str) -> str:
        return sha256(self._read(f"blobs/sha256/{blob[:2]}/{blob[2:]}")[SALT_BYTES:]).hex()

    def _copies(self) -> dict[str, str]:
        """Return each copy for people and each torn line: its SHA-256, or ``blob`` and the name of its blob."""
        found: dict[str, str] = {}
        for entry in self.entries:
            payload, kind = entry["payload"], entry["kind"]
            if kind == "checkpoint.signed":
                found[f"checkpoints/{payload['size']}.note"] = sha256(payload["note"].encode()).hex()
            elif kind == "key.added":
                found[f"keys/{payload['file']}"] = sha256(payload["verifier_key"].encode() + b"\n").hex()
            elif kind == "store.recovered":
                found.update((item["file"], item["sha256"]) for item in payload["torn"])
            elif kind in {"campaign.locked", "report.recorded"}:
                for item in payload["blobs"]:
                    if item["role"] in {"lock", "protocol", "report"}:
                        found[f"campaigns/{payload['campaign']}/{item['name']}"] = f"blob{item['sha256']}"
        return {name: digest for name, digest in found.items() if digest.removeprefix("blob") not in self.left_out}

    def _check_entries(self) -> None:  # (1)
        if (self.folder / "manifest.json").exists():
            self.manifest = read_canonical(self._read("manifest.json"), "manifest.json")
            self.left_out = set(self.manifest["left_out"])
        *self.lines, torn = self._read("ledger.jsonl").split(b"\n")
        self.roots = roots_of(self.lines)
        if torn or not self.lines:
            self._find(f"ledger entry {len(self.lines)}", "the last line is not whole")
        for seq, line in enumerate(self.lines):
            try:
                self.entries.append(parse_entry(line, seq))
            except ValueError as error:
                self._find(f"ledger entry {seq}", str(error))
                return
        if self.lines and self.entries[0]["kind"] != "store.created":
            self._find("ledger entry 0: kind", "another entry comes first", "store.created", self.entries[0]["kind"])

    def _check_chain(self) -> None:  # (2)
        for entry, before in zip(self.entries, [None, *self.lines], strict=False):
            prev = "0" * 64 if before is None else sha256(before).hex()
            if entry["prev"] != prev:
                self._find(f"ledger entry {entry['seq']}: prev", "not the line before it", prev, entry["prev"])

    def _check_locks(self) -> None:  # (3)
        locks: dict[str, str] = {}
        for entry in self.entries:
            if entry["kind"] == "campaign.locked":
                locks[entry["payload"]["campaign"]] = entry["payload"]["lock_sha256"]
            expected = locks.get(entry["payload"].get("campaign"))
            if entry["lock"] != expected:
                self._find(f"ledger entry {entry['seq']}: lock", "wrong lock", expected, entry["lock"])

    def _check_checkpoints(self) -> None:  # (4)
        newest, key, keys, rotations, due = 0, ("", "", b""), [], [], None
        for entry in self.entries:
            place, kind = f"ledger entry {entry['seq']} ({entry['kind']})", entry["kind"]
            if kind == "key.added":
                keys.append(parse_key(entry["payload"]["verifier_key"]))
                try:
                    rotations += parse_rotations(entry["payload"].get("rotations", []), keys[-1])
                except ValueError as error:
                    self._find(f"{place}: payload.rotations", str(error))
            elif kind == "checkpoint.signed":
                newest, key = self._signer_of(entry, place, keys) or (newest, key)
            elif due is not None and kind not in HOUSEKEEPING:
                self._find(due, "no checkpoint follows this entry", None, place)
            due = place if kind in CHECKPOINTED else due if kind in HOUSEKEEPING else None
        self._set_trust(key, rotations)
        self.open_points.append(f"the last {len(self.entries) - newest} entries are under no signature")

    def _set_trust(self, key: Key, rotations: list[tuple[bytes, bytes]]) -> None:
        trusted = set(self.trusted) - self.revoked
        for _ in rotations:
            trusted |= {new for old, new in rotations if old in trusted} - self.revoked
        self.trust = "VERIFIED" if key[2] in trusted else self.trust
        if key[2] in self.revoked:
            self.open_points.append(f"the key {key[1]} that signed the newest checkpoint was revoked")
        elif key[2] not in trusted:
            self.open_points.append("no trusted key (--key) signed the newest checkpoint: all of it could be made up")
        elif key[2] not in self.trusted:
            self.open_points.append(f"the key {key[1]} is trusted as the successor of a trusted one")

    def _signer_of(self, entry: Entry, place: str, keys: list[Key]) -> tuple[int, Key] | None:
        """Return the size of a checkpoint that holds, and the key that signed it."""
        payload, size, root = entry["payload"], entry["seq"], self.roots[entry["seq"]]
        origin = self.entries[0]["payload"]["origin"]
        try:
            found, signers = open_note(payload["note"], keys)
        except ValueError as error:
            self._find(f"{place}: payload.note", str(error))
            return None
        expected = [origin, str(size), base64.b64encode(root).decode()]
        if (found, payload["size"], payload["root"]) != (expected, size, root.hex()):
            self._find(place, "the checkpoint is not of this ledger", expected, found)
        elif not signers or signers[-1][:2] != (origin, payload["key_hash"]):
            self._find(f"{place}: payload.note", "no recorded key of this store signed it", payload["key_hash"])
        else:
            return size, signers[-1]
        return None

    def _check_head(self) -> None:  # (5)
        size, _, root = (self.head or "-1:").partition(":")
        pinned = self.roots[int(size)].hex() if int(size) < len(self.roots) else ""
        self.found_head = f"{len(self.lines)}:{self.roots[-1].hex()}"
        if self.manifest:
            found = f"{self.manifest['entries']}:{self.manifest['root']}"
            if (self.found_head, self.entries[0]["payload"]["origin"]) != (found, self.manifest["store"]):
                self._find("manifest.json: entries, root, store", "not of this ledger", self.found_head, found)
        if self.head is None:
            self.open_points.append("no pinned head (--head): an older copy would pass as well")
        elif pinned != root:
            self._find("ledger.jsonl", "the ledger does not continue the pinned head", root, pinned)

    def _check_files(self) -> None:  # (6)
        blobs = {item["sha256"]: name for _, item, name in self._blobs()}
        expected = {*self._copies(), *(name for sha, name in blobs.items() if sha not in self.left_out)}
        present: set[str] = set()
        for folder, folders, files in os.walk(self.folder):
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            for path in (Path(folder) / base for base in files + links):
                name = path.relative_to(self.folder).as_posix()
                if name.startswith(self._imports()):
                    continue  # by check 10
                present.add(name)
                if path.is_symlink() or not path.is_file():
                    self._find(name, "no plain file stands here")
                elif name not in expected and name not in OWN_FILES and not SIDE_FILES.fullmatch(name):
                    self._find(name, "the ledger does not name this file")
        for name in sorted(expected - present):
            self._find(name, "the file is missing")
        if self.manifest:
            self._check_manifest(expected | {"ledger.jsonl", "verify.py"}, blobs.keys())
        else:
            lost = "the bundle lost its manifest" if (self.folder / "verify.py").exists() else ""
            self._find("manifest.json", lost) if lost else self.open_points.append("no manifest: this is a store")

    def _check_manifest(self, expected: set[str], blobs: Iterable[str]) -> None:
        listed = {item["name"] for item in self.manifest["files"] if not item["name"].startswith(self._imports())}
        for name in sorted(listed ^ expected):
            self._find(f"manifest.json: {name}", "manifest and ledger differ in this file")
        imports = (entry["payload"]["manifest_sha256"] for entry in self.entries if entry["kind"] == "bundle.imported")
        for digest in sorted(self.left_out.difference(blobs, imports)):
            self._find("manifest.json: left_out", "no entry names this blob", None, digest)
        if self.left_out:
            self.open_points.append(f"{len(self.left_out)} blobs were left out: their content is unproven")

    def _check_order(self) -> None:  # (7)
        campaigns: set[str] = set()
        still_open: dict[str, str] = {}
        for entry in self.entries:
            kind, payload, place = entry["kind"], entry["payload"], f"ledger entry {entry['seq']} ({entry['kind']})"
            name, load = payload.get("campaign"), payload.get("load")
            campaigns |= {name} if kind == "campaign.locked" else set()
            if name is not None and name not in campaigns:
                self._find(place, "its campaign was never locked", None, name)
            if kind == "load.opened" and still_open.setdefault(name, load) != load:
                self._find(place, "the load was opened while another one was open", None, load)
            elif kind == "load.sealed" and still_open.pop(name, None) != load:
                self._find(place, "the load is sealed but was not open", None, load)

    def _check_blobs(self) -> None:  # (8)
        for entry, item, name in self._blobs():
            if item["sha256"] in self.left_out or not (self.folder / name).is_file():
                continue  # named by check 6
            with (self.folder / name).open("rb") as file:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell() - SALT_BYTES
            if (digest, size) != (item["sha256"], item["bytes"]):
                place = f"{name} (ledger entry {entry['seq']}: {item['name']})"
                self._find(place, "the bytes of the blob changed", item["sha256"], digest)

    def _check_copies(self) -> None:  # (9)
        own = [item for item in self.manifest.get("files", []) if item["name"] in OWN_FILES]
        expected = self._copies() | {item["name"]: item["sha256"] for item in own}
        for name, digest in sorted(expected.items()):
            if not (self.folder / name).is_file():
                continue  # named by check 6
            wanted = self._content_sha256(digest[4:]) if digest.startswith("blob") else digest
            found = sha256(self._read(name)).hex()
            if found != wanted:
                self._find(name, "the copy is not what was recorded", wanted, found)
        for entry in (entry for entry in self.entries if entry["kind"] == "campaign.locked"):
            for role, member in (("lock", "lock_sha256"), ("protocol", "protocol_file_sha256")):
                blob = next(item["sha256"] for item in entry["payload"]["blobs"] if item["role"] == role)
                found = self._content_sha256(blob)
                if found != entry["payload"][member]:
                    self._find(f"ledger entry {entry['seq']}: payload.{member}", f"not the hash of the {role}", found)

    def _check_imports(self) -> None:  # (10)
        payloads = [entry["payload"] for entry in self.entries if entry["kind"] == "bundle.imported"]
        for payload in (one for one in payloads if one["manifest_sha256"] not in self.left_out):
            name, head = f"imports/{payload['name']}", f"{payload['entries']}:{payload['root']}"
            # Folders that lead back here, or are looked at twice on each level, have no end.
            if (self.folder / name).is_symlink() or [one["name"] for one in payloads].count(payload["name"]) > 1:
                raise ValueError(f"{name} is a link, or imported twice")
            found, wanted = self._read(f"{name}/manifest.json"), payload["manifest_sha256"]
            inner = Verifier(self.folder / name, self.trusted, head, self.revoked)
            inner.run()
            if sha256(found).hex() != wanted:
                self._find(f"{name}/manifest.json", "not the manifest that was imported", wanted, sha256(found).hex())
            self.findings += [{**one, "check": "imports", "place": f"{name}: {one['place']}"} for one in inner.findings]


def main(arguments: list[str]) -> int:
    """Check one folder and print what was found."""
    parser = argparse.ArgumentParser(description="Check an unpacked Assay bundle with the standard library alone.")
    parser.add_argument("folder", nargs="?", default=Path(__file__).absolute().parent, type=Path)
    parser.add_argument("--key", action="append", default=[], help="trusted public key, or a file with one")
    parser.add_argument("--revoked", action="append", default=[], help="key not to trust, or a file that revokes it")
    parser.add_argument("--head", help="head that the ledger must continue, <entries>:<root in hex>")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(arguments)
    if chosen.head is not None and not re.fullmatch(r"(0|[1-9][0-9]{0,15}):[0-9a-f]{64}", chosen.head):
        parser.error("--head has the form <entries>:<root in hex>")
    if not any((chosen.folder / name).exists() for name in ("ledger.jsonl", "manifest.json", "assay.sqlite", "blobs")):
        unpack = f"unpack first: tar --zstd -xf {chosen.folder}"  # a mistyped path is no forgery
        parser.error(unpack if chosen.folder.is_file() else f"there is no bundle in {chosen.folder}")
    given = (*chosen.key, *chosen.revoked)
    read = [Path(one).read_text("utf-8", "replace") if Path(one[:255]).is_file() else one for one in given]
    try:
        trusted = [parse_key(text)[2] for text in read[: len(chosen.key)]]
        verifier = Verifier(chosen.folder, trusted, chosen.head, map(parse_revoked, read[len(chosen.key) :]))
    except ValueError as error:
        parser.error(f"--key or --revoked: {error}")
    verifier.run()
    result = {"is_sound": not verifier.findings, "trust": verifier.trust, "head": verifier.found_head}
    result |= {"findings": verifier.findings, "skipped": list(SKIPPED), "open_points": verifier.open_points}
    lines = [f"does not hold: {one['place']}: {one['message']} [{one['check']}]" for one in verifier.findings]
    lines += [*(f"unproven: {one}" for one in verifier.open_points), f"skipped (`assay audit`): {', '.join(SKIPPED)}"]
    lines += [f"{'sound, ' + verifier.trust if result['is_sound'] else 'NOT SOUND'}; head {result['head']}"]
    shown = ["".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in line) for line in lines]
    sys.stdout.write((json.dumps(result, indent=2) if chosen.json else "\n".join(shown)) + "\n")
    return 0 if result["is_sound"] else 6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
