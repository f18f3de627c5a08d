"""Keeps secrets out of evidence: what must not be kept is replaced before it is written.

Three kinds of places, three rules:

1. An HTTP request: values of secret headers become ``[redacted]``, and so do key parameters of its target.
2. Socket reads: values of secret response headers become ``*`` byte for byte. Lengths and times of the reads stay
   as they were, and nothing is held back. A header that is split over reads is followed across them.
3. Text (logs, notes, argv, environment, receipts): header lines, key flags, assignments to key variables, key
   members of JSON, bearer tokens, passwords in addresses, and tokens of well-known shapes become ``[redacted]``.

A request header's value, every value that the caller names, and any caught value that no word could be, is a *known*
secret from then on and is replaced wherever it turns up. Text that an engine writes itself (its log) lies unfiltered
in the spool until the load is sealed; only the filtered text becomes evidence, and the spool file is removed.
What no rule can know stays: a secret without a telling name, in a prompt or in a model's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

REDACTED: Final = b"[redacted]"
_LEAST_BYTES: Final = 6  # a shorter "secret" would blank out ordinary text
_LEAST_RANDOM_BYTES: Final = 12
_DIGITS: Final = frozenset(b"0123456789")

_SECRET_HEADER: Final = re.compile(
    rb"(?:.*-)?(?:authorization|cookie2?|api-?key|apikey|secret|password|(?:auth|security|access)-token)", re.IGNORECASE
)
_HEADER_NAMES: Final = rb"(?:proxy-)?authorization|(?:set-)?cookie2?|[a-z0-9-]*api-?key|x-(?:auth|amz-security)-token"
_FLAG: Final = rb"--?[A-Za-z0-9_-]*(?:api[-_]?key|token(?!s)|secret|passw(?:or)?d|credential)[A-Za-z0-9_-]*"
_VALUE_FLAG: Final = rb"(?!-D)" + _FLAG  # a compiler's definition (-DTOKEN_EVENT) takes no word behind it
_VARIABLE: Final = rb"[A-Z0-9_]*(?:API_?KEY|TOKEN(?!S)|SECRET|PASSW(?:OR)?D|CREDENTIAL|COOKIE)[A-Z0-9_]*"
_MEMBER: Final = (
    rb"api[-_]?key|apikey|(?:access|refresh|auth|hf)[-_]token|password|passwd|secret|client[-_]secret|"
    rb"(?:proxy-)?authorization|x-api-key|(?:set-)?cookie"
)
_SCHEME: Final = rb"(?:(?:bearer|basic|token)[ \t]+)?"
_RULES: Final = tuple(
    re.compile(pattern, flags)  # group 1 is what is replaced
    for pattern, flags in (
        # "Authorization": "Bearer x", also with escaped quotes inside a JSON string
        (rb"(?<![\w-])(?:" + _MEMBER + rb')\\?["\']\s*:\s*\\?["\']' + _SCHEME + rb'([^"\'\\]+)', re.IGNORECASE),
        (rb'["\']' + _VARIABLE + rb'["\']\s*[:,]\s*["\']([^"\'\\]+)', 0),
        (rb"(?<![\w-])(?:" + _HEADER_NAMES + rb")[ \t]*:[ \t]*" + _SCHEME + rb"([^\r\n\"',\x00]+)", re.IGNORECASE),
        (rb"(?<![\w-])" + _FLAG + rb"=[\"']?([^\s\"',\x00\]]+)", re.IGNORECASE),
        (rb"(?<![\w-])" + _VALUE_FLAG + rb"[\s\x00]+[\"']?([^\s\"',\x00\]]+)", re.IGNORECASE),
        (rb"(?<![\w-])" + _VALUE_FLAG + rb"[\"']\s*,\s*[\"']([^\"']+)", re.IGNORECASE),
        (rb"(?<![\w-])" + _VARIABLE + rb"\s*=\s*[\"']?([^\s\"',\x00\]]+)", 0),
        (rb"\bbearer[ \t]+([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE),
        (rb"[?&](?:api[-_]?key|key|access_token|token)=([^&\s\"'#]+)", re.IGNORECASE),
        (rb"://[^/\s:@\"']+:([^/\s@\"']+)@", 0),
        (rb"\b((?:sk-|hf_|ghp_|gho_|xox[bp]-)[A-Za-z0-9_-]{16,})", 0),
    )
)
_TARGET_KEY: Final = re.compile(rb"([?&](?:api[-_]?key|key|access_token|token)=)([^&\s#]+)", re.IGNORECASE)
_NAME: Final = re.compile(rb"(?:" + _VARIABLE + rb")|(?i:" + _MEMBER + rb")")
_WHOLE_FLAG: Final = re.compile(_VALUE_FLAG, re.IGNORECASE)
_SCHEME_PREFIX: Final = re.compile(rb"(?:bearer|basic|token)[ \t]+", re.IGNORECASE)


class SecretFilter:
    """Replaces secrets, and remembers those that it met."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._known: list[bytes] = []
        for value in values:
            self.learn(value.encode())

    def learn(self, value: bytes) -> None:
        """Take a value as a known secret. Very short ones and marks of this filter are not taken."""
        bare = _SCHEME_PREFIX.sub(b"", value.strip(), count=1)
        if len(bare) >= _LEAST_BYTES and REDACTED not in bare and set(bare) != {0x2A} and bare not in self._known:
            self._known.append(bare)
            self._known.sort(key=len, reverse=True)  # a secret that contains another goes first

    def request(self, data: bytes) -> bytes:
        """Return an HTTP request with the values of secret headers and key parameters replaced."""
        head, blank, body = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        for match in _TARGET_KEY.finditer(lines[0]):
            self.learn(match.group(2))
        lines[0] = _TARGET_KEY.sub(rb"\1" + REDACTED, lines[0])
        for place, line in enumerate(lines[1:], start=1):
            name, colon, value = line.partition(b":")
            if colon and _SECRET_HEADER.fullmatch(name.strip()):
                self.learn(value)
                lines[place] = name + b": " + REDACTED
        return self._without_known(b"\r\n".join(lines) + blank) + self.masked(body)

    def text(self, data: bytes) -> bytes:
        """Return text with every secret replaced."""
        for pattern in _RULES:
            data = pattern.sub(self._replace, data)
        return self._without_known(data)

    def value(self, value: object) -> object:
        """Return a JSON value with the secrets in its strings replaced; its form stays as it is."""
        if isinstance(value, str):
            return self.text(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        if isinstance(value, Mapping):
            return {key: self._member(str(key), member) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return self._items([*value])
        return value

    def _member(self, key: str, value: object) -> object:
        if isinstance(value, str) and (_NAME.fullmatch(key.encode()) or _SECRET_HEADER.fullmatch(key.encode())):
            self.learn(value.encode("utf-8", "surrogatepass"))
            return REDACTED.decode() if value else value
        return self.value(value)

    def _items(self, items: list[object]) -> list[object]:
        found: list[object] = []
        for place, item in enumerate(items):
            before = items[place - 1] if place else None
            if isinstance(item, str) and isinstance(before, str) and _WHOLE_FLAG.fullmatch(before.encode()):
                self.learn(item.encode("utf-8", "surrogatepass"))
                found.append(REDACTED.decode())
            else:
                found.append(self.value(item))
        return found

    def known(self, data: bytes) -> bytes:
        """Return data with every known secret replaced, and nothing else."""
        return self._without_known(data)

    def lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Filter text that comes in pieces, line by line, so that a log of any size needs little memory."""
        rest = b""
        for piece in pieces:
            *whole, rest = (rest + piece).split(b"\n")
            if whole:
                yield self.text(b"\n".join(whole) + b"\n")
        if rest:
            yield self.text(rest)

    def masked(self, data: bytes) -> bytes:
        """Return bytes with each known secret replaced by as many ``*``."""
        for value in self._known:
            if value in data:
                data = data.replace(value, b"*" * len(value))
        return data

    def reads(self) -> ReadFilter:
        """Return a filter for the socket reads of one exchange."""
        return ReadFilter(self)

    def _replace(self, match: re.Match[bytes]) -> bytes:
        value = match.group(1)
        if value.startswith(REDACTED) or value.strip(b"*") == b"":
            return match.group(0)
        if _looks_random(value):
            self.learn(value)
        start, stop = match.start(1) - match.start(0), match.end(1) - match.start(0)
        whole = match.group(0)
        return whole[:start] + REDACTED + whole[stop:]

    def _without_known(self, data: bytes) -> bytes:
        for value in self._known:
            if value in data:
                data = data.replace(value, REDACTED)
        return data


class ReadFilter:
    """Masks secret header values in the reads of one response, in order. The body passes, known secrets aside."""

    def __init__(self, secrets: SecretFilter) -> None:
        self._secrets = secrets
        self._is_body = False
        self._is_masking = False
        self._name: bytearray | None = bytearray()  # None once the colon of this line is passed
        self._value = bytearray()

    def read(self, data: bytes) -> bytes:
        """Return one read with its secrets masked; its length does not change."""
        if self._is_body:
            return self._secrets.masked(data)
        masked = bytearray(data)
        for place, byte in enumerate(data):
            if byte == 0x0A:
                if self._end_line():
                    return bytes(masked[: place + 1]) + self._secrets.masked(data[place + 1 :])
            elif self._is_masking:
                if byte not in b"\r \t":
                    masked[place] = 0x2A
                self._value.append(byte)
            elif self._name is None:
                continue
            elif byte == 0x3A:
                self._is_masking = _SECRET_HEADER.fullmatch(bytes(self._name).strip()) is not None
                self._name = None
            else:
                self._name.append(byte)
        return bytes(masked)

    def _end_line(self) -> bool:
        """Close a header line. Says whether it was the empty line behind the head."""
        if self._is_masking:
            self._learn_value()
        self._is_body = self._name is not None and not bytes(self._name).strip()
        self._is_masking, self._name = False, bytearray()
        self._value.clear()
        return self._is_body

    def _learn_value(self) -> None:
        value = bytes(self._value).strip()
        first = value.partition(b";")[0]
        bare = first.partition(b"=")[2] or first
        if _looks_random(bare):
            self._secrets.learn(bare)


def _looks_random(value: bytes) -> bool:
    """Whether a value is so unlike a word that it may be replaced wherever it turns up.

    ``authorization: required`` in a log must not blank out every later "required".
    """
    bare = _SCHEME_PREFIX.sub(b"", value.strip(), count=1)
    return len(bare) >= _LEAST_RANDOM_BYTES and any(mark in _DIGITS for mark in bare) and not bare.isdigit()
