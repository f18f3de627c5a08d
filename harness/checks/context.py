"""What a check is carried out on: the arm's own library in fresh workers, and its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from engine.build import EngineBuild
from engine.identity import mapped_files, mapping_problems
from engine.images import WITH_IMAGES, MadeUpImage, made_up_image
from engine.libraries import own_folders
from engine.worker import EngineWorker, Session
from harness.preparation import Prepared
from protocols.check_schema import Check
from protocols.checks.base import SessionCheck
from protocols.errors import EngineError
from protocols.measurements import Arm, Block

Blocks = dict[str, Block]
_RECURRENT: Final = frozenset({"qwen4exp"})


class Unmet(Exception):  # noqa: N818 - not an error of Assay: it becomes the state of an observation
    """The arm, the model or the host lacks what a check needs."""


class CheckContext:
    """One check of one arm: where its processes come from, and where its blocks go."""

    def __init__(self, prepared: Prepared, check: Check, arm: Arm) -> None:
        self.prepared = prepared
        self.check = check
        self.arm = arm
        self.blocks: Blocks = {}
        self.outputs: dict[str, bytes] = {}
        self.vocabulary = 0
        self.model: dict[str, Any] = {}

    @property
    def build(self) -> EngineBuild:
        """The arm's build. EngineError where it has none."""
        build = self.prepared.arms[self.arm].build
        if build is None:
            raise EngineError(f"the {self.arm} has no build")
        return build

    @property
    def other(self) -> Arm:
        """The other arm."""
        return "candidate" if self.arm == "baseline" else "baseline"

    @contextmanager
    def worker(self, arm: Arm | None = None) -> Iterator[EngineWorker]:
        """Start a worker over the library of an arm (the judged one by default), its model loaded.

        Raises EngineError where it maps other files than the lock names.
        """
        arm = self.arm if arm is None else arm
        build = self.prepared.arms[arm].build
        if build is None:
            raise EngineError(f"the {arm} has no library of its own to load")
        protocol = self.prepared.protocol
        settings, environment = protocol.settings_of(arm), protocol.arm(arm).environment
        with EngineWorker(build.library, timeout_s=protocol.limits.request_s, environment=environment) as worker:
            info = worker.load(self.prepared.model_path, use_mmap=settings.mmap, gpu_layers=settings.gpu_layers)
            self.vocabulary, self.model = int(info["n_vocab"]), info
            locked = self.prepared.arms[arm].identity.files
            problems = mapping_problems(locked, mapped_files(worker.pid), hosts=own_folders())
            if problems:
                raise EngineError("the worker does not run what is locked: " + "; ".join(problems))
            yield worker

    def open_session(
        self,
        worker: EngineWorker,
        check: SessionCheck,
        *,
        sequences: int,
        tokens: int,
        mode: str = "split",
        rollback_tokens: int = 0,
    ) -> dict[str, int]:
        """Open a session of `sequences`, each with room for `tokens`; returns the bytes of caches and buffers.

        Up to `rollback_tokens` of a batch can be taken back from a recurrent state. A model without one takes back any
        number, and its session refuses to be asked.
        """
        is_recurrent = str(self.model["architecture"]) in _RECURRENT
        return worker.open_session(
            Session(
                context_tokens=tokens * sequences if mode == "unified" else tokens,
                sequences=sequences,
                ubatch_tokens=check.ubatch_tokens,
                threads=self.prepared.protocol.settings_of(self.arm).threads,
                kv_type=check.kv_type,
                is_unified=mode == "unified",
                rollback_tokens=rollback_tokens if is_recurrent else 0,
            )
        )

    def made_up_image(self, side: int, *, seed: int) -> MadeUpImage:
        """Return an image for the model that a worker loaded. Raises Unmet where that model takes none."""
        architecture = str(self.model["architecture"])
        if architecture not in WITH_IMAGES:
            raise Unmet(f"a model of the architecture {architecture} takes no images")
        return made_up_image(side, int(self.model["n_embd"]), seed=seed)

    def program(self, name: str) -> Path:
        """Return a program of the arm's build. EngineError where the build has none of that name."""
        path = self.build.folder / name
        if not path.is_file():
            raise EngineError(f"the build has no {name}", where=str(self.build.folder), hint="build it again")
        return path
