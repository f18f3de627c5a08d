"""The provider of nothing: absence as a record and not as a hole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from recorder.telemetry.provider import NoExtras
from recorder.telemetry.sample import DeviceIdentity, FieldSpec, ProbeReport, Reading


class AbsentProvider(NoExtras):
    """Says that a kind of telemetry does not exist on this host, and why each candidate was refused."""

    def __init__(self, name: str, reason: str, refused: Mapping[str, str]) -> None:
        self._name = name
        self._report = ProbeReport(provider=name, state="absent", reason=reason, refused=dict(refused))

    @property
    def name(self) -> str:
        """Name in records."""
        return self._name

    def probe(self) -> ProbeReport:
        """Return the reasons."""
        return self._report

    def describe(self) -> tuple[FieldSpec, ...]:
        """Return no field: none is promised."""
        return ()

    def read(self, tick: int) -> Iterable[Reading]:  # noqa: ARG002 (the provider's signature)
        """Return no reading."""
        return ()

    def close(self) -> None:
        """Do nothing."""

    def identity(self) -> tuple[DeviceIdentity, ...]:
        """Return no device."""
        return ()
