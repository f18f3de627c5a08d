"""Checks of request bodies against what the protocol states about them: lengths, streaming, token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from protocols.checks.smoke import SmokeCheck
from protocols.findings import Finding
from protocols.gate_schema import ColdCacheGate, ExactTokensGate
from protocols.measurements import ARMS
from protocols.schema import OpenAIEngine, Protocol, Workload
from protocols.yaml_tree import PathPart

MAX_BODY_BYTES = 32_000_000

Path = tuple[PathPart, ...]


def check_requests(
    protocol: Protocol, requests: Mapping[str, bytes], *, bundled: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Yield every finding about the bodies; `requests` maps the names that the protocol uses to the bytes.

    A body whose name is among the `bundled` ones does not lie beside the protocol and cannot be edited there.
    """
    for index, workload in enumerate(protocol.workloads):
        path: Path = ("workloads", index)
        named: list[tuple[str, Path, Workload | None]] = [(workload.request, (*path, "request"), workload)]
        if workload.warmup is not None:
            named.insert(0, (workload.warmup.request, (*path, "warmup", "request"), None))
        for name, place, judged in named:
            if name in requests:
                findings = [
                    *_check_body(requests[name], name, place, judged, protocol),
                    *_check_named_model(requests[name], name, place, protocol),
                ]
                hint = _own_request(protocol, workload)
                yield from (_without_edit(one, hint) for one in findings) if name in bundled else findings
    yield from _check_smokes(protocol, requests)


def _check_smokes(protocol: Protocol, requests: Mapping[str, bytes]) -> Iterator[Finding]:
    """Find smokes that name a workload whose prompt is no text and no list of ids, or that have none at all."""
    askable: dict[str, bool] = {}
    for workload in protocol.workloads:
        with suppress(ValueError):  # a body that cannot be read has a finding of its own
            body = parse_body(requests.get(workload.request, b""))
            askable[workload.id] = askable_prompt(workload.route, body) is not None
    for index, check in enumerate(protocol.checks):
        if not isinstance(check, SmokeCheck):
            continue
        for number, name in enumerate(check.workloads):
            if askable.get(name) is False:
                message = f"found {name}, which posts neither a text nor a list of ids to /completion"
                path: Path = ("checks", index, "workloads", number)
                yield Finding(path=path, message=message, hint="name another workload")
        if not check.workloads and askable and not any(askable.values()):
            message = "found no workload that posts a text or token ids to /completion, so there is nothing to ask"
            yield Finding(path=("checks", index), message=message, hint="remove the check")


def _without_edit(finding: Finding, hint: str) -> Finding:
    """Replace a hint that says to write something in the body."""
    return replace(finding, hint=hint) if finding.hint is not None and finding.hint.endswith(" in it") else finding


def _own_request(protocol: Protocol, workload: Workload) -> str:
    """Say how to get a request in place of a bundled one."""
    if workload.route != "/completion":
        return "it is bundled: name a request file of your own beside the protocol"
    prompt, generated = workload.prompt_tokens, workload.generated_tokens
    return (
        f"it is bundled; make your own: assay protocol prompt --model {protocol.model.name or protocol.model.path} "
        f"--tokens {prompt} --generated-tokens {generated} --out requests/prompt-{prompt}-{generated}.json"
    )


def askable_prompt(route: str, body: Mapping[str, Any]) -> str | tuple[int, ...] | None:
    """Return the prompt of a request that can be asked again by its ids, as text or ids; None where it is neither.

    What a chat template or an OpenAI route makes of a body is no list of ids.
    """
    prompt = body.get("prompt") if route == "/completion" else None
    if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        return tuple(prompt)
    return prompt if isinstance(prompt, str) else None


def parse_body(body: bytes) -> dict[str, Any]:
    """Read a request body. ValueError where it is no JSON object, repeats a key, or holds NaN or Infinity."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the value is wrong, not the caller's type
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_body(
    body: bytes, reference: str, path: Path, workload: Workload | None, protocol: Protocol
) -> Iterator[Finding]:
    if len(body) > MAX_BODY_BYTES:
        yield Finding(path=path, message=f"{reference} has {len(body)} bytes, expected at most {MAX_BODY_BYTES}")
        return
    try:
        members = parse_body(body)
    except ValueError as error:
        yield Finding(path=path, message=f"{reference} is not readable: {error}", hint="write one JSON object")
        return
    if members.get("stream") is not True:
        message = f"{reference} does not ask for a stream, without which no time can be taken"
        yield Finding(path=path, message=message, hint='write "stream": true in it')
    if workload is not None:
        yield from _check_lengths(members, reference, path, workload)
        yield from _check_output(members, reference, path, workload, protocol)


def _check_named_model(body: bytes, reference: str, path: Path, protocol: Protocol) -> Iterator[Finding]:
    """Refuse a body that names another model than an endpoint's: a frozen request is sent to both arms as it is."""
    try:
        named = parse_body(body).get("model")
    except ValueError:
        return  # refused already
    names = {name: engine.model for name in ARMS if isinstance(engine := protocol.arm(name).engine, OpenAIEngine)}
    if len(set(names.values())) > 1:
        return  # no body can name both: refused at the arms
    for arm, model in names.items():
        if named != model:
            found = "no model" if named is None else f"the model {named!r}"
            message = f"{reference} names {found}, and the {arm} is asked for {model!r}; it is sent as it is"
            yield Finding(path=path, message=message, hint=f'write "model": {json.dumps(model)} into it')
            return


def _check_lengths(members: Mapping[str, Any], reference: str, path: Path, workload: Workload) -> Iterator[Finding]:
    keys = ("n_predict",) if workload.route == "/completion" else ("max_tokens", "max_completion_tokens", "n_predict")
    stated = [members[key] for key in keys if key in members]
    if stated[:1] != [workload.generated_tokens]:
        found = f"{stated[0]!r}" if stated else "nothing"
        message = f"{reference} has {found} for {keys[0]}, and generated_tokens is {workload.generated_tokens}"
        yield Finding(path=path, message=message, hint=f'write "{keys[0]}": {workload.generated_tokens} in it')
    prompt = members.get("prompt")
    are_ids = isinstance(prompt, list) and all(type(item) is int for item in prompt)
    if isinstance(prompt, list) and are_ids and len(prompt) != workload.prompt_tokens:
        message = f"{reference} has a prompt of {len(prompt)} ids, and prompt_tokens is {workload.prompt_tokens}"
        yield Finding(path=path, message=message, hint=f"write prompt_tokens: {len(prompt)}")


def _check_output(
    members: Mapping[str, Any], reference: str, path: Path, workload: Workload, protocol: Protocol
) -> Iterator[Finding]:
    gates = [gate for gate in protocol.gates if getattr(gate, "workload", None) == workload.id]
    if any(isinstance(gate, ExactTokensGate) for gate in gates):
        if workload.route == "/completion" and members.get("return_tokens") is not True:
            message = f"{reference} does not ask for token ids, which an exact_tokens gate compares"
            yield Finding(path=path, message=message, hint='write "return_tokens": true in it')
        if members.get("temperature") != 0:
            message = f"{reference} does not set temperature to 0: equal token ids then depend on equal random numbers"
            yield Finding(path=path, message=message, hint='write "temperature": 0 in it', is_warning=True)
    if members.get("ignore_eos") is not True:
        message = f"{reference} does not set ignore_eos: an early end fails the stated number of generated tokens"
        yield Finding(path=path, message=message, hint='write "ignore_eos": true in it', is_warning=True)
    if members.get("cache_prompt") is False:
        return
    cold = [gate.cached_tokens for gate in gates if isinstance(gate, ColdCacheGate)]
    if 0 in cold:
        message = f"{reference} allows cached prompts, and a cold_cache gate states none"
        yield Finding(path=path, message=message, hint='write "cache_prompt": false in it', is_warning=True)
    elif not cold:
        judges = [gate.id for gate in gates if getattr(gate, "metric", None) == "prefill_rate"]
        what = f"gate {judges[0]} judges" if judges else "the report shows"
        message = f"{reference} allows cached prompts: the prefill rate that {what} may be that of a few tokens"
        hint = 'write "cache_prompt": false in it, or add a gate of kind cold_cache'
        yield Finding(path=path, message=message, hint=hint, is_warning=True)
