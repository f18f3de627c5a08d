"""What `assay protocol prompt` and `assay protocol new` do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from engine.worker import EngineWorker
from harness.engines import find_build, find_model
from harness.result_files import check_file, write_result
from protocols.errors import ProtocolError
from protocols.load import library_protocol, load_protocol
from protocols.origins import SUFFIX, origin_bytes
from protocols.prompt import freeze_prompt

Log = Callable[[str], None]


def write_prompt(
    *, tokens: int, seed: int, generated_tokens: int, model: str, build: Path | None, out: Path, log: Log
) -> bytes:
    """Freeze a cold prompt of exactly `tokens` ids of a model's tokenizer as a request body; return the body.

    A file beside it says for which model.

    Raises ProtocolError where the file exists: a frozen request is never overwritten.
    """
    check_file(out, makes_folders=True)
    if out.exists():
        raise ProtocolError(
            "the file exists already", where=str(out), hint="frozen requests are not overwritten: name a new file"
        )
    with EngineWorker(find_build(build, log).library) as worker:
        worker.load(find_model(model))
        body = freeze_prompt(
            lambda text: worker.tokenize(text, add_special=False, parse_special=False),
            tokens,
            seed,
            generated_tokens=generated_tokens,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_result(out, body, is_new=True)
    write_result(out.with_name(out.name + SUFFIX), origin_bytes(body, Path(model).name))
    return body


def write_protocol(*, template: str, out: Path) -> str:
    """Copy a bundled protocol, comments included, under the id that the file's name gives; return the id.

    Raises ProtocolError where the file exists or its name gives no id.
    """
    identifier = re.sub(r"[^a-z0-9._-]+", "-", out.stem.lower()).strip("-._")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*", identifier):
        raise ProtocolError(
            f"{out.stem!r} gives no protocol id", where=str(out), hint="name the file like my-pair.yaml"
        )
    check_file(out, option="OUT", makes_folders=True)
    if out.exists():
        raise ProtocolError("the file exists already", where=str(out), hint="name a new file")
    text = library_protocol(template).read_text(encoding="utf-8")
    named = re.sub(rf"(?m)^id: {re.escape(template)}$", f"id: {identifier}", text)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_result(out, named, is_new=True)
    load_protocol(out)
    return identifier
