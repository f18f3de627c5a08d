"""Saves a slot, kills the server, starts it again, and restores the slot."""

from __future__ import annotations

import os
import signal
import tempfile

from harness.arm_server import greedy_body
from harness.checks.context import CheckContext
from harness.checks.served import arm_server
from protocols.canonical import JsonValue
from protocols.check_schema import split_mix
from protocols.checks.restart import RestartCheck

FILE = "assay-slot.bin"
FOLLOW_UP_TOKENS = 16
LEAST_VOCABULARY = 256
"""Token ids below this exist in every model."""


def run_restart(context: CheckContext, check: RestartCheck) -> dict[str, JsonValue]:
    """Return every exchange, in order: prompt, save, continued; after the restart cold, erase, restore, restored."""
    start = split_mix(check.seed)
    ids = [split_mix(start + place) % LEAST_VOCABULARY for place in range(check.prompt_tokens + FOLLOW_UP_TOKENS)]
    changes = {"slots": 1, "context_tokens": max(len(ids) + 4 * check.generated_tokens, 64)}
    exchanges: list[JsonValue] = []
    saved = {"filename": FILE}
    with tempfile.TemporaryDirectory(prefix="assay-slots-") as folder:
        arguments = ("--slot-save-path", f"{folder}/")
        with arm_server(context, changes=changes, arguments=arguments) as server:
            first = greedy_body(ids[: check.prompt_tokens], 1, id_slot=0)
            follow = greedy_body(ids, check.generated_tokens, id_slot=0)
            exchanges.append(server.ask("prompt", first))
            exchanges.append(server.ask("save", saved, "/slots/0?action=save"))
            exchanges.append(server.ask("continued", follow))
            os.kill(server.process.pid, signal.SIGKILL)
        with arm_server(context, changes=changes, arguments=arguments) as server:
            exchanges.append(server.ask("cold", follow))
            exchanges.append(server.ask("erase", {}, "/slots/0?action=erase"))
            exchanges.append(server.ask("restore", saved, "/slots/0?action=restore"))
            exchanges.append(server.ask("restored", follow))
    return {"exchanges": exchanges, "killed_by": signal.SIGKILL.name}
