"""Cold prompts of an exact length: deterministic text from a seed, frozen as the token ids of one request body.

The text is plain English made of our own words. It begins with words drawn from the seed and every sentence carries a
number of its own, so that no two prompts of different seeds share a long prefix and no part of one repeats: a prefix
cache finds nothing. Ids are always the tokenisation of a text, never a cut through one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence

from protocols.errors import ProtocolError

Tokenize = Callable[[str], Sequence[int]]
"""Turns a text into token ids, without adding special tokens."""

MAX_TOKENS = 1_048_576


def _words(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


_ADJECTIVES = _words(
    "amber brisk calm coastal copper distant early even faded gentle golden hidden hollow iron level lively local "
    "marble mellow narrow northern oaken patient plain proud quiet rapid rustic silver slender solid steady "
    "sturdy sunny tidy upper velvet wooden"
)
_PEOPLE = _words(
    "archivist baker carpenter cartographer clerk conductor courier dentist farmer ferryman gardener geologist "
    "glazier goldsmith harbourmaster janitor librarian mason mechanic midwife miller nurse painter pilot plumber "
    "potter printer sailor shepherd surveyor tailor teacher translator weaver"
)
_VERBS = _words(
    "adjusted borrowed carried catalogued cleaned collected counted described drew examined exchanged folded gathered "
    "hid inspected labelled lifted measured mended moved noticed opened ordered packed polished recorded repaired "
    "returned sketched sorted stored tested traced weighed wrapped"
)
_THINGS = _words(
    "anchor barrel basket bell bottle bridge bucket candle chart chest clock cupboard curtain drawer engine envelope "
    "fence gate hammer kettle ladder lamp lantern ledger map mirror needle notebook pump ribbon saddle sail scale "
    "shutter spindle telescope valve wheel window"
)
_PLACES = _words(
    "attic bakery barn boathouse canal cellar chapel courtyard depot dockyard field forge garden greenhouse harbour "
    "hilltop kitchen lighthouse market meadow mill museum observatory orchard quarry railway square station stable "
    "theatre tower valley village workshop"
)
_TIMES = _words(
    "before dawn|after the storm|during the fair|at noon|late in autumn|on the first frost|before the holiday|"
    "after closing time|while the bells rang|as the tide turned|in the last week of May|without any hurry|"
    "between two trains|under a clear sky|when the lamps were lit|on a rainy morning",
    "|",
)

_FILLERS = (" a", " I", " the", " to", " of", " in", " it", " and", ".", ",", " one", " on", "\n", "!", "?")
"""Short texts that most tokenizers turn into one token: they fill up what is left of the stated length."""

_WORDS_PER_SENTENCE = 14
_TRIES_BACK = 64


def _draws(seed: int) -> Iterator[int]:
    """Yield 32-bit numbers: SHA-256 of seed and counter, so that no version of any library can change them."""
    counter = 0
    while True:
        digest = hashlib.sha256(f"assay.prompt.v1\0{seed}\0{counter}".encode("ascii")).digest()
        for start in range(0, len(digest), 4):
            yield int.from_bytes(digest[start : start + 4], "big")
        counter += 1


def cold_text(seed: int, sentences: int) -> str:
    """Return `sentences` numbered sentences. A seed always gives the same text, and a longer one begins alike."""
    draws = _draws(seed)

    def pick(words: Sequence[str]) -> str:
        return words[next(draws) % len(words)]

    def number(low: int, high: int) -> int:
        return low + next(draws) % (high - low + 1)

    lines = [f"{pick(_ADJECTIVES).capitalize()} {pick(_THINGS)} {number(1000, 9999)}, notes from the {pick(_PLACES)}."]
    for place in range(1, sentences + 1):
        who = f"The {pick(_ADJECTIVES)} {pick(_PEOPLE)} {pick(_VERBS)}"
        what = f"{number(11, 99)} {pick(_ADJECTIVES)} {pick(_THINGS)}s"
        lines.append(f"{place}. {who} {what} near the {pick(_PLACES)} {pick(_TIMES)}.")
    return "\n".join(lines)


def exact_text(tokenize: Tokenize, tokens: int, seed: int) -> str:
    """Return a cold text that `tokenize` turns into exactly `tokens` ids.

    The text is cut between words and filled up with short words. ProtocolError where the length is not from 1 to
    `MAX_TOKENS`, or where the tokenizer reaches no such length.
    """
    if not 1 <= tokens <= MAX_TOKENS:
        raise ProtocolError(f"a prompt of {tokens} tokens is not possible", hint=f"ask for 1 to {MAX_TOKENS} tokens")
    sentences = max(tokens // _WORDS_PER_SENTENCE, 1)
    while len(tokenize(text := cold_text(seed, sentences))) < tokens:
        sentences *= 2
    ends = [place for place, character in enumerate(text) if character in " \n"] + [len(text)]
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenize(text[: ends[middle]])) <= tokens:
            low = middle
        else:
            high = middle - 1
    for back in range(min(_TRIES_BACK, low + 1)):
        filled = _filled_up(text[: ends[low - back]], tokenize, tokens)
        if filled is not None:
            return filled
    filled = _filled_up("", tokenize, tokens)
    if filled is None:
        raise ProtocolError(f"the tokenizer gives no text of exactly {tokens} tokens", hint="ask for another length")
    return filled


def _filled_up(text: str, tokenize: Tokenize, tokens: int) -> str | None:
    """Append fillers until the text has exactly `tokens` ids; None where they overshoot."""
    count = len(tokenize(text))
    while count < tokens:
        for filler in _FILLERS:
            longer = len(tokenize(text + filler))
            if count < longer <= tokens:
                text, count = text + filler, longer
                break
        else:
            return None
    return text if count == tokens else None


def freeze_prompt(tokenize: Tokenize, tokens: int, seed: int, *, generated_tokens: int = 128) -> bytes:
    """Return the body of a native completion request with a cold prompt of exactly `tokens` token ids.

    Greedy, without early end, without prompt cache, streamed with token ids: what the exact gates need.
    """
    ids = [int(token) for token in tokenize(exact_text(tokenize, tokens, seed))]
    if len(ids) != tokens:
        raise ProtocolError("the tokenizer gives different ids for the same text", hint="use a deterministic tokenizer")
    body = {
        "prompt": ids,
        "n_predict": generated_tokens,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }
    return json.dumps(body, separators=(",", ":")).encode("ascii") + b"\n"
