"""The field reference of protocol files, written from the schema itself, so that it cannot disagree with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocols.schema import json_schema

BEGIN = "<!-- field reference: begin (written by protocols.reference, do not edit) -->"
END = "<!-- field reference: end -->"


def field_reference() -> str:
    """Return the reference as Markdown: one table for each part of a protocol file."""
    schema = json_schema()
    parts: list[tuple[str, dict[str, Any]]] = [("Protocol", schema), *schema["$defs"].items()]
    sections = [_section(name, part) for name, part in parts if "properties" in part]
    return "\n\n".join(sections)


def _section(name: str, part: dict[str, Any]) -> str:
    kind = part["properties"].get("kind", {}).get("const")
    title = f"### {_words(name)}" + (f" (`kind: {kind}`)" if kind else "")
    meaning = " ".join(str(part.get("description", "")).split())
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    required = set(part.get("required", ()))
    rows += [_row(key, value, is_required=key in required) for key, value in part["properties"].items()]
    return "\n".join([title, "", meaning, "", *rows])


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=AI)(?=[A-Z])", " ", name).replace("Open AI", "OpenAI").lower().capitalize()


def _row(key: str, value: dict[str, Any], *, is_required: bool) -> str:
    empty: object = {} if value.get("type") == "object" else None
    default = "needed" if is_required else f"`{_shown(value.get('default', empty))}`"
    meaning = " ".join(str(value.get("description", "")).split())
    return f"| `{key}` | {', '.join(dict.fromkeys(_types(value)))} | {default} | {meaning} |"


def _shown(default: object) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, dict):
        return "{}" if not default else "see there"
    return "[]" if default == [] else str(default)


def _types(value: dict[str, Any]) -> Iterator[str]:
    """Yield the kinds of value that a key takes, in words."""
    if "const" in value:
        yield f"`{value['const']}`"
    elif "enum" in value:
        yield " or ".join(f"`{choice}`" for choice in value["enum"])
    elif "$ref" in value:
        yield _words(str(value["$ref"]).rsplit("/", 1)[-1])
    elif "oneOf" in value or "anyOf" in value:
        for choice in value.get("oneOf", value.get("anyOf", ())):
            yield from _types(choice)
    elif value.get("type") == "array":
        yield f"list of {' or '.join(dict.fromkeys(_types(value.get('items', {}))))}"
    else:
        yield _simple_type(value)


def _simple_type(value: dict[str, Any]) -> str:
    names = {"string": "text", "integer": "whole number", "number": "decimal", "boolean": "true or false"}
    word = names.get(str(value.get("type")), {"object": "mapping", "null": "null"}.get(str(value.get("type")), "value"))
    if value.get("type") == "string" and str(value.get("pattern", "")).startswith("^-?"):
        return "decimal"
    low, high = value.get("minimum"), value.get("maximum")
    return word if low is None and high is None else f"{word}, {low} to {high}"


def rewritten(text: str) -> str:
    """Return a README's text with the reference between its two marks written anew. ValueError without the marks."""
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:start]}\n\n{field_reference()}\n\n{text[end:]}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(rewritten(file.read_text(encoding="utf-8")), encoding="utf-8")
