# SPDX-License-Identifier: Apache-2.0
"""A streaming reader of layer tars that sees what container runtimes see.

Docker, containerd, podman, buildah and umoci all read layers with one reader, that of
the Go standard library, so its rules are the meaning of a layer; other tar programs
differ in places. The rules:

- A header is 512 bytes whose checksum holds, summed unsigned or signed. Two zero blocks
  end the archive, and so does the end of the stream between two entries; one zero block
  followed by another block is an error; what follows the end is no entry.
- Names are bytes. A ustar or star prefix field is put before the name; GNU headers have
  no prefix. A NUL ends a field.
- Numbers are octal, or base-256 when the first bit is set; an empty field is zero.
- Only regular files carry data. The size of a link, directory, device or fifo is
  ignored: its data area is empty whatever the field says.
- An `x` header applies to the next entry alone; a second one replaces the first whole.
  An empty value leaves the field as it was. `path`, `linkpath`, `size`, `mtime` and
  `SCHILY.xattr.*` are applied.
- `L` and `K` headers give the next entry's name and link name, over PAX values.
- A `g` header is yielded as an entry of type `g` and is applied to nothing.
- GNU sparse files 0.0, 0.1 and 1.0 (in PAX records) and the old `S` type are expanded:
  holes read as zeros; the sparse name and size replace the entry's.
- The old regular type (NUL) is a directory when its name ends in a slash.
- Meta headers are at most 1 MiB.

The reader holds one chunk and one meta header in memory, whatever the sizes in the
archive say, and neither seeks nor writes.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from stackctl.image.errors import ImageFormatError, LimitError

BLOCK = 512
#: Largest PAX or GNU meta header, in bytes; the limit of the Go reader.
MAX_META = 1 << 20
#: Largest number of extents in a sparse map that is read.
MAX_EXTENTS = 1 << 16

_ZERO_BLOCK = bytes(BLOCK)
_ZEROS = bytes(1 << 16)
_HEADER_ONLY = frozenset("123456")
#: Types of entries that no rule but the header's own concerns.
_PLAIN = frozenset("0123456")
_MAX_INT64 = (1 << 63) - 1

Chunk = bytes | memoryview


@dataclass(slots=True)
class TarEntry:
    """One entry of a tar archive, after its meta headers are applied.

    Attributes:
        name: Name as recorded, not cleaned.
        type: The type flag as one character; `0` for every regular file.
        mode: Permission bits as recorded.
        size: Logical size in bytes (of a sparse file: with its holes); 0 without data.
        mtime: Modification time in whole seconds, as Python sees it.
        linkname: Target of a hard or symbolic link as recorded.
        device: Major and minor number of a device.
        pax: PAX records of this entry, or of a global header.
        sparse: Extents `(offset, length)` that carry data, or None for a plain file.
        stored: Bytes that the archive holds for this entry.
        owner: User and group number.
    """

    name: bytes
    type: str
    mode: int
    size: int
    mtime: int
    linkname: bytes
    device: tuple[int, int]
    pax: dict[bytes, bytes]
    sparse: list[tuple[int, int]] | None
    stored: int
    owner: tuple[int, int] = (0, 0)


class ByteStream:
    """Reads exact amounts from an iterable of byte chunks.

    Args:
        chunks: Non-overlapping consecutive pieces of the stream.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = b""
        self._pos = 0
        self.offset = 0

    def _more(self) -> bool:
        for chunk in self._chunks:
            if chunk:
                self._chunk = chunk
                self._pos = 0
                return True
        return False

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the stream."""
        pos = self._pos
        chunk = self._chunk
        if len(chunk) - pos >= size:
            self._pos = pos + size
            self.offset += size
            return chunk[pos : pos + size]
        parts = []
        left = size
        for piece in self.pieces(size):
            parts.append(bytes(piece))
            left -= len(piece)
        return b"".join(parts)

    def view(self, size: int) -> Chunk:
        """Return `size` bytes, or fewer at the end; a view where no copy is needed."""
        pos = self._pos
        chunk = self._chunk
        if len(chunk) - pos >= size:
            self._pos = pos + size
            self.offset += size
            return memoryview(chunk)[pos : pos + size]
        return self.read(size)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes as views; fewer at the end of the stream."""
        left = size
        while left:
            have = len(self._chunk) - self._pos
            if not have:
                if not self._more():
                    return
                continue
            take = min(have, left)
            start = self._pos
            self._pos = start + take
            self.offset += take
            left -= take
            yield memoryview(self._chunk)[start : start + take]

    def skip(self, size: int) -> int:
        """Pass over `size` bytes and return how many there were."""
        if len(self._chunk) - self._pos >= size:
            self._pos += size
            self.offset += size
            return size
        done = 0
        for piece in self.pieces(size):
            done += len(piece)
        return done

    def rest(self) -> Iterator[memoryview]:
        """Yield everything up to the end of the stream."""
        return self.pieces(1 << 62)


def _bad(message: str, offset: int) -> ImageFormatError:
    return ImageFormatError(
        f"bad tar archive: {message} at byte {offset}",
        kind="bad-tar",
        hint="build or push the image again; no runtime can unpack this layer",
        where={"offset": offset},
    )


def _text(field: bytes) -> bytes:
    end = field.find(b"\0")
    return field if end < 0 else field[:end]


def _sum(part: bytes) -> int:
    """Return the sum of at most 256 bytes.

    The low half of an Adler-32 is one more than the sum of the bytes modulo 65,521,
    which no part of this length reaches: this is `sum`, several times as fast.
    """
    return (zlib.adler32(part) & 0xFFFF) - 1


@lru_cache(maxsize=4096)
def _octal(field: bytes) -> int:
    digits = _text(field.strip(b" \0"))
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise ValueError
    value = int(digits, 8)
    if value > _MAX_INT64:
        raise ValueError
    return value


@lru_cache(maxsize=4096)
def _number(field: bytes) -> int:
    if not field or not field[0] & 0x80:
        return _octal(field)
    value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    if field[0] & 0x40:
        value -= 1 << (8 * len(field) - 1)
    if not -(1 << 63) <= value <= _MAX_INT64:
        raise ValueError
    return value


def _size(field: bytes) -> int:
    """Return the number in a field of twelve bytes that differs from entry to entry."""
    digits = field[:11]
    if field[11] == 0 and digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            pass
    return _number(field)


def _check_sum(block: bytes, total: int, start: int) -> None:
    try:
        recorded = _octal(block[148:156])
    except ValueError:
        raise _bad("no tar header", start) from None
    if recorded != total:
        rest = block[:148] + block[156:]
        high = sum(1 for byte in rest if byte > 127)
        if recorded != sum(rest) + 256 - 256 * high:
            raise _bad("no tar header", start)


def _decimal(text: bytes) -> int:
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    if not digits.isdigit() or len(digits.lstrip(b"0")) > 19:
        raise ValueError
    value = int(text)
    if not -(1 << 63) <= value <= _MAX_INT64:
        raise ValueError
    return value


def _pax_time(text: bytes) -> int:
    whole, dot, fraction = text.partition(b".")
    if dot and fraction and not fraction.isdigit():
        raise ValueError
    seconds = _decimal(whole)
    if whole.startswith(b"-"):
        return seconds - bool(fraction.strip(b"0"))
    if fraction:
        # Python has times as floats: the end of a second may be the next one.
        return int(seconds + 1e-9 * int(fraction[:9].ljust(9, b"0")))
    return seconds


def parse_pax(body: bytes) -> dict[bytes, bytes]:
    """Read the records of a PAX header.

    Args:
        body: The data of an `x` or `g` entry.

    Returns:
        Values by key; later records win. The repeated offset and size records of sparse
        format 0.0 are joined into one `GNU.sparse.map`, as format 0.1 has it.

    Raises:
        ValueError: A record is malformed.
    """
    records: dict[bytes, bytes] = {}
    extents: list[bytes] = []
    pos = 0
    while pos < len(body):
        space = body.find(b" ", pos)
        if space < 0:
            raise ValueError
        length = _decimal(body[pos:space])
        end = pos + length
        if length < 5 or end > len(body) or end <= space + 1 or body[end - 1] != 0x0A:
            raise ValueError
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals or not key or b"\0" in key:
            raise ValueError
        if key in (b"path", b"linkpath", b"uname", b"gname") and b"\0" in value:
            raise ValueError
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            expected = b"GNU.sparse.numbytes" if len(extents) % 2 else key
            if (
                key != expected
                or (not len(extents) % 2 and key != b"GNU.sparse.offset")
                or b"," in value
            ):
                raise ValueError
            extents.append(value)
            if len(extents) > 2 * MAX_EXTENTS:
                raise ValueError
        else:
            records[key] = value
        pos = end
    if extents:
        records[b"GNU.sparse.map"] = b",".join(extents)
    return records


class TarReader:
    """Iterates over the entries of a tar stream.

    Iterate, and call `data` for the content of the entry just yielded; content that was
    not asked for is passed over. After the iteration, `trailing` says how many bytes
    other than zero stood after the end of the archive.

    Args:
        stream: The uncompressed archive.
        max_entries: Entries after which the reader gives up.
    """

    def __init__(self, stream: ByteStream, *, max_entries: int = 4_000_000) -> None:
        self._stream = stream
        self._max_entries = max_entries
        self._left = 0
        self._pad = 0
        self._sparse: list[tuple[int, int]] | None = None
        self._size = 0
        self.trailing = 0

    def __iter__(self) -> Iterator[TarEntry]:
        count = 0
        while (entry := self._next()) is not None:
            count += 1
            if count > self._max_entries:
                raise LimitError(
                    f"a layer has more than {self._max_entries} entries",
                    kind="limit-entries",
                    hint="raise the limit with --max-entries if this is intended",
                )
            yield entry
        for piece in self._stream.rest():
            self.trailing += len(piece) - bytes(piece).count(0)

    def whole(self) -> Chunk:
        """Return the content of a small entry at once; `data` is for any size.

        Raises:
            ImageFormatError: The archive ends inside the content.
        """
        if self._sparse is not None:
            return b"".join(map(bytes, self.data()))
        data = self._stream.view(self._left)
        if len(data) != self._left:
            raise _bad("it ends inside a file", self._stream.offset)
        self._left = 0
        return data

    def data(self) -> Iterator[Chunk]:
        """Yield the logical content of the entry just yielded, holes as zeros.

        Raises:
            ImageFormatError: The archive ends inside the content.
        """
        if self._sparse is None:
            yield from self._physical(self._left)
            return
        pos = 0
        for offset, length in self._sparse:
            yield from _holes(offset - pos)
            if length > self._left:
                raise _bad("sparse file shorter than its map", self._stream.offset)
            yield from self._physical(length)
            pos = offset + length
        yield from _holes(self._size - pos)

    def _physical(self, size: int) -> Iterator[memoryview]:
        for piece in self._stream.pieces(size):
            size -= len(piece)
            self._left -= len(piece)
            yield piece
        if size:
            raise _bad("it ends inside a file", self._stream.offset)

    def _block(self) -> bytes:
        block = self._stream.read(BLOCK)
        if len(block) not in (0, BLOCK):
            raise _bad("it ends inside a header", self._stream.offset)
        return block

    def _meta(self, size: int) -> bytes:
        if size > MAX_META:
            raise LimitError(
                f"a tar meta header of {size} bytes at byte {self._stream.offset} is "
                f"over the limit of {MAX_META}",
                kind="limit-meta",
                hint="no runtime reads such a header; build the image again",
            )
        body = self._stream.read(size)
        if len(body) != size:
            raise _bad("it ends inside a meta header", self._stream.offset)
        self._left = 0
        return body

    def _next(self) -> TarEntry | None:
        pax: dict[bytes, bytes] = {}
        long_name = long_link = b""
        while True:
            stream = self._stream
            if rest := self._left + self._pad:
                if stream.skip(rest) < self._left:
                    raise _bad("it ends inside a file", stream.offset)
                self._left = self._pad = 0
            self._sparse = None
            start = stream.offset
            block = stream.read(BLOCK)
            if len(block) != BLOCK or block == _ZERO_BLOCK:
                if not block:
                    return None
                if len(block) != BLOCK:
                    raise _bad("it ends inside a header", stream.offset)
                second = self._block()
                if second and second != _ZERO_BLOCK:
                    raise _bad("a zero block followed by another", start)
                return None
            entry, is_gnu_sparse = self._header(block, start)
            if (
                entry.type in _PLAIN
                and not (long_name or long_link)
                and (not pax or (len(pax) == 1 and b"path" in pax))
            ):
                # Nearly all entries: the header, and perhaps a long name, is all.
                if pax:
                    entry.pax = pax
                    entry.name = pax[b"path"] or entry.name
                self._size = entry.size
                if entry.type in "0":
                    entry.stored = entry.size
                else:
                    entry.size = 0
                return entry
            if entry.type in "xg":
                body = self._meta(self._left)
                try:
                    records = parse_pax(body)
                except ValueError:
                    raise _bad("a malformed PAX header", start) from None
                if entry.type == "g":
                    entry.pax = records
                    return entry
                pax = records
            elif entry.type in "LK":
                body = _text(self._meta(self._left))
                if entry.type == "L":
                    long_name = body
                else:
                    long_link = body
            else:
                return self._finish(
                    entry, pax, long_name, long_link, block, start, is_gnu_sparse
                )

    def _header(self, block: bytes, start: int) -> tuple[TarEntry, bool]:
        name, ids, size_field, time, stated, tail = _fields(block)
        tail_sum, shared = _tail(tail)
        total = _sum(block[:148]) + tail_sum
        # As nearly all programs write it; to read it takes three times as long.
        if stated != b"%06o\0 " % total:
            _check_sum(block, total, start)
        try:
            if shared is None:
                raise ValueError
            mode, owner = _mode_and_owner(ids)
            size = _size(size_field)
            mtime = _number(time)
        except ValueError:
            raise _bad("a malformed number in a header", start) from None
        kind, linkname, device, gnu, prefix = shared
        name = name.partition(b"\0")[0]
        if prefix:
            name = prefix + b"/" + name
        self._set_data(kind, size, start)
        # By position: keywords take twice the time, and layers have many entries.
        entry = TarEntry(
            name, kind, mode, size, mtime, linkname, device, {}, None, 0, owner
        )
        return entry, gnu

    def _set_data(self, kind: str, size: int, start: int) -> None:
        left = 0 if kind in _HEADER_ONLY else size
        if left < 0:
            raise _bad("a negative size", start)
        self._left = left
        self._pad = -left % BLOCK

    def _finish(
        self,
        entry: TarEntry,
        pax: dict[bytes, bytes],
        long_name: bytes,
        long_link: bytes,
        block: bytes,
        start: int,
        gnu: bool,
    ) -> TarEntry:
        if pax:
            try:
                _merge_pax(entry, pax)
            except ValueError:
                raise _bad("a malformed number in a PAX header", start) from None
        if long_name:
            entry.name = long_name
        if long_link:
            entry.linkname = long_link
        if entry.type == "\0":
            entry.type = "5" if entry.name.endswith(b"/") else "0"
        self._set_data(entry.type, entry.size, start)
        entry.stored = self._left
        try:
            extents: list[tuple[int, int]] | None = None
            if entry.type == "S":
                extents = self._old_sparse(entry, block, gnu)
            elif pax:
                extents = self._pax_sparse(entry)
        except ValueError:
            raise _bad("a malformed sparse map", start) from None
        if extents is not None:
            if entry.type in _HEADER_ONLY or not _extents_hold(extents, entry.size):
                raise _bad("a sparse map that contradicts the size", start)
            entry.sparse = extents
        self._sparse = extents
        self._size = entry.size
        if entry.type in _HEADER_ONLY:
            entry.size = 0
        return entry

    def _pax_sparse(self, entry: TarEntry) -> list[tuple[int, int]] | None:
        pax = entry.pax
        version = (
            pax.get(b"GNU.sparse.major", b""),
            pax.get(b"GNU.sparse.minor", b""),
        )
        if version == (b"1", b"0"):
            inline = True
        elif version in ((b"0", b"0"), (b"0", b"1")):
            inline = False
        elif version != (b"", b"") or not pax.get(b"GNU.sparse.map"):
            return None
        else:
            inline = False
        entry.name = pax.get(b"GNU.sparse.name") or entry.name
        size = pax.get(b"GNU.sparse.size") or pax.get(b"GNU.sparse.realsize")
        if size:
            entry.size = _decimal(size)
        if inline:
            return self._inline_map()
        count = _decimal(pax.get(b"GNU.sparse.numblocks", b""))
        numbers = pax.get(b"GNU.sparse.map", b"").split(b",")
        if numbers == [b""]:
            numbers = []
        if not 0 <= count <= MAX_EXTENTS or len(numbers) != 2 * count:
            raise ValueError
        values = [_decimal(number) for number in numbers]
        return list(zip(values[::2], values[1::2], strict=True))

    def _inline_map(self) -> list[tuple[int, int]]:
        buffered = b""

        def number() -> int:
            nonlocal buffered
            while b"\n" not in buffered:
                if len(buffered) > BLOCK or self._left < BLOCK:
                    raise ValueError
                block = self._stream.read(BLOCK)
                if len(block) != BLOCK:
                    raise ValueError
                self._left -= BLOCK
                buffered += block
            text, _, buffered = buffered.partition(b"\n")
            return _decimal(text)

        count = number()
        if not 0 <= count <= MAX_EXTENTS:
            raise ValueError
        return [(number(), number()) for _ in range(count)]

    def _old_sparse(
        self, entry: TarEntry, block: bytes, gnu: bool
    ) -> list[tuple[int, int]]:
        if not gnu:
            raise ValueError
        entry.size = _number(block[483:495])
        extents: list[tuple[int, int]] = []
        table, more = block[386:482], block[482]
        while True:
            for pos in range(0, len(table), 24):
                if not table[pos]:
                    break
                extents.append(
                    (
                        _number(table[pos : pos + 12]),
                        _number(table[pos + 12 : pos + 24]),
                    )
                )
            if not more:
                return extents
            if len(extents) > MAX_EXTENTS:
                raise ValueError
            block = self._stream.read(BLOCK)
            if len(block) != BLOCK:
                raise ValueError
            table, more = block[:504], block[504]


@lru_cache(maxsize=1024)
def _mode_and_owner(fields: bytes) -> tuple[int, tuple[int, int]]:
    """Return the mode, and user and group, of bytes 100 to 124 of a header."""
    return _number(fields[:8]), (_number(fields[8:16]), _number(fields[16:]))


#: Name; mode, user and group; size; time; sum; and the rest, from the type on.
_fields = struct.Struct("100s24s12s12s8s356s").unpack

_Shared = tuple[str, bytes, tuple[int, int], bool, bytes]


@lru_cache(maxsize=1024)
def _tail(tail: bytes) -> tuple[int, _Shared | None]:
    """Read a header from its type on, which most entries of an archive share.

    Args:
        tail: Bytes 156 to 512 of the header.

    Returns:
        What bytes 148 to 512 add to the header's sum, which takes its own field, the
        first eight of them, for blanks. And type flag, link name, device numbers,
        whether it is GNU's, and the name's prefix, or None if a number is malformed.
    """
    added = _sum(tail[:178]) + _sum(tail[178:]) + 8 * 0x20
    gnu = tail[101:109] == b"ustar  \0"
    device = (0, 0)
    prefix = b""
    try:
        if gnu or tail[101:107] == b"ustar\0":
            device = (_number(tail[173:181]), _number(tail[181:189]))
            if gnu:
                prefix = _buggy_gnu_prefix(tail)
            elif tail[352:] == b"tar\0":
                prefix = _text(tail[189:320])
                _number(tail[320:332])
                _number(tail[332:344])
            else:
                prefix = _text(tail[189:344])
    except ValueError:
        return added, None
    return added, (chr(tail[0]), _text(tail[1:101]), device, gnu, prefix)


def _buggy_gnu_prefix(tail: bytes) -> bytes:
    """Return the prefix that old Go versions put where GNU has times.

    The Go reader accepts it when those fields are no numbers and the text is ASCII.
    """
    try:
        for start in (189, 201):
            if tail[start]:
                _number(tail[start : start + 12])
    except ValueError:
        prefix = _text(tail[189:344])
        return prefix if prefix.isascii() else b""
    return b""


def _merge_pax(entry: TarEntry, pax: dict[bytes, bytes]) -> None:
    entry.pax = pax
    entry.name = pax.get(b"path") or entry.name
    entry.linkname = pax.get(b"linkpath") or entry.linkname
    if pax.get(b"size"):
        entry.size = _decimal(pax[b"size"])
    if pax.get(b"mtime"):
        entry.mtime = _pax_time(pax[b"mtime"])
    uid, gid = entry.owner
    if pax.get(b"uid"):
        uid = _decimal(pax[b"uid"])
    if pax.get(b"gid"):
        gid = _decimal(pax[b"gid"])
    entry.owner = (uid, gid)
    for key in (b"atime", b"ctime"):
        if pax.get(key):
            _pax_time(pax[key])


def _extents_hold(extents: list[tuple[int, int]], size: int) -> bool:
    if size < 0:
        return False
    end = 0
    for offset, length in extents:
        if offset < end or length < 0 or offset + length > size:
            return False
        end = offset + length
    return True


def _holes(size: int) -> Iterator[bytes]:
    while size > 0:
        take = min(size, len(_ZEROS))
        yield _ZEROS if take == len(_ZEROS) else _ZEROS[:take]
        size -= take
