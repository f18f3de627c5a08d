"""Sends a workload's frozen request to a fresh server of the arm."""

from __future__ import annotations

from harness.checks.context import CheckContext
from harness.checks.served import arm_server
from protocols.canonical import JsonValue
from protocols.checks.stored_reference import StoredReferenceCheck


def run_stored_reference(context: CheckContext, check: StoredReferenceCheck) -> dict[str, JsonValue]:
    """Return the exchange, named like the workload."""
    workload = context.prepared.protocol.workload(check.workload)
    body = context.prepared.loaded.requests[workload.request]
    with arm_server(context) as server:
        return {"exchanges": [server.send(check.workload, body, workload.route)]}
