"""Makes single faults in a store: every kind of change that somebody with the files, but without the key, can make.

`changes(pristine, random)` gives one change after the other, each a `Change` that can be applied to a copy of the
store. Kinds take turns, so that each is made equally often. Loaded by path, like synthetic.py.

Bytes of ``store.lock`` and of the database that hold nothing (free pages, counters) are no evidence: the first is only
a note of who writes, the second is told from a real change by `dump`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tamper_database import DatabaseFaults
from tamper_tree import Change, Files, dump, read_tree, restore

from protocols.canonical import canonical_bytes, sha256_hex
from recorder.blobs import salted
from recorder.checkpoint import Checkpoint, sign_checkpoint
from recorder.keys import Signer
from recorder.ledger import FIRST_PREV, Entry, parse_entry
from recorder.merkle import leaf_hash, root_of

THIEF = Signer(name="tester", seed=b"\x07" * 32)
NO_EVIDENCE = ("store.lock",)
__all__ = ["Change", "Tamper", "changes", "dump", "read_tree", "rebuild", "restore"]


class Tamper(DatabaseFaults):
    """Knows one pristine store, and makes changes of it."""

    def __init__(self, pristine: Files, dice: random.Random) -> None:
        super().__init__(pristine, dice)
        self.lines = pristine["ledger.jsonl"].splitlines()
        self.entries = [parse_entry(line, seq=seq) for seq, line in enumerate(self.lines)]
        self.blobs = [name for name in pristine if name.startswith("blobs/")]
        skipped = (*NO_EVIDENCE, "assay.sqlite")
        self.files = [name for name in pristine if name not in skipped and not name.startswith("assay.sqlite")]
        self.reports = [name for name in pristine if "/report" in name]

    def kinds(self) -> list[Callable[[], Change]]:
        """Return one maker for each kind of fault that this store allows."""
        makers = [
            self.flip,
            self.delete_bytes,
            self.insert_bytes,
            self.truncate,
            self.overwrite,
            self.remove_file,
            self.add_file,
            self.rename_file,
            self.repeat_file,
            self.replace_by_a_link,
            self.replace_by_a_pipe,
            self.replace_by_a_folder,
            self.swap_two_blobs,
            self.move_bytes,
            self.swap_two_lines,
            self.repeat_a_line,
            self.remove_a_line,
            self.cut_the_ledger,
            self.edit_a_line,
            self.edit_the_report,
            self.edit_and_chain_anew,
            self.back_date,
            self.back_date_and_chain_anew,
            self.remove_an_entry_and_chain_anew,
            self.replay_a_load,
            self.forge_a_report,
            self.sign_again_with_another_key,
            self.go_back_to_a_checkpoint,
        ]
        if "assay.sqlite" in self.pristine:
            makers += [
                self.edit_a_row,
                self.remove_a_row,
                self.repeat_a_row,
                self.change_the_schema,
                self.flip_database,
            ]
        return makers

    # --- bytes and files -------------------------------------------------------------------------------------------

    def _file(self) -> str:
        return self.dice.choice([name for name in self.files if self.pristine[name]])

    def _written(self, kind: str, name: str, data: bytes) -> Change:
        words = [name, "ledger"] if name == "ledger.jsonl" else [name]
        if name.startswith("imports/"):
            words.append("/".join(name.split("/")[:2]))
        return Change(f"{kind}: {name}", tuple(words), lambda root: (root / name).write_bytes(data))

    def flip(self) -> Change:
        name = self._file()
        data = bytearray(self.pristine[name])
        data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        return self._written("flip", name, bytes(data))

    def delete_bytes(self) -> Change:
        name = self._file()
        data = self.pristine[name]
        start = self.dice.randrange(len(data))
        return self._written("delete", name, data[:start] + data[start + self.dice.randint(1, 40) :])

    def insert_bytes(self) -> Change:
        name = self._file()
        data, place = self.pristine[name], self.dice.randrange(len(self.pristine[name]) + 1)
        more = self.dice.choice([b"\n", b" ", b"\0", self.dice.randbytes(self.dice.randint(1, 30)), data[:place]])
        return self._written("insert", name, data[:place] + (more or b"x") + data[place:])

    def truncate(self) -> Change:
        name = self._file()
        return self._written("truncate", name, self.pristine[name][: self.dice.randrange(len(self.pristine[name]))])

    def overwrite(self) -> Change:
        name = self._file()
        return self._written("overwrite", name, self.dice.randbytes(len(self.pristine[name])))

    def move_bytes(self) -> Change:
        name = self._file()
        data = self.pristine[name]
        cut = self.dice.randrange(len(data))
        return self._written("reorder", name, data[cut:] + data[:cut] if cut else data + b"\n")

    def remove_file(self) -> Change:
        name = self._file()
        return Change(f"remove: {name}", (name, self._parent(name)), lambda root: (root / name).unlink())

    def _parent(self, name: str) -> str:
        return "/".join(name.split("/")[:2]) if name.startswith("imports/") else name

    def add_file(self) -> Change:
        folder = self.dice.choice(["", "blobs/sha256/00/", "checkpoints/", "keys/", "campaigns/", "spool/x/"])
        base = self.dice.choice(["x", "00" * 31, "9.note", "release.pub", ".hidden", "ledger.torn-1"])
        name = f"{folder}{base}"

        def apply(root: Path) -> None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"x")

        return Change(f"add: {name}", (name,), apply)

    def rename_file(self) -> Change:
        name = self._file()
        return Change(
            f"rename: {name}", (name, self._parent(name)), lambda root: (root / name).rename(root / f"{name}2")
        )

    def repeat_file(self) -> Change:
        name = self._file()
        other = f"{name}.copy"
        words = (other, self._parent(name))
        return Change(f"duplicate: {name}", words, lambda root: (root / other).write_bytes(self.pristine[name]))

    def replace_by_a_link(self) -> Change:
        name = self._file()

        def apply(root: Path) -> None:
            elsewhere = root.parent / "elsewhere"
            elsewhere.write_bytes(self.pristine[name])
            (root / name).unlink()
            (root / name).symlink_to(elsewhere)

        return Change(f"link: {name}", (name, self._parent(name), "ledger"), apply)

    def replace_by_a_pipe(self) -> Change:
        name = self._file()

        def apply(root: Path) -> None:
            (root / name).unlink()
            os.mkfifo(root / name)

        return Change(f"pipe: {name}", (name, self._parent(name), "ledger"), apply)

    def replace_by_a_folder(self) -> Change:
        name = self._file()

        def apply(root: Path) -> None:
            (root / name).unlink()
            (root / name).mkdir()

        return Change(f"folder: {name}", (name, self._parent(name), "ledger"), apply)

    def swap_two_blobs(self) -> Change:
        one, other = self.dice.sample(self.blobs, 2)

        def apply(root: Path) -> None:
            (root / one).write_bytes(self.pristine[other])
            (root / other).write_bytes(self.pristine[one])

        return Change(f"swap: {one} {other}", (one, other), apply)

    # --- lines of the ledger ---------------------------------------------------------------------------------------

    def _ledger(self, kind: str, seq: int, lines: list[bytes], *words: str) -> Change:
        data = b"".join(line + b"\n" for line in lines)
        found = (f"ledger entry {seq}", f"ledger entry {seq + 1}", f"seq {seq}", "ledger.jsonl", *words)
        return Change(f"{kind}: {seq}", found, lambda root: (root / "ledger.jsonl").write_bytes(data))

    def _seq(self) -> int:
        return self.dice.randrange(len(self.lines))

    def swap_two_lines(self) -> Change:
        one, other = sorted(self.dice.sample(range(len(self.lines)), 2))
        lines = list(self.lines)
        lines[one], lines[other] = lines[other], lines[one]
        return self._ledger("reorder lines", one, lines)

    def repeat_a_line(self) -> Change:
        seq = self._seq()
        return self._ledger("duplicate line", seq, [*self.lines[: seq + 1], *self.lines[seq:]])

    def remove_a_line(self) -> Change:
        seq = self._seq()
        return self._ledger("delete line", seq, [*self.lines[:seq], *self.lines[seq + 1 :]], "assay.sqlite")

    def cut_the_ledger(self) -> Change:
        seq = self._seq()
        return self._ledger("truncate ledger", seq, self.lines[:seq], "assay.sqlite", "the ledger does not name")

    def edit_a_line(self) -> Change:
        seq = self._seq()
        value = json.loads(self.lines[seq])
        self._edit(value)
        return self._ledger("edit line", seq, [*self.lines[:seq], canonical_bytes(value), *self.lines[seq + 1 :]])

    def _edit(self, value: Any) -> None:
        """Change one leaf of a JSON value."""
        places: list[tuple[Any, Any]] = []
        stack = [value]
        while stack:
            one = stack.pop()
            for key in one if isinstance(one, dict) else range(len(one)):
                if isinstance(one[key], dict | list):
                    stack.append(one[key])
                else:
                    places.append((one, key))
        where, key = self.dice.choice(places)
        old = where[key]
        where[key] = not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old or ''}1"

    # --- whoever can write everything, but has no key --------------------------------------------------------------

    def _chained(
        self, change: Callable[[int, Any], Any], *, signer: Signer | None = None, files: Files | None = None
    ) -> Files:
        """Return the files of a ledger whose members were changed and which was chained anew."""
        made, lines, leaves, prev = dict(files or {}), [], [], FIRST_PREV
        for entry in self.entries:
            value = change(entry.seq, json.loads(entry.line))
            if value is None:
                continue
            value |= {"seq": len(lines), "prev": prev}
            payload = value["payload"]
            if value["kind"] == "checkpoint.signed":
                payload |= {"size": len(lines), "root": root_of(leaves).hex()}
                if signer is not None:
                    origin = self.entries[0].text("origin")
                    head = Checkpoint(origin=origin, size=len(lines), root=root_of(leaves))
                    payload["note"] = sign_checkpoint(head, signer).decode()
                    payload["key_hash"] = signer.public(origin).key_hash.hex()
                made[f"checkpoints/{len(lines)}.note"] = payload["note"].encode()
            line = canonical_bytes(value)
            prev = sha256_hex(line)
            leaves.append(leaf_hash(line))
            lines.append(line)
        made["ledger.jsonl"] = b"".join(line + b"\n" for line in lines)
        return made

    def _forged(self, kind: str, files: Files, *words: str) -> Change:
        def apply(root: Path) -> None:
            notes = {path.name for path in (root / "checkpoints").iterdir()}
            for name in notes - {name.rpartition("/")[2] for name in files if name.startswith("checkpoints/")}:
                (root / "checkpoints" / name).unlink()
            for name, data in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)

        return Change(kind, words, apply, is_forged=True)

    def edit_and_chain_anew(self) -> Change:
        chosen = self.dice.choice([entry.seq for entry in self.entries if entry.kind != "checkpoint.signed"][:-1])

        def change(seq: int, value: Any) -> Any:
            if seq == chosen:
                self._edit(value["payload"])
            return value

        return self._forged(f"chain anew: {chosen}", self._chained(change), "ledger", "checkpoint")

    def back_date(self) -> Change:
        seq = self._seq()
        value = json.loads(self.lines[seq])
        value["utc_ns"] = str(int(value["utc_ns"]) - self.dice.randint(1, 10**15))
        return self._ledger("back-date", seq, [*self.lines[:seq], canonical_bytes(value), *self.lines[seq + 1 :]])

    def back_date_and_chain_anew(self) -> Change:
        def change(_seq: int, value: Any) -> Any:
            return value | {"utc_ns": str(int(value["utc_ns"]) - 86_400 * 10**9)}

        return self._forged("back-date all", self._chained(change), "ledger", "checkpoint")

    def remove_an_entry_and_chain_anew(self) -> Change:
        chosen = self.dice.choice([entry.seq for entry in self.entries if entry.kind == "load.sealed"])
        load = self.entries[chosen].text("load")

        def change(_seq: int, value: Any) -> Any:
            return None if value["payload"].get("load") == load else value

        return self._forged(f"drop a load: {chosen}", self._chained(change), "ledger", "checkpoint")

    def replay_a_load(self) -> Change:
        sealed = [entry for entry in self.entries if entry.kind == "load.sealed"]
        one = self.dice.choice(sealed)
        others = [entry for entry in sealed if entry.text("campaign") != one.text("campaign")] or sealed
        other = self.dice.choice([entry for entry in others if entry is not one])

        def change(seq: int, value: Any) -> Any:
            if seq == one.seq:
                value["payload"]["blobs"] = json.loads(other.line)["payload"]["blobs"]
            return value

        return self._forged(f"replay: {other.seq} as {one.seq}", self._chained(change), "ledger", "checkpoint")

    def edit_the_report(self) -> Change:
        name = self.dice.choice(self.reports)
        return self._written("report", name, self.pristine[name].replace(b"SCREEN_ONLY", b"PASS") + b" ")

    def forge_a_report(self) -> Change:
        """The copy, its blob and the entry that names it."""
        recorded = self.dice.choice([entry for entry in self.entries if entry.kind == "report.recorded"])
        item = self.dice.choice(recorded.blobs())
        content = b"# PASS\n"
        data = salted(content)
        digest = sha256_hex(data)
        files = {
            f"blobs/sha256/{digest[:2]}/{digest[2:]}": data,
            f"campaigns/{recorded.text('campaign')}/{item['name']}": content,
        }

        def change(seq: int, value: Any) -> Any:
            if seq == recorded.seq:
                for one in value["payload"]["blobs"]:
                    if one["name"] == item["name"]:
                        one |= {"sha256": digest, "bytes": len(content)}
                for one in value["payload"]["files"]:
                    if one["name"] == item["name"]:
                        one["sha256"] = sha256_hex(content)
            return value

        return self._forged(
            f"forged report: {recorded.seq}", self._chained(change, files=files), "ledger", "checkpoint"
        )

    def sign_again_with_another_key(self, signer: Signer = THIEF) -> Change:
        """Everything chained and signed anew with a key of one's own."""
        origin = self.entries[0].text("origin")
        key = signer.public(origin)
        files: Files = {}

        def change(_seq: int, value: Any) -> Any:
            if value["kind"] == "key.added":
                value["payload"] |= {
                    "key_hash": key.key_hash.hex(),
                    "verifier_key": key.text(),
                    "sha256": sha256_hex(f"{key.text()}\n".encode()),
                }
                files[f"keys/{value['payload']['file']}"] = f"{key.text()}\n".encode()
            return value

        made = self._chained(change, signer=signer)
        return self._forged("sign again", made | files, "ledger.jsonl")

    def go_back_to_a_checkpoint(self) -> Change:
        """Everything as it was at an earlier checkpoint: a copy that was whole then."""
        marks = [entry.seq for entry in self.entries if entry.kind == "checkpoint.signed"][:-1]
        size = self.dice.choice(marks) + 1
        kept = self.lines[:size]
        entries: list[Entry] = self.entries[:size]
        blobs = {str(item["sha256"]) for entry in entries for item in entry.blobs()}
        copies = {f"checkpoints/{entry.number('size')}.note" for entry in entries if entry.kind == "checkpoint.signed"}
        for entry in entries:
            if entry.kind == "key.added":
                copies.add(f"keys/{entry.text('file')}")
            elif entry.kind in {"campaign.locked", "report.recorded"}:
                copies |= {f"campaigns/{entry.text('campaign')}/{item['name']}" for item in entry.blobs()}

        def apply(root: Path) -> None:
            for name in self.pristine:
                is_blob = name.startswith("blobs/") and name.removeprefix("blobs/sha256/").replace("/", "") in blobs
                if not (is_blob or name in copies or name in {"ledger.jsonl", "assay.sqlite"}):
                    (root / name).unlink()
            (root / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in kept))

        return Change(f"go back: to {size}", ("ledger.jsonl",), apply, is_forged=True)


def rebuild(root: Path) -> None:
    """Make the database anew, as a forger would; where the forged ledger allows none, an empty file stands there."""
    from protocols.errors import AssayError
    from recorder.store import rebuild_database

    try:
        rebuild_database(root)
    except (AssayError, ValueError, KeyError, TypeError, AttributeError):
        (root / "assay.sqlite").write_bytes(b"")
        for path in root.glob(".tmp-*"):
            path.unlink()
    (root / "store.lock").write_bytes(b"")


def changes(pristine: Files, dice: random.Random) -> Iterator[Change]:
    """Yield faults without end, each kind in its turn."""
    tamper = Tamper(pristine, dice)
    while True:
        for make in tamper.kinds():
            yield make()
