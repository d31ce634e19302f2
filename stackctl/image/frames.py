# SPDX-License-Identifier: Apache-2.0
"""Where the frames of a zstd stream begin and end, from their headers alone.

The library that decompresses does not tell a stream that is cut inside a frame from one
that ends with it; runtimes refuse the first. So the lengths that RFC 8878 (section 3.1)
puts before everything are followed beside it: a frame is a header, blocks of which the
last is marked, and a checksum if its header says so.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SIZE_BYTES: Final = (0, 2, 4, 8)
_RLE: Final = 1
_FEWEST: Final = 8
"""Bytes of a block on average below which a stream is made to waste time."""
_PATIENCE: Final = 100_000
"""Blocks before their average counts."""


class Frames:
    """Follows a zstd stream.

    Args:
        ends: Gets the offsets in bytes at which frames end, as soon as they are known.
    """

    def __init__(self, ends: deque[int] | None = None) -> None:
        self._ends = ends
        self._position = 0
        self._head = b""
        self._wanted = 4
        self._skip = 0
        self._next: Callable[[bytes], None] | None = self._magic
        self._checksum = 0
        self._blocks = 0
        self._taken = 0

    @property
    def between(self) -> bool:
        """Whether the stream may end here: outside of every frame."""
        if self._next is None:
            return True
        return self._next == self._magic and not self._head and not self._skip

    @property
    def wasteful(self) -> bool:
        """Whether it consists of far more blocks than any tool makes of it."""
        return self._blocks > _PATIENCE and self._taken < self._blocks * _FEWEST

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        at = 0
        before = self._taken
        self._taken += len(chunk)
        while at < len(chunk) and self._next is not None:
            if self._skip:
                step = min(self._skip, len(chunk) - at)
                self._skip -= step
                at += step
                continue
            part = chunk[at : at + self._wanted - len(self._head)]
            at += len(part)
            self._head += part
            if len(self._head) == self._wanted:
                head, self._head = self._head, b""
                self._position = before + at
                self._next(head)

    def _expect(self, wanted: int, then: Callable[[bytes], None]) -> None:
        self._wanted, self._next = wanted, then

    def _magic(self, head: bytes) -> None:
        if head == _MAGIC:
            self._expect(1, self._descriptor)
        elif head[1:] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
            self._expect(4, self._skippable)
        else:
            # Not a frame: the library says what it thinks of it.
            self._next = None

    def _skippable(self, head: bytes) -> None:
        self._skip = int.from_bytes(head, "little")
        self._end()

    def _descriptor(self, head: bytes) -> None:
        bits = head[0]
        single = bits >> 5 & 1
        self._checksum = 4 * (bits >> 2 & 1)
        size = _SIZE_BYTES[bits >> 6] or single
        # Never 0: a window is told where no size is.
        self._skip = (1 - single) + _DICTIONARY_BYTES[bits & 3] + size
        self._expect(3, self._block)

    def _block(self, head: bytes) -> None:
        self._blocks += 1
        bits = int.from_bytes(head, "little")
        self._skip = 1 if bits >> 1 & 3 == _RLE else bits >> 3
        if bits & 1:
            self._skip += self._checksum
            self._end()

    def _end(self) -> None:
        if self._ends is not None:
            self._ends.append(self._position + self._skip)
        self._expect(4, self._magic)
