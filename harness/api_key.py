"""The engine's API key: taken from one environment variable of the runner, and never written anywhere.

It reaches an engine only through that engine's environment, and a request only through its Authorization header. The
recorder is told the value, so that it is replaced wherever it turns up (an engine may print its environment).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

KEY_VARIABLE: Final = "ASSAY_ENGINE_API_KEY"
_ENGINE_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "bundled": ("API_KEY",),
    "folder": ("API_KEY",),
    "llama-server": ("LLAMA_API_KEY",),
}


def secret_values() -> tuple[str, ...]:
    """Return every secret value that the runner knows."""
    key = os.environ.get(KEY_VARIABLE)
    return (key,) if key else ()


def engine_environment(kind: str) -> dict[str, str]:
    """Return what an engine of this kind needs in its environment to ask for the key."""
    key = os.environ.get(KEY_VARIABLE)
    return dict.fromkeys(_ENGINE_VARIABLES.get(kind, ()), key) if key else {}


def request_headers() -> dict[str, str]:
    """Return the headers that carry the key; none without a key."""
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}
