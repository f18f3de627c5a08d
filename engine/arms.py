"""Turns an arm of a protocol into what is started: arguments, environment, and what it can do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from engine.build import BuildSpec, EngineBuild, build_engine, open_build
from engine.cache import Log
from engine.identity import BuildIdentity, identify_build, identify_executable, with_libraries
from engine.process import PORT_MARK, Address, Readiness
from protocols.errors import EngineError
from protocols.schema import Arm, BundledEngine, FolderEngine, LlamaServerEngine, OpenAIEngine, Settings

LOOPBACK: Final = "127.0.0.1"
# What reaches an engine from the runner's own environment. Device selection and OpenMP's placement change
# speed; they are passed, recorded and the same for both arms. LD_PRELOAD and LD_LIBRARY_PATH are not here:
# they would change what is mapped, and an arm that needs one says so itself.
PASSED_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "HIP_VISIBLE_DEVICES",
    "HOME",
    "HSA_OVERRIDE_GFX_VERSION",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "PATH",
    "ROCR_VISIBLE_DEVICES",
    "TMPDIR",
    "ZE_AFFINITY_MASK",
)
_LLAMA_BATCH_TOKENS: Final = 2048
_BUNDLED_CAPABILITIES: Final = frozenset(
    {"health", "props", "server_timings", "slots", "token_ids", "tokenize", "work_counters"}
)
_LLAMA_CAPABILITIES: Final = _BUNDLED_CAPABILITIES - {"work_counters"}


@dataclass(frozen=True, kw_only=True)
class ResolvedArm:
    """One arm, ready to start.

    `argv` holds `{port}` where a free port belongs; it is empty and `address` is set for an endpoint that Assay does
    not start. `environment` is the whole environment of the engine. `readiness` says how to learn that it is
    ready. `fresh` says whether each load is a new process of ours.
    """

    kind: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    capabilities: frozenset[str]
    fresh: bool
    readiness: Readiness | None = None
    address: Address | None = None
    route_prefix: str = ""
    model_name: str | None = None


def prepare_build(
    arm: Arm, *, name: str, base: Path, cache: Path | None = None, log: Log = lambda _: None
) -> EngineBuild | None:
    """Build or open what `arm` starts; None for an engine that is not a build of ours.

    `base` is the protocol's folder. Raises EngineError when it cannot be built or opened.
    """
    engine = arm.engine
    if isinstance(engine, BundledEngine):
        spec = BuildSpec(name=name, layout_salt=engine.layout_salt, faults=tuple(engine.faults), qsa_path=engine.path)
        return build_engine(spec, cache=cache, log=log)
    if isinstance(engine, FolderEngine):
        return open_build(_below(base, engine.path), name=name)
    return None


def resolve_arm(
    arm: Arm,
    settings: Settings,
    model_path: Path | None,
    build: EngineBuild | None,
    *,
    base: Path,
    environment: Mapping[str, str] | None = None,
) -> ResolvedArm:
    """Say how `arm` is started with `settings`; `environment` is the runner's (the process's own by default).

    Raises EngineError when the build or the model is missing, or the engine cannot do what the settings ask.
    """
    engine = arm.engine
    if isinstance(engine, OpenAIEngine):
        return _resolve_endpoint(engine)
    if model_path is None:
        raise EngineError(f"an arm of kind {engine.kind} needs a model file")
    ambient = os.environ if environment is None else environment
    whole = {name: ambient[name] for name in PASSED_VARIABLES if name in ambient}
    whole |= {"LC_ALL": "C.UTF-8"} | dict(arm.environment)
    if isinstance(engine, LlamaServerEngine):
        server = _below(base, engine.path)
        identify_executable(server)
        return ResolvedArm(
            kind=engine.kind,
            argv=(*_llama_arguments(server, settings, model_path), *engine.arguments),
            environment=whole,
            capabilities=_LLAMA_CAPABILITIES,
            fresh=True,
            readiness="health",
        )
    if build is None:
        raise EngineError(f"an arm of kind {engine.kind} needs a build", hint="prepare_build makes it")
    return ResolvedArm(
        kind=engine.kind,
        argv=_bundled_arguments(build.server, settings, model_path),
        environment=whole,
        capabilities=_BUNDLED_CAPABILITIES,
        fresh=True,
        readiness="line",
    )


def identify_arm(arm: Arm, build: EngineBuild | None, *, base: Path) -> BuildIdentity:
    """Identify every file of what `arm` starts; no files for an endpoint that Assay does not start.

    Raises EngineError when a file cannot be read.
    """
    if build is not None:
        return with_libraries(identify_build(build.folder), build.folder, arm.environment)
    if isinstance(arm.engine, LlamaServerEngine):
        return identify_executable(_below(base, arm.engine.path), arm.environment)
    return BuildIdentity(files=())


def _bundled_arguments(server: Path, settings: Settings, model_path: Path) -> tuple[str, ...]:
    arguments = [str(server), "--model", str(model_path), "--host", LOOPBACK, "--port", "0"]
    arguments += ["--ctx-size", str(settings.context_tokens)]
    arguments += _common_arguments(settings)
    arguments += ["--kv-type", settings.kv_type, "--log-format", "json"]
    arguments += ["--drafts", str(settings.drafts), "--draft-kv-type", settings.draft_kv_type]
    arguments += ["--draft-vocab", str(settings.draft_vocabulary_tokens)]
    arguments += ["--ple-cache-mib", str(settings.ple_cache_mib)]
    if settings.kv_mode == "unified":
        arguments.append("--kv-unified")
    return tuple(arguments)


def _llama_arguments(server: Path, settings: Settings, model_path: Path) -> tuple[str, ...]:
    # llama-server divides its context among the slots, ours is stated for one.
    context = settings.context_tokens * (settings.slots if settings.kv_mode == "split" else 1)
    arguments = [str(server), "--model", str(model_path), "--host", LOOPBACK, "--port", PORT_MARK]
    arguments += ["--ctx-size", str(context)]
    arguments += _common_arguments(settings)
    # A micro-batch is never larger than the batch.
    arguments += ["--batch-size", str(max(_LLAMA_BATCH_TOKENS, settings.ubatch_tokens))]
    arguments += ["--cache-type-k", settings.kv_type, "--cache-type-v", settings.kv_type]
    arguments.append("--kv-unified" if settings.kv_mode == "unified" else "--no-kv-unified")
    return tuple(arguments)


def _common_arguments(settings: Settings) -> list[str]:
    threads_batch = settings.threads if settings.threads_batch is None else settings.threads_batch
    arguments = ["--parallel", str(settings.slots), "--ubatch-size", str(settings.ubatch_tokens)]
    arguments += ["--threads", str(settings.threads), "--threads-batch", str(threads_batch)]
    arguments += ["--n-gpu-layers", str(settings.gpu_layers)]
    return arguments if settings.mmap else [*arguments, "--no-mmap"]


def _resolve_endpoint(engine: OpenAIEngine) -> ResolvedArm:
    parts = urlsplit(engine.url)
    if parts.scheme != "http" or parts.hostname is None:
        raise EngineError(
            f"an endpoint is reached over plain http, not {parts.scheme!r}",
            hint="put a TLS proxy of your own in front, and name its http address",
        )
    return ResolvedArm(
        kind=engine.kind,
        argv=(),
        environment={},
        capabilities=frozenset(),
        fresh=False,
        address=Address(parts.hostname, parts.port or 80),
        route_prefix=parts.path.rstrip("/"),
        model_name=engine.model,
    )


def _below(base: Path, path: str) -> Path:
    return (base / Path(path).expanduser()).absolute()
