# SPDX-License-Identifier: Apache-2.0
"""Packed bytes in, plain bytes out: bounded, strict about ends, never more than asked.

Decompression stops at the limits, so a bomb costs a bounded amount of time and memory.
Every stream must end where its file ends; only zero padding may follow.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from stackctl.base.limits import LIMITS, MIB, Limits
from stackctl.errors import InputError, UsageError

_PIECE = MIB
_XZ_MEMORY = 256 * MIB
_ZSTD_WINDOW = 128 * MIB
"""Largest window accepted: what `zstd --long` uses; --long=31 asks for 2 GiB."""


def truncated() -> InputError:
    """Return the error for an archive that ends too early."""
    return InputError(
        "the archive ends too early",
        kind="archive-damaged",
        hint="the file is incomplete; get it again",
    )


def damaged(reason: object) -> InputError:
    """Return the error for an archive that cannot be decoded."""
    return InputError(f"the archive is damaged: {reason}", kind="archive-damaged")


def trailing() -> InputError:
    """Return the error for bytes after the end of an archive."""
    return InputError(
        "there are bytes after the end of the archive",
        kind="archive-refused",
        hint="two readers could see two different archives in it; pack it again",
    )


class _Decoder(Protocol):
    """One stream's decoder, with output bounded per call."""

    @property
    def eof(self) -> bool:
        """Whether the stream's end was reached."""

    @property
    def unused_data(self) -> bytes:
        """What followed the end."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return at most `max_length` bytes."""


class _Zlib:
    """Adapter of zlib-like objects, which hand back input they did not use."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._tail = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        data: bytes = self._inner.unused_data
        return data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out: bytes = self._inner.decompress(self._tail + data, max_length)
        self._tail = self._inner.unconsumed_tail
        return out


def _gzip_decoder() -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    try:
        from isal import igzip_lib, isal_zlib
    except ImportError:
        return lambda: _Zlib(zlib.decompressobj(31)), (zlib.error,)
    errors: list[type[Exception]] = [zlib.error]
    failure: Any = igzip_lib.IsalError
    errors.append(failure)
    return lambda: _Zlib(isal_zlib.decompressobj(31)), tuple(errors)


def _decode(
    chunks: Iterator[bytes],
    new: Callable[[], _Decoder],
    errors: tuple[type[Exception], ...],
    magic: bytes,
    padding: bool,
) -> Iterator[bytes]:
    decoder: _Decoder | None = new()
    pending = b""
    try:
        for chunk in chunks:
            data = pending + chunk
            pending = b""
            while data:
                if decoder is None:
                    if padding:
                        data = data.lstrip(b"\0")
                    if not data:
                        break
                    # The magic may straddle two chunks.
                    if len(data) < len(magic) and magic.startswith(data):
                        pending = data
                        break
                    if not data.startswith(magic):
                        raise trailing()
                    decoder = new()
                out = decoder.decompress(data, _PIECE)
                while True:
                    if out:
                        yield out
                    if decoder.eof or len(out) < _PIECE:
                        break
                    out = decoder.decompress(b"", _PIECE)
                data = b""
                if decoder.eof:
                    data = decoder.unused_data
                    decoder = None
    except errors as error:
        raise damaged(error) from None
    if decoder is not None:
        raise truncated()
    if pending:
        raise trailing()


class _Chunks:
    """Chunks as the one method of a file that zstandard uses."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def read(self, size: int = -1) -> bytes:
        """Return the next chunk, whatever its size."""
        del size
        return next(self._chunks, b"")


def _zstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise UsageError(
            "this archive is packed with Zstandard, which needs the package zstandard",
            kind="missing-package",
            hint="pip install zstandard",
        ) from None

    source: Any = _Chunks(chunks)
    reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(
        source,
        read_across_frames=True,
    )
    try:
        while piece := reader.read(_PIECE):
            yield piece
    except zstandard.ZstdError as error:
        raise damaged(error) from None


def packing(head: bytes) -> str | None:
    """Return how an archive is packed, by its first bytes, None where it is not.

    Args:
        head: At least the first six bytes.
    """
    for magic, name in (
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"PK\x03\x04", "zip"),
        (b"PK\x05\x06", "zip"),
    ):
        if head.startswith(magic):
            return name
    return None


def unpack(
    chunks: Iterator[bytes], name: str | None, limits: Limits = LIMITS
) -> Iterator[bytes]:
    """Yield the plain bytes of a packed stream.

    Args:
        chunks: The file's bytes.
        name: `gzip`, `bzip2`, `xz`, `zstd`, or None for bytes that are not packed.
        limits: Bounds on what comes out.

    Raises:
        InputError: The stream is damaged, truncated, too large, or a bomb.
    """
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for chunk in chunks:
            taken += len(chunk)
            yield chunk

    source = counted()
    if name == "gzip":
        new, errors = _gzip_decoder()
        pieces = _decode(source, new, errors, b"\x1f\x8b", True)
    elif name == "bzip2":
        pieces = _decode(
            source, bz2.BZ2Decompressor, (OSError, EOFError), b"BZh", False
        )
    elif name == "xz":
        pieces = _decode(
            source,
            lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
            (lzma.LZMAError, EOFError),
            b"\xfd7zXZ\0",
            True,
        )
    elif name == "zstd":
        pieces = _zstd(source)
    else:
        pieces = source
    total = 0
    for piece in pieces:
        total += len(piece)
        check_expansion(taken, total, limits)
        yield piece


def check_expansion(packed: int, plain: int, limits: Limits) -> None:
    """Refuse what unpacks to too much.

    Args:
        packed: Packed bytes read so far.
        plain: Plain bytes that came out so far.
        limits: Bounds.

    Raises:
        InputError: A limit is passed.
    """
    if plain > limits.total_bytes:
        raise InputError(
            f"the archive unpacks to more than {limits.total_bytes:,} bytes",
            kind="limit",
        )
    if plain > limits.ratio_from and plain > limits.ratio * packed:
        raise InputError(
            f"the archive unpacks to more than {limits.ratio} times its size "
            f"({plain:,} bytes from {packed:,}): this is no source archive",
            kind="limit",
        )


class ByteReader:
    """Reads exact amounts from an iterator of pieces.

    Args:
        pieces: The bytes.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._position = 0

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes.

        Raises:
            InputError: The stream ends before.
        """
        end = self._position + size
        if end <= len(self._piece):
            out = self._piece[self._position : end]
            self._position = end
            return out
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield exactly `size` bytes in pieces.

        Raises:
            InputError: The stream ends before.
        """
        while size:
            if self._position == len(self._piece):
                self._piece = next(self._pieces, b"")
                self._position = 0
                if not self._piece:
                    raise truncated()
            part = self._piece[self._position : self._position + size]
            self._position += len(part)
            size -= len(part)
            yield part

    def rest(self) -> Iterator[bytes]:
        """Yield everything that is left."""
        yield self._piece[self._position :]
        self._position = len(self._piece)
        yield from self._pieces
