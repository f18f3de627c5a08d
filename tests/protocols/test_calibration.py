from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from protocols.calibration import (
    HOST_FACTS,
    HostCalibration,
    expiry,
    host_of,
    misfits,
    newest,
    noise_of_loads,
    parse_calibration,
    subject_of,
)
from protocols.canonical import canonical_bytes
from protocols.errors import EvidenceError
from protocols.load import LoadedProtocol
from protocols.stats import Observation, fit_loss

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
HOST = {"kernel": "6.12.1", "gpu_drivers": "amdgpu 6.14", "bios_version": "1.07"}


def observe(logs: list[float], arms: str) -> list[Observation]:
    return [
        Observation(index=place + 1, is_candidate=arm == "C", rate=math.exp(log))
        for place, (log, arm) in enumerate(zip(logs, arms, strict=True))
    ]


@pytest.fixture
def calibration(served_pair: LoadedProtocol) -> HostCalibration:
    made, expires = expiry(NOW, 30)
    protocol = served_pair.protocol
    return HostCalibration(
        workload="cold-512",
        metric="generation_rate",
        sigma=0.0123,
        df=10,
        loads=12,
        kind="A/A",
        relink_change=None,
        subject=subject_of(protocol, protocol.workloads[0]),
        host=host_of(HOST),
        made_utc=made,
        expires_utc=expires,
        campaign="x",
        receipt_sha256="a" * 64,
    )


def test_the_noise_of_aa_loads_is_their_spread_about_a_steady_drift() -> None:
    source = random.Random(1)
    logs = [source.gauss(0, 0.01) - 0.004 * place for place in range(12)]
    sigma, df, change = noise_of_loads(observe(logs, "ACCA" * 3), is_relinked=False)
    residuals = np.polyfit(range(12), logs, 1, full=True)[1]
    assert (sigma, df, change) == (pytest.approx(math.sqrt(residuals[0] / 10), rel=1e-9), 10, None)


def test_the_change_by_a_relink_is_fitted_and_is_no_noise() -> None:
    source = random.Random(2)
    logs = [source.gauss(0, 0.002) + 0.05 * (arm == "C") for arm in "ACCA" * 3]
    seen = observe(logs, "ACCA" * 3)
    sigma, df, change = noise_of_loads(seen, is_relinked=True)
    fit = fit_loss(seen)
    assert (sigma, df, change) == (fit.residual_sigma, 9, fit.beta)
    assert noise_of_loads(seen, is_relinked=False)[0] > 5 * sigma


def test_too_few_loads_make_no_calibration() -> None:
    with pytest.raises(ValueError, match="10 loads or more"):
        noise_of_loads(observe([0.0] * 8, "ACCA" * 2), is_relinked=False)


def test_a_calibration_survives_being_recorded(calibration: HostCalibration) -> None:
    canonical_bytes(calibration.payload())
    assert parse_calibration(calibration.payload(), "a" * 64) == calibration
    relinked = replace(calibration, kind="A/A relinked", relink_change=-0.01)
    assert parse_calibration(relinked.payload(), "a" * 64) == relinked
    for broken in ({}, {"relink_change": None}, {**calibration.payload(), "more": 1}):
        with pytest.raises(EvidenceError, match="no calibration"):
            parse_calibration(broken, "b" * 64)


def test_it_holds_for_the_same_workload_on_the_same_host_until_it_expires(calibration: HostCalibration) -> None:
    subject = calibration.subject
    assert misfits(calibration, subject, host_of(HOST), NOW) == []
    assert misfits(calibration, subject, host_of(HOST), NOW + timedelta(days=30)) == [
        "it expired on 2026-12-29T12:00:00Z"
    ]


@pytest.mark.parametrize("fact", HOST_FACTS)
def test_any_other_kernel_driver_firmware_or_power_policy_ends_it(calibration: HostCalibration, fact: str) -> None:
    (reason,) = misfits(calibration, calibration.subject, {**host_of(HOST), fact: "another"}, NOW)
    assert reason.startswith(f"{fact} was ")


@pytest.mark.parametrize(
    ("key", "value"), [("prompt_tokens", 8192), ("settings", {}), ("engine", "folder"), ("model", {}), ("route", "/x")]
)
def test_any_other_engine_length_or_setting_ends_it(calibration: HostCalibration, key: str, value: Any) -> None:
    (reason,) = misfits(calibration, {**calibration.subject, key: value}, host_of(HOST), NOW)
    assert reason.startswith(f"{key} was ")


def test_the_newest_one_counts(calibration: HostCalibration) -> None:
    later = replace(calibration, made_utc="2026-12-01T00:00:00Z")
    assert newest([later, calibration]) == later
    assert newest([]) is None
