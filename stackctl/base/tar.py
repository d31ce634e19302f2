# SPDX-License-Identifier: Apache-2.0
"""Reading tar archives strictly: one meaning per archive, or none.

Python's `tarfile` spends 1 s on the headers of the vLLM sdist, and like every tolerant
reader it guesses where an archive is ambiguous. This reader knows v7, ustar, star, GNU
long names and PAX records, and refuses what two readers could understand differently.
Owners, times and extended attributes are no part of a git tree and are not looked at.
Formats: POSIX.1-2001 pax, the GNU tar manual's "Basic Tar Format".
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from stackctl.base.importer import STREAM_FROM, Importer
from stackctl.base.limits import LIMITS, Limits
from stackctl.base.names import shown, split_member
from stackctl.base.streams import ByteReader, trailing
from stackctl.errors import InputError

BLOCK = 512
_ZERO = bytes(BLOCK)
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,9}) ")
_MEANT = (b"path", b"linkpath", b"size")
_DECIMAL = re.compile(rb"[0-9]{1,19}\Z")

_REGULAR = frozenset(b"0\07")
_REFUSED = {
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a FIFO",
    ord("S"): "a sparse file (pack it again without --sparse)",
    ord("D"): "a GNU dump folder (pack it again without --listed-incremental)",
    ord("M"): "a part of a multi-volume archive",
    ord("N"): "an old GNU long name",
    ord("V"): "a volume label",
}


class Member(NamedTuple):
    """What a header says.

    Attributes:
        name: Path as written.
        kind: Type flag.
        executable: Whether the owner may execute it.
        size: Size of the data that follows, in bytes.
        link: Target of a link, as written.
    """

    name: bytes
    kind: int
    executable: bool
    size: int
    link: bytes


def _malformed(reason: str, name: bytes = b"") -> InputError:
    text = shown(name[:200])
    at = f" at entry {text!r}" if name else ""
    return InputError(
        f"the tar archive is malformed{at}: {reason}",
        kind="archive-damaged",
        where={"entry": text} if name else None,
    )


def _number(field: bytes, what: str) -> int:
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise _malformed(f"the {what} is negative or too large")
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            pass
    elif not digits:
        return 0
    raise _malformed(f"the {what} is no number: {field!r}")


def is_header(block: bytes) -> bool:
    """Return whether a block is a tar header (or the end of an empty archive).

    Args:
        block: The first 512 bytes of a file.
    """
    if len(block) != BLOCK:
        return False
    if block == _ZERO:
        return True
    try:
        wanted = _number(block[148:156], "checksum")
    except InputError:
        return False
    return _sum_matches(block, wanted)


def _sum_matches(block: bytes, wanted: int) -> bool:
    total = sum(block) - sum(block[148:156]) + 256
    if total == wanted:
        return True
    # Some old programs summed signed bytes.
    return total - 256 * sum(byte > 127 for byte in block) == wanted


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        match = _PAX_LENGTH.match(data, position)
        if match is None:
            raise _malformed("a PAX record has no length")
        end = position + int(match[1])
        record = data[match.end() : end]
        key, equals, value = record.partition(b"=")
        if end > len(data) or not equals or not key or not value.endswith(b"\n"):
            raise _malformed("a PAX record does not fit its length")
        if key in records and key in _MEANT:
            raise _malformed(f"the PAX record {shown(key)!r} is there twice")
        if key.startswith(b"GNU.sparse"):
            raise _malformed("sparse files are not supported; pack without --sparse")
        records[key] = value[:-1]
        position = end
    return records


def _long_name(data: bytes) -> bytes:
    name, zero, rest = data.partition(b"\0")
    if not zero or rest.strip(b"\0"):
        raise _malformed("a GNU long name does not end in one NUL")
    return name


def _members(reader: ByteReader, limits: Limits) -> Iterator[Member]:
    """Yield members; the caller takes each one's data before it asks for the next."""
    records: dict[bytes, bytes] = {}
    long_name = long_link = None
    modes: dict[bytes, int] = {}
    while True:
        block = reader.read(BLOCK)
        if block == _ZERO:
            if records or long_name is not None or long_link is not None:
                raise _malformed("it ends after an extended header")
            if reader.read(BLOCK) != _ZERO:
                raise trailing()
            return
        if not _sum_matches(block, _number(block[148:156], "checksum")):
            raise _malformed("a header's checksum is wrong")
        kind = block[156]
        size = _number(block[124:136], "size")
        name = block[:100].partition(b"\0")[0]
        if kind in b"xXgLK":
            if size > limits.header_bytes:
                raise InputError(
                    f"an extended header has {size:,} bytes; at most "
                    f"{limits.header_bytes:,} are accepted",
                    kind="limit",
                )
            data = reader.read(size + -size % BLOCK)[:size]
            if kind == ord("L"):
                if long_name is not None:
                    raise _malformed("two long names for one entry")
                long_name = _long_name(data)
            elif kind == ord("K"):
                if long_link is not None:
                    raise _malformed("two long link names for one entry")
                long_link = _long_name(data)
            elif kind == ord("g"):
                for key in _pax_records(data):
                    if key in _MEANT:
                        raise _malformed(f"a global PAX record sets {key.decode()}")
            else:
                if records:
                    raise _malformed("two PAX headers for one entry")
                records = _pax_records(data)
            continue
        link = block[157:257].partition(b"\0")[0]
        if block[257:263] == b"ustar\0":
            # star keeps times in the last bytes of the prefix, and says so.
            end = 476 if block[508:512] == b"tar\0" else 500
            prefix = block[345:end].partition(b"\0")[0]
            if prefix:
                name = prefix + b"/" + name
        if (long_name is not None or long_link is not None) and (
            b"path" in records or b"linkpath" in records
        ):
            raise _malformed("both a GNU long name and a PAX path", name)
        name = records.get(b"path", name) if long_name is None else long_name
        link = records.get(b"linkpath", link) if long_link is None else long_link
        if b"size" in records:
            if not _DECIMAL.match(records[b"size"]):
                raise _malformed("a PAX size is no number", name)
            size = int(records[b"size"])
        field = block[100:108]
        mode = modes.get(field)
        if mode is None:
            mode = modes[field] = _number(field, "mode")
        records = {}
        long_name = long_link = None
        yield Member(name, kind, bool(mode & 0o100), size, link)


def import_tar(
    pieces: Iterator[bytes], importer: Importer, strip: int, limits: Limits = LIMITS
) -> None:
    """Add all files of a tar archive to an importer.

    Args:
        pieces: The archive's plain bytes.
        importer: Takes the files.
        strip: How many leading folders to remove; they must be the same for all.
        limits: Bounds.

    Raises:
        InputError: The archive is malformed, ambiguous or hostile.
    """
    reader = ByteReader(pieces)
    stripper = Stripper(strip)
    for name, kind, executable, size, link in _members(reader, limits):
        if kind in _REFUSED:
            raise InputError(
                f"entry {shown(name)!r} is {_REFUSED[kind]}",
                kind="archive-refused",
                where={"entry": shown(name)},
            )
        parts = split_member(name)
        folder = kind == ord("5") or (kind in b"0\0" and name.endswith(b"/"))
        if not folder and kind not in _REGULAR and kind not in b"12":
            raise InputError(
                f"entry {shown(name)!r} has the unknown type {chr(kind)!r}",
                kind="archive-refused",
                where={"entry": shown(name)},
            )
        if size and (folder or kind in b"12"):
            # Readers disagree on whether data follows.
            raise _malformed("a folder or link has a size", name)
        if folder:
            rest = stripper.folder(parts)
            if rest:
                importer.add_folder(rest)
            continue
        parts = stripper.file(parts)
        if kind == ord("2"):
            importer.add_link(parts, link)
        elif kind == ord("1"):
            target = split_member(link, "hard link target")
            importer.add_hard_link(parts, stripper.file(target))
        elif size > limits.file_bytes:
            raise InputError(
                f"entry {shown(name)!r} has {size:,} bytes; at most "
                f"{limits.file_bytes:,} are accepted",
                kind="limit",
                where={"entry": shown(name)},
            )
        elif size >= STREAM_FROM:
            importer.add_stream(parts, executable, size, reader.pieces(size))
            reader.read(-size % BLOCK)
        else:
            padded = reader.read(size + -size % BLOCK)
            importer.add_file(parts, executable, padded[:size])
    for piece in reader.rest():
        if piece.strip(b"\0"):
            raise trailing()


class Stripper:
    """Removes the leading folders that all entries share.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._top: tuple[bytes, ...] = ()

    def folder(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return a folder's path without the leading folders; empty for those."""
        head = parts[: self._count]
        shared = min(len(head), len(self._top))
        if head[:shared] != self._top[:shared]:
            text = shown(b"/".join(parts))
            raise InputError(
                f"entry {text!r} does not lie below {shown(b'/'.join(self._top))!r} "
                "like the entries before it",
                kind="archive-refused",
                hint="only folders that all entries share can be stripped; "
                "set strip to their number",
                where={"entry": text},
            )
        if len(head) > shared:
            self._top = head
        return parts[self._count :]

    def file(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return a file's path without the leading folders.

        Raises:
            InputError: Nothing would be left of it.
        """
        if not parts:
            raise InputError("an entry has no name", kind="archive-refused")
        rest = self.folder(parts)
        if not rest:
            text = shown(b"/".join(parts))
            raise InputError(
                f"entry {text!r} is a file and lies above the {self._count} folder(s) "
                "to strip",
                kind="archive-refused",
                hint="set strip to the number of folders that all entries share",
                where={"entry": text},
            )
        return rest
