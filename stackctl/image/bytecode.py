# SPDX-License-Identifier: Apache-2.0
"""Can bytecode in the image run in place of a source that matches?

Python takes a bytecode file if its header fits the source: the recorded modification
time and size are equal to the source's, or the recorded hash is, or the header says not
to look at all. What the bytecode then does has nothing to do with the source, so it is
compared with what compiling the source gives. That needs an interpreter with the same
magic number; for others the answer is that nothing is known.

Bytecode of an image is never loaded: `marshal.loads` trusts its input. A reader of our
own turns both sides into a canonical form in which equal code is equal whatever the
references and interning flags that the writing process happened to leave behind.

What it costs: compiling a source is the proof and cannot be left out, since the header
is written by whoever wrote the bytecode and says nothing about what follows it. The
canonical form, in Python as slow as the compiler in C, mostly can be. A file name is in
every code object, so the source is compiled under the name that the bytecode has; then
nearly all files are equal byte for byte, which is the strongest answer there is, and
only the others are read. A wrong guess of the name costs time and no more.
"""

import hashlib
import importlib.util
import marshal
import struct
import warnings
from collections.abc import Iterable
from typing import NamedTuple

#: Magic number of the bytecode that this interpreter writes.
MAGIC = importlib.util.MAGIC_NUMBER
_HEADER = 16
_FLAG_REF = 0x80
_MAX_DEPTH = 200
_MAX_OBJECTS = 4_000_000
#: Last second that every file system can record.
_LAST_SECOND = (1 << 31) - 1
#: Kinds of rows in a table of locations (CPython's `Objects/locations.md`): short ones
#: below, then those of one line, and those without columns, in full, and of no place.
_ONE_LINE, _NO_COLUMNS, _LONG, _NO_LOCATION = 10, 13, 14, 15
#: Modification time of a file whose time is not known; any bytecode may fit it.
UNKNOWN_TIME = -1

UNCHECKED = "unchecked"
STALE = "stale"
USED = "used"
BROKEN = "broken"

SAME = "same"
INSTRUCTIONS = "instructions"
DIFFERENT = "different"


class Header(NamedTuple):
    """What the header of a bytecode file says.

    Attributes:
        magic: Which interpreters read it.
        hashed: It is bound to its source by a hash, not by time and size.
        checked: The hash is compared before use.
        mtime: Modification time of the source, in seconds modulo 2**32.
        size: Size of the source in bytes modulo 2**32.
        source_hash: Hash of the source.
    """

    magic: bytes
    hashed: bool
    checked: bool
    mtime: int
    size: int
    source_hash: bytes


def read_header(head: bytes) -> Header | None:
    """Return the header of a bytecode file, or None if Python would not take it."""
    if len(head) < _HEADER or head[2:4] != b"\r\n":
        return None
    flags, first, second = struct.unpack("<III", head[4:_HEADER])
    if flags & ~0b11:
        return None
    hashed = bool(flags & 0b01)
    return Header(head[:4], hashed, bool(flags & 0b10), first, second, head[8:_HEADER])


def times_fit(header: Header, recorded: Iterable[int]) -> bool:
    """Whether bytecode's time may be that of its source once that is unpacked.

    Args:
        header: The bytecode's.
        recorded: What layers say of the source, in seconds since 1970; several for a
            file with several names.
    """
    # What is before 1970 is 1970 in Docker, containerd and podman, and not in umoci;
    # what is after 2038 depends on the file system too.
    return any(
        not 0 <= time <= _LAST_SECOND or header.mtime == time for time in recorded
    )


def usage(
    header: Header | None, mtimes: Iterable[int], size: int, source: bytes | None
) -> str:
    """Say what Python makes of a bytecode file beside its source.

    Args:
        header: The header, None if it is unreadable.
        mtimes: Modification times that layers give the source, in seconds.
        size: Size of the source in bytes.
        source: Its bytes, needed for headers with a checked hash.

    Returns:
        `used`, `stale` (compiled again), `unchecked` (used whatever the source says) or
        `broken` (compiled again).
    """
    if header is None:
        return BROKEN
    if header.hashed:
        if not header.checked:
            return UNCHECKED
        if source is None:
            return USED
        same = importlib.util.source_hash(source) == header.source_hash
        return USED if same else STALE
    # Python compares both numbers modulo 2**32, and never which is newer.
    same = header.size == size & 0xFFFFFFFF and times_fit(header, mtimes)
    return USED if same else STALE


def compare_code(bytecode: bytes, source: bytes, name: str, level: int) -> str:
    """Compare bytecode with what compiling a source gives.

    Args:
        bytecode: A whole bytecode file with this interpreter's magic.
        source: The source.
        name: What to call the source while compiling it.
        level: Optimization level.

    Returns:
        `same`, `instructions` if names, constants and structure are the same and only
        instructions differ, as they may between two releases with one magic number, or
        `different`, also if either cannot be read.
    """
    body = bytecode[_HEADER:]
    known = recorded_name(body, name.rpartition("/")[2]) or name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, known, "exec", dont_inherit=True, optimize=level)
        compiled = marshal.dumps(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return DIFFERENT
    if compiled == body:
        return SAME
    try:
        if fingerprint(body) == fingerprint(compiled):
            return SAME
        outline = fingerprint(body, instructions=False)
        if outline == fingerprint(compiled, instructions=False):
            return INSTRUCTIONS
    except ValueError:
        pass
    return DIFFERENT


def recorded_name(body: bytes, base: str) -> str:
    """Return the file name that marshalled code seems to have, or nothing.

    Args:
        body: Marshalled code; it is only searched, not read.
        base: Last part of the name.
    """
    end = body.find(b"/" + base.encode("utf-8", "surrogateescape"))
    if end < 0:
        return ""
    end += len(base.encode("utf-8", "surrogateescape")) + 1
    # Short ASCII strings are a type, a length of one byte, and the text.
    for start in range(end - 1, max(end - 256, 1), -1):
        if body[start - 1] == end - start and body[start - 2] & ~_FLAG_REF in b"zZ":
            text = body[start:end]
            if text.isascii() and b"\0" not in text:
                return text.decode("ascii")
    return ""


def fingerprint(data: bytes, *, instructions: bool = True) -> bytes:
    """Return a digest of marshalled code that only depends on the code.

    File names and reference flags do not count, nor do the columns of instructions,
    which are left out where `PYTHONNODEBUGRANGES` is set.

    Args:
        data: Marshalled code.
        instructions: Whether instructions and their tables count.

    Raises:
        ValueError: It is not marshalled code.
    """
    reader = _Reader(data, instructions)
    digest = reader.read(0)
    if reader.pos != len(data):
        raise ValueError("data after the code")
    return digest


class _Reader:
    """Reads marshal format 4 of CPython 3.11 and later into digests."""

    def __init__(self, data: bytes, instructions: bool) -> None:
        self._data = data
        # The file name differs from machine to machine. Fields are in the order of
        # `w_object` in marshal.c: 0 is the instructions, 8 and 9 are their tables.
        self._passed = (5,) if instructions else (0, 5, 8, 9)
        self._instructions = instructions
        self.pos = 0
        self._refs: list[bytes] = []
        # Where bytes stand that a reference may be to.
        self._bytes: dict[int, tuple[int, int]] = {}
        self._objects = 0

    def _take(self, size: int) -> bytes:
        end = self.pos + size
        if size < 0 or end > len(self._data):
            raise ValueError("cut short")
        part = self._data[self.pos : end]
        self.pos = end
        return part

    def _long(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def read(self, depth: int) -> bytes:
        """Return the digest of the next object; short values stand for themselves."""
        self._objects += 1
        if depth > _MAX_DEPTH or self._objects > _MAX_OBJECTS:
            raise ValueError("too large")
        first = self._take(1)[0]
        kind = chr(first & ~_FLAG_REF)
        if kind == "r":
            index = self._long()
            if not 0 <= index < len(self._refs) or not self._refs[index]:
                raise ValueError("a reference to nothing")
            return self._refs[index]
        slot = -1
        if first & _FLAG_REF:
            slot = len(self._refs)
            # Its place is taken before its parts are read, as the writer does.
            self._refs.append(b"")
        start = self.pos + 4
        value = self._value(kind, depth)
        if kind == "s" and slot >= 0:
            self._bytes[slot] = (start, self.pos)
        if len(value) > 40:
            value = b"#" + hashlib.sha256(value).digest()
        if slot >= 0:
            self._refs[slot] = value
        return value

    def _value(self, kind: str, depth: int) -> bytes:
        if kind in "NTFS.":
            return kind.encode()
        if kind == "i":
            return b"i%d;" % self._long()
        if kind == "l":
            count = self._long()
            return b"l%d:" % count + self._take(2 * abs(count))
        if kind == "g":
            return b"g" + self._take(8)
        if kind == "y":
            return b"y" + self._take(16)
        if kind == "s":
            data = self._take(self._long())
            return b"s%d:" % len(data) + data
        if kind in "uatAzZ":
            size = self._take(1)[0] if kind in "zZ" else self._long()
            data = self._take(size)
            if kind not in "ut" and not data.isascii():
                # Python would read it as Latin-1.
                raise ValueError("text that is not ASCII")
            return b"u%d:" % len(data) + data
        if kind in "()[<>":
            return self._sequence(kind, depth)
        if kind == ":":
            parts = [self.read(depth + 1) for _ in range(3)]
            return b":" + b"".join(b"%d:" % len(p) + p for p in parts)
        if kind == "c":
            return self._code(depth)
        raise ValueError(f"an object of type {kind!r}")

    def _sequence(self, kind: str, depth: int) -> bytes:
        count = self._take(1)[0] if kind == ")" else self._long()
        if not 0 <= count <= len(self._data) - self.pos:
            raise ValueError("cut short")
        items = [self.read(depth + 1) for _ in range(count)]
        if kind in "<>":
            # The order of a set depends on the seed of the writing process.
            items.sort()
        tag = b"(" if kind == ")" else kind.encode()
        return tag + b"%d:" % count + b"".join(b"%d:" % len(i) + i for i in items)

    def _code(self, depth: int) -> bytes:
        head = self._take(20)
        # The fourth number is the stack size, which follows from the instructions.
        out = [b"c", head if self._instructions else head[:12] + head[16:]]
        for field in range(10):
            if field == 8:
                out.append(self._take(4))
            start = self.pos
            value = self.read(depth + 1)
            if field in self._passed:
                continue
            if field == 8:
                value = self._lines(start) or value
            out.append(b"%d:" % len(value) + value)
        return b"".join(out)

    def _lines(self, start: int) -> bytes:
        """Return the lines of a table of locations, or nothing if it is none.

        Args:
            start: Where the object of the table begins that was just read.
        """
        kind = chr(self._data[start] & ~_FLAG_REF)
        begin, end = start + 5, self.pos
        if kind == "r":
            index = int.from_bytes(self._data[start + 1 : start + 5], "little")
            begin, end = self._bytes.get(index, (0, 0))
        elif kind != "s":
            return b""
        table = self._data[begin:end]
        lines = hashlib.sha256()
        line = pos = 0
        try:
            while pos < len(table):
                first = table[pos]
                pos += 1
                if not first & 0x80:
                    return b""
                row, units = first >> 3 & 15, (first & 7) + 1
                if row == _NO_LOCATION:
                    lines.update(b"-" * units)
                    continue
                if row >= _NO_COLUMNS:
                    delta, pos = _varint(table, pos)
                    line += -(delta >> 1) if delta & 1 else delta >> 1
                    for _ in range(3 if row == _LONG else 0):
                        _, pos = _varint(table, pos)
                elif row >= _ONE_LINE:
                    line += row - _ONE_LINE
                    pos += 2
                else:
                    pos += 1
                lines.update((b"%d," % line) * units)
        except IndexError:
            return b""
        return lines.digest() if pos == len(table) else b""


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return a number of a table of locations, and where it ends."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 63) << shift
        if not byte & 64:
            return value, pos
        shift += 6
        if shift > 30:
            raise IndexError("a number that no line has")
