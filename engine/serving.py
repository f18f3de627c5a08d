"""The loop of a worker process: one library, operations over two pipes.

Every message, both ways, is `header length u32, payload length u64, header (JSON),
payload (raw array bytes)`, little-endian.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engine.binding import OPERATIONS, CallError, Library, Reply

FRAME: Final = struct.Struct("<IQ")


def serve(library: Path, requests: int, replies: int) -> int:
    """Answer operations read from file descriptor `requests` until it ends; returns the exit code."""
    try:
        loaded = Library(library)
    except (OSError, AttributeError, ValueError, CallError) as error:
        _write(replies, Reply({"error": f"cannot use {library.name}: {error}"}, []))
        return 1
    operations: dict[str, Callable[[dict[str, Any], bytes], Reply]] = {
        name: getattr(loaded, name) for name in OPERATIONS
    }
    _write(replies, Reply({"ready": True}, []))
    with os.fdopen(requests, "rb") as stream:
        while True:
            frame = stream.read(FRAME.size)
            if len(frame) < FRAME.size:
                return 0
            header_size, payload_size = FRAME.unpack(frame)
            request = json.loads(stream.read(header_size))
            payload = stream.read(payload_size)
            try:
                reply = operations[request["operation"]](request, payload)
            except CallError as error:
                reply = Reply({"error": str(error), "status": error.status}, [])
            _write(replies, reply)


def _write(descriptor: int, reply: Reply) -> None:
    header = json.dumps(reply.header).encode()
    size = sum(part.nbytes for part in reply.payload)
    for part in (memoryview(FRAME.pack(len(header), size) + header), *reply.payload):
        left = part
        while left.nbytes:
            left = left[os.write(descriptor, left) :]
