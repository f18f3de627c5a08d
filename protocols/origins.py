"""Whose token ids a frozen request holds: ids are those of one tokenizer, and another model reads another text in them.

`assay protocol prompt` writes the model beside the request, in `NAME.origin.json`; a request without that file, or that
was changed since, says nothing. The body itself is sent byte for byte, so nothing is added to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from protocols.canonical import sha256_hex
from protocols.findings import Finding
from protocols.request_checks import parse_body
from protocols.schema import ModelReference, Protocol
from protocols.yaml_tree import PathPart

BUNDLED_MODEL: Final = "smollm2"
"""The model whose tokenizer counted the bundled requests."""
SUFFIX: Final = ".origin.json"
MAX_BYTES: Final = 4096
_ONE_TOKENIZER: Final = frozenset({"smollm2", "qwen4exp-recall"})
"""Models that turn a text into the same ids."""


def origin_bytes(body: bytes, model: str) -> bytes:
    """Return the file beside a request that says for which model (a known name, or a file's name) it was frozen."""
    value = {"request_sha256": sha256_hex(body), "model": model}
    return json.dumps(value, indent=2).encode("ascii") + b"\n"


def parse_origin(content: bytes, body: bytes) -> str | None:
    """Return the model that a file beside a request names; None where the file is another's or says nothing."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("request_sha256") != sha256_hex(body):
        return None
    return value["model"] if isinstance(value.get("model"), str) else None


def holds_ids(body: bytes) -> bool:
    """Whether the prompt of a body is token ids and no text."""
    try:
        prompt = parse_body(body).get("prompt")
    except ValueError:
        return False
    return isinstance(prompt, list) and all(type(item) is int for item in prompt)


def check_origins(
    protocol: Protocol, named: Iterable[tuple[tuple[PathPart, ...], str]], origins: Mapping[str, str]
) -> Iterator[Finding]:
    """Warn where a request was frozen for another model; `named` are the keys that name requests, with the names."""
    ours = model_name(protocol.model)
    prompt = f"assay protocol prompt --model {protocol.model.name or protocol.model.path}"
    for path, reference in named:
        frozen_for = origins.get(reference)
        if frozen_for is None or frozen_for == ours or {frozen_for, ours} <= _ONE_TOKENIZER:
            continue
        yield Finding(
            path=path,
            message=f"the token ids of {reference} were frozen for {frozen_for}, and the model here is {ours}: with "
            "another tokenizer they are another text, or no ids at all",
            hint=f"freeze them for your model: {prompt}",
            is_warning=True,
        )


def model_name(model: ModelReference) -> str:
    """Return the name of a known model, or that of the file without its folders."""
    return model.name or str(model.path).rpartition("/")[2]
