# SPDX-License-Identifier: Apache-2.0
"""Prompts of serving cells: fresh for every request, the same for both arms."""

from collections.abc import Sequence
from typing import Final

from stackctl.gates.draw import Draw

_ONSETS: Final = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
_VOWELS: Final = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
_ENDS: Final = ["n", "r", "l", "s", "t", "m", "nd", "rk", "lt", "st"]


def _words() -> tuple[str, ...]:
    """Return 256 made-up words, so that no model knows how the text goes on."""
    draw = Draw("words of serving prompts")
    found: dict[str, None] = {}
    while len(found) < 256:
        word = draw.choice(_ONSETS) + draw.choice(_VOWELS)
        if draw.below(2):
            word += draw.choice(_ONSETS) + draw.choice(_VOWELS)
        found[word + draw.choice(_ENDS)] = None
    return tuple(found)


WORDS: Final = _words()


def text_prompt(key: Sequence[str | int], characters: int) -> str:
    """Return a text prompt that shares no beginning with any other.

    Args:
        key: What tells this request from all others: seed, block, cell, index.
        characters: Length of the prompt.

    Returns:
        Text of exactly that many characters. It opens with 16 hexadecimal digits of
        the key, before a prefix cache could match a first block.
    """
    draw = Draw("text", *key)
    parts = [f"Note {draw.hex(16)}."]
    size = len(parts[0])
    while size < characters:
        sentence = " ".join(draw.choice(WORDS) for _ in range(draw.between(6, 14)))
        parts.append(f"{sentence.capitalize()}.")
        size += len(parts[-1]) + 1
    return " ".join(parts)[:characters].ljust(characters, ".")


def token_prompt(key: Sequence[str | int], tokens: int, vocabulary: int) -> list[int]:
    """Return a prompt as token ids.

    Args:
        key: What tells this request from all others.
        tokens: Length in tokens.
        vocabulary: Ids are drawn from the upper three quarters below this number,
            since special tokens tend to have low ids.

    Returns:
        The ids.
    """
    draw = Draw("token-ids", *key)
    low = vocabulary // 4
    return [low + draw.below(vocabulary - low) for _ in range(tokens)]
