# SPDX-License-Identifier: Apache-2.0
"""Binary hunks of git patches: base 85, bounded inflation and git deltas.

The text of a binary hunk is `literal N` or `delta N`, then lines of a length letter
and base 85 groups, then an empty line. N is the size of the inflated data, so the
data is inflated up to that size and never further: a small text cannot ask for more
memory than it declares, and what it declares is capped.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from typing import Final, Literal

from stackctl.git.patchtext.model import BinaryHunk

MAX_BINARY_BYTES: Final = 256 * 1024 * 1024
"""Inflated bytes that the binary hunks of one patch may declare in all."""

_ALPHABET: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    b"!#$%&()*+-;<=>?@^_`{|}~"
)
_DIGITS: Final = bytes(
    _ALPHABET.index(code) if code in _ALPHABET else 255 for code in range(256)
)
_LINE_BYTES: Final = {
    code: index + 1
    for index, code in enumerate(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )
}
_HEADER: Final = re.compile(rb"(literal|delta) (\d{1,19})\n\Z")
_BLOCK_LINES: Final = 2048
_INFLATE_STEP: Final = 1 << 20
_MIN_DELTA: Final = 4


class CorruptBinaryError(ValueError):
    """A binary hunk does not follow the format.

    Args:
        reason: What was expected and what was found.
        offset: Index of the faulty line, counted from the hunk's first line.
    """

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def decode_base85(text: bytes) -> bytes:
    """Decode whole groups of git's base 85.

    Args:
        text: Groups of five characters.

    Returns:
        Four bytes for each group.

    Raises:
        CorruptBinaryError: A character or a group is not base 85.
    """
    stray = text.translate(None, _ALPHABET)
    if stray:
        raise CorruptBinaryError(f"{chr(stray[0])!r} is not a base 85 character")
    if len(text) % 5:
        raise CorruptBinaryError("a base 85 group has five characters")
    digits = text.translate(_DIGITS)
    groups = [
        (((a * 85 + b) * 85 + c) * 85 + d) * 85 + e
        for a, b, c, d, e in zip(
            digits[0::5],
            digits[1::5],
            digits[2::5],
            digits[3::5],
            digits[4::5],
            strict=True,
        )
    ]
    try:
        return struct.pack(f">{len(groups)}I", *groups)
    except struct.error:
        raise CorruptBinaryError("a base 85 group is larger than four bytes") from None


def _line_payload(line: bytes, offset: int) -> tuple[bytes, int]:
    """Return the base 85 text of one line and how many bytes it stands for."""
    count = _LINE_BYTES.get(line[0]) if line else None
    if count is None or len(line) < 7 or (len(line) - 2) % 5 or line[-1] != 10:
        raise CorruptBinaryError(
            "expected a length letter, groups of five base 85 characters and a line "
            "feed, or an empty line that ends the binary data",
            offset,
        )
    text = line[1:-1]
    room = len(text) // 5 * 4
    if not room - 4 < count <= room:
        raise CorruptBinaryError(
            f"the length letter stands for {count} bytes, the line holds {room}",
            offset,
        )
    return text, count


class _Inflater:
    """Inflates one zlib stream up to a declared size, keeping the bytes or not."""

    def __init__(self, size: int, keep: bool) -> None:
        self._size = size
        self._keep = keep
        self._stream = zlib.decompressobj()
        self._out: list[bytes] = []
        self._total = 0

    def feed(self, data: bytes) -> None:
        while True:
            if self._stream.eof:
                if data:
                    raise CorruptBinaryError("data follows the end of the zlib stream")
                return
            limit = min(_INFLATE_STEP, self._size - self._total + 1)
            try:
                piece = self._stream.decompress(data, limit)
            except zlib.error:
                raise CorruptBinaryError("the data is not a zlib stream") from None
            self._total += len(piece)
            if self._total > self._size:
                raise CorruptBinaryError(
                    f"the data inflates to more than the declared {self._size} bytes"
                )
            if self._keep and piece:
                self._out.append(piece)
            if self._stream.eof and self._stream.unused_data:
                raise CorruptBinaryError("data follows the end of the zlib stream")
            data = self._stream.unconsumed_tail
            if not data and len(piece) < limit:
                return

    def finish(self) -> bytes:
        if not self._stream.eof:
            raise CorruptBinaryError("the zlib stream ends too early")
        if self._total != self._size:
            raise CorruptBinaryError(
                f"the data inflates to {self._total} bytes, "
                f"{self._size} bytes are declared"
            )
        return b"".join(self._out)


def read_binary_hunk(
    lines: Sequence[bytes], start: int, *, keep: bool, budget: int
) -> tuple[BinaryHunk, int] | None:
    """Read one direction of a git binary patch.

    Args:
        lines: Lines of the patch with their line feeds.
        start: Index of the line that should be `literal N` or `delta N`.
        keep: Keep the inflated bytes; otherwise they are checked and dropped.
        budget: Largest size that may be declared, in bytes.

    Returns:
        The hunk and the index after its closing empty line; None where no binary
        hunk starts.

    Raises:
        CorruptBinaryError: The hunk does not follow the format, or is too large.
    """
    first = lines[start] if start < len(lines) else b""
    if not first.startswith((b"literal ", b"delta ")):
        return None
    header = _HEADER.match(first)
    if header is None:
        raise CorruptBinaryError("expected `literal` or `delta` and a size in decimal")
    size = int(header[2])
    if size > budget:
        raise CorruptBinaryError(
            f"{size} bytes are declared, {budget} bytes are left of the "
            f"{MAX_BINARY_BYTES} bytes that the binary data of a patch may have"
        )
    inflater = _Inflater(size, keep)
    index = start + 1
    ended = False
    while not ended:
        block = index
        texts: list[bytes] = []
        decoded: list[bytes] = []
        while index - block < _BLOCK_LINES:
            line = lines[index] if index < len(lines) else b""
            index += 1
            if line == b"\n":
                ended = True
                break
            try:
                text, count = _line_payload(line, index - 1 - start)
                if count == len(text) // 5 * 4:
                    texts.append(text)
                    continue
                if texts:
                    decoded.append(decode_base85(b"".join(texts)))
                    texts.clear()
                decoded.append(decode_base85(text)[:count])
            except CorruptBinaryError as error:
                raise CorruptBinaryError(error.reason, index - 1 - start) from None
        try:
            if texts:
                decoded.append(decode_base85(b"".join(texts)))
            inflater.feed(b"".join(decoded))
        except CorruptBinaryError as error:
            raise CorruptBinaryError(error.reason, block - start) from None
    try:
        data = inflater.finish()
    except CorruptBinaryError as error:
        raise CorruptBinaryError(error.reason, index - 1 - start) from None
    method: Literal["literal", "delta"] = (
        "literal" if header[1] == b"literal" else "delta"
    )
    return BinaryHunk(method=method, data=data, size=size), index


def _delta_size(delta: bytes, position: int) -> tuple[int, int]:
    """Read one size at the head of a delta: seven bits a byte, lowest first."""
    value = shift = 0
    while True:
        if position >= len(delta) or shift > 63:
            raise CorruptBinaryError("the delta's sizes are cut short or too large")
        byte = delta[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position


def apply_delta(source: bytes, delta: bytes, *, limit: int = MAX_BINARY_BYTES) -> bytes:
    """Apply a git delta.

    Args:
        source: The old content.
        delta: The inflated delta: two sizes, then copy and insert instructions.
        limit: Largest result that is built, in bytes.

    Returns:
        The new content.

    Raises:
        CorruptBinaryError: The delta is malformed, does not belong to `source`, or its
            result is larger than `limit`.
    """
    if len(delta) < _MIN_DELTA:
        raise CorruptBinaryError(f"a delta has at least {_MIN_DELTA} bytes")
    expected, position = _delta_size(delta, 0)
    if expected != len(source):
        raise CorruptBinaryError(
            f"the delta is for {expected} bytes, the old content has {len(source)}"
        )
    left, position = _delta_size(delta, position)
    if left > limit:
        raise CorruptBinaryError(
            f"the delta declares {left} bytes, at most {limit} are built"
        )
    end = len(delta)
    out: list[bytes] = []
    while position < end:
        command = delta[position]
        position += 1
        if command & 0x80:
            offset = size = 0
            for bit in range(4):
                if command & (1 << bit):
                    if position >= end:
                        raise CorruptBinaryError("the delta ends within an instruction")
                    offset |= delta[position] << (8 * bit)
                    position += 1
            for bit in range(3):
                if command & (0x10 << bit):
                    if position >= end:
                        raise CorruptBinaryError("the delta ends within an instruction")
                    size |= delta[position] << (8 * bit)
                    position += 1
            size = size or 0x10000
            if offset + size > len(source) or size > left:
                raise CorruptBinaryError("the delta copies from beyond the old content")
            out.append(source[offset : offset + size])
            left -= size
        elif command:
            if command > left or position + command > end:
                raise CorruptBinaryError("the delta inserts more than it carries")
            out.append(delta[position : position + command])
            position += command
            left -= command
        else:
            raise CorruptBinaryError("the delta has an instruction 0")
    if left:
        raise CorruptBinaryError(f"the delta ends {left} bytes short")
    return b"".join(out)


def apply_binary(source: bytes, hunk: BinaryHunk) -> bytes:
    """Return the new content that a forward binary hunk makes of the old one.

    Args:
        source: The old content (ignored by a literal).
        hunk: The forward hunk.

    Raises:
        CorruptBinaryError: The delta is malformed or does not belong to `source`.
    """
    if hunk.method == "literal":
        return hunk.data
    return apply_delta(source, hunk.data)
