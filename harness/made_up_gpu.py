"""A made-up GPU for the controls of the telemetry: a tree of amdgpu's files that the sampler reads in place of a GPU.

What the host, its processes and the engine show stays real. The card has an address that no host has (PCI domain
``ffff``), and every load that reads it notes the event ``telemetry.made_up``. Its clock follows the samples that are
taken, not the time, so that a late sampler sees the same: `DIP` samples in each `CYCLE` are slow where the card
throttles, and the firmware's table says by which limit.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from protocols.measurements import Arm
from recorder.telemetry.gpu_metrics import layout
from recorder.telemetry.reader import FileReader, Reader
from recorder.telemetry.registry import Selection, select_providers

CYCLE: Final = 36
DIP: Final = 6
"""More than makes a collapse (`recorder.anomalies`), and too few to be the rule within a phase's middle third."""
ADDRESS: Final = "ffff:ff:1f.0"
_FAST_HZ: Final = 2_400_000_000
_SLOW_HZ: Final = 1_100_000_000
_THERMAL_BIT: Final = 1 << 33
"""One of the temperatures in ``indep_throttle_status`` (SMU_THROTTLER_TEMP_*, see gpu_metrics.py)."""
_REVISION: Final = (1, 3)
_CARD: Final = "/sys/class/drm/card0"
_DEVICE: Final = f"{_CARD}/device"
_PLACE: Final = f"/sys/devices/pciffff:ff/{ADDRESS}"
_HWMON: Final = "hwmon/hwmon0"
_CLOCK: Final = f"{_HWMON}/freq1_input"
_FIRST_READ: Final = f"{_DEVICE}/gpu_busy_percent"
"""The file that a tick reads first."""
_OURS: Final = ("/sys/class/drm", "/sys/class/kfd", "/sys/devices/pciffff:ff", "/sys/module/amdgpu")


class MadeUpGpu:
    """The card. It throttles while an arm in `throttles_in` serves, and keeps its clock otherwise."""

    def __init__(self, folder: Path, *, throttles_in: Arm | None) -> None:
        self._tree = folder
        self._throttles_in = throttles_in
        for name, content in _files().items():
            path = folder / f"{_PLACE}/{name}".lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        card = folder / _CARD.lstrip("/")
        card.mkdir(parents=True)
        (card / "device").symlink_to(folder / _PLACE.lstrip("/"))

    def select(self, arm: Arm, pid: int | None, period_ns: int) -> Selection:
        """Choose the providers of a load of an arm: host and process as they are, and this card as the only GPU."""
        samples = _Samples(self._tree, throttles=arm == self._throttles_in)
        reason = "a made-up GPU stands in place of every GPU"
        return select_providers(
            pid,
            period_ns=period_ns,
            new_reader=lambda: _Overlay(self._tree, samples),
            load_nvml=lambda: (None, reason),
            load_amdsmi=lambda: (None, reason),
        )


class _Samples:
    """Counts the samples of a load, and writes what the card shows in the next one."""

    def __init__(self, tree: Path, *, throttles: bool) -> None:
        self._folder = tree / _PLACE.lstrip("/")
        self._throttles = throttles
        self._count = 0
        self._show(is_slow=False)

    def advance(self) -> None:
        """Begin the next sample."""
        self._count += 1
        self._show(is_slow=self._throttles and self._count % CYCLE >= CYCLE - DIP)

    def _show(self, *, is_slow: bool) -> None:
        clock_hz = _SLOW_HZ if is_slow else _FAST_HZ
        # In place and of one length: the sampler keeps its files open, and reads never see a half.
        _overwrite(self._folder / _CLOCK, b"%d\n" % clock_hz)
        _overwrite(self._folder / "gpu_metrics", _table(clock_hz, _THERMAL_BIT if is_slow else 0))


class _Overlay:
    """Reads the card's files from its tree, everything else from the host."""

    def __init__(self, tree: Path, samples: _Samples) -> None:
        self._card, self._host = FileReader(tree), FileReader()
        self._samples = samples

    def read(self, path: str) -> bytes:
        if path == _FIRST_READ:
            self._samples.advance()
        return self._of(path).read(path)

    def read_once(self, path: str) -> bytes:
        return self._of(path).read_once(path)

    def glob(self, pattern: str) -> list[str]:
        return self._of(pattern).glob(pattern)

    def names(self, folder: str) -> list[str]:
        return self._of(folder).names(folder)

    def resolve(self, path: str) -> str:
        return self._of(path).resolve(path)

    def close(self) -> None:
        self._card.close()
        self._host.close()

    def _of(self, path: str) -> Reader:
        return self._card if path.startswith(_OURS) else self._host


def _files() -> dict[str, bytes]:
    texts = {
        "vendor": "0x1002",
        "device": "0x0000",
        "gpu_busy_percent": "99",
        "power/runtime_status": "active",
        f"{_HWMON}/name": "amdgpu",
        _CLOCK: str(_FAST_HZ),
        f"{_HWMON}/freq1_label": "sclk",
        f"{_HWMON}/temp1_input": "71000",
        f"{_HWMON}/temp1_label": "edge",
    }
    return {name: f"{text}\n".encode() for name, text in texts.items()} | {"gpu_metrics": _table(_FAST_HZ, 0)}


def _table(clock_hz: int, throttle_bits: int) -> bytes:
    """Return a table of the firmware: clocks and throttling; the driver leaves ones where it has nothing to say."""
    members, size = layout(_REVISION)
    table = bytearray(b"\xff" * size)
    table[:4] = size.to_bytes(2, "little") + bytes(_REVISION)
    for name, value in (
        ("average_clocks", clock_hz // 1_000_000),
        ("current_clocks", clock_hz // 1_000_000),
        ("indep_throttle_status", throttle_bits),
    ):
        member = members[name]
        table[member.offset : member.offset + member.bytes] = value.to_bytes(member.bytes, "little")
    return bytes(table)


def _overwrite(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)
