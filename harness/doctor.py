"""What this machine can do and what it cannot, each line with the next command to type. Nothing is changed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from engine.build import EngineBuild, installed_build
from engine.models import MODELS, resolve_model
from engine.toolchain import find_toolchain
from engine.worker import EngineWorker
from harness.doctor_line import Line, State
from harness.host_guard import look_at_host
from harness.options import assay_version
from harness.preflight import Effect, Need, inspect_host
from harness.sensors import profiler_lines, requirement_lines, sensor_lines
from protocols.errors import AssayError
from protocols.schema import ModelReference, Protocol
from recorder.audit import audit_store
from recorder.key_ring import trusted_keys
from recorder.keys import key_home
from recorder.store import LEDGER
from recorder.telemetry.registry import select_providers

_STATES: Final[Mapping[Effect, State]] = {"record": "ok", "warn": "warn", "refuse": "missing"}


def examine(store: Path, protocol: Protocol | None = None) -> tuple[Line, ...]:
    """Look at everything that a campaign needs, and at what a protocol asks of this host's sensors and profilers."""
    return tuple(
        line
        for part in (
            _program(),
            _tools(),
            _engine(),
            _models(),
            _store(store),
            _keys(),
            _guard(),
            _host(store),
            _sensors(protocol),
            profiler_lines(),
        )
        for line in part
    )


def _program() -> Iterator[Line]:
    found = f"assay {assay_version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Line(topic="program", name="versions", state="ok", found=found)


def _tools() -> Iterator[Line]:
    try:
        tools = find_toolchain()
    except AssayError as error:
        yield Line(topic="engine", name="toolchain", state="missing", found=str(error), next=error.hint)
        return
    found = f"{tools.compiler_version}; cmake {tools.cmake_version}"
    yield Line(topic="engine", name="toolchain", state="ok", found=found)


def _engine() -> Iterator[Line]:
    try:
        build = installed_build()
    except AssayError as error:
        yield Line(
            topic="engine",
            name="installed build",
            state="warn",
            found=str(error),
            next="assay engine build (or pip install .)",
        )
        return
    yield Line(topic="engine", name="installed build", state="ok", found=f"{len(build.receipt['outputs'])} files")
    yield from _features(build)


def _features(build: EngineBuild) -> Iterator[Line]:
    try:
        with EngineWorker(build.library) as worker:
            info = worker.build_info()
    except AssayError as error:
        yield Line(topic="engine", name="library", state="missing", found=str(error), next="pip install . again")
        return
    features = [str(name) for name in info.get("cpu_features", [])]
    devices = ", ".join(str(one["name"]) for one in info.get("back_ends", []))
    yield Line(topic="engine", name="back ends", state="ok", found=f"{devices}; ggml {info.get('ggml_version')}")
    is_fast = "LLAMAFILE" in features
    yield Line(
        topic="engine",
        name="ggml features",
        state="ok" if is_fast else "warn",
        found=", ".join(features)
        + ("" if is_fast else "; a SLOW build: prefill runs at about half speed without LLAMAFILE"),
        next=None
        if is_fast
        else 'CMAKE_ARGS="-DGGML_LLAMAFILE=ON" pip install --no-cache-dir --force-reinstall ggml-python==0.0.45',
    )


def _models() -> Iterator[Line]:
    for name in sorted(MODELS):
        try:
            path = resolve_model(ModelReference(name=name), base=Path.cwd())
        except AssayError as error:
            yield Line(topic="model", name=name, state="missing", found=str(error), next=f"assay model fetch {name}")
            continue
        yield Line(topic="model", name=name, state="ok", found=f"{path.stat().st_size >> 20} MiB in the cache folder")


def _store(store: Path) -> Iterator[Line]:
    if not (store / LEDGER).is_file():
        yield Line(
            topic="store", name="evidence", state="ok", found=f"none at {store} yet", next="assay run served-pair"
        )
        return
    try:
        result = audit_store(store, level="structure")
    except AssayError as error:
        yield Line(topic="store", name="evidence", state="missing", found=str(error), next="assay audit")
        return
    partial = ", partial" if result.is_partial else ""
    state: State = "ok" if result.is_sound else "missing"
    sound = "sound" if result.is_sound else "NOT SOUND"
    found = f"{result.counts.get('campaigns', 0)} campaigns, {sound}{partial} by structure"
    yield Line(topic="store", name="evidence", state=state, found=found, next="assay audit")
    can_write = os.access(store, os.W_OK)
    yield Line(
        topic="store",
        name="permissions",
        state="ok" if can_write else "missing",
        found="writable" if can_write else "not writable for this user",
        next=None if can_write else f"chown or chmod {store}, or choose another with --store",
    )


def _keys() -> Iterator[Line]:
    try:
        keys = trusted_keys()
    except AssayError as error:
        yield Line(topic="keys", name="key ring", state="missing", found=str(error), next=error.hint)
        return
    found = f"{len(keys)} trusted keys in {key_home()}" if keys else "no key yet; the first campaign makes one"
    yield Line(topic="keys", name="key ring", state="ok", found=found, next=None if keys else "assay key make")


def _guard() -> Iterator[Line]:
    try:
        state = look_at_host()
    except AssayError as error:
        yield Line(topic="host", name="guard", state="missing", found=str(error), next=error.hint)
        return
    holder = state.holder
    campaign = holder.campaign if holder and holder.campaign else "a campaign that is just starting"
    if state.is_held:
        found = f"process {holder.pid} runs {campaign}" if holder else "a campaign is just starting"
        yield Line(topic="host", name="guard", state="warn", found=found, next="wait for it")
    elif holder:
        found = f"process {holder.pid} died while it ran {campaign}"
        yield Line(topic="host", name="guard", state="warn", found=found, next=f"assay resume --store {holder.store}")
    else:
        yield Line(topic="host", name="guard", state="ok", found="no campaign runs on this host")


def _host(store: Path) -> Iterator[Line]:
    place = store.absolute()
    while not place.is_dir():
        place = place.parent
    need = Need(threads=1, model_bytes=max(model.bytes for model in MODELS.values()), load_disk_bytes=1 << 28)
    for finding in inspect_host(need, place):
        state = _STATES[finding.effect]
        found = "not shown by this host" if finding.found is None else str(finding.found)
        yield Line(
            topic="host",
            name=finding.id,
            state=state,
            found=f"{found}: {finding.message}",
            next=None if state == "ok" else f"expected {finding.expected}",
        )


def _sensors(protocol: Protocol | None) -> Iterator[Line]:
    selection = select_providers(os.getpid())
    try:
        yield from sensor_lines(selection)
        if protocol is not None:
            yield from requirement_lines(protocol, selection)
    finally:
        selection.close()
