"""One event's data, read as the native or the OpenAI form, into a role, token ids and text.

The common case goes through a typed msgspec decode of the few members that matter for each token. All
else (final events, errors, counts, members of the wrong type, bytes that are not UTF-8, ``NaN``) goes
through the exact, tolerant path, so that one odd member never loses the ids that stand beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from recorder.exact_json import MAX_COUNT, count_of, parse_exact
from recorder.sse import is_done

# Roles are plain texts, compared by identity: an enum's hash would cost more than the rest of an event.
Role = Literal["token", "role", "progress", "final", "usage", "done", "error", "other", "unparsable", "unterminated"]
TOKEN: Final = "token"  # noqa: S105 (not a password)
"""Carries token ids, or text where the stream has no ids."""
ROLE: Final = "role"
"""Says who speaks, or carries nothing."""
PROGRESS: Final = "progress"
"""Reports prefill progress."""
FINAL: Final = "final"
"""Says that generation is over. It may carry the last tokens, too."""
USAGE: Final = "usage"
"""Carries counts only."""
DONE: Final = "done"
"""``[DONE]``."""
ERROR: Final = "error"
"""Carries an error, whatever the HTTP status was."""
OTHER: Final = "other"
"""JSON that is none of these."""
UNPARSABLE: Final = "unparsable"
"""Not JSON, or of the wrong shape. Kept and counted."""
UNTERMINATED: Final = "unterminated"
"""The stream ended before the event's blank line. Kept and counted; never a token."""


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """What one event says.

    ``running`` is the server's own count of tokens so far. ``document`` is the whole exact JSON, where
    counts may stand in it. ``faults`` are flag codes. ``error`` is the server's text.
    """

    role: Role
    ids: tuple[int, ...] = ()
    text: str = ""
    reasoning: str = ""
    running: int | None = None
    document: dict[str, Any] | None = None
    error: str | None = None
    faults: tuple[str, ...] = ()


class PlainRun(NamedTuple):
    """What events say that are plain token events, each: ids, text, and the server's own count."""

    ids: list[tuple[int, ...]]
    texts: list[str]
    running: list[int | None]


Decode = Callable[[bytes], Decoded]
DecodeRun = Callable[[Sequence[bytes]], PlainRun | None]

_UNPARSABLE: Final = Decoded(UNPARSABLE)


# What these decoders refuse goes the slow way. A member typed ``None`` or ``Literal[0]`` is one that a plain token
# event does not have, so that msgspec itself sorts such events out.
_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class _Native(msgspec.Struct, gc=False):
    content: str = ""
    tokens: tuple[_Id, ...] = ()
    stop: bool = False
    tokens_predicted: _Id | None = None
    index: Literal[0] = 0
    error: None = None
    prompt_progress: None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: None = None


class _Choice(msgspec.Struct, gc=False):
    index: Literal[0] = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: None = None
    token_ids: None = None
    tokens: None = None
    message: None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: tuple[_Choice]
    object: str = ""
    usage: None = None
    timings: None = None
    error: None = None
    tokens: None = None
    verbose: None = msgspec.field(default=None, name="__verbose")


_native = msgspec.json.Decoder(_Native).decode
_chunk = msgspec.json.Decoder(_Chunk).decode


def decode_native(data: bytes) -> Decoded:
    """Read one event of llama-server's own ``/completion`` route. Never raises."""
    try:
        event = _native(data)
    except (msgspec.MsgspecError, RecursionError):
        return _slow_native(data)
    ids, text, running = event.tokens, event.content, event.tokens_predicted
    if event.stop or not (text or (ids and running != 0)):
        return _slow_native(data)
    return Decoded(TOKEN, ids, text, "", running)


def decode_openai(data: bytes) -> Decoded:
    """Read one chunk of an OpenAI route, chat or completion. Never raises."""
    try:
        chunk = _chunk(data)
    except (msgspec.MsgspecError, RecursionError):
        return _slow_openai(data)
    (choice,) = chunk.choices
    text, reasoning, is_mixed = choice.text or "", "", False
    delta = choice.delta
    if delta is not None:
        is_mixed = bool(text)
        text, reasoning = delta.content or "", delta.reasoning_content or delta.reasoning or ""
    if is_mixed or not (text or reasoning) or chunk.object == "error":
        return _slow_openai(data)
    return Decoded(TOKEN, (), text, reasoning)


def decode_native_run(data: Sequence[bytes]) -> PlainRun | None:
    """Read several events of the native route at once; None if `decode_native` would go the slow way for any."""
    try:
        events = list(map(_native, data))
    except (msgspec.MsgspecError, RecursionError):
        return None
    run = PlainRun(
        [event.tokens for event in events],
        [event.content for event in events],
        [event.tokens_predicted for event in events],
    )
    if True in [event.stop for event in events]:
        return None
    # An event with neither ids nor text, or with ids before anything was generated, is none of a token.
    is_plain = all(run.texts) or all(text or (ids and running != 0) for ids, text, running in zip(*run, strict=True))
    return run if is_plain else None


def decode_openai_run(data: Sequence[bytes]) -> PlainRun | None:
    """Read several chunks of an OpenAI route at once; None if any of them is more than a piece of text."""
    try:
        chunks = list(map(_chunk, data))
    except (msgspec.MsgspecError, RecursionError):
        return None
    texts: list[str] = []
    for chunk in chunks:
        choice = chunk.choices[0]
        delta = choice.delta
        text = choice.text if delta is None else delta.content
        if not text or chunk.object == "error":
            return None
        if delta is not None and (choice.text or delta.reasoning_content or delta.reasoning):
            return None
        texts.append(text)
    return PlainRun([()] * len(texts), texts, [None] * len(texts))


def seen_as(decoded: Decoded, data: bytes, name: str, *, is_terminated: bool) -> Decoded:
    """Return what an event of a stream is: its data as decoded, then terminators, and errors by name. Never raises."""
    if not is_terminated:
        return Decoded(DONE if is_done(data) else UNTERMINATED)
    if decoded.role == UNPARSABLE and is_done(data):
        return Decoded(DONE)
    if name == "error" and decoded.role != ERROR:
        return Decoded(ERROR, error=_plain(data))
    return decoded


def error_text(value: object) -> str:
    """Return the message of an error member, of whatever form."""
    if isinstance(value, dict):
        message = value.get("message", value.get("detail"))
        return message if isinstance(message, str) else json.dumps(value, default=str)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _slow_native(data: bytes) -> Decoded:
    document = _object(data)
    if document is None:
        return _UNPARSABLE
    if document.get("error") is not None:
        return Decoded(ERROR, document=document, error=error_text(document["error"]))
    if not _is_first(document):
        return Decoded(OTHER, faults=("several_choices",))
    ids, faults = _ids(document.get("tokens"))
    text, text_faults = _text(document.get("content"))
    running = count_of(document.get("tokens_predicted")).value
    faults += text_faults
    if document.get("stop") is True:
        return Decoded(FINAL, ids, text, "", running, document, None, faults)
    if not text and not running and ("prompt_progress" in document or (ids and running == 0)):
        # A progress report of llama-server carries ``"tokens":[0]`` before anything was generated.
        return Decoded(PROGRESS)
    if not ids and not text:
        has_shape = "content" in document or "tokens" in document
        return Decoded(ROLE if has_shape else OTHER, faults=faults)
    return Decoded(TOKEN, ids, text, "", running, None, None, faults)


def _slow_openai(data: bytes) -> Decoded:
    document = _object(data)
    if document is None:
        return _UNPARSABLE
    if document.get("error") is not None:
        return Decoded(ERROR, document=document, error=error_text(document["error"]))
    if document.get("object") == "error":
        return Decoded(ERROR, document=document, error=error_text(document))
    choices = document.get("choices")
    if not choices and "prompt_progress" in document:
        return Decoded(PROGRESS)
    if not isinstance(choices, list) or not choices:
        has_counts = document.get("usage") is not None or document.get("timings") is not None
        return Decoded(USAGE if has_counts else OTHER, document=document)
    several: tuple[str, ...] = ("several_choices",) if len(choices) > 1 else ()
    choice = next((one for one in choices if isinstance(one, dict) and _is_first(one)), None)
    if choice is None:
        return Decoded(OTHER, faults=("several_choices",))
    ids, faults = _choice_ids(document, choice)
    text, reasoning, text_faults = _choice_text(choice)
    faults = several + faults + text_faults
    if choice.get("finish_reason") is not None:
        return Decoded(FINAL, ids, text, reasoning, None, document, None, faults)
    role: Role = TOKEN if ids or text or reasoning else ROLE
    return Decoded(role, ids, text, reasoning, None, document, None, faults)


def _is_first(choice: dict[str, Any]) -> bool:
    index = choice.get("index")
    return index is None or (index == 0 and not isinstance(index, bool))


def _choice_ids(document: dict[str, Any], choice: dict[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    verbose = document.get("__verbose")
    places = [choice.get("token_ids"), choice.get("tokens"), document.get("tokens")]
    if isinstance(verbose, dict):
        places.append(verbose.get("tokens"))
    return _ids(next((place for place in places if place), None))


def _choice_text(choice: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    holder = choice.get("delta") or choice.get("message") or {}
    if not isinstance(holder, dict):
        return "", "", ("wrong_type",)
    text, faults = _text(holder.get("content", choice.get("text")))
    reasoning, more = _text(holder.get("reasoning_content") or holder.get("reasoning"))
    calls = holder.get("tool_calls")
    if isinstance(calls, list):
        # The arguments of a tool call are generated tokens like any other.
        reasoning += "".join(json.dumps(call.get("function"), default=str) for call in calls if isinstance(call, dict))
    return text, reasoning, faults + more


def _ids(value: object) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ids of a member. Ids that are no ids are left out and named as a fault."""
    if value is None:
        return (), ()
    if not isinstance(value, list):
        return (), ("wrong_type",)
    numbers = [count_of(one).value for one in value]
    ids = tuple(number for number in numbers if number is not None)
    return ids, (() if len(ids) == len(value) else ("id_out_of_range",))


def _text(value: object) -> tuple[str, tuple[str, ...]]:
    if value is None:
        return "", ()
    if not isinstance(value, str):
        return "", ("wrong_type",)
    has_raw_bytes = any("\ud800" <= character <= "\udfff" for character in value)
    return value, (("invalid_utf8",) if has_raw_bytes else ())


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = parse_exact(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _plain(data: bytes) -> str:
    document = _object(data)
    if document is None:
        return data.decode("utf-8", "replace")
    return error_text(document.get("error") or document)
