"""The event-stream standard, byte by byte and without a thought for speed: what the readers are compared with."""

from __future__ import annotations


def reference(body: bytes) -> list[tuple[bytes, str, int]]:
    """The standard, followed to the letter over the whole body: (data, name, place of the byte that dispatched it)."""
    place = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    found: list[tuple[bytes, str, int]] = []
    data, name = b"", b""
    while place < len(body):
        stop = place
        while stop < len(body) and body[stop] not in b"\r\n":
            stop += 1
        if stop == len(body):
            break
        line, end = body[place:stop], stop
        place = stop + (2 if body[stop : stop + 2] == b"\r\n" else 1)
        if not line:
            if data:
                found.append((data[:-1], name.decode("utf-8", "replace") or "message", end))
            data, name = b"", b""
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data += value + b"\n"
            elif field == b"event":
                name = value
    return found
