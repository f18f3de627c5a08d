"""Makes a smoke reference of the arm's build, packs the build, unpacks it elsewhere, and asks again there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from engine.build import EngineBuild
from engine.libraries import is_system
from harness.checks.context import CheckContext, Unmet
from harness.orphans import ending_children
from harness.smoke import Smoked, SmokeEngine, smoke, smoke_engine
from harness.smoke_writing import ask_for_reference, reference_of, reference_prompts
from harness.transfer import SUFFIX, Transfer, pack_build, unpack_build
from protocols.canonical import JsonValue
from protocols.checks.smoke import SmokeCheck
from protocols.errors import EngineError, EvidenceError, HostError, ProtocolError
from protocols.smoke_cases import SmokePrompt
from protocols.smoke_package import REFERENCE, seen_payload

_NOTHING_SAID: Final = "the engine was not started"


def run_smoke(context: CheckContext, check: SmokeCheck) -> dict[str, JsonValue]:
    """Return both starts with their exchanges, the package, and what the unpacked build ran and left.

    The outputs are the reference, as a file that `assay smoke --reference` takes, and the end of each log.
    """
    try:
        prompts = reference_prompts(context.prepared.loaded, check.workloads)
    except ProtocolError as error:
        raise Unmet(str(error)) from error
    engine = _engine(context, context.build)
    if set(engine.identity.locked()) != set(context.prepared.arms[context.arm].identity.files):
        raise EngineError("the build is no longer what is locked", hint="do not rebuild an engine during a campaign")
    with ending_children() as left:
        return _both(context, engine, prompts, left)


def _both(
    context: CheckContext, engine: SmokeEngine, prompts: Sequence[SmokePrompt], left: Callable[[], set[int]]
) -> dict[str, JsonValue]:
    """Ask the build where it lies, then out of its package. `left` returns the processes that live on after both."""
    smoked = ask_for_reference(context.prepared.protocol, engine, prompts)
    context.outputs["written.stderr"] = smoked.log
    facts: dict[str, JsonValue] = {
        "asked": [prompt.payload() for prompt in prompts],
        "written": _seen(smoked),
    }
    try:
        reference = reference_of(context.prepared.protocol, context.arm, engine, prompts, smoked)
    except EngineError as error:
        return facts | {"reference_problem": str(error)}
    context.outputs[REFERENCE] = reference.file_bytes()
    try:
        return facts | _elsewhere(context, prompts) | {"left_processes": len(left())}
    except EngineError as error:
        return facts | {"package_problem": str(error)}
    except EvidenceError as error:
        return facts | {"package_problem": str(error) if error.where is None else f"{Path(error.where).name}: {error}"}
    except HostError as error:
        raise Unmet(str(error)) from error


def _elsewhere(context: CheckContext, prompts: Sequence[SmokePrompt]) -> dict[str, JsonValue]:
    """Pack the build, unpack it into a new folder, and ask it there; the folder is removed."""
    limits = context.prepared.protocol.limits
    original = context.build.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="assay-package-") as place:
        folder = Path(place).resolve()
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise Unmet("programs must not run in the folder for temporary files: name another one in TMPDIR")
        unpacked, done = _unpacked(context.build, folder)
        engine = _engine(context, unpacked)
        smoked = smoke(engine, prompts, load_s=limits.load_s, request_s=limits.request_s)
    context.outputs["unpacked.stderr"] = smoked.log
    return {
        "package": {"archive_sha256": done.sha256, "files": done.files, "content_bytes": done.content_bytes},
        "unpacked": {
            **_seen(smoked),
            "mapped": _mapped(smoked, unpacked.folder, original),
            "from_original": [*_names_below(smoked.held, original)],
        },
        "is_folder_left": folder.exists(),
    }


def _unpacked(build: EngineBuild, folder: Path) -> tuple[EngineBuild, Transfer]:
    """Return the build from a new folder, and its package, which is removed again."""
    archive = folder / f"build{SUFFIX}"
    done = pack_build(build.folder, archive)
    try:
        return unpack_build(archive, folder / "unpacked")[0], done
    finally:
        archive.unlink()


def _engine(context: CheckContext, build: EngineBuild) -> SmokeEngine:
    protocol = context.prepared.protocol
    return smoke_engine(
        build.folder,
        protocol.settings_of(context.arm),
        context.prepared.model_path,
        build=build,
        environment=protocol.arm(context.arm).environment,
    )


def _seen(smoked: Smoked) -> dict[str, JsonValue]:
    if smoked.recorded is None:
        raise EngineError(_NOTHING_SAID)
    return seen_payload(smoked.sight, smoked.recorded)


def _mapped(smoked: Smoked, unpacked: Path, original: Path) -> list[JsonValue]:
    def place(path: Path) -> str:
        if path.is_relative_to(unpacked):
            return "package"
        if path.is_relative_to(original):
            return "original"
        return "host" if is_system(path) else "elsewhere"

    files = [(Path(one.name), one.sha256) for one in smoked.mapped]
    return [{"name": path.name, "sha256": sha256, "place": place(path)} for path, sha256 in files]


def _names_below(paths: frozenset[str], folder: Path) -> list[str]:
    return sorted(Path(path).relative_to(folder).as_posix() for path in paths if Path(path).is_relative_to(folder))
