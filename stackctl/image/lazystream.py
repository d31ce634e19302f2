# SPDX-License-Identifier: Apache-2.0
"""Taking down what passes of a layer, to hold its index against afterwards."""

import hashlib
import zlib
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import zstandard

from stackctl.image import inflate
from stackctl.image.blobs import CHUNK, damaged, has_header, zstd_pieces
from stackctl.image.frames import Frames
from stackctl.image.layers import clean_path
from stackctl.image.limits import MIB
from stackctl.image.tar import ByteStream, Chunk, TarEntry, TarReader

#: Name of eStargz's table in the layer's root.
TOC_NAME: Final = b"stargz.index.json"
#: Bytes of a table as it is kept, which is compressed, and unpacked; containers/storage
#: takes 150 MiB.
MAX_STORED: Final = 16 * MIB
MAX_PLAIN: Final = 64 * MIB
#: Frames or members of one layer whose beginnings are noted; 16 bytes each.
_MAX_RESTARTS: Final = 500_000
#: Bytes of the layer's end that are kept: the longest footer with its frame's head.
_TAIL = 8 + 64
#: Stored bytes given to a decompressor at once, and unpacked ones taken from it.
_SLICE = 64 * 1024
_BATCH = 256 * 1024


class _Restarts:
    """Where frames or gzip members begin, in stored and in unpacked bytes."""

    def __init__(self) -> None:
        self.stored: array[int] = array("q")
        self.plain: array[int] = array("q")

    @property
    def full(self) -> bool:
        return len(self.stored) >= _MAX_RESTARTS

    def add(self, stored: int, plain: int) -> None:
        # The other first: who asks for the one has the other.
        if not self.full:
            self.stored.append(stored)
            self.plain.append(plain)

    def plain_at(self, stored: int) -> int | None:
        """Return the unpacked offset of what begins at a stored one."""
        at = bisect_left(self.stored, stored)
        if at < len(self.stored) and self.stored[at] == stored:
            return self.plain[at]
        return None


class _Bounded:
    """The file-like face of a zstd stream that ends with every frame."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._ends: deque[int] = deque()
        self.frames = Frames(self._ends)
        self.offset = 0
        self.bounded = True

    def more(self) -> bool:
        """Say whether anything is left."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self.frames.feed(chunk)
            if self.frames.wasteful:
                raise damaged("zstd", "its blocks hold a few bytes each")
            self._rest = memoryview(chunk)
        return True

    def begin(self) -> None:
        """Go on to the next frame."""
        while self._ends and self._ends[0] <= self.offset:
            self._ends.popleft()

    @property
    def ended(self) -> bool:
        """Whether the frame was read to its end."""
        return bool(self._ends) and self._ends[0] == self.offset

    def read(self, size: int = -1) -> memoryview:
        if (self.bounded and self.ended) or not self.more():
            return memoryview(b"")
        take = len(self._rest) if size < 0 else min(size, len(self._rest))
        if self.bounded and self._ends:
            take = min(take, self._ends[0] - self.offset)
        piece, self._rest = self._rest[:take], self._rest[take:]
        self.offset += take
        return piece


class Record:
    """Takes down what passes of a layer.

    Args:
        position: Offset and size in the stored layer of a table to keep, if any.

    Attributes:
        captured: The stored bytes at that position.
        tail: The last stored bytes.
        toc: The last file that is named like eStargz's table.
    """

    def __init__(self, position: tuple[int, int] | None) -> None:
        self._position = position
        self.captured = bytearray()
        self.tail = b""
        self.toc = Capture()
        self._stored = 0
        self._restarts = _Restarts()
        self._contents: dict[int, tuple[int, bytes]] = {}
        self._piece_begins: array[int] = array("q")
        self._piece_digests = bytearray()

    def tap(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the layer as stored, and keep the table and the layer's end."""
        begin, length = self._position or (0, 0)
        end = begin + length
        for chunk in chunks:
            at = self._stored
            self._stored += len(chunk)
            if begin < self._stored and at < end:
                self.captured += chunk[max(begin - at, 0) : end - at]
            self.tail = (self.tail + chunk[-_TAIL:])[-_TAIL:]
            yield chunk

    def unpack(
        self, kind: str, chunks: Iterator[bytes], window: int
    ) -> Iterator[bytes]:
        """Yield the unpacked layer, and note where frames or members begin.

        Args:
            kind: `gzip` or `zstd`.
            chunks: The layer as stored.
            window: Bytes of a zstd window.

        Raises:
            ImageFormatError: The stream is damaged or ends early.
        """
        parts = self._gzip(chunks) if kind == "gzip" else self._zstd(chunks, window)
        gathered: list[bytes] = []
        size = 0
        for part in parts:
            gathered.append(part)
            size += len(part)
            if size >= _BATCH:
                yield b"".join(gathered) if len(gathered) > 1 else part
                gathered.clear()
                size = 0
        if gathered:
            yield b"".join(gathered)

    def _gzip(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        base = at = plain = 0
        chunk = memoryview(b"")

        def more() -> bool:
            nonlocal base, at, chunk
            while at == len(chunk):
                found = next(chunks, None)
                if found is None:
                    return False
                base += len(chunk)
                chunk, at = memoryview(found), 0
            return True

        while more():
            self._restarts.add(base + at, plain)
            while (
                not has_header(bytes(chunk[at : at + _SLICE]))
                and len(chunk) - at < CHUNK
                and (found := next(chunks, None)) is not None
            ):
                base, chunk, at = base + at, memoryview(bytes(chunk[at:]) + found), 0
            member = inflate.decompressor(inflate.GZIP)
            while not member.eof:
                if not more():
                    raise damaged("gzip", "it ends early")
                piece = chunk[at : at + _SLICE]
                try:
                    output = member.decompress(piece, CHUNK)
                except inflate.ERRORS as exc:
                    raise damaged("gzip", str(exc)) from None
                left = member.unused_data if member.eof else member.unconsumed_tail
                at += len(piece) - len(left)
                if output:
                    plain += len(output)
                    yield output
                elif len(left) == len(piece) and not member.eof:
                    raise damaged("gzip", "it leads nowhere")

    def _zstd(self, chunks: Iterator[bytes], window: int) -> Iterator[bytes]:
        plain = 0
        source = _Bounded(chunks)
        decompressor = zstandard.ZstdDecompressor(max_window_size=window)
        while source.more():
            source.begin()
            self._restarts.add(source.offset, plain)
            # Frames without end may hold nothing: they are not counted one by one.
            source.bounded = not self._restarts.full
            reader = decompressor.stream_reader(
                cast(Any, source),
                read_size=CHUNK,
                read_across_frames=not source.bounded,
            )
            for output in zstd_pieces(reader, _BATCH):
                plain += len(output)
                yield output
            if source.bounded and not source.ended:
                break
        if not source.frames.between or source.more():
            raise damaged("zstd", "it ends early")

    def reader(self, stream: ByteStream, max_entries: int) -> TarReader:
        """Return a reader of the unpacked layer that takes down its contents."""
        return _Reader(stream, max_entries, self)

    def took(self, ordinal: int, begin: int, digest: bytes) -> None:
        """Take down the content of a file.

        Args:
            ordinal: Position of its entry.
            begin: Where it begins in the unpacked layer.
            digest: Its SHA-256.
        """
        self._contents[ordinal] = (begin, digest)

    def took_piece(self, begin: int, digest: bytes) -> None:
        """Take down a piece between the beginnings of two frames."""
        self._piece_begins.append(begin)
        self._piece_digests += digest

    def content(self, ordinal: int) -> tuple[int, bytes] | None:
        """Return where a file's content begins, unpacked, and its SHA-256."""
        return self._contents.get(ordinal)

    def starts(self, stored: int) -> int | None:
        """Return the unpacked offset of the frame or member at a stored one."""
        return self._restarts.plain_at(stored)

    @property
    def forgetful(self) -> bool:
        """Whether there were more frames or members than are noted."""
        return self._restarts.full

    def piece(self, begin: int, size: int, end: int) -> bytes | None:
        """Return the SHA-256 of a piece of a file, or None if there is no such piece.

        Args:
            begin: Where it begins in the unpacked layer.
            size: Its size in bytes.
            end: Where the file ends in the unpacked layer.
        """
        begins = self._piece_begins
        at = bisect_left(begins, begin)
        if at == len(begins) or begins[at] != begin:
            return None
        last = min(begins[at + 1], end) if at + 1 < len(begins) else end
        if begin + size != last:
            return None
        return bytes(self._piece_digests[32 * at : 32 * at + 32])

    def capture(self) -> "Capture":
        """Begin to keep the table that is a file of the layer."""
        self.toc = Capture()
        return self.toc

    def restarts(self) -> "array[int]":
        """Return where frames or members begin, unpacked, as far as is known."""
        return self._restarts.plain


class Capture:
    """A table that is a file, kept compressed."""

    def __init__(self) -> None:
        self.begin = -1
        self.ordinal = -1
        self.over = False
        self._hash = hashlib.sha256()
        self._packer = zlib.compressobj(1)
        self._parts: list[bytes] = []
        self._size = 0
        self._plain = 0

    def take(self, data: Chunk) -> None:
        """Keep the next bytes."""
        self._plain += len(data)
        self._hash.update(data)
        if self.over or self._plain > MAX_PLAIN:
            self.over = True
            self._parts.clear()
            return
        self._add(self._packer.compress(data))

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_STORED:
            self.over = True
            self._parts.clear()
        elif part:
            self._parts.append(part)

    @property
    def digest(self) -> str:
        """The digest of what was taken."""
        return f"sha256:{self._hash.hexdigest()}"

    def finish(self) -> bool:
        """End the keeping, and say whether all was kept."""
        self._add(self._packer.flush())
        return not self.over

    def plain(self) -> Iterator[bytes]:
        """Yield what was kept."""
        unpacker = zlib.decompressobj()
        for part in self._parts:
            while part:
                yield unpacker.decompress(part, _BATCH)
                part = unpacker.unconsumed_tail
        yield unpacker.flush()


class _Reader(TarReader):
    """Reads a tar, and takes the digest of every file and of its pieces."""

    def __init__(self, stream: ByteStream, max_entries: int, record: Record) -> None:
        super().__init__(stream, max_entries=max_entries)
        self._record = record
        self._ordinal = -1
        self._restarts = record.restarts()
        self._cursor = 0
        self._pos = 0
        self._begin = 0
        self._piece_begin = 0
        self._file: Any = None
        self._piece: Any = None
        self._capture: Capture | None = None

    def _next(self) -> TarEntry | None:
        self._finish_file()
        entry = super()._next()
        self._ordinal += 1
        if entry is not None and entry.type == "0" and entry.sparse is None:
            self._pos = self._begin = self._piece_begin = self._stream.offset
            self._file = hashlib.sha256()
            if clean_path(entry.name) == TOC_NAME:
                self._capture = self._record.capture()
                if not entry.pax:
                    # What a PAX header changes is not seen by who begins behind it.
                    self._capture.begin = self._begin
                self._capture.ordinal = self._ordinal
        return entry

    def whole(self) -> Chunk:
        data = super().whole()
        if self._file is not None:
            self._took(data)
        return data

    def data(self) -> Iterator[Chunk]:
        for piece in super().data():
            if self._file is not None:
                self._took(piece)
            yield piece

    def _finish_file(self) -> None:
        if self._file is None:
            return
        for piece in super().data():
            self._took(piece)
        self._record.took(self._ordinal, self._begin, self._file.digest())
        if self._piece is not None:
            self._record.took_piece(self._piece_begin, self._piece.digest())
        self._file = self._piece = self._capture = None

    def _took(self, data: Chunk) -> None:
        if self._capture is not None:
            self._capture.take(data)
        restarts = self._restarts
        end = self._pos + len(data)
        at = 0
        while self._cursor < len(restarts) and restarts[self._cursor] < end:
            cut = restarts[self._cursor]
            self._cursor += 1
            if cut <= self._piece_begin:
                continue
            self._update(memoryview(data)[at : cut - self._pos])
            at = cut - self._pos
            # The first piece is all that was read of the file.
            digest = (self._piece or self._file).digest()
            self._record.took_piece(self._piece_begin, digest)
            self._piece = hashlib.sha256()
            self._piece_begin = cut
        self._update(memoryview(data)[at:] if at else data)
        self._pos = end

    def _update(self, data: Chunk) -> None:
        self._file.update(data)
        if self._piece is not None:
            self._piece.update(data)
