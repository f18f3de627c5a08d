"""Calibrated noise: what A/A loads of one host say about a load, what it holds for, and until when.

A/A loads are fresh loads of one and the same engine. The spread of their log rates about a steady drift is the noise of
a load. With a relinked candidate (A/A'), the same code lies in another order in memory: the change between the two is
no noise of a load, but what a mere relink can do; it is fitted, left out of the noise, and kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from protocols.canonical import JsonValue, parse_real, real_text
from protocols.errors import EvidenceError
from protocols.measurements import Arm
from protocols.schema import Protocol, Workload
from protocols.stats import Observation, fit_loss, log_trend_noise
from protocols.vocabulary import Metric

LEAST_LOADS = 10
"""Fewest A/A loads that make a calibration."""

DAYS = 30
"""How long a calibration holds unless it says otherwise."""

HOST_FACTS = (
    "cpu_model",
    "cpu_logical_count",
    "kernel",
    "kernel_build",
    "machine",
    "clock_source",
    "cpu_governors",
    "cpu_boost",
    "amd_pstate",
    "smt",
    "platform_profile",
    "bios_version",
    "bios_date",
    "microcode",
    "gpu_drivers",
    "gpu_firmware",
)
"""Facts of the host that end a calibration when they change: processor, kernel, power policy, firmware, drivers."""

Facts = Mapping[str, str | int | None]


@dataclass(frozen=True, kw_only=True)
class HostCalibration:
    """Noise of one metric of one workload.

    sigma               standard deviation of ln(rate) of a load, with `df` degrees of freedom
    relink_change       change of ln(rate) by a relink (A/A'); None for plain A/A
    subject             what was loaded and asked: see `subject_of`
    host                the facts in `HOST_FACTS`
    """

    workload: str
    metric: Metric
    sigma: float
    df: int
    loads: int
    kind: Literal["A/A", "A/A relinked"]
    relink_change: float | None
    subject: Mapping[str, JsonValue]
    host: Facts
    made_utc: str
    expires_utc: str
    campaign: str
    receipt_sha256: str = ""

    def payload(self) -> dict[str, JsonValue]:
        """Return the calibration as it is recorded: real numbers as text."""
        value: dict[str, Any] = asdict(self)
        value.pop("receipt_sha256")
        value["sigma"] = real_text(self.sigma)
        value["relink_change"] = None if self.relink_change is None else real_text(self.relink_change)
        return value


def parse_calibration(value: Mapping[str, Any], receipt_sha256: str) -> HostCalibration:
    """Read a recorded calibration. EvidenceError where it is none."""
    try:
        change = value["relink_change"]
        return HostCalibration(
            **{
                **value,
                "sigma": parse_real(value["sigma"]),
                "relink_change": None if change is None else parse_real(change),
            },
            receipt_sha256=receipt_sha256,
        )
    except (KeyError, TypeError) as error:
        raise EvidenceError("the receipt holds no calibration", where=receipt_sha256) from error


def subject_of(protocol: Protocol, workload: Workload, arm: Arm = "baseline") -> dict[str, JsonValue]:
    """Return what the noise of a load depends on besides the host: engine family, model, settings, lengths, route."""
    chosen = protocol.arm(arm)
    return {
        "engine": chosen.engine.kind,
        "environment": dict(sorted(chosen.environment.items())),
        "model": protocol.model.model_dump(mode="json"),
        "settings": protocol.settings_of(arm).model_dump(mode="json"),
        "route": workload.route,
        "prompt_tokens": workload.prompt_tokens,
        "generated_tokens": workload.generated_tokens,
        "repeats": workload.repeats,
    }


def host_of(facts: Facts) -> dict[str, str | int | None]:
    """Return the facts that a calibration holds for."""
    return {name: facts.get(name) for name in HOST_FACTS}


def misfits(calibration: HostCalibration, subject: Mapping[str, JsonValue], host: Facts, now: datetime) -> list[str]:
    """Return why a calibration does not hold for a workload on a host now; empty where it does."""
    found = [f"it expired on {calibration.expires_utc}"] if now >= _utc(calibration.expires_utc) else []
    pairs = (
        *((name, calibration.subject.get(name), subject.get(name)) for name in subject),
        *((name, calibration.host.get(name), host.get(name)) for name in HOST_FACTS),
    )
    return found + [f"{name} was {then!r} and is {today!r}" for name, then, today in pairs if then != today]


def newest(calibrations: Sequence[HostCalibration]) -> HostCalibration | None:
    """Return the calibration that was made last."""
    return max(calibrations, key=lambda one: one.made_utc, default=None)


def noise_of_loads(observations: Sequence[Observation], *, is_relinked: bool) -> tuple[float, int, float | None]:
    """Return sigma, its degrees of freedom, and the change by the relink where there is one.

    ValueError where there are fewer than `LEAST_LOADS` loads.
    """
    if len(observations) < LEAST_LOADS:
        raise ValueError(f"a calibration needs {LEAST_LOADS} loads or more, and there are {len(observations)}")
    if not is_relinked:
        sigma, df = log_trend_noise(observations)
        return sigma, df, None
    fit = fit_loss(observations)
    if fit.residual_sigma is None:
        raise ValueError("the loads leave no degrees of freedom")
    return fit.residual_sigma, fit.residual_df, fit.beta


def expiry(made: datetime, days: int) -> tuple[str, str]:
    """Return when a calibration was made and when it expires, as text."""
    return _text(made), _text(made + timedelta(days=days))


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
