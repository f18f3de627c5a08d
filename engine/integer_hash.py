"""Numbers from a name and an index, equal on every host: the source of made weights, vocabularies and prompts.

Everything is 64-bit integer arithmetic. Reals are multiples of 2^-24 in (-1, 1), so that float32 holds them exactly
and no rounding, library or processor can change a byte.

Source: the finalizer is that of SplitMix64 (Steele, Lea, Flood, 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def mix(value: int) -> int:
    """Return SplitMix64's output for the state `value`: 64 well-mixed bits."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def name_key(name: str) -> int:
    """Return 64 bits that stand for `name`: its bytes, mixed in one after another."""
    key = len(name)
    for byte in name.encode():
        key = mix(key ^ byte)
    return key


def draws(name: str) -> Iterator[int]:
    """Yield 64-bit integers without end: the stream that belongs to `name`."""
    key = name_key(name)
    index = 0
    while True:
        yield mix(key ^ index)
        index += 1


def uniform(name: str, *shape: int) -> NDArray[np.float32]:
    """Return an array of `shape` with values in (-1, 1): element i depends on `name` and i only."""
    value = np.arange(prod(shape), dtype=np.uint64) ^ np.uint64(name_key(name))
    value = value + np.uint64(_STEP)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
    value = (value ^ (value >> np.uint64(31))) >> np.uint64(41)  # the upper 23 bits
    odd = value.astype(np.int32) * np.int32(2) + np.int32(1) - np.int32(1 << 23)
    return (odd.astype(np.float32) * np.float32(2.0**-23)).reshape(shape)
