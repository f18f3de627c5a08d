"""What the words of a project's requirements stand for, and the identity of every file that they run and read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.arms import ResolvedArm
from engine.build import EngineBuild
from engine.identity import identify_file
from protocols.checks.requirements import ASSAY, Requirement, RequirementsCheck
from protocols.gate_schema import CheckGate
from protocols.lock import FileIdentity, LockedRequirement
from protocols.measurements import ARMS, Arm
from protocols.paths import is_file
from protocols.schema import Protocol

_SELF: Final = (sys.executable, "-P", "-c", "from harness.cli import main; main()")


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What the words of a requirement stand for, for one arm."""

    base: Path
    resolved: ResolvedArm
    build: EngineBuild | None
    model_path: Path

    @property
    def environment(self) -> dict[str, str]:
        """The arm's environment."""
        return dict(self.resolved.environment)

    def argv(self, requirement: Requirement) -> tuple[str, ...]:
        """Return the words with everything filled in; a program that is found as its path, another as it is written."""
        folder = self.build.folder if self.build else Path(self.resolved.argv[0]).parent
        values = {"{folder}": str(folder), "{model}": str(self.model_path), "{here}": str(self.base)}
        first, *words = requirement.run
        filled = []
        for word in (first, *words):
            for name, value in values.items():
                word = word.replace(name, value)
            filled.append(word)
        if first == ASSAY:
            return (*_SELF, *filled[1:])
        if "/" in filled[0]:
            return (str(self.base / filled[0]), *filled[1:])
        return (shutil.which(filled[0], path=self.environment.get("PATH")) or filled[0], *filled[1:])

    def unmet(self, requirement: Requirement) -> str | None:
        """Return why the program cannot be started on this host; None where it can."""
        program = Path(self.argv(requirement)[0])
        if not program.is_absolute():
            return f"there is no program {program} on this host"
        if not is_file(program):
            return f"there is no program {requirement.run[0]} here"
        return None

    def files(self, requirement: Requirement) -> Iterator[Path]:
        """Yield the program, every argument that is a file, and the files that are named; the model is locked apart."""
        argv = self.argv(requirement)
        for word in (argv[0], *argv[1:], *requirement.files):
            path = self.base / word
            if is_file(path) and path != self.model_path:
                yield path

    def identities(self, requirement: Requirement) -> tuple[FileIdentity, ...]:
        """Return the identity of each of these files, once. Raises EngineError where one cannot be read."""
        return tuple(identify_file(path).locked() for path in dict.fromkeys(self.files(requirement)))


def locked_requirements(protocol: Protocol, commands: Mapping[Arm, Commands]) -> tuple[LockedRequirement, ...]:
    """Return the identity of everything that the requirements run and read, for each arm that a gate asks.

    An arm without commands is one that we do not start, and is NOT_RUN.
    """
    judged = {(gate.check, gate.arm) for gate in protocol.gates if isinstance(gate, CheckGate)}
    return tuple(
        LockedRequirement(check=check.id, arm=arm, requirement=one.id, files=commands[arm].identities(one))
        for check in protocol.checks
        if isinstance(check, RequirementsCheck)
        for arm in ARMS
        if (check.id, arm) in judged and arm in commands
        for one in check.requirements
    )
