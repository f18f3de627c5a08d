"""From a protocol to everything that a campaign needs: builds, model, identities, and the lock.

The same steps run before the first load and before a campaign is resumed; on resuming, `lock_differences` says what is
no longer what was locked.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.arms import ResolvedArm, identify_arm, prepare_build, resolve_arm
from engine.build import EngineBuild
from engine.identity import identify_file, identify_model
from engine.models import resolve_model
from harness.api_key import secret_values
from harness.options import assay_version
from harness.references import check_references
from harness.requirement_files import Commands, locked_requirements
from protocols import lock as locks
from protocols.canonical import canonical_bytes, sha256_hex
from protocols.errors import EngineError
from protocols.load import LoadedProtocol
from protocols.measurements import ARMS, Arm
from protocols.schedule import Position, expand_schedule, seed_commitment
from protocols.schema import BundledEngine, LossGate, ModelReference, Protocol
from recorder.store import salted_text
from recorder.telemetry.facts import host_facts

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PreparedArm:
    """One arm, ready to start: how, from which build (None for an engine that is no build of ours), and what it is."""

    resolved: ResolvedArm
    build: EngineBuild | None
    identity: locks.ArmIdentity


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A campaign that could start now. `texts` are salted: their hashes stand in the lock."""

    loaded: LoadedProtocol
    base: Path
    """Folder that relative paths of the protocol start at."""
    positions: tuple[Position, ...]
    arms: Mapping[Arm, PreparedArm]
    model_file: Path | None
    """None where both arms are endpoints and the protocol states no model file."""
    lock: locks.Lock
    texts: Mapping[str, bytes]

    @property
    def protocol(self) -> Protocol:
        """The protocol itself."""
        return self.loaded.protocol

    @property
    def model_path(self) -> Path:
        """The model file, for who reads it. EngineError where there is none."""
        if self.model_file is None:
            raise EngineError("the protocol states no model file", hint="write model: {path: ...} into it")
        return self.model_file


def prepare(loaded: LoadedProtocol, *, base: Path, cache: Path, log: Log) -> Prepared:
    """Build or find both engines, find the model, identify everything, and write the lock (nothing is recorded yet).

    Raises ProtocolError where a reference of the protocol leads nowhere, EngineError when an engine cannot be built.
    """
    protocol = loaded.protocol
    check_references(loaded, base)
    is_stated = protocol.model != ModelReference()
    model_file = resolve_model(protocol.model, base=base, cache=cache) if is_stated else None
    arms = {name: _prepare_arm(loaded, name, base=base, cache=cache, model_file=model_file, log=log) for name in ARMS}
    if model_file is not None:
        log("identifying the model")
    model = None if model_file is None else _lock_model(protocol, model_file, base)
    positions = expand_schedule(protocol.schedule)
    texts = _texts(loaded, arms, model_file, base)
    lock = locks.Lock(
        protocol_id=protocol.id,
        protocol_sha256=protocol.sha256(),
        requests={reference: sha256_hex(body) for reference, body in loaded.requests.items()},
        arms={name: arm.identity for name, arm in arms.items()},
        model=model,
        host=dict(host_facts()),
        schedule=locks.locked_positions(positions),
        seed_commitment=seed_commitment(protocol.schedule),
        margins=tuple(
            locks.LockedMargin(gate=gate.id, margin_pct=gate.margin_pct, alpha=gate.alpha)
            for gate in protocol.gates
            if isinstance(gate, LossGate)
        ),
        looks=locks.locked_looks(protocol),
        versions=locks.judge_versions(assay_version()),
        requirements=locked_requirements(protocol, _commands(arms, base, model_file)),
        text_blobs={name: sha256_hex(blob) for name, blob in texts.items()},
    )
    return Prepared(
        loaded=loaded, base=base, positions=positions, arms=arms, model_file=model_file, lock=lock, texts=texts
    )


def _commands(arms: Mapping[Arm, PreparedArm], base: Path, model_file: Path | None) -> dict[Arm, Commands]:
    return {
        name: Commands(base=base, resolved=arm.resolved, build=arm.build, model_path=model_file)
        for name, arm in arms.items()
        if arm.resolved.argv and model_file is not None
    }


def _prepare_arm(
    loaded: LoadedProtocol, name: Arm, *, base: Path, cache: Path, model_file: Path | None, log: Log
) -> PreparedArm:
    arm, settings = loaded.protocol.arm(name), loaded.protocol.settings_of(name)
    build = prepare_build(arm, name=name, base=base, cache=cache, log=log)
    resolved = resolve_arm(arm, settings, model_file, build, base=base)
    engine = arm.engine
    receipt = build.receipt if build else None
    identity = locks.ArmIdentity(
        kind=engine.kind,
        files=tuple(file.locked() for file in identify_arm(arm, build, base=base).files),
        settings=settings.model_dump(mode="json"),
        layout_salt=receipt["layout_salt"] if receipt else None,
        faults=tuple(receipt["faults"]) if receipt else (),
        build_receipt_sha256=sha256_hex(_receipt_bytes(receipt)) if receipt else None,
        capabilities=tuple(sorted(resolved.capabilities)),
        is_fresh=resolved.fresh,
    )
    if isinstance(engine, BundledEngine) and identity.layout_salt != engine.layout_salt:
        raise AssertionError("a build was taken for another one")
    return PreparedArm(resolved=resolved, build=build, identity=identity)


def _receipt_bytes(receipt: Mapping[str, Any]) -> bytes:
    return (json.dumps(receipt, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _lock_model(protocol: Protocol, model_path: Path, base: Path) -> locks.LockedModel:
    reference = protocol.model

    def file(named: Any) -> locks.FileIdentity | None:  # noqa: ANN401 - an optional FileReference
        return None if named is None else identify_file(base / named.path).locked()

    draft = reference.draft
    return locks.LockedModel(
        model=identify_model(model_path).locked(),
        draft=None if draft is None else identify_model(base / draft.path).locked(),
        ple_table=file(reference.ple_table),
        tokenizer=file(reference.tokenizer),
        chat_template=file(reference.chat_template),
    )


def _texts(
    loaded: LoadedProtocol, arms: Mapping[Arm, PreparedArm], model_file: Path | None, base: Path
) -> dict[str, bytes]:
    """Return what is free text, each as a salted blob: argv, environment, paths, host name, build receipts."""
    plain: dict[str, Any] = {
        "host": {"name": platform.node(), "boot_id": _boot_id(), "platform": platform.platform()},
        "paths": {"protocol": str(loaded.path), "folder": str(base), "model": str(model_file) if model_file else None},
    }
    for name, arm in arms.items():
        plain[f"argv.{name}"] = list(arm.resolved.argv)
        plain[f"environment.{name}"] = dict(sorted(arm.resolved.environment.items()))
    contents = {name: canonical_bytes(value) for name, value in plain.items()}
    contents |= {f"build-receipt.{name}": _receipt_bytes(arm.build.receipt) for name, arm in arms.items() if arm.build}
    return {name: salted_text(content, secret_values()) for name, content in contents.items()}


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def lock_differences(locked: locks.Lock, now: locks.Lock) -> list[str]:
    """Say what differs between a lock and the same protocol prepared now, in the words `name: locked X, now Y`.

    Salted texts differ by their salt and are not compared; what they say about an engine stands in its identity.
    """
    then_value, now_value = locked.model_dump(mode="json"), now.model_dump(mode="json")
    for value in (then_value, now_value):
        value.pop("text_blobs")
        for arm in value["arms"].values():
            # The receipt carries times and paths of the build; the files themselves are compared.
            arm.pop("build_receipt_sha256")
            files = sorted(arm["files"], key=lambda file: (file["name"], file["sha256"]))
            names = [file["name"] for file in files]
            # Two folders may hold files of one name; then a number tells them apart.
            arm["files"] = {
                name if names.index(name) == place else f"{name} #{place - names.index(name) + 1}": file
                for place, (name, file) in enumerate(zip(names, files, strict=True))
            }
    return list(_differences("", then_value, now_value))


def _differences(path: str, then: Any, now: Any) -> list[str]:  # noqa: ANN401 - walks JSON values
    if isinstance(then, dict) and isinstance(now, dict):
        found: list[str] = []
        for key in sorted(then.keys() | now.keys()):
            found += _differences(f"{path}.{key}" if path else key, then.get(key), now.get(key))
        return found
    if then == now:
        return []
    return [f"{path}: locked {_shown(then)}, now {_shown(now)}"]


def _shown(value: Any) -> str:  # noqa: ANN401 - any JSON value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
