# SPDX-License-Identifier: Apache-2.0
"""Reading and writing git packs in this process.

A git process per object (1.8 ms) or per commit (3 ms) is what makes stacks slow, so the
composer writes what it makes as one pack. The writer stores successive versions of a
file or folder as deltas that are known from the edit itself: nothing is searched and
almost nothing is compressed. Formats: gitformat-pack(5), pack version 2, index version
2.
"""

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from pathlib import Path
from typing import BinaryIO, NamedTuple

from stackctl.errors import PinError
from stackctl.git.objects import TREE, object_id
from stackctl.interrupts import Hold

OFS_DELTA = 6
REF_DELTA = 7
MAX_CHAIN = 40
"""Longest delta chain written; git's own default for `pack.depth` is 50."""

_COPY_LIMIT = 0xFFFFFF
_INDEX_MAGIC = b"\xfftOc\x00\x00\x00\x02"


_MAP_FROM = 1 << 18
"""Indexes from this size (bytes) on are mapped and not read: 9,000 objects."""

_DELTA_MIN = 4
"""Shortest delta that git reads: bytes. One that makes an empty file is shorter."""

_MEND = (
    "if the cache is the damaged one, run `stackctl cache clean` and compose again; "
    "otherwise `git fsck` that repository"
)

_STORED_LIMIT = 4096
"""Objects up to this size (bytes) are not compressed: setting zlib up costs 60 us."""

try:
    from isal.isal_zlib import compress as _fast_compress
except ImportError:  # no wheel for this platform
    _fast_compress = zlib.compress


def deflate(data: bytes, level: int = 1) -> bytes:
    """Return a zlib stream of some bytes, made quickly rather than small.

    Args:
        data: The bytes.
        level: Compression level, 1 is the quickest.
    """
    if len(data) > _STORED_LIMIT:
        return bytes(_fast_compress(data, level))
    return store_uncompressed(data)


def store_uncompressed(data: bytes) -> bytes:
    """Return a zlib stream that holds some bytes as they are.

    Stored blocks of RFC 1951, section 3.2.4, in the frame of RFC 1950.
    """
    out = [b"\x78\x01"]
    for start in range(0, len(data) or 1, 0xFFFF):
        block = data[start : start + 0xFFFF]
        last = start + 0xFFFF >= len(data)
        out.append(struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF))
        out.append(block)
    out.append(zlib.adler32(data).to_bytes(4, "big"))
    return b"".join(out)


class Copy(NamedTuple):
    """Delta instruction: take `size` bytes of the old version from `offset`."""

    offset: int
    size: int


DeltaOp = Copy | bytes


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_delta(old_size: int, new_size: int, ops: Sequence[DeltaOp]) -> bytes:
    """Return a git delta.

    Args:
        old_size: Size of the old version in bytes.
        new_size: Size of the new version in bytes.
        ops: Copies from the old version and literal bytes, in order.
    """
    out = bytearray(_varint(old_size) + _varint(new_size))
    for op in ops:
        if isinstance(op, bytes):
            for start in range(0, len(op), 127):
                piece = op[start : start + 127]
                out.append(len(piece))
                out += piece
            continue
        offset, size = op
        while size > 0:
            part = min(size, _COPY_LIMIT)
            head = 0x80
            args = bytearray()
            for bit in range(4):
                byte = offset >> (8 * bit) & 0xFF
                if byte:
                    head |= 1 << bit
                    args.append(byte)
            for bit in range(3):
                byte = part >> (8 * bit) & 0xFF
                if byte:
                    head |= 0x10 << bit
                    args.append(byte)
            out.append(head)
            out += args
            offset += part
            size -= part
    return bytes(out)


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Return the new version that a git delta describes.

    Raises:
        PinError: The delta is damaged or does not fit its base.
    """
    damaged = PinError("a git delta is damaged", kind="bad-object")
    try:
        position = 0
        sizes = []
        for _ in range(2):
            size = shift = 0
            while True:
                byte = delta[position]
                position += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
                if shift > 63:
                    raise damaged
            sizes.append(size)
        if sizes[0] != len(base):
            raise damaged
        out: list[bytes] = []
        total = 0
        end = len(delta)
        while position < end:
            head = delta[position]
            position += 1
            if head & 0x80:
                offset = size = 0
                for bit in range(4):
                    if head >> bit & 1:
                        offset |= delta[position] << (8 * bit)
                        position += 1
                for bit in range(3):
                    if head >> (4 + bit) & 1:
                        size |= delta[position] << (8 * bit)
                        position += 1
                size = size or 0x10000
                if offset + size > len(base):
                    raise damaged
                out.append(base[offset : offset + size])
            elif head:
                size = head
                if position + size > end:
                    raise damaged
                out.append(delta[position : position + size])
                position += size
            else:
                raise damaged
            total += size
            if total > sizes[1]:
                raise damaged
    except IndexError:
        raise damaged from None
    if total != sizes[1]:
        raise damaged
    return b"".join(out)


class PackGoneError(PinError):
    """A pack went away after its index was read."""


class Pack:
    """One pack on disk, opened for reading by id.

    Args:
        index: Path of the `.idx` file; the `.pack` lies beside it.
    """

    def __init__(self, index: Path) -> None:
        self.path = index.with_suffix(".pack")
        self._mapped: mmap.mmap | None = None
        with index.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A mapping holds a descriptor; a cache may have thousands of small packs.
            self._index: bytes | mmap.mmap = (
                file.read()
                if size < _MAP_FROM
                else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            )
        size = len(self._index)
        damaged = PinError(
            f"pack index {index} is damaged", kind="bad-object", hint=_MEND
        )
        if self._index[:8] != _INDEX_MAGIC or size < 8 + 1024 + 40:
            raise damaged
        self._fanout = struct.unpack_from(">256I", self._index, 8)
        self.count: int = self._fanout[255]
        self._ids = 8 + 1024
        self._offsets = self._ids + 24 * self.count
        if size < self._offsets + 4 * self.count + 40:
            raise damaged
        # A flipped id would make its object a missing one, and git does not look.
        if sha1(memoryview(self._index)[:-20]).digest() != self._index[-20:]:
            raise damaged

    def close(self) -> None:
        """Unmap the files."""
        if not isinstance(self._index, bytes):
            self._index.close()
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    @property
    def _data(self) -> mmap.mmap:
        if self._mapped is None:
            try:
                with self.path.open("rb") as file:
                    self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError):
                raise PackGoneError(
                    f"pack {self.path.name} is gone or empty",
                    kind="bad-object",
                    hint=_MEND,
                ) from None
        return self._mapped

    def ids(self) -> Iterator[bytes]:
        """Yield the raw ids of all objects, in order."""
        for number in range(self.count):
            start = self._ids + 20 * number
            yield self._index[start : start + 20]

    def offset(self, oid: bytes) -> int | None:
        """Return where an object starts in the pack, or None where it is not there."""
        first = oid[0]
        low = self._fanout[first - 1] if first else 0
        high = self._fanout[first]
        index = self._index
        while low < high:
            middle = (low + high) // 2
            start = self._ids + 20 * middle
            found = index[start : start + 20]
            if found < oid:
                low = middle + 1
            elif found > oid:
                high = middle
            else:
                (value,) = struct.unpack_from(">I", index, self._offsets + 4 * middle)
                if value & 0x80000000:
                    large = self._offsets + 4 * self.count + 8 * (value & 0x7FFFFFFF)
                    (value,) = struct.unpack_from(">Q", index, large)
                return int(value)
        return None

    def _header(self, offset: int) -> tuple[int, int, int]:
        data = self._data
        byte = data[offset]
        offset += 1
        kind = byte >> 4 & 7
        size = byte & 15
        shift = 4
        while byte & 0x80:
            byte = data[offset]
            offset += 1
            size |= (byte & 0x7F) << shift
            shift += 7
        return kind, size, offset

    def _inflate(self, offset: int, size: int) -> bytes:
        # Stored blocks are zlib's worst case: 5 bytes per 16 KiB, and the frame.
        limit = offset + size + size // 1000 + 1024
        with memoryview(self._data)[offset:limit] as view:
            try:
                out = zlib.decompressobj().decompress(view, size + 1)
            except zlib.error:
                out = b""
        if len(out) != size:
            raise self._damaged()
        return out

    def _damaged(self) -> PinError:
        return PinError(f"pack {self.path} is damaged", kind="bad-object", hint=_MEND)

    def read_at(
        self, offset: int, reader: Callable[[bytes], tuple[int, bytes]]
    ) -> tuple[int, bytes]:
        """Return kind and content of the object at an offset.

        Args:
            offset: Start of the object's entry.
            reader: Reads the base of a delta that names it by id.

        Raises:
            PinError: The pack is damaged.
        """
        try:
            return self._read_at(offset, reader)
        except IndexError:  # the data ends in the middle of an entry
            raise self._damaged() from None

    def _read_at(
        self, offset: int, reader: Callable[[bytes], tuple[int, bytes]]
    ) -> tuple[int, bytes]:
        deltas = []
        while True:
            kind, size, start = self._header(offset)
            if kind == OFS_DELTA:
                byte = self._data[start]
                start += 1
                back = byte & 0x7F
                while byte & 0x80:
                    byte = self._data[start]
                    start += 1
                    back = (back + 1 << 7) | byte & 0x7F
                deltas.append(self._inflate(start, size))
                if back <= 0 or back > offset:
                    raise self._damaged()
                offset -= back
            elif kind == REF_DELTA:
                base_id = self._data[start : start + 20]
                deltas.append(self._inflate(start + 20, size))
                inner = self.offset(base_id)
                if inner is None:
                    kind, content = reader(base_id)
                    break
                offset = inner
            else:
                content = self._inflate(start, size)
                break
        for delta in reversed(deltas):
            content = apply_delta(content, delta)
        return kind, content


def _entry_header(kind: int, size: int) -> bytes:
    byte = kind << 4 | size & 15
    size >>= 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    out.append(byte)
    return bytes(out)


def _offset_bytes(back: int) -> bytes:
    out = bytearray([back & 0x7F])
    back >>= 7
    while back:
        back -= 1
        out.insert(0, 0x80 | back & 0x7F)
        back >>= 7
    return bytes(out)


class PackWriter:
    """Collects objects into one new pack; nothing is visible before `finish`.

    The temporary file is held under a lock while it is written, so that a later run can
    tell the remains of a killed process (no lock) from the work of a living one.

    Args:
        folder: The repository's `objects/pack`.
        level: zlib level; 1 because packs here are a cache, not an archive.
    """

    def __init__(self, folder: Path, level: int = 1) -> None:
        self._folder = folder
        self._level = level
        self._file: BinaryIO | None = None
        self._temporary: Path | None = None
        self._position = 0
        self._entries: dict[bytes, tuple[int, int]] = {}
        self._depth: dict[bytes, int] = {}
        self._buffer: list[bytes] = []
        self._buffered = 0

    def __contains__(self, oid: bytes) -> bool:
        return oid in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _open(self) -> None:
        hold = Hold()
        try:
            # Ctrl-C in between would leave a file that nobody knows.
            hold.take()
            descriptor, self._temporary = _locked_temporary(self._folder)
            self._file = os.fdopen(descriptor, "w+b", buffering=0)
        finally:
            hold.release()
        self._emit(struct.pack(">4sII", b"PACK", 2, 0))

    def _emit(self, data: bytes) -> None:
        self._buffer.append(data)
        self._buffered += len(data)
        self._position += len(data)
        if self._buffered > 1 << 20:
            self._flush()

    def _flush(self) -> None:
        if self._file is not None and self._buffer:
            view = memoryview(b"".join(self._buffer))
            self._buffer = []
            self._buffered = 0
            while view:
                view = view[self._file.write(view) :]

    def add(self, kind: int, data: bytes, oid: bytes | None = None) -> bytes:
        """Add a whole object.

        Args:
            kind: COMMIT, TREE, BLOB or TAG.
            data: Content.
            oid: The raw id where the caller has it already.

        Returns:
            The raw id.
        """
        if oid is None:
            oid = object_id(kind, data)
        if oid not in self._entries:
            # A tree is mostly ids, which do not compress.
            packed = (
                store_uncompressed(data) if kind == TREE else deflate(data, self._level)
            )
            self.add_packed(kind, len(data), packed, oid)
        return oid

    def add_packed(self, kind: int, size: int, packed: bytes, oid: bytes) -> None:
        """Add a whole object whose zlib stream the caller made (in a thread, say)."""
        if oid in self._entries:
            return
        if self._file is None:
            self._open()
        entry = _entry_header(kind, size) + packed
        self._entries[oid] = (self._position, zlib.crc32(entry))
        self._emit(entry)

    def add_version(
        self,
        kind: int,
        data: bytes,
        oid: bytes,
        old_oid: bytes,
        old_size: int,
        ops: Sequence[DeltaOp],
    ) -> None:
        """Add an object as an edit of an older version, where that one is in this pack.

        Args:
            kind: COMMIT, TREE, BLOB or TAG.
            data: The new content.
            oid: The new raw id.
            old_oid: Raw id of the older version.
            old_size: Size of the older version in bytes.
            ops: The edit.
        """
        if oid in self._entries:
            return
        old = self._entries.get(old_oid)
        depth = self._depth.get(old_oid, 0) + 1
        if old is None or depth > MAX_CHAIN:
            self.add(kind, data, oid)
            return
        delta = encode_delta(old_size, len(data), ops)
        if len(delta) < _DELTA_MIN:
            self.add(kind, data, oid)
            return
        entry = (
            _entry_header(OFS_DELTA, len(delta))
            + _offset_bytes(self._position - old[0])
            + deflate(delta, self._level)
        )
        self._entries[oid] = (self._position, zlib.crc32(entry))
        self._depth[oid] = depth
        self._emit(entry)

    def abort(self) -> None:
        """Forget everything that was not finished."""
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
        self._reset()

    def _reset(self) -> None:
        self._file = self._temporary = None
        self._position = 0
        self._entries = {}
        self._depth = {}
        self._buffer = []
        self._buffered = 0

    def finish(self) -> Path | None:
        """Publish the pack: data first, then its index, each by rename.

        Returns:
            Path of the index, or None where nothing was added.
        """
        if self._file is None or self._temporary is None:
            return None
        try:
            self._flush()
            self._file.seek(0)
            self._file.write(struct.pack(">4sII", b"PACK", 2, len(self._entries)))
            self._file.seek(0)
            digest = sha1(usedforsecurity=False)
            while block := self._file.read(1 << 20):
                digest.update(block)
            trailer = digest.digest()
            self._file.write(trailer)
            ids = sorted(self._entries)
            # Named by its bytes: two writers of one name then write the same, and no
            # reader can meet the index of one beside the data of the other.
            pack = self._folder / f"pack-{trailer.hex()}.pack"
            index = pack.with_suffix(".idx")
            if not index.exists():
                os.fchmod(self._file.fileno(), 0o444)
                os.fsync(self._file.fileno())
                self._write_index(index, ids, trailer, pack)
            else:
                self._temporary.unlink()
        except BaseException:
            self.abort()
            raise
        self._file.close()
        self._reset()
        return index

    def _write_index(
        self, index: Path, ids: list[bytes], trailer: bytes, pack: Path
    ) -> None:
        assert self._temporary is not None
        counts = [0] * 256
        for oid in ids:
            counts[oid[0]] += 1
        total = 0
        for number, count in enumerate(counts):
            total += count
            counts[number] = total
        large: list[int] = []
        offsets = []
        for oid in ids:
            offset = self._entries[oid][0]
            if offset >= 0x80000000:
                offsets.append(0x80000000 | len(large))
                large.append(offset)
            else:
                offsets.append(offset)
        body = b"".join(
            (
                _INDEX_MAGIC,
                struct.pack(">256I", *counts),
                b"".join(ids),
                struct.pack(f">{len(ids)}I", *(self._entries[oid][1] for oid in ids)),
                struct.pack(f">{len(ids)}I", *offsets),
                struct.pack(f">{len(large)}Q", *large),
                trailer,
            )
        )
        body += sha1(body, usedforsecurity=False).digest()
        hold = Hold()
        try:
            hold.take()
            descriptor, name = _locked_temporary(self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(body)
                    file.flush()
                    os.fchmod(file.fileno(), 0o444)
                    os.fsync(file.fileno())
                    # git opens the pack that an index names: data must be there first.
                    os.replace(self._temporary, pack)
                    os.replace(name, index)
            except BaseException:
                name.unlink(missing_ok=True)
                raise
        finally:
            hold.release()


def _locked_temporary(folder: Path) -> tuple[int, Path]:
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor, name = tempfile.mkstemp(prefix="tmp_stackctl_", dir=folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Between creation and lock, another process may have taken it for remains.
        if os.fstat(descriptor).st_nlink:
            return descriptor, Path(name)
        os.close(descriptor)


def remove_remains(folder: Path) -> int:
    """Remove temporary files that no living process holds.

    Args:
        folder: The repository's `objects/pack`.

    Returns:
        How many were removed.
    """
    removed = 0
    for path in folder.glob("tmp_stackctl_*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            removed += 1
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return removed
