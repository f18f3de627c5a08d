"""The vocabulary of the recall model: bytes, syllables, synthetic words, control tokens, and a code word for each id.

A word is two halves, a half is two syllables, a syllable is a consonant and a vowel. The consonants of first and second
syllables are disjoint, so no merge can join a piece to the wrong neighbour: " " and the four syllables of a word of the
vocabulary always become its one token. Text in any other language falls back to bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

VOCABULARY_TOKENS: Final = 49_152
CONTROL_TOKENS: Final = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<think>", "</think>", "<|fim_pad|>", "<|extra_0|>", "<|extra_1|>",
)  # fmt: skip
END_TOKEN: Final = VOCABULARY_TOKENS - len(CONTROL_TOKENS)
IMAGE_TOKEN: Final = END_TOKEN + CONTROL_TOKENS.index("<|image_pad|>")
CODE_BITS: Final = 64

_BYTES: Final = 256
_VOWELS: Final = "aeiou"
_FIRST_CONSONANTS: Final = "bdfgklmnpr"
_SECOND_CONSONANTS: Final = "chjqstvxyz"
_HALVES: Final = (len(_FIRST_CONSONANTS) * len(_VOWELS)) * (len(_SECOND_CONSONANTS) * len(_VOWELS))
_SYLLABLES: Final = (len(_FIRST_CONSONANTS) + len(_SECOND_CONSONANTS)) * len(_VOWELS)
FIRST_WORD: Final = _BYTES + _SYLLABLES + 2 * _HALVES
WORDS: Final = END_TOKEN - FIRST_WORD
# Which pairs of halves are words: the multiples of a number without common factor with the count of pairs.
_WORD_STRIDE: Final = 3_863_201
# Generator of the binary BCH code of length 63 with 16 information bits and distance 23; a parity bit makes that
# 64, 16, 24.
# Source: Lin and Costello, Error Control Coding, table of BCH generators (octal).
_GENERATOR: Final = 0o6331141367235453
_ID_BITS: Final = 16
# An odd factor permutes the 16-bit numbers: neighbours in the vocabulary get unrelated code words.
_ID_FACTOR: Final = 40_503
_ID_OFFSET: Final = 12_345


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens by id in the alphabet of byte-level BPE, and the merges in the order of their rank."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]


def word(number: int) -> str:
    """Return the word with `number` (0 .. WORDS - 1) as it is written, after a space; its id is FIRST_WORD + number."""
    first, second = divmod(_pair(number), _HALVES)
    return f" {_half(first)}{_half(second)}"


def text_of(ids: tuple[int, ...]) -> str:
    """Return the text of a sequence of words given by token id. Raises ValueError for an id that is no word."""
    if not all(FIRST_WORD <= one < END_TOKEN for one in ids):
        raise ValueError("only ids of words have a text here")
    return "".join(word(one - FIRST_WORD) for one in ids)


@cache
def vocabulary() -> Vocabulary:
    """Return the whole vocabulary, made anew: the same on every call and host."""
    alphabet = _byte_alphabet()
    space = alphabet[ord(" ")]
    firsts = [(c, v) for c in _FIRST_CONSONANTS for v in _VOWELS]
    seconds = [(c, v) for c in _SECOND_CONSONANTS for v in _VOWELS]
    merges = [*firsts, *seconds]
    merges += [(a + b, c + d) for a, b in firsts for c, d in seconds]
    merges += [(space, _half(number)) for number in range(_HALVES)]
    for number in range(WORDS):
        first, second = divmod(_pair(number), _HALVES)
        merges.append((space + _half(first), _half(second)))
    tokens = (*alphabet, *(a + b for a, b in merges), *CONTROL_TOKENS)
    return Vocabulary(tokens=tokens, merges=tuple(f"{a} {b}" for a, b in merges))


def code_words() -> NDArray[np.float32]:
    """Return the code word of every id: -1 and 1, [VOCABULARY_TOKENS, CODE_BITS].

    Any two differ in at least 24 and, but for complements, at most 40 of the 64 places: no two tokens resemble each
    other by more than a cosine of 1/4, where random signs of this length reach 0.55.
    """
    number = np.arange(VOCABULARY_TOKENS, dtype=np.uint64) * np.uint64(_ID_FACTOR) + np.uint64(_ID_OFFSET)
    word_bits = np.zeros(VOCABULARY_TOKENS, dtype=np.uint64)
    for bit in range(_ID_BITS):
        is_set = (number >> np.uint64(bit)) & np.uint64(1)
        word_bits ^= is_set * np.uint64(_GENERATOR << bit)
    places = (word_bits[:, None] >> np.arange(CODE_BITS - 1, dtype=np.uint64)) & np.uint64(1)
    parity = places.sum(axis=1, keepdims=True) & np.uint64(1)
    return np.concatenate([places, parity], axis=1).astype(np.float32) * np.float32(2) - np.float32(1)


def _pair(number: int) -> int:
    return number * _WORD_STRIDE % (_HALVES * _HALVES)


def _half(number: int) -> str:
    first, second = divmod(number, len(_SECOND_CONSONANTS) * len(_VOWELS))
    one, two = divmod(first, len(_VOWELS)), divmod(second, len(_VOWELS))
    return _FIRST_CONSONANTS[one[0]] + _VOWELS[one[1]] + _SECOND_CONSONANTS[two[0]] + _VOWELS[two[1]]


def _byte_alphabet() -> tuple[str, ...]:
    """Return the character for each byte in byte-level BPE: itself where it is printable, else one above 255."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(_BYTES) if byte not in shown]
    return tuple(chr(byte if byte in shown else _BYTES + hidden.index(byte)) for byte in range(_BYTES))
