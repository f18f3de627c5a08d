"""A file tree that stands for a host, and a reader of it whose files can be made to fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recorder.telemetry.reader import FileReader


class FaultyReader(FileReader):
    """Reads a tree; ``faults`` maps a path to the error number or the bytes that reading it gives."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.faults: dict[str, int | bytes] = {}

    def read(self, path: str) -> bytes:
        return self._fault(path) or super().read(path)

    def read_once(self, path: str) -> bytes:
        return self._fault(path) or super().read_once(path)

    def _fault(self, path: str) -> bytes | None:
        fault = self.faults.get(path)
        if isinstance(fault, int):
            raise OSError(fault, os.strerror(fault), path)
        return fault


class Tree:
    """Writes files below a folder. Paths are those of the host."""

    ENOENT, EACCES, EIO, EOPNOTSUPP = errno.ENOENT, errno.EACCES, errno.EIO, errno.EOPNOTSUPP

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, files: dict[str, object]) -> None:
        for path, content in files.items():
            place = self.root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                place.write_bytes(content)
            else:
                place.write_text(f"{content}\n")

    def remove(self, path: str) -> None:
        (self.root / path.lstrip("/")).unlink()

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        (self.root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        place.symlink_to(self.root / target.lstrip("/"))

    def reader(self) -> FaultyReader:
        return FaultyReader(self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty host."""
    return Tree(tmp_path)


@pytest.fixture
def apu(tree: Tree) -> Tree:
    """An APU as amdgpu shows it (kernel 6.17, gfx1151), beside a display connector and another vendor's card."""
    tree.link("/sys/class/drm/card1", "/sys/devices/pci0000:00/card1")
    device = "/sys/devices/pci0000:00/0000:c5:00.0"
    tree.link("/sys/devices/pci0000:00/card1/device", device)
    tree.write(
        {
            f"{device}/vendor": "0x1002",
            f"{device}/device": "0x1586",
            f"{device}/revision": "0xc1",
            f"{device}/vbios_version": "113-STRXLGEN-001",
            f"{device}/unique_id": "0123456789abcdef",
            f"{device}/gpu_busy_percent": 97,
            f"{device}/mem_info_vram_total": 536870912,
            f"{device}/mem_info_vram_used": 169148416,
            f"{device}/mem_info_vis_vram_total": 536870912,
            f"{device}/mem_info_vis_vram_used": 169148416,
            f"{device}/mem_info_gtt_total": 128849018880,
            f"{device}/mem_info_gtt_used": 64424509440,
            f"{device}/power_dpm_force_performance_level": "auto",
            f"{device}/power/runtime_status": "active",
            f"{device}/gpu_metrics": b"\x08\x01\x03\x00" + bytes(260),
            f"{device}/hwmon/hwmon7/name": "amdgpu",
            f"{device}/hwmon/hwmon7/freq1_input": 2870000000,
            f"{device}/hwmon/hwmon7/freq1_label": "sclk",
            f"{device}/hwmon/hwmon7/power1_average": 106210000,
            f"{device}/hwmon/hwmon7/power1_input": 106220000,
            f"{device}/hwmon/hwmon7/temp1_input": 71000,
            f"{device}/hwmon/hwmon7/temp1_label": "edge",
            f"{device}/hwmon/hwmon7/in0_input": 0,
            f"{device}/hwmon/hwmon7/in0_label": "vddgfx",
            "/sys/class/drm/card1-DP-1/device/vendor": "0x1002",
            "/sys/class/drm/card0/device/vendor": "0x1a03",
            "/sys/module/amdgpu/version": "6.14.14",
            "/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 32\nsimd_count 0\ngfx_target_version 0",
            "/sys/class/kfd/kfd/topology/nodes/1/properties": (
                "cpu_cores_count 0\nsimd_count 80\ngfx_target_version 110501\ndomain 0\nlocation_id 50432\ndrm_render_minor 128"
            ),
        }
    )
    return tree
