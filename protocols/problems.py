"""From pydantic's errors to problems with file, line and key, in words for the person who wrote the file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from protocols.errors import Problem
from protocols.findings import nearest
from protocols.schema import Protocol
from protocols.vocabulary import IDENTIFIER_PATTERN, Part
from protocols.yaml_tree import Mapping as MappingNode
from protocols.yaml_tree import Node, PathPart, Scalar, Sequenced, Tree, line_of, place

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """Where an error lies: the path in the file, the node there if there is one, and the models that may stand there.

    `known` are the keys that the mapping around it may have.
    """

    path: tuple[PathPart, ...]
    node: Node | None
    models: tuple[type[Part], ...]
    known: tuple[str, ...]
    description: str | None


def schema_problems(error: ValidationError, tree: Tree, root: type[Part] = Protocol) -> list[Problem]:
    """Turn every error of a validation into a problem of the file; values that were refused already are left out.

    `root` is the model that the whole file was to be.
    """
    problems: list[Problem] = []
    for details in error.errors(include_url=False):
        spot = _locate(tree.root, details["loc"], root)
        if any(spot.path[: len(refused)] == refused for refused in tree.refused):
            continue
        if details["type"] == "too_short" and _is_long_enough(spot.node, details.get("ctx", {})):
            continue  # items were refused above, so the list only looks short
        path, message, hint = _describe(details, spot)
        where = place(tree.source, line_of(tree.root, path), path)
        problem = Problem(where=where, message=message, hint=hint)
        if problem not in problems:
            problems.append(problem)
    return problems


def _is_long_enough(node: Node | None, context: Mapping[str, Any]) -> bool:
    return isinstance(node, Sequenced) and len(node.items) >= int(context.get("min_length", 1))


def _locate(root: Node, loc: Sequence[PathPart], model: type[Part]) -> _Spot:
    """Follow pydantic's location, which also names union members by `kind` or `do`, through the tree of the file."""
    path: tuple[PathPart, ...] = ()
    node: Node | None = root
    models: tuple[type[Part], ...] = (model,)
    description: str | None = None
    known: tuple[str, ...] = ()
    for part in loc:
        if len(models) > 1 and isinstance(part, str):
            models = tuple(model for model in models if _tag(model) == part) or models
            continue
        if part == "[key]":
            continue
        path = (*path, part)
        node = _child(node, part)
        if isinstance(part, str) and models:
            known = tuple(models[0].model_fields)
            model_field = models[0].model_fields.get(part)
            models = () if model_field is None else tuple(_models(model_field.annotation))
            description = None if model_field is None else model_field.description
    return _Spot(path=path, node=node, models=models, known=known, description=description)


def _tag(model: type[Part]) -> str | None:
    kind = model.model_fields.get("kind") or model.model_fields.get("do")
    return None if kind is None else str(get_args(kind.annotation)[0])


def _models(annotation: Any) -> list[type[Part]]:  # noqa: ANN401 - an annotation is any object
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _child(node: Node | None, part: PathPart) -> Node | None:
    if isinstance(node, MappingNode) and isinstance(part, str) and part in node.entries:
        return node.entries[part].node
    if isinstance(node, Sequenced) and isinstance(part, int) and part < len(node.items):
        return node.items[part]
    return None


def found_words(node: Node | None) -> str:
    """Return what stands at a node, in words."""
    if node is None:
        return "nothing"
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, Sequenced):
        return "a list" if node.items else "an empty list"
    return _scalar_words(node)


def _scalar_words(node: Scalar) -> str:
    value = node.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}..."
        return f"the text {shown!r}" if value else "an empty text"
    return f"the number {value}"


def _describe(details: ErrorDetails, spot: _Spot) -> tuple[tuple[PathPart, ...], str, str | None]:
    """Return path, message and hint of one error."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        meaning = "" if spot.description is None else f" ({spot.description.rstrip('.')})"
        return spot.path, f"the key is missing{meaning}", "add it"
    if kind == "extra_forbidden":
        return _describe_unknown_key(spot)
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        return _describe_kind(spot, str(context.get("discriminator", "kind")).strip("'"))
    found = found_words(spot.node)
    if kind == "literal_error":
        return _describe_choice(spot, found, str(context.get("expected", "")))
    return spot.path, f"found {found}, expected {_expected(kind, context, details['msg'])}", _hint(kind, spot.node)


def _describe_unknown_key(spot: _Spot) -> tuple[tuple[PathPart, ...], str, str | None]:
    near = nearest(str(spot.path[-1]), spot.known)
    hint = f"write {near}" if near else "remove it"
    return spot.path, f"found an unknown key, expected one of {', '.join(sorted(spot.known))}", hint


def _describe_kind(spot: _Spot, name: str) -> tuple[tuple[PathPart, ...], str, str | None]:
    tags = [tag for model in spot.models if (tag := _tag(model)) is not None]
    written = _child(spot.node, name)
    if written is None:
        if isinstance(spot.node, MappingNode):
            return (*spot.path, name), f"the key is missing, expected one of {', '.join(tags)}", "add it"
        return spot.path, f"found {found_words(spot.node)}, expected a mapping with the key {name}", None
    near = nearest(str(written.value), tags) if isinstance(written, Scalar) else None
    message = f"found {found_words(written)}, expected one of {', '.join(tags)}"
    return (*spot.path, name), message, None if near is None else f"write {near}"


def _describe_choice(spot: _Spot, found: str, expected: str) -> tuple[tuple[PathPart, ...], str, str | None]:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    written = spot.node.value if isinstance(spot.node, Scalar) else None
    near = nearest(written, choices) if isinstance(written, str) else None
    hint = f"write {near}" if near else (f"write {choices[0]}" if len(choices) == 1 else None)
    words = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    return spot.path, f"found {found}, expected {words}", hint


_PATTERN_WORDS = {
    IDENTIFIER_PATTERN: "lower-case words of letters and digits, joined by - _ or .",
    r"^[AC][1-9][0-9]{0,2}$": "a label such as A1 (baseline) or C1 (candidate)",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and underscores",
    r"^[a-z][a-z0-9]*(-[a-z0-9]+)*(=[0-9]{1,9})?$": "a fault such as slow-decode=30",
    r"^https?://[^\s@/]+(/[^\s]*)?$": "an http or https address without user name or password",
}

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "decimal_type": "a plain decimal such as 10 or 2.5",
    "is_instance_of": "a plain decimal such as 10 or 2.5",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text that is not empty",
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length} item",
    "string_unicode": "text that is valid Unicode",
}


def _expected(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        return _PATTERN_WORDS.get(pattern, f"a text of the form {pattern}")
    template = _EXPECTED.get(kind)
    if kind == "too_short" and context.get("min_length") != 1:
        template = "at least {min_length} items"
    if template is None:
        return message[:1].lower() + message[1:]
    return template.format_map(_Shown(context))


class _Shown(dict[str, Any]):
    """Context of an error; a name that is not in it stays visible instead of raising."""

    def __missing__(self, key: str) -> str:
        return f"({key})"


def _hint(kind: str, node: Node | None) -> str | None:
    value = node.value if isinstance(node, Scalar) else None
    if kind == "string_type" and value is not None:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f'write "{text}" in quotes'
    if kind in {"int_type", "decimal_type", "is_instance_of"} and isinstance(value, str):
        return "write the number without quotes" if value.isdigit() else "write digits only, without a unit"
    if kind == "bool_type" and isinstance(value, str) and value in {"true", "false"}:
        return f"write {value} without quotes"
    if kind == "tuple_type" and value is not None:
        return f"write [{_list_items(value)}]"
    return None


def _list_items(value: object) -> str:
    """Return one scalar as the items of a list: a text of several words is several items, as a shell would split it."""
    if not isinstance(value, str):
        return str(value)
    try:
        words = shlex.split(value)
    except ValueError:  # a quote that does not end
        words = value.split()
    if len(words) == 1 and re.fullmatch(IDENTIFIER_PATTERN, words[0]):
        return words[0]
    return ", ".join(json.dumps(word, ensure_ascii=False) for word in words)
