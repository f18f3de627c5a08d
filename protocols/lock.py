"""The lock: what is frozen before the first load, and the hash that stands in every later record.

The lock names things by hash. Free text (argv, environment, paths, host name) is not in it: `text_blobs` names such a
text by the SHA-256 of a blob that begins with a random salt, so that the text can be left out later and every hash
still holds.
"""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, ValidationError

from protocols.canonical import MAX_INTEGER, canonical_bytes, parse_real, real_text, sha256_hex
from protocols.errors import EvidenceError
from protocols.looks import Look, looks_of
from protocols.schedule import Position
from protocols.schema import LossGate, Protocol
from protocols.stats import Calibration
from protocols.vocabulary import Identifier, Metric, Part, PlainDecimal, Sha256

LOCK_FORMAT = "assay.lock.v1"

Word = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
BuildId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{2,128}$")]
RealText = Annotated[str, StringConstraints(pattern=r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-][0-9]+)?$")]


class FileIdentity(Part):
    """One file by its bytes; `name` is the file's own name without folders."""

    name: Annotated[str, StringConstraints(pattern=r"^[^/\x00]+$", max_length=255)]
    bytes: Count
    sha256: Sha256
    build_id: BuildId | None = None
    """ELF build-id in hexadecimal, where the file has one."""
    soname: Word | None = None
    """ELF name of a shared library."""
    needed: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    """ELF names of the libraries that it needs."""


class ModelIdentity(Part):
    """A model file, and the parts of it that change what a prompt means."""

    sha256: Sha256
    bytes: Count
    architecture: Word | None = None
    name: Word | None = None
    """Name that the file itself gives."""
    parameters: Count | None = None
    """Number of weights."""
    tokenizer_sha256: Sha256 | None = None
    chat_template_sha256: Sha256 | None = None


class LockedModel(Part):
    """The model under both arms and its companions; null where there is none."""

    model: ModelIdentity
    draft: ModelIdentity | None = None
    ple_table: FileIdentity | None = None
    tokenizer: FileIdentity | None = None
    chat_template: FileIdentity | None = None


class ArmIdentity(Part):
    """Everything that makes one arm: files, settings in effect, and the hashes of its argv and environment."""

    kind: Literal["bundled", "folder", "llama-server", "openai"]
    files: Annotated[tuple[FileIdentity, ...], Field(strict=False)] = ()
    """Every file of the build, sorted by name; empty for an endpoint that Assay does not start."""
    settings: dict[Identifier, str | int | bool | None] = Field(default_factory=dict)
    layout_salt: Count | None = None
    faults: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    build_receipt_sha256: Sha256 | None = None
    capabilities: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    is_fresh: bool = True
    """Whether each load is a fresh process that Assay starts."""


class LockedPosition(Part):
    """One place of the expanded schedule."""

    index: Count
    label: Word
    arm: Literal["baseline", "candidate"]
    block: Count | None
    is_burn_in: bool


class LockedCalibration(Part):
    """Noise of one load of this host, from A/A loads, as it is used in place of the campaign's own."""

    workload: Identifier
    metric: Metric
    sigma: RealText
    """Standard deviation of ln(rate) of a load."""
    df: Annotated[int, Field(ge=1)]
    """Degrees of freedom of `sigma`."""
    receipt_sha256: Sha256
    """The record of the A/A loads."""
    expires_utc: Word


class LockedMargin(Part):
    """A margin as it stood at lock time, repeated here so that a reader of the lock alone sees what was promised."""

    gate: Identifier
    margin_pct: PlainDecimal
    alpha: PlainDecimal


class LockedLook(Part):
    """A look of a loss gate and the level of its bounds, spent before anything is measured."""

    gate: Identifier
    blocks: Annotated[int, Field(ge=1)]
    level: RealText


class LockedRequirement(Part):
    """The program of a requirement and every file that it was stated to read, by their bytes."""

    check: Identifier
    arm: Literal["baseline", "candidate"]
    requirement: Identifier
    files: Annotated[tuple[FileIdentity, ...], Field(strict=False)]


class Lock(Part):
    """The first ledger entry of a campaign."""

    format: Literal["assay.lock.v1"] = "assay.lock.v1"
    protocol_id: Identifier
    protocol_sha256: Sha256
    """SHA-256 of the canonical protocol (defaults filled in), not of the YAML text."""
    requests: dict[str, Sha256]
    """Request file as the protocol names it, and the SHA-256 of its bytes."""
    arms: dict[Literal["baseline", "candidate"], ArmIdentity]
    model: LockedModel | None = None
    """The model file; null where both arms are endpoints and the protocol states none."""
    host: dict[Identifier, str | int | bool | None]
    """Facts of the host that are no free text: CPU model, cores, memory, kernel release, devices."""
    schedule: Annotated[tuple[LockedPosition, ...], Field(strict=False)]
    seed_commitment: Sha256 | None
    margins: Annotated[tuple[LockedMargin, ...], Field(strict=False)] = ()
    calibrations: Annotated[tuple[LockedCalibration, ...], Field(strict=False)] = ()
    looks: Annotated[tuple[LockedLook, ...], Field(strict=False)] = ()
    versions: dict[str, Word]
    """Versions of Assay, Python and the libraries that judge."""
    text_blobs: dict[str, Sha256] = Field(default_factory=dict)
    """Name of a free text, and the SHA-256 of its salted blob."""
    requirements: Annotated[tuple[LockedRequirement, ...], Field(strict=False)] = ()
    """What the requirements of the checks run and read, for each arm that they are asked of."""
    LATER: ClassVar[frozenset[str]] = frozenset({"looks", "model", "requirements"})

    def lock_bytes(self) -> bytes:
        """Return the RFC 8785 bytes of the lock: what is written, hashed and signed."""
        return canonical_bytes(self.model_dump(mode="json"))

    def noise(self) -> dict[tuple[str, str], Calibration]:
        """Return the calibrated noise by (workload, metric), as the gates take it."""
        return {
            (row.workload, row.metric): Calibration(sigma=parse_real(row.sigma), df=row.df) for row in self.calibrations
        }

    def levels(self) -> dict[str, tuple[Look, ...]]:
        """Return the looks of each loss gate, as the gates take them."""
        found: dict[str, tuple[Look, ...]] = {}
        for row in self.looks:
            look = Look(blocks=row.blocks, level=parse_real(row.level))
            found[row.gate] = (*found.get(row.gate, ()), look)
        return found

    def model_sha256(self) -> str | None:
        """Return the SHA-256 of the model file; None where the protocol states no file."""
        return None if self.model is None else self.model.model.sha256

    def sha256(self) -> str:
        """Return the SHA-256 of `lock_bytes()`: the lock hash that every later record carries."""
        return sha256_hex(self.lock_bytes())


def locked_positions(positions: tuple[Position, ...]) -> tuple[LockedPosition, ...]:
    """Return the expanded schedule as it stands in a lock."""
    return tuple(LockedPosition.model_validate(position.payload()) for position in positions)


def locked_looks(protocol: Protocol) -> tuple[LockedLook, ...]:
    """Return the looks of every loss gate with their levels, computed now, as they stand in a lock."""
    return tuple(
        LockedLook(gate=gate.id, blocks=look.blocks, level=real_text(look.level))
        for gate in protocol.gates
        if isinstance(gate, LossGate)
        for look in looks_of(protocol.schedule, float(gate.alpha))
    )


def parse_lock(data: bytes) -> Lock:
    """Read the bytes of a lock. Raises EvidenceError where they are no lock, or not in canonical form."""
    try:
        lock = Lock.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise EvidenceError(f"the lock is not readable: {first['msg']}", where=place or "lock") from error
    if lock.lock_bytes() != data:
        raise EvidenceError("the lock is not in canonical form, so it was not written by Assay", where="lock")
    return lock


def judge_versions(assay: str) -> dict[str, str]:
    """Return the versions that a lock records: Assay's own, Python's, and those of the libraries that decide."""
    libraries = {name: metadata.version(name) for name in ("numpy", "scipy", "pydantic", "pyyaml", "rfc8785")}
    return {"assay": assay, "python": platform.python_version(), **libraries}
