# SPDX-License-Identifier: Apache-2.0
"""Reading zip archives strictly, from bytes that lie in memory or are mapped.

A zip says everything twice, in local headers and in the central directory. Both must
agree, entries must lie one after the other without gaps or overlaps, and the archive
must fill its file: then there is only one way to read it. Format: APPNOTE.TXT 6.3.
"""

import mmap
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from stackctl.base.importer import STREAM_FROM, Importer
from stackctl.base.limits import LIMITS, MIB, Limits
from stackctl.base.names import shown, split_member
from stackctl.base.streams import check_expansion, damaged, trailing, truncated
from stackctl.base.tar import Stripper
from stackctl.errors import InputError

_LOCAL = struct.Struct("<4s5HIIIHH")
_CENTRAL = struct.Struct("<4s6HIIIHHHHHII")
_END = struct.Struct("<4s4HIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_UNIX = (3, 19)
_NO16 = 0xFFFF
_NO32 = 0xFFFFFFFF
_METHODS = {
    9: "Deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "Zstandard",
    95: "xz",
    98: "PPMd",
}


class _Entry(NamedTuple):
    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    offset: int


def _refused(name: bytes, problem: str) -> InputError:
    text = shown(name[:200])
    return InputError(
        f"entry {text!r} {problem}", kind="archive-refused", where={"entry": text}
    )


def _find_end(data: "bytes | mmap.mmap") -> tuple[int, int, int, int]:
    """Return entry count, and start, size and limit of the central directory."""
    size = len(data)
    start = data.rfind(b"PK\5\6", max(0, size - _END.size - 0xFFFF))
    if start < 0 or start + _END.size > size:
        raise truncated()
    _, disk, first_disk, here, count, length, offset, comment = _END.unpack_from(
        data, start
    )
    if start + _END.size + comment != size:
        raise trailing()
    limit = start
    if _NO16 in (here, count) or _NO32 in (length, offset):
        place = start - _LOCATOR.size
        if place >= 0 and data[place : place + 4] == b"PK\6\7":
            _, _, end64, disks = _LOCATOR.unpack_from(data, place)
            if disks > 1 or end64 + _END64.size > place:
                raise damaged("its zip64 record is not where it should be")
            fields = _END64.unpack_from(data, end64)
            if fields[0] != b"PK\6\6" or end64 + 12 + fields[1] != place:
                raise damaged("its zip64 record is not where it should be")
            disk, first_disk, here, count, length, offset = fields[4:]
            limit = end64
    if disk or first_disk or here != count:
        raise _refused(b"", "is in another part of a multi-part archive")
    if offset + length != limit:
        raise trailing()
    return count, offset, length, limit


def _extra64(extra: bytes, name: bytes, wanted: list[bool]) -> list[int]:
    """Return the 64-bit values that replace saturated fields, in their fixed order."""
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        body = extra[position + 4 : position + 4 + size]
        if kind == 1:
            need = sum(wanted)
            if len(body) < 8 * need:
                raise _refused(name, "has a damaged zip64 field")
            return list(struct.unpack_from(f"<{need}Q", body))
        position += 4 + size
    raise _refused(name, "has no zip64 field where one is needed")


def _directory(data: "bytes | mmap.mmap", limits: Limits) -> tuple[list[_Entry], int]:
    count, start, _, limit = _find_end(data)
    if count > limits.entries:
        raise InputError(
            f"there are more than {limits.entries:,} entries", kind="limit"
        )
    entries = []
    position = start
    for _ in range(count):
        if position + _CENTRAL.size > limit:
            raise damaged("its directory is cut off")
        fields = _CENTRAL.unpack_from(data, position)
        if fields[0] != b"PK\1\2":
            raise damaged("its directory has no entry where one should be")
        made, _, flags, method, _, _, crc, packed, size = fields[1:10]
        name_size, extra_size, comment_size, disk, _, attributes, offset = fields[10:]
        name_end = position + _CENTRAL.size + name_size
        end = name_end + extra_size + comment_size
        if end > limit:
            raise damaged("its directory is cut off")
        name = data[position + _CENTRAL.size : name_end]
        saturated = [size == _NO32, packed == _NO32, offset == _NO32]
        if any(saturated):
            values = _extra64(data[name_end : name_end + extra_size], name, saturated)
            size = values.pop(0) if saturated[0] else size
            packed = values.pop(0) if saturated[1] else packed
            offset = values.pop(0) if saturated[2] else offset
        if disk not in (0, _NO16):
            raise _refused(name, "is in another part of a multi-part archive")
        mode = attributes >> 16 if made >> 8 in _UNIX else 0
        entries.append(_Entry(name, flags, method, crc, packed, size, mode, offset))
        position = end
    if position != limit:
        raise damaged("its directory has bytes that belong to no entry")
    return entries, start


def _payload(data: "bytes | mmap.mmap", entry: _Entry, limit: int) -> tuple[int, int]:
    """Return where an entry's packed bytes start, and where the entry ends."""
    start = entry.offset
    if start + _LOCAL.size > limit:
        raise _refused(entry.name, "lies outside of the archive")
    fields = _LOCAL.unpack_from(data, start)
    flags, method = fields[2:4]
    crc, packed, size, name_size, extra_size = fields[6:]
    begin = start + _LOCAL.size + name_size + extra_size
    end = begin + entry.packed
    name = data[start + _LOCAL.size : start + _LOCAL.size + name_size]
    if (
        fields[0] != b"PK\3\4"
        or name != entry.name
        or method != entry.method
        or (flags ^ entry.flags) & 0x0809
    ):
        raise _refused(entry.name, "differs between its two headers")
    later = flags & 8
    if _NO32 in (packed, size):
        saturated = [size == _NO32, packed == _NO32]
        values = _extra64(data[begin - extra_size : begin], entry.name, saturated)
        size = values.pop(0) if saturated[0] else size
        packed = values.pop(0) if saturated[1] else packed
    if (crc, packed, size) != (entry.crc, entry.packed, entry.size) and not (
        later and not any((crc, packed, size))
    ):
        raise _refused(entry.name, "differs between its two headers")
    if end > limit:
        raise _refused(entry.name, "lies outside of the archive")
    if later:
        sizes = (entry.packed, entry.size)
        for form in ("<4sIII", "<4sIQQ", "<III", "<IQQ"):
            layout = struct.Struct(form)
            wide = "Q" in form
            if not wide and max(sizes) > _NO32:
                continue
            wanted: tuple[object, ...] = (entry.crc, *sizes)
            if "s" in form:
                wanted = (b"PK\7\10", *wanted)
            if data[end : end + layout.size] == layout.pack(*wanted):
                return begin, end + layout.size
        raise _refused(entry.name, "has a damaged data descriptor")
    return begin, end


def _contents(data: "bytes | mmap.mmap", entry: _Entry, begin: int) -> bytes:
    packed = data[begin : begin + entry.packed]
    if entry.method == 0:
        plain = packed
    else:
        decoder = zlib.decompressobj(-15)
        try:
            plain = decoder.decompress(packed, entry.size + 1)
        except zlib.error as error:
            raise _refused(entry.name, f"is damaged: {error}") from None
        if not decoder.eof and len(plain) == entry.size:
            # The last block may end after the last byte came out.
            plain += decoder.decompress(decoder.unconsumed_tail, 1)
        if not decoder.eof or decoder.unused_data:
            raise _refused(entry.name, "does not unpack to the size it announces")
    if len(plain) != entry.size or zlib.crc32(plain) != entry.crc:
        raise _refused(entry.name, "is damaged: its size or checksum is wrong")
    return plain


def _pieces(data: "bytes | mmap.mmap", entry: _Entry, begin: int) -> Iterator[bytes]:
    """Yield a large entry's bytes; its checksum is judged at the end."""
    decoder = None if entry.method == 0 else zlib.decompressobj(-15)
    checksum = done = 0
    position, end = begin, begin + entry.packed
    full = False
    try:
        while True:
            tail = b"" if decoder is None else decoder.unconsumed_tail
            chunk = tail or data[position : min(position + MIB, end)]
            if not chunk and not full:
                break
            if not tail:
                position += len(chunk)
            piece = chunk if decoder is None else decoder.decompress(chunk, MIB)
            # A full piece may leave more in the decoder, without any input left.
            full = decoder is not None and len(piece) == MIB
            done += len(piece)
            if done > entry.size:
                break
            checksum = zlib.crc32(piece, checksum)
            yield piece
            if decoder is not None and decoder.eof:
                break
    except zlib.error as error:
        raise _refused(entry.name, f"is damaged: {error}") from None
    if decoder is not None and (
        not decoder.eof or decoder.unused_data or position != end
    ):
        raise _refused(entry.name, "does not unpack to the size it announces")
    if done != entry.size or checksum != entry.crc:
        raise _refused(entry.name, "is damaged: its size or checksum is wrong")


def import_zip(
    data: "bytes | mmap.mmap", importer: Importer, strip: int, limits: Limits = LIMITS
) -> None:
    """Add all files of a zip archive to an importer.

    Args:
        data: The archive.
        importer: Takes the files.
        strip: How many leading folders to remove; they must be the same for all.
        limits: Bounds.

    Raises:
        InputError: The archive is malformed, ambiguous or hostile.
    """
    entries, limit = _directory(data, limits)
    check_expansion(len(data), sum(entry.size for entry in entries), limits)
    expected = 0
    places = []
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset != expected:
            raise _refused(
                entry.name, "overlaps another, or follows bytes that belong to none"
            )
        begin, expected = _payload(data, entry, limit)
        places.append((entry, begin))
    if expected != limit:
        raise trailing()
    stripper = Stripper(strip)
    for entry, begin in places:
        name = entry.name
        if b"\\" in name:
            raise _refused(name, "has a backslash, which some readers take for a slash")
        if entry.flags & 0x2041:
            raise _refused(name, "is encrypted")
        if entry.method not in (0, 8):
            label = _METHODS.get(entry.method, f"method {entry.method}")
            raise _refused(
                name, f"is packed with {label}; zip's own are deflate, store"
            )
        if entry.size > limits.file_bytes:
            raise InputError(
                f"entry {shown(name)!r} has {entry.size:,} bytes; at most "
                f"{limits.file_bytes:,} are accepted",
                kind="limit",
                where={"entry": shown(name)},
            )
        parts = split_member(name)
        kind = stat.S_IFMT(entry.mode)
        folder = name.endswith(b"/")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise _refused(name, "is a device, FIFO or socket")
        if folder != (kind == stat.S_IFDIR) and not (folder and kind == 0):
            raise _refused(name, "is both a folder and a file")
        if folder:
            if entry.size:
                raise _refused(name, "is a folder with contents")
            rest = stripper.folder(parts)
            if rest:
                importer.add_folder(rest)
            continue
        parts = stripper.file(parts)
        if kind == stat.S_IFLNK:
            if entry.size > 4095:
                raise _refused(name, "is a symbolic link with a target that long")
            importer.add_link(parts, _contents(data, entry, begin))
        else:
            executable = bool(entry.mode & 0o100)
            if entry.size >= STREAM_FROM:
                pieces = _pieces(data, entry, begin)
                importer.add_stream(parts, executable, entry.size, pieces)
            else:
                importer.add_file(parts, executable, _contents(data, entry, begin))
