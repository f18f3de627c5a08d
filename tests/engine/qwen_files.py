"""Changed copies of a tiny qwen4exp file: other metadata, missing tensors, flipped bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from gguf.constants import GGUFValueType as Kind

_FORMATS = {
    Kind.UINT32: "<I",
    Kind.INT32: "<i",
    Kind.FLOAT32: "<f",
    Kind.BOOL: "<?",
    Kind.UINT64: "<Q",
}


class TinyFile:
    """A GGUF file taken apart into metadata, tensor descriptions and data."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.metadata: dict[str, tuple[list[Kind], Any, bytes]] = {
            name: (list(field.types), field.contents(), b"".join(part.tobytes() for part in field.parts))
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        }
        self.tensors = {
            tensor.name: (b"".join(part.tobytes() for part in tensor.field.parts)) for tensor in reader.tensors
        }
        self.data = path.read_bytes()[reader.data_offset :]
        self.header_bytes = reader.data_offset

    def own_keys(self) -> list[str]:
        """Return the names of the architecture's own metadata, without the prefix."""
        return [name.removeprefix("qwen4exp.") for name in self.metadata if name.startswith("qwen4exp.")]

    def write(
        self,
        path: Path,
        *,
        changes: dict[str, Any] | None = None,
        without: tuple[str, ...] = (),
        renamed: dict[str, str] | None = None,
    ) -> Path:
        """Write a copy: `changes` by key without prefix (new ones are texts), `without` keys or tensors."""
        changed = {f"qwen4exp.{key}": value for key, value in (changes or {}).items()}
        pairs = []
        for name, (types, _, raw) in self.metadata.items():
            if name in without or name.removeprefix("qwen4exp.") in without:
                continue
            pairs.append(_encoded(name, types, changed.pop(name)) if name in changed else raw)
        pairs += [_encoded(name, [Kind.STRING], value) for name, value in changed.items()]
        tensors = []
        for name, raw in self.tensors.items():
            if name in without:
                continue
            new = (renamed or {}).get(name, name).encode()
            tensors.append(struct.pack("<Q", len(new)) + new + raw[8 + len(name.encode()) :])
        header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
        path.write_bytes(header + bytes(-len(header) % 32) + self.data)
        return path


def _encoded(name: str, types: list[Kind], value: Any) -> bytes:
    head = struct.pack("<Q", len(name)) + name.encode()
    if types[0] == Kind.ARRAY and isinstance(value, list):
        form = _FORMATS[types[1]]
        items = b"".join(struct.pack(form, item) for item in value)
        return head + struct.pack("<IIQ", Kind.ARRAY, types[1], len(value)) + items
    if isinstance(value, str):
        return head + struct.pack("<IQ", Kind.STRING, len(value)) + value.encode()
    kind = types[0] if types[0] in _FORMATS else Kind.UINT32
    return head + struct.pack("<I", kind) + struct.pack(_FORMATS[kind], value)
