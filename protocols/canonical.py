"""Canonical JSON (RFC 8785), hashes, and the text forms of numbers: the only place that serialises for hashing.

Hashed JSON holds strings, booleans, null, integers of magnitude at most 2^53 - 1, arrays and objects with string keys.
Real numbers stand in it as text: decimals that a person wrote (`decimal_text`), or the shortest text that reads back as
the same float64 (`real_text`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias

import rfc8785

from protocols.errors import EvidenceError

MAX_INTEGER = 2**53 - 1
"""Largest magnitude that every JSON reader keeps exactly (RFC 7493, section 2.2)."""

MAX_DEPTH = 64
"""Deepest nesting that is written: deeper values are a mistake, and readers differ on how they fail there."""

JsonValue: TypeAlias = "str | int | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""What hashed JSON may hold."""

_REAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-][0-9]+)?")


def canonical_bytes(value: object) -> bytes:
    """Return the RFC 8785 bytes of `value`.

    Raises `EvidenceError`, with the path of the offending member, for floats, integers beyond 2^53 - 1, keys that are
    not strings, text that is not valid Unicode, other types, and nesting deeper than `MAX_DEPTH`.
    """
    return rfc8785.dumps(_plain(value, "$", 0))


def _plain(value: object, path: str, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise EvidenceError(f"the value is nested deeper than {MAX_DEPTH} levels", where=path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _plain_integer(value, path)
    if isinstance(value, str):
        return _plain_text(value, path)
    if isinstance(value, float):
        raise EvidenceError(f"the float {value!r} may not be hashed", where=path, hint="write it with real_text")
    if isinstance(value, Mapping):
        return {_plain_key(key, path): _plain(member, f"{path}.{key}", depth + 1) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_plain(member, f"{path}[{place}]", depth + 1) for place, member in enumerate(value)]
    raise EvidenceError(f"a value of type {type(value).__name__} has no canonical form", where=path)


def _plain_integer(value: int, path: str) -> int:
    if abs(value) > MAX_INTEGER:
        raise EvidenceError("an integer is beyond 2^53 - 1", where=path, hint="write it as a decimal string")
    return int(value)


def _plain_key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise EvidenceError(f"the key {key!r} is not a string", where=path)
    return _plain_text(key, path)


def _plain_text(text: str, path: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EvidenceError("the text holds a lone surrogate, which has no UTF-8 form", where=path) from error
    return str(text)


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def real_text(x: float) -> str:
    """Return the shortest text that reads back as exactly the float64 `x`; not-a-number and infinities are refused."""
    number = float(x)
    if not math.isfinite(number):
        raise EvidenceError(f"{number!r} is not a finite number", hint="record the absence and its reason instead")
    return repr(number)


def parse_real(text: str) -> float:
    """Return the float64 that `text` names. Only plain decimal and exponent forms, as `real_text` writes, are read."""
    if _REAL.fullmatch(text) is None:
        raise EvidenceError(f"{text!r} is not the text of a real number", hint="expected a form like 43.5 or 1e-05")
    number = float(text)
    if not math.isfinite(number):
        raise EvidenceError(f"{text!r} is beyond the range of a float64")
    return number


def decimal_text(value: Decimal) -> str:
    """Return `value` as plain digits without an exponent and without needless zeros, so that 10, 10.0 and 1E1 agree."""
    if not value.is_finite():
        raise EvidenceError(f"{value} is not a finite number")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text


def token_digest(ids: Sequence[int]) -> str:
    """Return the SHA-256 of a token id list in the form that earlier releases published.

    The hashed text is Python's `json.dumps` of the list with its default separators, in UTF-8, without a newline.
    """
    return sha256_hex(json.dumps([int(token) for token in ids]).encode("utf-8"))
