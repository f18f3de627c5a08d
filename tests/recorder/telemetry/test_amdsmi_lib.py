"""AMD's library: a real wrapper over a stub of the shared library, and a fake module for values."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recorder.telemetry.amdsmi_lib import AmdSmiProvider, amdsmi_handles, is_value, load_amdsmi
from recorder.telemetry.sample import ProbeReport

BDF = "0000:c5:00.0"


class LibraryError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class Kinds:
    GFX, MEM = "GFX", "MEM"
    EDGE, HOTSPOT, VRAM = "EDGE", "HOTSPOT", "VRAM"
    GTT = "GTT"
    CURRENT = 0


class FakeAmdSmi:
    """One MI300. ``answers`` replaces what a call gives; an exception there is raised."""

    AmdSmiClkType = AmdSmiTemperatureType = AmdSmiTemperatureMetric = AmdSmiMemoryType = Kinds

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.calls: list[str] = []

    def _give(self, name: str, value: object) -> object:
        self.calls.append(name)
        answer = self.answers.get(name, value)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def amdsmi_get_gpu_device_bdf(self, handle):
        return self._give("bdf", "0000:C5:00.0")

    def amdsmi_get_clock_info(self, handle, kind):
        return self._give(f"clock-{kind}", {"clk": {"GFX": 2100, "MEM": 1300}[kind]})

    def amdsmi_get_power_info(self, handle):
        return self._give(
            "power", {"socket_power": "N/A", "current_socket_power": 0xFFFFFFFF, "average_socket_power": 550}
        )

    def amdsmi_get_temp_metric(self, handle, sensor, metric):
        return self._give(f"temp-{sensor}", {"EDGE": 61, "HOTSPOT": 70, "VRAM": 66}[sensor])

    def amdsmi_get_gpu_activity(self, handle):
        return self._give("activity", {"gfx_activity": 97, "umc_activity": 41, "mm_activity": "N/A"})

    def amdsmi_get_gpu_memory_usage(self, handle, kind):
        return self._give(f"memory-{kind}", {"VRAM": 1 << 36, "GTT": 1 << 20}[kind])

    def amdsmi_get_energy_count(self, handle):
        return self._give("energy", {"energy_accumulator": 1 << 33, "counter_resolution": 15.25, "timestamp": 1})

    def amdsmi_get_violation_status(self, handle):
        names = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
        return self._give("violation", {f"acc_{name}": place for place, name in enumerate(names)})

    def amdsmi_get_gpu_asic_info(self, handle):
        return self._give("asic", {"market_name": "MI300X", "target_graphics_version": "gfx942", "asic_serial": "0xS"})

    def amdsmi_get_gpu_driver_info(self, handle):
        return self._give("driver", {"driver_name": "amdgpu", "driver_version": "N/A"})

    def amdsmi_get_lib_version(self):
        return self._give("version", {"major": 26, "minor": 0, "release": 2, "build": "x"})


ALL = {
    "gfx_clock_hz": 2_100_000_000,
    "mem_clock_hz": 1_300_000_000,
    "socket_power_uw": 550_000_000,
    "temp_edge_mc": 61_000,
    "temp_junction_mc": 70_000,
    "temp_mem_mc": 66_000,
    "gfx_busy_ppm": 970_000,
    "mem_busy_ppm": 410_000,
    "vram_used_bytes": 1 << 36,
    "gtt_used_bytes": 1 << 20,
    "socket_energy_uj": (1 << 33) * 61 // 4,
    "violation_prochot_thrm_raw": 0,
    "violation_ppt_pwr_raw": 1,
    "violation_socket_thrm_raw": 2,
    "violation_vr_thrm_raw": 3,
    "violation_hbm_thrm_raw": 4,
}
EXTRAS = {name: value for name, value in ALL.items() if name.startswith(("violation_", "socket_energy"))}


def probed(library: FakeAmdSmi, served: frozenset[str] = frozenset()) -> tuple[AmdSmiProvider, ProbeReport]:
    provider = AmdSmiProvider(library, "handle", served)
    return provider, provider.probe()


def values(readings) -> dict[str, int | None]:
    return {reading.field.name: reading.raw for reading in readings}


def test_every_call_is_read_in_its_unit() -> None:
    provider, report = probed(FakeAmdSmi())
    assert (report.state, report.refused) == ("present", {})
    assert values(provider.read(0)) == ALL
    assert {spec.instance for spec in provider.describe()} == {BDF}
    assert values(provider.read_edge()) == {"socket_energy_uj": ALL["socket_energy_uj"]}


def test_a_device_that_the_drivers_files_serve_gives_only_what_they_lack() -> None:
    provider, report = probed(FakeAmdSmi(), frozenset({BDF}))
    assert report.state == "partial"
    assert "read from the driver's files" in (report.reason or "")
    assert values(provider.read(0)) == EXTRAS


@pytest.mark.parametrize("value", ["N/A", None, True, 1.5, -1, 0xFFFF, 0xFFFFFFFF, 2**64 - 1, [1, "N/A"]])
def test_what_stands_for_no_value_never_becomes_a_number(value: object) -> None:
    assert not is_value(value)
    library = FakeAmdSmi()
    library.answers["temp-EDGE"] = value
    provider, report = probed(library)
    assert f"temp_edge_mc@{BDF}" in report.refused
    assert "temp_edge_mc" not in values(provider.read(0))


@pytest.mark.parametrize(
    "energy",
    [
        {"energy_accumulator": 2**64 - 1, "counter_resolution": 15.3},
        {"energy_accumulator": 5, "counter_resolution": 0.0},
        {"energy_accumulator": 5, "counter_resolution": float("nan")},
        {"energy_accumulator": 2**63, "counter_resolution": 15.3},
        {},
    ],
)
def test_an_energy_that_cannot_be_a_number_of_microjoules_is_none(energy: dict[str, object]) -> None:
    library = FakeAmdSmi()
    library.answers["energy"] = energy
    assert f"socket_energy_uj@{BDF}" in probed(library)[1].refused


@pytest.mark.parametrize(
    ("code", "status"), [(2, "unsupported"), (10, "denied"), (9, "error"), (8, "error"), (30, "error")]
)
def test_a_call_that_fails_during_the_load_is_missing_with_its_status(code: int, status: str) -> None:
    library = FakeAmdSmi()
    provider, _ = probed(library)
    library.answers["power"] = LibraryError(code)
    readings = {reading.field.name: reading for reading in provider.read(0)}
    assert (readings["socket_power_uw"].raw, readings["socket_power_uw"].status) == (None, status)
    assert readings["gfx_clock_hz"].raw == 2_100_000_000


def test_a_parameter_error_without_a_code_is_an_error_of_this_tick() -> None:
    library = FakeAmdSmi()
    provider, _ = probed(library)
    library.answers["power"] = LibraryError(None)
    assert {r.field.name: r.status for r in provider.read(0)}["socket_power_uw"] == "error"


def test_a_device_without_an_address_or_without_answers_is_absent() -> None:
    library = FakeAmdSmi()
    library.answers["bdf"] = LibraryError(31)
    assert probed(library)[1].reason == "no PCI address: LibraryError: code 31 [31]"
    library = FakeAmdSmi()
    library.answers = {name: LibraryError(2) for name in ("energy", "violation")}
    provider, report = probed(library, frozenset({BDF}))
    assert (report.state, provider.describe(), provider.identity()) == ("absent", (), ())


def test_the_identity_leaves_the_serial_number_out() -> None:
    (identity,) = probed(FakeAmdSmi())[0].identity()
    assert identity.identifier == BDF
    assert identity.facts["target_graphics_version"] == "gfx942"
    assert identity.facts["driver_version"] is None
    assert identity.facts["library_version"] == "26.0.2"
    assert "0xS" not in str(identity)


def test_an_error_and_an_empty_list_of_devices_are_the_same_absence(capfd) -> None:
    def noisy() -> list[object]:
        sys.stdout.write("noise")
        return []

    assert amdsmi_handles(SimpleNamespace(amdsmi_get_processor_handles=noisy)) == (
        (),
        "the library works and finds no device",
    )
    broken = SimpleNamespace(amdsmi_get_processor_handles=lambda: [][0])
    assert amdsmi_handles(broken) == ((), "IndexError: list index out of range")
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_a_reason(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    library, reason = load_amdsmi()
    assert library is None
    assert (reason or "").startswith("ModuleNotFoundError")


# --- the real wrapper over a stub of the shared library ------------------------------------------------------------
PROBE = (
    "from recorder.telemetry.amdsmi_lib import load_amdsmi, amdsmi_handles\n"
    "library, reason = load_amdsmi()\n"
    "print('REASON', reason if library is None else amdsmi_handles(library)[1])\n"
)


def wrapper_symbols() -> list[str]:
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        pytest.skip("NOT_RUN: the package amdsmi is not installed")
    text = (Path(spec.origin).parent / "amdsmi_wrapper.py").read_text()
    return sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", text)))


@pytest.fixture(scope="module")
def symbols() -> list[str]:
    found = wrapper_symbols()
    assert len(found) > 100
    return found


def build_stub(folder: Path, names: list[str]) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NOT_RUN: no C compiler")
    body = '#include <stdlib.h>\nstatic int code(void) { return atoi(getenv("STUB_CODE") ?: "0"); }\n'
    source = folder / "stub.c"
    source.write_text(body + "".join(f"int {name}(void) {{ return code(); }}\n" for name in names))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libamd_smi.so", source], check=True)


def say(folder: Path, code: int = 0) -> tuple[str, str]:
    """Load the wrapper in a process of its own; returns what it gave as the reason, and all else that it printed."""
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LD_LIBRARY_PATH": str(folder),
        "STUB_CODE": str(code),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    printed, _, reason = done.stdout.rpartition("REASON ")
    return reason.strip(), printed + done.stderr


def test_without_the_shared_library_the_reason_is_a_key_error_and_nothing_is_printed(tmp_path, symbols) -> None:
    reason, printed = say(tmp_path)
    assert reason.startswith("KeyError: 'libamd_smi.so' (")
    assert printed == ""


def test_a_shared_library_of_another_version_is_an_attribute_error(tmp_path, symbols) -> None:
    build_stub(tmp_path, symbols[:5])
    reason, printed = say(tmp_path)
    assert reason.startswith("AttributeError")
    assert "undefined symbol" in reason
    assert printed == ""


@pytest.mark.parametrize("code", [34, 18, 31, 10, 6, 4242])
def test_a_library_that_will_not_start_gives_its_code(tmp_path, symbols, code: int) -> None:
    build_stub(tmp_path, symbols)
    reason, printed = say(tmp_path, code)
    assert f"[{code}]" in reason
    assert printed == ""


def test_a_library_without_devices_says_so(tmp_path, symbols) -> None:
    build_stub(tmp_path, symbols)
    assert say(tmp_path) == ("the library works and finds no device", "")
