"""What speed gates say about rules about the host: blocks that were left out, and rules that nobody could check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols.canonical import JsonValue
from protocols.gate_view import View
from protocols.results import some_of
from protocols.validity import READING_WORDS


def validity_payload(view: View) -> dict[str, JsonValue]:
    """Return the invalid blocks and the unchecked readings as canonical JSON; empty for a protocol without rules."""
    if not view.protocol.validity:
        return {}
    return {
        "invalid_blocks": [{"block": block, "broken": list(reasons)} for block, reasons in view.invalid_blocks.items()],
        "unchecked_readings": list(view.unchecked),
        "unchecked_loads": {reading: list(labels) for reading, labels in view.unchecked.items()},
    }


def unchecked_sentence(view: View) -> str:
    """Return which rules could not be checked, and in which loads; empty where all were."""
    if not view.unchecked:
        return ""
    every = len(view.measured_loads())
    named = [
        f"{READING_WORDS[reading]} ({'in no load' if len(labels) == every else f'not in {some_of(labels)}'})"
        for reading, labels in view.unchecked.items()
    ]
    return f" Rules about the host that could not be checked here: {some_of(named)}."


def left_out_sentence(blocks: Mapping[int, Sequence[str]]) -> str:
    """Return which blocks a rule about the host took out, and why: the first reason of each, and how many more."""
    named = ", ".join(
        f"block {block} ({reasons[0]}{f'; {len(reasons) - 1} more' if len(reasons) > 1 else ''})"
        for block, reasons in blocks.items()
    )
    return f"Left out by rules fixed beforehand: {named}."
