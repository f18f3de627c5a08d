"""What a telemetry provider is, and the reading of single integer files that most of them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from recorder.telemetry.reader import Reader, integer_of, reason_of, status_of
from recorder.telemetry.sample import DeviceIdentity, FieldSpec, ProbeReport, RawRead, Reading


class DeviceLostError(Exception):
    """The device is gone; its provider will not be asked again."""


class Provider(Protocol):
    """A source of readings. The sampler calls probe, then read once a tick, then close."""

    @property
    def name(self) -> str:
        """Name in records: ``host``, ``process``, ``amdgpu_sysfs``, ..."""
        ...

    def probe(self) -> ProbeReport:
        """Find out what this host gives. Never raises."""
        ...

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return the fields that were promised: those that the probe could read."""
        ...

    def read(self, tick: int) -> Iterable[Reading]:
        """Return the readings that are due at this tick. Raises only DeviceLostError."""
        ...

    def read_edge(self) -> Iterable[Reading]:
        """Return what is worth a read of its own where a phase begins or ends: energy counters. As ``read``."""
        ...

    def raws(self) -> Iterable[RawRead]:
        """Return the bytes behind the last ``read``, where readings were decoded from bytes."""
        ...

    def close(self) -> None:
        """Let go of files and libraries. Never raises."""
        ...

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return the devices behind the readings."""
        ...


class NoExtras:
    """What most providers do at the edges of phases and with bytes: nothing."""

    def read_edge(self) -> Iterable[Reading]:
        """Return no reading."""
        return ()

    def raws(self) -> Iterable[RawRead]:
        """Return no bytes."""
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegerFile:
    """A file that holds one integer, and the field that it becomes.

    The value is ``integer * scale``. A value below ``minimum`` is what the driver writes for "not there".
    ``every`` is the number of ticks between reads.
    """

    path: str
    spec: FieldSpec
    scale: int = 1
    minimum: int | None = None
    every: int = 1


def probe_files(reader: Reader, files: Iterable[IntegerFile]) -> tuple[tuple[IntegerFile, ...], Mapping[str, str]]:
    """Return the files that can be read now, and the reason for each that cannot, by field key."""
    usable: list[IntegerFile] = []
    refused: dict[str, str] = {}
    for file in files:
        try:
            data = reader.read(file.path)
        except OSError as error:
            refused[file.spec.key] = f"{file.path}: {reason_of(error)}"
            continue
        value = integer_of(data)
        if value is None:
            refused[file.spec.key] = f"{file.path}: not an integer"
        elif file.minimum is not None and value < file.minimum:
            refused[file.spec.key] = f"{file.path}: holds {value}, which the driver writes for a missing sensor"
        else:
            usable.append(file)
    return tuple(usable), refused


def read_file(reader: Reader, file: IntegerFile) -> Reading:
    """Read one integer file. Never raises."""
    try:
        value = integer_of(reader.read(file.path))
    except OSError as error:
        status = status_of(error)
        # The probe could read it, so its absence now is an error of this tick.
        return Reading(field=file.spec, raw=None, status="error" if status == "unsupported" else status)
    if value is None or (file.minimum is not None and value < file.minimum):
        return Reading(field=file.spec, raw=None, status="error")
    return Reading(field=file.spec, raw=value * file.scale)


def readings_of(specs: Mapping[str, FieldSpec], values: Mapping[str, int | None]) -> Iterable[Reading]:
    """Pair values with their fields by name; a value that is not there is an error of this tick."""
    for name, spec in specs.items():
        value = values.get(name)
        yield Reading(field=spec, raw=value) if value is not None else Reading(field=spec, raw=None, status="error")
