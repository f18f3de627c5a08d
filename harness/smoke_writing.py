"""Writes a smoke reference: the prompts of a protocol's workloads, asked of one of its arms on this host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from engine.arms import prepare_build
from engine.cache import cache_folder
from engine.models import MADE_MODELS, MODELS, resolve_model
from harness.references import check_references
from harness.smoke import Smoked, SmokeEngine, smoke, smoke_engine
from protocols.errors import ProtocolError
from protocols.load import LoadedProtocol, find_protocol, load_protocol
from protocols.measurements import Arm
from protocols.request_checks import askable_prompt, parse_body
from protocols.schema import LlamaServerEngine, OpenAIEngine, Protocol
from protocols.smoke import SmokeRun
from protocols.smoke_cases import ROUNDS, SmokePrompt, make_cases
from protocols.smoke_reference import SmokeReference, new_smoke_reference

Log = Callable[[str], None]


def make_reference(protocol: str, arm: Arm, *, log: Log) -> tuple[SmokeReference, Smoked]:
    """Start an arm of a protocol once, ask its prompts, and return the reference and what it rests on.

    Raises ProtocolError where the arm cannot be started by us or no workload has a prompt that can be asked again,
    EngineError where the engine does not start, dies, or answers one prompt in two ways.
    """
    loaded = load_protocol(find_protocol(protocol))
    base = loaded.path.parent
    check_references(loaded, base)
    _refuse_endpoint(loaded, arm)
    prompts = reference_prompts(loaded)
    engine = _engine(loaded, arm, base, log)
    log(f"asking {len(prompts)} prompts of the {arm}, {ROUNDS} times each")
    smoked = ask_for_reference(loaded.protocol, engine, prompts)
    return reference_of(loaded.protocol, arm, engine, prompts, smoked), smoked


def ask_for_reference(protocol: Protocol, engine: SmokeEngine, prompts: Sequence[SmokePrompt]) -> Smoked:
    """Start an engine once and ask what a reference needs: every prompt as often as it takes to see a contradiction."""
    limits = protocol.limits
    return smoke(engine, prompts, load_s=limits.load_s, request_s=limits.request_s, rounds=ROUNDS)


def reference_of(
    protocol: Protocol, arm: Arm, engine: SmokeEngine, prompts: Sequence[SmokePrompt], smoked: Smoked
) -> SmokeReference:
    """Return the reference that rests on what an engine showed. EngineError where nothing could be asked again."""
    cases = make_cases(prompts, smoked.sight.run or SmokeRun(start_problem="it was not started"))
    is_server = isinstance(protocol.arm(arm).engine, LlamaServerEngine)
    return new_smoke_reference(
        protocol=protocol.id,
        arm=arm,
        kind="llama-server" if is_server else "build",
        files=smoked.sight.files,
        arguments=engine.arguments,
        model=smoked.sight.model,
        settings=protocol.settings_of(arm),
        load_s=protocol.limits.load_s,
        request_s=protocol.limits.request_s,
        device=smoked.sight.device,
        cases=cases,
    )


def reference_prompts(loaded: LoadedProtocol, workloads: Sequence[str] = ()) -> tuple[SmokePrompt, ...]:
    """Return the prompt of every workload (or of the named ones) that has one as text or ids.

    Raises ProtocolError where none has.
    """
    found = []
    for workload in loaded.protocol.workloads:
        if workloads and workload.id not in workloads:
            continue
        prompt = askable_prompt(workload.route, parse_body(loaded.requests[workload.request]))
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        if prompt is not None:
            found.append(SmokePrompt(workload.id, text, ids, workload.generated_tokens, workload.prompt_tokens))
    if not found:
        raise ProtocolError(
            "no workload posts a text or token ids to /completion, so there is nothing to ask again",
            where=f"{loaded.path}: workloads",
            hint="name a protocol that has one, such as served-pair",
        )
    return tuple(found)


def known_model(sha256: str) -> str | None:
    """Return the name under which a model of this hash can be fetched or made; None where there is none."""
    known = [(name, model.sha256) for name, model in MODELS.items()]
    known += [(name, model.sha256) for name, model in MADE_MODELS.items()]
    return next((name for name, digest in known if digest == sha256), None)


def _refuse_endpoint(loaded: LoadedProtocol, arm: Arm) -> None:
    if isinstance(loaded.protocol.arm(arm).engine, OpenAIEngine):
        message = "an endpoint that Assay does not start has no files to identify on another host"
        raise ProtocolError(message, where=f"{loaded.path}: arms.{arm}.engine", hint="name the other arm with --arm")


def _engine(loaded: LoadedProtocol, name: Arm, base: Path, log: Log) -> SmokeEngine:
    protocol, cache = loaded.protocol, cache_folder()
    arm = protocol.arm(name)
    model = resolve_model(protocol.model, base=base, cache=cache)
    build = prepare_build(arm, name=name, base=base, cache=cache, log=log)
    settings, environment = protocol.settings_of(name), arm.environment
    if build is not None:
        log(f"the {name} is the build {build.folder} (`assay engine pack` takes it to another host)")
        return smoke_engine(build.folder, settings, model, build=build, environment=environment)
    assert isinstance(arm.engine, LlamaServerEngine)  # noqa: S101 - the only kind that is left
    path = (base / Path(arm.engine.path).expanduser()).absolute()
    return smoke_engine(path, settings, model, arguments=arm.engine.arguments, environment=environment)
