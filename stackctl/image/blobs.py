# SPDX-License-Identifier: Apache-2.0
"""Verified bytes: digests, decompression, and reading ahead of who parses.

A blob is an iterator of chunks. `verified` hashes what passes and compares at the end,
so nobody may act on what a blob says before it is read to its end.
"""

import hashlib
import itertools
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import zstandard

from stackctl.image import inflate
from stackctl.image.errors import DigestError, ImageFormatError, LimitError
from stackctl.image.frames import Frames
from stackctl.image.limits import MIB, Limits

#: Size of the pieces that pass through the reader, in bytes.
CHUNK = MIB
#: Size of the unpacked pieces where one layer is read at a time, in bytes.
WIDE = 4 * MIB
#: Unpacked pieces that may wait to be parsed.
AHEAD = 4
#: Stored bytes below which threads cost more than they give.
SMALL = 512 * 1024
#: Stored bytes of a gzip member that are looked at in one piece, at least.
_LEAST = 4096
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_DAMAGED = "the image was damaged or tampered with: get it again"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_OTHER_MAGIC = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x04\x22\x4d\x18": "lz4"}


def check_digest(text: object, what: str) -> str:
    """Return `text` if it is a digest that can be checked.

    Raises:
        ImageFormatError: It is none, or of an algorithm that is not in use.
    """
    if isinstance(text, str) and _DIGEST.fullmatch(text):
        return text
    raise ImageFormatError(
        f"{what} has no usable digest: {str(text)[:80]!r}",
        kind="bad-digest",
        hint="expected sha256: or sha512: and lower-case hex",
        where={"digest": str(text)[:200]},
    )


_T = TypeVar("_T")


class Handoff(Generic[_T]):
    """A short queue between two threads.

    `queue.Queue` with a bound takes several locks in Python code for every item; this
    takes two in C, which counts where the interpreter lock is what is short.

    Args:
        depth: Items that may wait.
    """

    def __init__(self, depth: int = 2) -> None:
        self._items: queue.SimpleQueue[_T] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)

    def put(self, item: _T) -> None:
        """Hand an item over, once there is room for it."""
        self._room.get()
        self._items.put(item)

    def get(self) -> _T:
        """Take the next item, once there is one."""
        item = self._items.get()
        self._room.put(None)
        return item

    def give_way(self) -> None:
        """Let one more item in, although nobody takes any."""
        self._room.put(None)


class Pump(Generic[_T]):
    """Runs an iterator in a thread of its own, a few items ahead of who takes them.

    Args:
        items: The iterator; its exceptions reach who takes the items.
        depth: Items that may wait.
    """

    def __init__(self, items: Iterator[_T], depth: int = 2) -> None:
        self._items = items
        self._handoff: Handoff[tuple[_T] | BaseException | None] = Handoff(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._handoff.put((item,))
                if self._stopped.is_set():
                    # Not when it is collected: an exception may hold it for long, and
                    # with it the threads that it has.
                    close = getattr(self._items, "close", None)
                    if close is not None:
                        close()
                    return
            self._handoff.put(None)
        except BaseException as exc:
            self._handoff.put(exc)

    def __iter__(self) -> Iterator[_T]:
        while not self._stopped.is_set():
            item = self._handoff.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                try:
                    raise item
                finally:
                    # The frame and the exception would hold each other, and with them
                    # whatever the iterator has open.
                    del item
            yield item[0]

    def stop(self) -> None:
        """End the thread; the iterator is not read any further."""
        self._stopped.set()
        while self._thread.is_alive():
            self._handoff.give_way()
            self._thread.join(0.01)


class Sink(Generic[_T]):
    """Hands items to a function that runs in a thread of its own.

    Args:
        take: Called with every item, in order.
    """

    def __init__(self, take: Callable[[_T], object]) -> None:
        self._take = take
        self._handoff: Handoff[tuple[_T] | None] = Handoff()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (item := self._handoff.get()) is not None:
            # After an error the rest is taken too, so that nobody waits for room.
            if self._error is None:
                try:
                    self._take(item[0])
                except BaseException as exc:
                    self._error = exc
            # Not kept while the next one is waited for: items are large.
            del item

    def put(self, item: _T) -> None:
        """Hand an item over, once there is room for it."""
        self._handoff.put((item,))

    def close(self) -> None:
        """Wait until all items are taken, and end the thread.

        Raises:
            BaseException: What the function raised.
        """
        if self._thread.is_alive():
            self._handoff.put(None)
            self._thread.join()
        if self._error is not None:
            raise self._error


def ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield what an iterator yields, which runs in a thread of its own meanwhile.

    Args:
        items: The iterator; it is closed when this one is.
    """
    pump = Pump(items)
    try:
        yield from pump
    finally:
        pump.stop()
        close = getattr(items, "close", None)
        if close is not None:
            close()


def verified(
    chunks: Iterable[bytes],
    digest: str,
    size: int | None,
    what: str,
) -> Iterator[bytes]:
    """Yield `chunks` and check their digest and size at the end.

    Args:
        chunks: The blob.
        digest: What it must hash to.
        size: How long it must be, in bytes, if that is known.
        what: What to call it in an error.

    Raises:
        DigestError: It is longer or shorter, or hashes to something else.
    """
    algorithm = digest.partition(":")[0]
    hasher = hashlib.new(algorithm)
    got = 0
    for chunk in chunks:
        got += len(chunk)
        if size is not None and got > size:
            raise DigestError(
                f"{what} is longer than the {size} bytes its descriptor states",
                kind="size-mismatch",
                hint=_DAMAGED,
                where={"digest": digest, "expected_size": size},
            )
        hasher.update(chunk)
        yield chunk
    actual = f"{algorithm}:{hasher.hexdigest()}"
    check_blob(what, (digest, actual), (size, got))


def check_blob(
    what: str, digests: tuple[str | None, str], sizes: tuple[int | None, int]
) -> None:
    """Compare what a blob is with what is stated of it.

    Args:
        what: What to call it in an error.
        digests: The stated one, None where none is, and the actual one.
        sizes: The same of its length in bytes.

    Raises:
        DigestError: One of them differs.
    """
    digest, actual = digests
    size, got = sizes
    if size is not None and got != size:
        raise DigestError(
            f"{what} has {got} bytes, its descriptor states {size}",
            kind="size-mismatch",
            hint=_DAMAGED,
            where={"digest": digest, "expected_size": size, "actual_size": got},
        )
    if digest is not None and actual != digest:
        raise DigestError(
            f"{what} hashes to {actual}, not to {digest}",
            hint=_DAMAGED,
            where={"expected": digest, "actual": actual},
        )


def read_small(chunks: Iterable[bytes], limit: int, what: str) -> bytes:
    """Return a whole small blob.

    Raises:
        LimitError: It is longer than `limit` bytes.
    """
    parts = []
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > limit:
            raise LimitError(
                f"{what} is over the limit of {limit} bytes",
                kind="limit-manifest",
                hint="no registry accepts a document of this size",
                where={"limit": limit},
            )
        parts.append(chunk)
    return b"".join(parts)


def compression(head: bytes) -> str:
    """Return `gzip`, `zstd`, `tar` or the name of a format no runtime reads.

    Args:
        head: The first bytes of the blob, six or more if it has them.
    """
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if head.startswith(_ZSTD_MAGIC):
        return "zstd"
    # Skippable frames carry the indexes of zstd:chunked and may come first.
    if head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
        return "zstd"
    for magic, name in _OTHER_MAGIC.items():
        if head.startswith(magic):
            return name
    return "tar"


def sniff(chunks: Iterable[bytes]) -> tuple[str, Iterator[bytes]]:
    """Return the compression of a blob, as `compression` does, and all its chunks.

    The chunks have no `close`: whoever gives up decompressing them leaves what they
    come from open, to be read to its end.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head += chunk
        if len(head) >= 6:
            break
    return compression(head), itertools.chain((head,) if head else (), source)


def decompress(
    chunks: Iterable[bytes],
    limits: Limits,
    unpack: Callable[[str, Iterator[bytes], int], Iterator[bytes]] | None = None,
    step: int = CHUNK,
) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a layer blob, whatever its compression.

    Args:
        chunks: The blob as stored.
        limits: Bounds of the output and its ratio to the input.
        unpack: Unpacks `gzip` or `zstd` in place of what does it here; is given the
            kind, the chunks and the bytes of a zstd window.
        step: Most bytes of a piece that a compressed blob is unpacked to.

    Raises:
        ImageFormatError: The stream is damaged, ends early, or has a format that no
            runtime reads.
        LimitError: It expands beyond the limits.
    """
    kind, source = sniff(chunks)
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for chunk in source:
            taken += len(chunk)
            if taken > limits.compressed_layer:
                raise LimitError(
                    f"a layer blob is over {limits.compressed_layer} bytes",
                    kind="limit-layer",
                    hint="raise the limit with --max-layer-size if this is intended",
                )
            yield chunk

    if unpack is not None and kind in ("gzip", "zstd"):
        output = unpack(kind, counted(), limits.window)
    elif kind == "gzip":
        output = _gunzip(counted(), step)
    elif kind == "zstd":
        output = _unzstd(counted(), step, limits.window)
    elif kind == "tar":
        output = counted()
    else:
        raise ImageFormatError(
            f"a layer is compressed with {kind}, which container runtimes do not read",
            kind="layer-compression",
            hint="expected gzip, zstd or none",
        )
    produced = 0
    for chunk in output:
        produced += len(chunk)
        if produced > limits.layer:
            raise LimitError(
                f"a layer is over {limits.layer} bytes uncompressed",
                kind="limit-layer",
                hint="raise the limit with --max-layer-size if this is intended",
            )
        if produced > 64 * MIB and produced > taken * limits.ratio:
            raise LimitError(
                f"a layer expands more than {limits.ratio} times",
                kind="limit-ratio",
                hint="raise the limit with --max-ratio if this is intended",
            )
        yield chunk


def damaged(kind: str, why: str) -> ImageFormatError:
    """Return the refusal of a layer whose compression is damaged."""
    return ImageFormatError(
        f"a layer's {kind} stream is damaged: {why}",
        kind="bad-compression",
        hint="the image was damaged or built wrongly: get or build it again",
    )


def has_header(start: bytes | memoryview) -> bool:
    """Whether the whole header of a gzip member is there (RFC 1952, section 2.3)."""
    if len(start) < 12:
        return False
    flags = start[3]
    if not flags:
        return True
    data = bytes(start)
    end = 10
    if flags & 4:
        end += 2 + int.from_bytes(data[10:12], "little")
    for name_or_comment in (8, 16):
        if flags & name_or_comment:
            end = data.find(b"\0", end) + 1
            if not end:
                return False
    return len(data) >= end + (flags & 2)


def _gunzip(chunks: Iterator[bytes], step: int) -> Iterator[bytes]:
    """Inflate every member; like the Go reader, anything else after one is an error."""
    # Views, and no more of them than a member may need: what is left over is copied.
    pending = memoryview(b"")
    feed = CHUNK
    while pending or (pending := memoryview(next(chunks, b""))):
        # ISA-L loses its place in a header of several fields that comes in pieces.
        while not has_header(pending) and len(pending) < CHUNK:
            if not (more := next(chunks, b"")):
                break
            pending = memoryview(bytes(pending) + more)
        member = inflate.decompressor(inflate.GZIP)
        taken = 0
        while not member.eof:
            if not pending and not (pending := memoryview(next(chunks, b""))):
                raise damaged("gzip", "it ends early")
            part = pending[:feed]
            try:
                output = member.decompress(part, step)
            except inflate.ERRORS as exc:
                raise damaged("gzip", str(exc)) from None
            left = len(member.unused_data if member.eof else member.unconsumed_tail)
            taken += len(part) - left
            pending = pending[len(part) - left :]
            feed = min(2 * feed, CHUNK)
            if output:
                yield output
        feed = min(max(2 * taken, _LEAST), CHUNK)


class _Readable:
    """The file-like face of a chunk iterator that zstandard asks for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> memoryview:
        # Views: a chunk that is cut as bytes is copied with every piece of it.
        chunk = self._rest or memoryview(next(self._chunks, b""))
        if 0 <= size < len(chunk):
            self._rest = chunk[size:]
            return chunk[:size]
        self._rest = memoryview(b"")
        return chunk


def _unzstd(chunks: Iterator[bytes], step: int, window: int) -> Iterator[bytes]:
    """Decompress every frame and pass over skippable ones."""
    frames = Frames()

    def followed() -> Iterator[bytes]:
        for chunk in chunks:
            frames.feed(chunk)
            if frames.wasteful:
                raise damaged("zstd", "its blocks hold a few bytes each")
            yield chunk

    decompressor = zstandard.ZstdDecompressor(max_window_size=window)
    reader = decompressor.stream_reader(
        _Readable(followed()),  # type: ignore[arg-type]
        read_size=CHUNK,
        read_across_frames=True,
    )
    yield from zstd_pieces(reader, step)
    if not frames.between:
        raise damaged("zstd", "it ends early")


def zstd_pieces(
    reader: zstandard.ZstdDecompressionReader, step: int
) -> Iterator[bytes]:
    """Yield all that a reader unpacks, in pieces of at most `step` bytes.

    Raises:
        ImageFormatError: The stream is damaged.
    """
    while True:
        try:
            output = reader.read(step)
        except zstandard.ZstdError as exc:
            raise damaged("zstd", str(exc)) from None
        if not output:
            return
        yield output
