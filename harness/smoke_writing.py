"""Writes a smoke reference: the prompts of a protocol's workloads, asked of one of its arms on this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.arms import prepare_build
from engine.cache import cache_folder
from engine.models import MADE_MODELS, MODELS, resolve_model
from harness.references import check_references
from harness.smoke import Smoked, SmokeEngine, SmokePrompt, smoke, smoke_engine
from protocols.errors import EngineError, ProtocolError
from protocols.load import LoadedProtocol, find_protocol, load_protocol
from protocols.measurements import Arm
from protocols.request_checks import parse_body
from protocols.schema import LlamaServerEngine, OpenAIEngine
from protocols.smoke import SmokeRun, first_difference
from protocols.smoke_reference import SmokeCase, SmokeReference

Log = Callable[[str], None]
_ROUNDS = 2
"""How often each prompt is asked: a reference of an engine that contradicts itself would fail everywhere."""


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
    limits = loaded.protocol.limits
    log(f"asking {len(prompts)} prompts of the {arm}, {_ROUNDS} times each")
    smoked = smoke(engine, prompts, load_s=limits.load_s, request_s=limits.request_s, rounds=_ROUNDS)
    is_server = isinstance(loaded.protocol.arm(arm).engine, LlamaServerEngine)
    run = _sound(smoked)
    return SmokeReference(
        assay_smoke=1,
        protocol=loaded.protocol.id,
        arm=arm,
        kind="llama-server" if is_server else "build",
        files=smoked.sight.files,
        arguments=engine.arguments,
        model=smoked.sight.model,
        settings=loaded.protocol.settings_of(arm),
        load_s=limits.load_s,
        request_s=limits.request_s,
        device=smoked.sight.device,
        cases=tuple(_case(loaded, prompt, run) for prompt in prompts),
    ), smoked


def reference_prompts(loaded: LoadedProtocol) -> tuple[SmokePrompt, ...]:
    """Return the prompt of every workload that has one as text or ids. ProtocolError where none has."""
    found = []
    for workload in loaded.protocol.workloads:
        prompt = parse_body(loaded.requests[workload.request]).get("prompt")
        if workload.route != "/completion":
            continue  # what a chat template or an OpenAI route makes of a body is no list of ids
        if isinstance(prompt, str):
            found.append(SmokePrompt(workload.id, prompt, None, workload.generated_tokens))
        elif isinstance(prompt, list) and all(type(one) is int for one in prompt):
            found.append(SmokePrompt(workload.id, None, tuple(prompt), workload.generated_tokens))
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
        return smoke_engine(build.folder, settings, model, build=build, environment=environment)
    assert isinstance(arm.engine, LlamaServerEngine)  # noqa: S101 - the only kind that is left
    path = (base / Path(arm.engine.path).expanduser()).absolute()
    return smoke_engine(path, settings, model, arguments=arm.engine.arguments, environment=environment)


def _sound(smoked: Smoked) -> SmokeRun:
    """Return the run where everything in it can be asked again. EngineError names the first thing that cannot."""
    run = smoked.sight.run or SmokeRun(start_problem="it was not started")
    problems = [run.start_problem, *run.mapping_problems, run.own_end and f"it ended by itself: {run.own_end}"]
    problems += [f"{name}: {one.problem}" for name, one in run.prompts.items() if one.problem]
    problems += [f"{name}: {one.problem}" for name, one in run.answers.items() if one.problem]
    problems += [f"{name}: no token ids came" for name, one in run.answers.items() if one.tokens is None]
    problems.append(run.stop_problem)
    for problem in filter(None, problems):
        raise EngineError(f"no reference can be made of this engine: {problem}")
    return run


def _case(loaded: LoadedProtocol, prompt: SmokePrompt, run: SmokeRun) -> SmokeCase:
    ids = prompt.ids if prompt.ids is not None else run.prompts[prompt.id].ids
    wanted = loaded.protocol.workload(prompt.id).prompt_tokens
    if len(ids) != wanted:
        message = f"{prompt.id}: the engine makes {len(ids)} tokens of the prompt, and the protocol states {wanted}"
        raise EngineError(f"no reference can be made of this engine: {message}")
    first = run.answers[prompt.id]
    tokens = first.tokens or ()
    if len(tokens) != prompt.n_tokens:
        message = f"{prompt.id}: the reply has {len(tokens)} tokens, and {prompt.n_tokens} were asked for"
        raise EngineError(f"no reference can be made of this engine: {message}")
    for number in range(2, _ROUNDS + 1):
        again = run.answers[f"{prompt.id}.{number}"]
        place = first_difference(tokens, again.tokens or ())
        if place is not None or (again.drafted, again.accepted) != (first.drafted, first.accepted):
            what = "other drafts" if place is None else f"another token at {place}"
            raise EngineError(
                f"no reference can be made of this engine: {prompt.id}: asked again, it gives {what}",
                hint="a check of kind determinism shows more",
            )
    has_drafts = first.drafted is not None and first.accepted is not None
    return SmokeCase(
        id=prompt.id,
        prompt=prompt.text,
        prompt_tokens=ids,
        reply_tokens=tokens,
        drafted_tokens=first.drafted if has_drafts else None,
        accepted_tokens=first.accepted if has_drafts else None,
    )
