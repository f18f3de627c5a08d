"""Prompts that ask for a private code: secrets near the start, filler, and the key of one of them as the last words.

A secret is a key of two words and the words of its code. A model that recalls continues the text with the code; what it
says depends on the prompt and on nothing else. All texts are words of the recall model's vocabulary, one token each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from engine.integer_hash import draws
from engine.recall_vocabulary import FIRST_WORD, WORDS, text_of

RECALL_DISTANCE_TOKENS: Final = 13_062
KEY_TOKENS: Final = 2
CODE_TOKENS: Final = 8
# More than the model's budget: a selection that falls back to the first blocks, or to the last, misses the secrets.
LEAD_TOKENS: Final = 320
# So few that each filler word comes back about 25 times over the distance, and pairs of them come back too.
FILLER_WORDS: Final = 512


@dataclass(frozen=True, kw_only=True)
class Secret:
    """What the prompt gives away once: the ids of a key and of its code."""

    key: tuple[int, ...]
    code: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RecallPrompt:
    """Token ids of a prompt, the secrets in it by order, the number of the one that it asks for, and the distance."""

    ids: tuple[int, ...]
    secrets: tuple[Secret, ...]
    asked: int
    distance_tokens: int

    @property
    def text(self) -> str:
        """The prompt as a request carries it."""
        return text_of(self.ids)

    @property
    def expected_ids(self) -> tuple[int, ...]:
        """The ids that a right reply begins with."""
        return self.secrets[self.asked].code

    @property
    def expected_text(self) -> str:
        """The text that a right reply begins with."""
        return text_of(self.expected_ids)


def recall_prompt(
    conversation: str,
    *,
    keys_of: str | None = None,
    distance_tokens: int = RECALL_DISTANCE_TOKENS,
    lead_tokens: int = LEAD_TOKENS,
    code_tokens: int = CODE_TOKENS,
    secrets: int = 1,
    asked: int = 0,
) -> RecallPrompt:
    """Build the prompt of a conversation: lead, secrets, filler, and the key of the secret `asked`.

    The asked key stands `distance_tokens` after where it was given. All words follow from the name `conversation`, so
    two conversations share words by chance only; with `keys_of` the keys are those of that other conversation, and a
    reply that mixes the two shows. Raises ValueError for a distance that does not hold the secrets, or for a secret
    that is not there.
    """
    if secrets < 1 or not 0 <= asked < secrets:
        raise ValueError(f"secret {asked} is not one of {secrets}")
    secret_tokens = KEY_TOKENS + code_tokens
    filler_tokens = distance_tokens - (secrets - asked) * secret_tokens
    if min(filler_tokens, lead_tokens, code_tokens - 1) < 0:
        raise ValueError(f"{distance_tokens} tokens do not hold {secrets} secrets of {secret_tokens}")
    keys = tuple(islice(_distinct_words(f"keys of {keys_of or conversation}"), KEY_TOKENS * secrets))
    words = (one for one in _distinct_words(f"words of {conversation}") if one not in keys)
    given = tuple(
        Secret(key=keys[KEY_TOKENS * n : KEY_TOKENS * (n + 1)], code=tuple(islice(words, code_tokens)))
        for n in range(secrets)
    )
    filler = _filler(conversation, words)
    ids = list(islice(filler, lead_tokens))
    for secret in given:
        ids += secret.key + secret.code
    ids += islice(filler, filler_tokens)
    ids += given[asked].key
    return RecallPrompt(ids=tuple(ids), secrets=given, asked=asked, distance_tokens=distance_tokens)


def follow_up(prompt: RecallPrompt, reply: tuple[int, ...], *, asked: int, filler_tokens: int = 40) -> RecallPrompt:
    """Return the next turn: the prompt, the reply as it was (ids of words), filler, and the key of the secret `asked`.

    Raises ValueError for a secret that is not there.
    """
    if not 0 <= asked < len(prompt.secrets):
        raise ValueError(f"secret {asked} is not one of {len(prompt.secrets)}")
    key = prompt.secrets[asked].key
    name = f"follow-up {len(prompt.ids)} {' '.join(map(str, key))}"
    taken = {one for secret in prompt.secrets for one in secret.key + secret.code}
    words = (one for one in _distinct_words(name) if one not in taken)
    ids = (*prompt.ids, *reply, *islice(_filler(name, words), filler_tokens), *key)
    distance = len(ids) - KEY_TOKENS - prompt.ids.index(key[0])
    return RecallPrompt(ids=ids, secrets=prompt.secrets, asked=asked, distance_tokens=distance)


def _distinct_words(name: str) -> Iterator[int]:
    seen: set[int] = set()
    for draw in draws(name):
        one = FIRST_WORD + draw % WORDS
        if one not in seen:
            seen.add(one)
            yield one


def _filler(name: str, words: Iterator[int]) -> Iterator[int]:
    lexicon = list(islice(words, FILLER_WORDS))
    return (lexicon[draw % FILLER_WORDS] for draw in draws(f"filler of {name}"))
