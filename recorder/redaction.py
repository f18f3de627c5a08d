"""What a redacted bundle leaves out: rules over the role and the name of a blob, as ledger entries give them.

A rule is ``ROLE`` or ``ROLE:PATTERN``: ``log`` leaves out every engine log, ``text:argv.*`` the command lines. What was
promised (lock and protocol, which hold no free text) is never left out: without it nothing could be judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from protocols.canonical import JsonValue
from protocols.errors import ProtocolError
from recorder.ledger import Entry

ROLES: Final = (
    "attachment",
    "detail",
    "events",
    "exchange",
    "log",
    "orphan",
    "reason",
    "report",
    "request",
    "requests",
    "telemetry",
    "text",
)
KEPT: Final = frozenset({"lock", "protocol"})
_RULE: Final = re.compile(r"([a-z]+)(?::(.+))?")


class Rule(NamedTuple):
    """Blobs with this role whose name matches this shell pattern."""

    role: str
    pattern: str = "*"

    def matches(self, blob: Mapping[str, JsonValue]) -> bool:
        """Whether a blob, as an entry names it, falls under this rule."""
        return blob.get("role") == self.role and fnmatchcase(str(blob.get("name")), self.pattern)


def parse_rule(text: str) -> Rule:
    """Read ``ROLE`` or ``ROLE:PATTERN``. Raises `ProtocolError` for anything else."""
    match = _RULE.fullmatch(text)
    if match is None or match[1] not in ROLES:
        hint = f"write ROLE or ROLE:PATTERN with one of the roles {', '.join(ROLES)}"
        if match is not None and match[1] in KEPT:
            hint = "lock and protocol are what was promised, and are never left out"
        raise ProtocolError(f"{text!r} is no rule of redaction", where="--redact", hint=hint)
    return Rule(match[1], match[2] or "*")


def left_out(entries: Iterable[Entry], rules: Iterable[Rule], *, only_campaign: str | None = None) -> frozenset[str]:
    """Return the hash of each blob that a bundle leaves out.

    ``only_campaign`` also leaves out what was recorded of any other campaign; what it promised stays. A blob that two
    entries name is left out as soon as one of them makes it so.
    """
    chosen, found = tuple(rules), set()
    for entry in entries:
        is_other = only_campaign is not None and entry.payload.get("campaign") not in {None, only_campaign}
        for item in entry.blobs():
            if item.get("role") not in KEPT and (is_other or any(rule.matches(item) for rule in chosen)):
                found.add(str(item["sha256"]))
    return frozenset(found)
