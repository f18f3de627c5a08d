"""Answers of a server as they came: the text of each HTTP body, one JSON object or server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocols.canonical import MAX_INTEGER
from protocols.checks.base import field
from protocols.errors import EvidenceError

OK = 200


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one request was answered. Counts are tokens, None where the answer does not state them."""

    name: str
    status: int
    content: str
    tokens: tuple[int, ...] | None
    cached: int | None
    evaluated: int | None
    drafted: int | None = None
    accepted: int | None = None
    problem: str | None = None
    """Why this is no whole answer, None where it is one."""


def read_answer(row: Mapping[str, Any]) -> Answer:
    """Read a recorded exchange, ``{"name","status","body"}``; what is no whole answer says why.

    EvidenceError where the row has another form.
    """
    name, status, body = field(row, "name", str), field(row, "status", int), field(row, "body", str)
    if status != OK:
        return _broken(name, status, f"status {status}: {' '.join(body.split())[:200]}")
    try:
        parts = _events(body) if body.startswith("data:") else [json.loads(body)]
        last = parts[-1]
        tokens = [_token(token) for part in parts for token in part.get("tokens") or []]
        timings = {**(last.get("timings") or {})}
        content = "".join(str(part.get("content", "")) for part in parts)
    except (ValueError, AttributeError, IndexError, TypeError, RecursionError) as error:
        return _broken(name, status, f"no answer that can be read: {error}")
    if len(parts) > 1 and last.get("stop") is not True:
        return _broken(name, status, "the stream has no end")
    return Answer(
        name=name,
        status=status,
        content=content,
        tokens=tuple(tokens) or None,
        cached=_count(timings.get("cache_n")),
        evaluated=_count(timings.get("prompt_n")),
        drafted=_count(timings.get("draft_n")),
        accepted=_count(timings.get("draft_n_accepted")),
    )


def read_answers(rows: list[dict[str, Any]]) -> dict[str, Answer]:
    """Return the answers by name. EvidenceError where a name stands twice."""
    answers = {answer.name: answer for answer in map(read_answer, rows)}
    if len(answers) < len(rows):
        raise EvidenceError("an exchange is recorded twice")
    return answers


def need_answer(answers: Mapping[str, Answer], name: str) -> Answer:
    """Return an answer. EvidenceError where it is not recorded."""
    if name not in answers:
        raise EvidenceError(f"the check left no exchange {name}")
    return answers[name]


def _broken(name: str, status: int, problem: str) -> Answer:
    return Answer(name=name, status=status, content="", tokens=None, cached=None, evaluated=None, problem=problem)


def _events(body: str) -> list[dict[str, Any]]:
    # A server-sent line ends with CR or LF alone; Python's splitlines ends it at U+2028 within a text, too.
    lines = (line.removeprefix("data:").strip() for line in re.split("[\r\n]", body) if line.startswith("data:"))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _token(value: object) -> int:
    if (token := _count(value)) is None:
        raise ValueError("a token id that is none")
    return token


def _count(value: object) -> int | None:
    # What no record can hold is no count: a hostile server must not keep its own verdict from being written.
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else None
