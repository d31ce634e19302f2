# SPDX-License-Identifier: Apache-2.0
"""Whether a text has fallen into a loop."""

from typing import Final

TAIL: Final = 2400
"""Characters at the end of a text that are looked at."""

LEAST_PERIODIC: Final = 240
"""Fewest characters that a periodic ending must cover to be called a loop."""

LEAST_TURNS: Final = 6
"""Fewest turns of the repeated part."""

GRAM: Final = 8
"""Words of an n-gram."""

LEAST_WORDS: Final = 160
"""Fewest words before n-grams are compared."""

LEAST_DISTINCT: Final = 0.2
"""Smallest share of different n-grams in the ending of a text that goes on."""


def loop_in(text: str) -> str | None:
    """Say how the end of a text repeats itself, or None where it does not.

    Two ways of looping are told: an ending that is exactly periodic (also without
    spaces, as with repeated digits), and an ending of words that goes round through
    slightly different turns, so that most of its n-grams are there many times.

    Args:
        text: What has been streamed so far.

    Returns:
        What repeats, in words without the text itself.
    """
    tail = text[-TAIL:]
    if (found := _period(tail)) is not None:
        period, length = found
        return f"the last {length} characters repeat {period} of them"
    words = tail.split()
    if len(words) < LEAST_WORDS:
        return None
    grams = [tuple(words[n : n + GRAM]) for n in range(len(words) - GRAM + 1)]
    share = len(set(grams)) / len(grams)
    if share >= LEAST_DISTINCT:
        return None
    return f"only {100 * share:.0f} % of the last {len(grams)} {GRAM}-grams differ"


def _period(tail: str) -> tuple[int, int] | None:
    """Return period and length of the longest periodic ending, None without one.

    The failure function of the reversed text gives the shortest period of every ending
    in one pass (Knuth, Morris and Pratt).
    """
    text = tail[::-1]
    border = [0] * (len(text) + 1)
    best: tuple[int, int] | None = None
    matched = 0
    for n in range(1, len(text)):
        while matched and text[n] != text[matched]:
            matched = border[matched]
        if text[n] == text[matched]:
            matched += 1
        border[n + 1] = matched
        length, period = n + 1, n + 1 - matched
        if length >= LEAST_PERIODIC and length >= LEAST_TURNS * period:
            best = (period, length)
    return best
