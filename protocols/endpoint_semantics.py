"""What only concerns arms of kind openai: endpoints that Assay does not start, and of which it knows no file."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from protocols.engine_schema import OpenAIEngine
from protocols.findings import Finding
from protocols.measurements import ARMS
from protocols.measurements import Arm as ArmName
from protocols.schema import Protocol

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_PORTS = {"http": 80, "https": 443}


def endpoints_of(protocol: Protocol) -> dict[ArmName, OpenAIEngine]:
    """Return the arms that are endpoints."""
    engines = {name: protocol.arm(name).engine for name in ARMS}
    return {name: engine for name, engine in engines.items() if isinstance(engine, OpenAIEngine)}


def is_one_address(protocol: Protocol) -> bool:
    """Whether both arms are endpoints at one address, however it is written."""
    places = [_place(engine.url) for engine in endpoints_of(protocol).values()]
    return len(places) == len(ARMS) and places[0] is not None and places[0] == places[1]


def check_endpoints(protocol: Protocol) -> Iterator[Finding]:
    """Yield every finding about arms that are endpoints."""
    endpoints = endpoints_of(protocol)
    for name, engine in endpoints.items():
        parts = _split(engine.url)
        if parts is None:
            message = f"found the address {engine.url}, whose port is no number from 0 to 65535"
            yield Finding(path=("arms", name, "engine", "url"), message=message, hint="correct the address")
        elif parts.path.rstrip("/"):
            message = f"the address has the path {parts.path.rstrip('/')}, and requests go to the workload's route"
            hint = "name an address that serves the route at its root"
            yield Finding(path=("arms", name, "engine", "url"), message=message, hint=hint)
    if len({engine.model for engine in endpoints.values()}) > 1:
        one, other = (engine.model for engine in endpoints.values())
        message = f"found the models {one} and {other}, and one frozen request is sent to both arms as it is"
        hint = "let both endpoints serve their model under one name"
        yield Finding(path=("arms", "candidate", "engine", "model"), message=message, hint=hint)
    elif is_one_address(protocol):
        message = "both arms are one address: this compares an endpoint with itself (A/A), and no candidate"
        hint = "name the address of the other endpoint, unless an A/A is meant"
        yield Finding(path=("arms", "candidate", "engine", "url"), message=message, hint=hint, is_warning=True)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _place(url: str) -> tuple[str, str, int | None, str] | None:
    parts = _split(url)
    if parts is None:
        return None
    host = (parts.hostname or "").lower()
    return (
        parts.scheme,
        "loopback" if host in _LOOPBACK else host,
        parts.port or _PORTS.get(parts.scheme),
        parts.path.rstrip("/"),
    )
