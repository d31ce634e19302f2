# SPDX-License-Identifier: Apache-2.0
"""Draws that are the same on every machine and every Python: SHA-256 in counter mode.

`random.Random` promises the same floats for a seed, not the same choices or shuffles,
across versions of Python. The digests of prompt sets must not depend on that.
"""

import hashlib
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of draws that follows from its key alone.

    Args:
        *key: What the stream is for: a seed, a name, an index. Texts and integers;
            two different keys give unrelated streams.
    """

    def __init__(self, *key: str | int) -> None:
        # Lengths keep ("a", "bc") and ("ab", "c") apart.
        parts = [f"{type(part).__name__}:{len(str(part))}:{part}" for part in key]
        self._key = hashlib.sha256("|".join(parts).encode()).digest()
        self._counter = 0
        self._pool = b""

    def bits(self, count: int) -> int:
        """Return an integer of `count` random bits."""
        size = (count + 7) // 8
        while len(self._pool) < size:
            block = self._key + self._counter.to_bytes(8, "big")
            self._pool += hashlib.sha256(block).digest()
            self._counter += 1
        value = int.from_bytes(self._pool[:size], "big")
        self._pool = self._pool[size:]
        return value >> (8 * size - count)

    def below(self, limit: int) -> int:
        """Return an integer from 0 up to below `limit`, each equally likely."""
        if limit < 1:
            raise ValueError(f"limit must be positive, not {limit}")
        count = max((limit - 1).bit_length(), 1)
        while (value := self.bits(count)) >= limit:
            pass
        return value

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Put items into a random order, in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` different items in random order."""
        chosen = list(items)
        for n in range(count):
            other = n + self.below(len(chosen) - n)
            chosen[n], chosen[other] = chosen[other], chosen[n]
        return chosen[:count]

    def hex(self, digits: int) -> str:
        """Return a text of hexadecimal digits."""
        return f"{self.bits(4 * digits):0{digits}x}"
