"""Reading GGUF headers: the values that the format can hold, and files that break its rules."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.gguf_header import GgufHeader, load_header
from protocols.errors import EngineError

Encode = Callable[..., bytes]


def read(folder: Path, data: bytes) -> GgufHeader:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return load_header(path)


def test_metadata_and_tensor_shapes_are_read(tmp_path: Path, gguf_bytes: Encode) -> None:
    header = read(
        tmp_path,
        gguf_bytes(
            {
                "a.text": "Grüße",
                "a.raw": b"\xff\xfe",
                "a.count": 7,
                "a.flag": True,
                "a.list": ["x", "yy"],
                "a.none": [],
            },
            {"token_embd.weight": (4, 5, 6), "bias": (9,)},
        ),
    )
    assert header.version == 3
    assert header.metadata == {
        "a.text": "Grüße".encode(),
        "a.raw": b"\xff\xfe",
        "a.count": 7,
        "a.flag": True,
        "a.list": (b"x", b"yy"),
        "a.none": (),
    }
    assert header.text("a.text") == "Grüße"
    assert header.text("a.count") is None
    assert header.text("missing") is None
    assert [(tensor.name, tensor.dimensions, tensor.elements) for tensor in header.tensors] == [
        ("token_embd.weight", (4, 5, 6), 120),
        ("bias", (9,), 9),
    ]


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (0, b"\xff", 255),
        (1, b"\xff", -1),
        (2, b"\xff\xff", 65535),
        (3, b"\xff\xff", -1),
        (5, struct.pack("<i", -5), -5),
        (6, struct.pack("<f", 0.5), 0.5),
        (7, b"\x00", False),
        (10, struct.pack("<Q", 2**63), 2**63),
        (11, struct.pack("<q", -(2**60)), -(2**60)),
        (12, struct.pack("<d", 0.1), 0.1),
        (9, struct.pack("<IQ", 5, 2) + struct.pack("<2i", -1, 3), (-1, 3)),
        (9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 2) + b"\x01\x02", ((1, 2),)),
    ],
)
def test_every_value_type_is_read(tmp_path: Path, kind: int, data: bytes, value: object) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 2, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind)
    assert read(tmp_path, head + data).metadata == {"k": value}


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not a GGUF file"):
        read(tmp_path, b"PK\x03\x04 and so on")
    with pytest.raises(EngineError, match="not a GGUF file"):
        read(tmp_path, b"")
    with pytest.raises(EngineError, match="cannot read the model file"):
        load_header(tmp_path / "missing.gguf")


def test_a_big_endian_or_future_file_is_refused_by_its_version(tmp_path: Path, gguf_bytes: Encode) -> None:
    with pytest.raises(EngineError, match="version 50331648"):
        read(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(EngineError, match="version 9"):
        read(tmp_path, gguf_bytes({}, version=9))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 0) + b"\x01"
    with pytest.raises(EngineError, match="'k' twice"):
        read(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair * 2)


def test_a_count_that_the_file_cannot_hold_is_refused_before_memory_is_spent(tmp_path: Path) -> None:
    array = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**60)
    with pytest.raises(EngineError, match="more than the file can hold"):
        read(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
    with pytest.raises(EngineError, match="more than the file can hold"):
        read(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0))


def test_tensors_of_more_elements_than_a_lock_can_count_are_refused(tmp_path: Path, gguf_bytes: Encode) -> None:
    most = 2**53 - 1
    assert read(tmp_path, gguf_bytes({}, {"t": (most - 4,), "u": (4,)})).tensors[0].elements == most - 4
    with pytest.raises(EngineError, match=f"tensors of {most + 1} elements"):
        read(tmp_path, gguf_bytes({}, {"t": (most - 4,), "u": (5,)}))
    with pytest.raises(EngineError, match=f"tensors of {2**252} elements"):
        read(tmp_path, gguf_bytes({}, {"t": (2**63,) * 4}))


def test_a_header_cut_at_any_byte_is_refused(tmp_path: Path, gguf_bytes: Encode) -> None:
    whole = gguf_bytes({"general.name": "x", "list": ["a", "b"]})
    header = len(whole) - 64
    for size in range(header):
        with pytest.raises(EngineError):
            read(tmp_path, whole[:size])
    assert read(tmp_path, whole[:header]).text("general.name") == "x"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(tmp_path: Path, tail: bytes) -> None:
    try:
        header = read(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + tail)
    except EngineError:
        return
    assert len(header.tensors) == 1


NAMES = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=8)
SCALARS = st.one_of(st.booleans(), st.integers(0, 2**32 - 1), st.binary(max_size=20))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, st.one_of(SCALARS, st.lists(st.binary(max_size=6), max_size=5)), max_size=6))
def test_what_is_written_is_read(tmp_path: Path, gguf_bytes: Encode, metadata: dict[str, object]) -> None:
    expected = {key: tuple(value) if isinstance(value, list) else value for key, value in metadata.items()}
    assert read(tmp_path, gguf_bytes(metadata)).metadata == expected
