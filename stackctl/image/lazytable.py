# SPDX-License-Identifier: Apache-2.0
"""The table of a lazily read layer: its JSON, and its entries against the tar's.

What has to hold is said in `stackctl.image.lazy`.
"""

import hashlib
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, NoReturn

from stackctl.image import documents
from stackctl.image.errors import LimitError
from stackctl.image.layers import OVERLAY_MARKS, LayerEntry, clean_path
from stackctl.image.lazystream import Record
from stackctl.image.limits import MIB

#: Entries of a table, chunks included; about 15 microseconds each.
_MAX_ITEMS: Final = 1_000_000
#: Characters of one entry.
_MAX_ENTRY: Final = MIB
#: Differences after which a table is not compared any further.
_MAX_DIFFERENCES: Final = 5_000
#: Characters that are decoded at once.
_BATCH = 256 * 1024
_MARKS = tuple(mark.decode() for mark in OVERLAY_MARKS)
_BLANKS = re.compile(r"[ \t\n\r]*")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?"
    r"(?:[Zz]|([+-])(\d\d):(\d\d))"
)
_EPOCH = date(1970, 1, 1).toordinal()
_KEYS = (
    "version",
    "entries",
    "tarSplitDigest",
    "type",
    "name",
    "linkName",
    "mode",
    "size",
    "uid",
    "gid",
    "modtime",
    "accesstime",
    "changetime",
    "userName",
    "groupName",
    "devMajor",
    "devMinor",
    "xattrs",
    "digest",
    "offset",
    "endOffset",
    "innerOffset",
    "chunkSize",
    "chunkOffset",
    "chunkDigest",
    "chunkType",
)
_NUMBERS = frozenset(
    (
        "mode",
        "size",
        "uid",
        "gid",
        "devMajor",
        "devMinor",
        "offset",
        "endOffset",
        "innerOffset",
        "chunkSize",
        "chunkOffset",
    )
)
_TEXTS = frozenset(
    ("type", "name", "linkName", "modtime", "digest", "chunkDigest", "chunkType")
)
_TYPES = {
    "0": "reg",
    "1": "hardlink",
    "2": "symlink",
    "3": "char",
    "4": "block",
    "5": "dir",
    "6": "fifo",
}
_WORDS = {
    "reg": "a file",
    "hardlink": "a hard link",
    "symlink": "a symlink",
    "char": "a character device",
    "block": "a block device",
    "dir": "a folder",
    "fifo": "a pipe",
    "": "something else",
}


class MalformedError(Exception):
    """The table is not what its format says, so that readers may differ about it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that the index and the tar say differently.

    Attributes:
        path: Cleaned name; empty for the whole layer.
        lazy: What who reads the index sees.
        tar: What who reads the tar sees.
        modes_only: Only permission bits or owners differ.
        made: The index makes something there that the tar does not.
    """

    path: bytes
    lazy: str
    tar: str
    modes_only: bool = False
    made: bool = False


@dataclass(slots=True)
class Outcome:
    """What the comparison of a layer's index found.

    Attributes:
        kinds: Formats of the tables that were compared.
        entries: Entries of the tables, chunks included.
        differences: Where they and the tar disagree.
        unchecked: What could not be compared, as clauses.
        times: Other modification times that the index gives files, by name.
    """

    kinds: list[str] = field(default_factory=list)
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    times: list[tuple[bytes, int]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """Return the outcome as JSON; `agrees` is null where not all was compared."""
        agrees: bool | None = not self.differences
        if agrees and (self.unchecked or not self.kinds):
            agrees = None
        return {"kinds": self.kinds, "entries": self.entries, "agrees": agrees}


class _Pairs(list[tuple[str, object]]):
    """An object's members before anybody may have lost one."""


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


class Table:
    """Reads the JSON of a table entry by entry, so that it need not fit in memory.

    Args:
        chunks: The document.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._decode = getincrementaldecoder("utf-8")().decode
        # Readers in Go take control characters inside of strings, or refuse them.
        self._json = json.JSONDecoder(
            object_pairs_hook=_Pairs, parse_constant=_constant, strict=False
        )
        self._text = ""
        self._at = 0
        self._ended = False
        self._known = {key.casefold(): key for key in _KEYS}
        self._shapes: set[tuple[str, ...]] = set()
        self.version: int | None = None

    def entries(self) -> Iterator[dict[str, object]]:
        """Yield the members of every entry.

        Raises:
            MalformedError: It is no table.
            AmbiguousImageError: An object has a key twice, or in two spellings.
            LimitError: It has more entries than are read.
        """
        self._expect("{")
        keys: list[str] = []
        while self._peek() != "}":
            if keys:
                self._expect(",")
            key = self._value('"')
            assert isinstance(key, str)
            keys.append(key)
            documents.check_keys(keys, "the index of a layer", self._known)
            self._expect(":")
            if key == "entries" and self._peek() == "[":
                yield from self._list()
                continue
            value = self._value()
            if key == "version":
                self.version = _number(value, key)
            elif key == "entries" and value is not None:
                raise MalformedError("a table whose entries are no list")
        self._expect("}")
        if self._peek():
            raise MalformedError("followed by something else")

    def rest(self) -> Iterator[bytes]:
        """Yield what was not asked for."""
        return self._chunks

    def _list(self) -> Iterator[dict[str, object]]:
        self._expect("[")
        count = 0
        while self._peek() != "]":
            if count:
                self._expect(",")
            count += 1
            if count > _MAX_ITEMS:
                raise LimitError(
                    f"a layer's index has more than {_MAX_ITEMS} entries",
                    kind="limit-index",
                )
            yield self._members(self._value("{"))
        self._expect("]")

    def _members(self, value: object) -> dict[str, object]:
        if not isinstance(value, _Pairs):
            raise MalformedError("a table with an entry that is no object")
        shape = tuple([key for key, _ in value])
        if shape not in self._shapes:
            documents.check_keys(shape, "an index entry of a layer", self._known)
            if len(self._shapes) < 1000:
                self._shapes.add(shape)
        return dict(value)

    def _value(self, first: str = "") -> object:
        if first and self._peek() != first:
            raise MalformedError("not valid JSON")
        self._peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except (ValueError, RecursionError):
                end = -1
            # A number that ends with the text may go on.
            if end >= 0 and (end < len(self._text) or self._ended):
                self._at = end
                return value
            over = len(self._text) - self._at > _MAX_ENTRY
            if (over or not self._more()) and (end < 0 or not self._ended):
                raise MalformedError("not valid JSON")

    def _more(self) -> bool:
        if self._at > _BATCH:
            self._text = self._text[self._at :]
            self._at = 0
        parts: list[str] = []
        size = 0
        while size < _BATCH and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            try:
                parts.append(self._decode(chunk or b"", self._ended))
            except UnicodeDecodeError:
                raise MalformedError("not valid UTF-8") from None
            size += len(parts[-1])
        self._text += "".join(parts)
        return size > 0

    def _peek(self) -> str:
        while True:
            matched = _BLANKS.match(self._text, self._at)
            assert matched is not None
            self._at = matched.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise MalformedError("not valid JSON")
        self._at += 1


def _number(value: object, key: str) -> int:
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise MalformedError(f"a table with a {key} that is no number in bounds")
    return value


class _Item:
    """An entry of a table whose members have the types that they must have."""

    __slots__ = ("numbers", "texts", "xattrs")

    def __init__(self, members: Mapping[str, object]) -> None:
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        for key, value in members.items():
            if key in _NUMBERS:
                self.numbers[key] = _number(value, key)
            elif key in _TEXTS and value is not None:
                if not isinstance(value, str):
                    raise MalformedError(f"a table with a {key} that is no text")
                self.texts[key] = documents.go_text(value)
        xattrs = members.get("xattrs")
        if xattrs is not None and not isinstance(xattrs, _Pairs):
            raise MalformedError("a table with xattrs that are no object")
        self.xattrs = [key for key, _ in xattrs or ()]

    def number(self, key: str) -> int:
        return self.numbers.get(key, 0)

    def text(self, key: str) -> str:
        return self.texts.get(key, "")


@dataclass(slots=True)
class _Chunks:
    """A file of the table whose chunks are being read.

    Attributes:
        path: Its name.
        size: Its size in bytes.
        begin: Where its content begins in the unpacked layer.
        digest: SHA-256 of its content.
        pending: Its last chunk so far, which is not compared yet.
        expected: Where the next chunk must begin.
        count: Chunks so far.
        proven: Whether all of them have their right digest.
        whole: Whether the file has its right digest.
        end_offset: Where its content ends in the stored layer, or 0.
    """

    path: bytes
    size: int
    begin: int
    digest: bytes
    pending: _Item
    end_offset: int
    whole: bool
    expected: int = 0
    count: int = 0
    proven: bool = True


class Comparison:
    """Holds the entries of a table against those of a tar.

    Args:
        record: What was taken down of the layer.
        outcome: Gets the differences.
        entries: The tar's entries.
        skipped: Position of the entry that the table leaves out.
    """

    def __init__(
        self,
        record: Record,
        outcome: Outcome,
        entries: Sequence[LayerEntry],
        skipped: int,
    ) -> None:
        self._record = record
        self._outcome = outcome
        self._entries = entries
        self._last = {
            entry.name: entry.ordinal
            for entry in entries
            if entry.type != "g" and entry.ordinal != skipped
        }
        self._seen = bytearray(len(entries))
        self._latest = -1
        self._moved = False
        self._open: _Chunks | None = None
        self._dropped = False
        self._zeros: dict[int, bytes] = {}
        self._times: dict[str, int] = {}
        self.uncompared = 0

    def take(self, members: Mapping[str, object]) -> bool:
        """Compare the next entry; say whether to go on."""
        item = _Item(members)
        if item.text("type") == "chunk":
            self._chunk(item)
        else:
            self._close()
            self._entry(item)
        if len(self._outcome.differences) <= _MAX_DIFFERENCES:
            return True
        self._differ(b"", "more is different than is listed", "the rest is other")
        return False

    def finish(self) -> None:
        """Compare what was left open, and find what the table lacks."""
        self._close()
        links = {
            name for name, at in self._last.items() if self._entries[at].type == "2"
        }
        for name, ordinal in self._last.items():
            if not self._seen[ordinal]:
                what = _TYPES.get(self._entries[ordinal].type, "")
                self._differ(name, "nothing is there", f"it is {_WORDS[what]}")
            if links and not links.isdisjoint(_above(name)):
                # The stargz snapshotter takes names as they are.
                self._differ(
                    name, "it lies below a symlink", "that symlink is followed"
                )
            if self._moved and (hidden := _hidden(name)) in self._last:
                self._differ(
                    hidden,
                    "the whiteout of it and the file itself come in another order",
                    "the order is that of the layer",
                )
            if len(self._outcome.differences) > _MAX_DIFFERENCES:
                self._differ(b"", "more is different than is listed", "all is there")
                return

    def _differ(self, path: bytes, lazy: str, tar: str, *, made: bool = False) -> None:
        self._outcome.differences.append(Difference(path, lazy, tar, made=made))

    def _entry(self, item: _Item) -> None:
        kind = item.text("type")
        if not kind or kind not in _WORDS:
            raise MalformedError(f"a table with an entry of the type {kind[:40]!r}")
        self._dropped = kind == "reg"
        name = clean_path(item.text("name").encode("utf-8"))
        ordinal = self._last.get(name)
        if ordinal is None:
            self._differ(name, f"it is {_WORDS[kind]}", "nothing is there", made=True)
            return
        self._moved = self._moved or ordinal < self._latest
        self._latest = ordinal
        entry = self._entries[ordinal]
        actual = _TYPES.get(entry.type, "")
        if kind != actual:
            self._differ(
                name, f"it is {_WORDS[kind]}", f"it is {_WORDS[actual]}", made=True
            )
        elif self._seen[ordinal] and kind != "dir":
            self._differ(name, "it is there more than once", "the last one counts")
        else:
            self._same_kind(item, entry, kind)
        self._seen[ordinal] = 1

    def _same_kind(self, item: _Item, entry: LayerEntry, kind: str) -> None:
        name = entry.name
        if kind in ("symlink", "hardlink"):
            there = item.text("linkName").encode("utf-8")
            here = entry.link
            if kind == "hardlink":
                there, here = clean_path(there), clean_path(here)
            if there != here:
                self._differ(
                    name, f"it leads to {_show(there)}", f"it leads to {_show(here)}"
                )
        marked = next((key for key in item.xattrs if key.startswith(_MARKS)), "")
        if kind == "char" and not item.number("devMajor") + item.number("devMinor"):
            marked = "0/0 device"
        if bool(marked) != bool(entry.overlay):
            self._differ(
                name,
                f"{marked or 'nothing'} hides or redirects what is below",
                f"{entry.overlay or 'nothing'} does",
            )
        mode = item.number("mode") & 0o7777
        owner = (item.number("uid"), item.number("gid"))
        if kind != "symlink" and (mode, owner) != (entry.mode, entry.owner):
            self._outcome.differences.append(
                Difference(
                    name,
                    f"it has the mode {mode:04o} and the owner {_pair(owner)}",
                    f"it has the mode {entry.mode:04o} and the owner "
                    f"{_pair(entry.owner)}",
                    modes_only=True,
                )
            )
        if kind in ("reg", "hardlink"):
            time = self._time(item.text("modtime"))
            if time != entry.mtime:
                self._outcome.times.append((name, time))
        if kind == "reg":
            self._file(item, entry)

    def _time(self, text: str) -> int:
        if not text:
            return 0
        if text in self._times:
            return self._times[text]
        matched = _TIME.fullmatch(text)
        if matched is None:
            raise MalformedError("a table with a time that is none")
        year, month, day, hour, minute, second = map(int, matched.groups()[:6])
        try:
            days = date(year, month, day).toordinal() - _EPOCH
        except ValueError:
            raise MalformedError("a table with a time that is none") from None
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
        if matched[8]:
            shift = (int(matched[9]) * 60 + int(matched[10])) * 60
            seconds += shift if matched[8] == "-" else -shift
        if matched[7] and seconds >= 0:
            # As the tar's own times are read: Python has them as floats.
            seconds = int(seconds + 1e-9 * int(matched[7][:9].ljust(9, "0")))
        if len(self._times) > 1000:
            self._times.clear()
        self._times[text] = seconds
        return seconds

    def _file(self, item: _Item, entry: LayerEntry) -> None:
        name, size = entry.name, item.number("size")
        content = self._record.content(entry.ordinal)
        if size != entry.size or content is None:
            here = f"it has {entry.size} bytes"
            if content is None:
                here += ", some of them in holes"
            self._differ(name, f"it has {size} bytes", here)
            return
        begin, digest = content
        stated = item.text("digest")
        if stated and stated != f"sha256:{digest.hex()}":
            self._differ(
                name,
                f"its content has the digest {stated[:80]}",
                f"its content has the digest sha256:{digest.hex()}",
            )
            return
        self._open = _Chunks(
            name, size, begin, digest, item, item.number("endOffset"), bool(stated)
        )

    def _chunk(self, item: _Item) -> None:
        opened = self._open
        if opened is None:
            if self._dropped:
                # Of a file that differs in any case.
                return
            raise MalformedError("a table with a chunk of nothing")
        name = item.text("name")
        if name and clean_path(name.encode("utf-8")) != opened.path:
            raise MalformedError("a table with a chunk of another file")
        self._settle(opened, last=False)
        if self._open is not None:
            opened.pending = item

    def _close(self) -> None:
        opened = self._open
        if opened is None:
            return
        self._settle(opened, last=True)
        if self._open is None:
            return
        self._open = None
        if not opened.size:
            return
        if opened.expected != opened.size:
            self._lost(opened, f"its chunks end at byte {opened.expected}")
        elif not opened.whole and not opened.proven:
            self._lost(opened, "its content has no digest")
        elif opened.end_offset and not self._at(
            opened.end_offset, opened.begin + opened.size
        ):
            self._lost(opened, f"it ends at byte {opened.end_offset} of the blob")

    def _lost(self, opened: _Chunks, lazy: str) -> None:
        self._open = None
        self._differ(opened.path, lazy, f"it is one file of {opened.size} bytes")

    def _settle(self, opened: _Chunks, *, last: bool) -> None:
        """Compare a chunk, once it is known whether another follows it."""
        item = opened.pending
        alone = last and not opened.count
        opened.count += 1
        if not opened.size:
            if not alone:
                self._lost(opened, "it has chunks")
            return
        offset = item.number("chunkOffset")
        size = item.number("chunkSize") or opened.size - offset
        if offset != opened.expected or not 0 < size <= opened.size - offset:
            self._lost(opened, f"a chunk of {size} bytes begins at byte {offset}")
            return
        opened.expected += size
        begin = opened.begin + offset
        if size == opened.size:
            actual: bytes | None = opened.digest
        else:
            actual = self._record.piece(begin, size, opened.begin + opened.size)
        stated = item.text("chunkDigest")
        kind = item.text("chunkType")
        if kind not in ("", "zeros"):
            raise MalformedError(f"a table with a chunk of the type {kind[:40]!r}")
        if actual is None:
            if kind and not self._record.forgetful:
                self._lost(opened, f"{size} bytes from byte {offset} on are zeros")
                return
            if stated or kind:
                self.uncompared += 1
            opened.proven = False
        elif stated and stated != f"sha256:{actual.hex()}":
            self._lost(opened, f"the chunk at byte {offset} has another digest")
            return
        elif kind and actual != self._zero_digest(size):
            self._lost(opened, f"{size} bytes from byte {offset} on are zeros")
            return
        opened.proven = opened.proven and bool(stated)
        if not self._at(item.number("offset"), begin - item.number("innerOffset")):
            self._lost(
                opened,
                f"its byte {offset} is at byte {item.number('offset')} of the blob",
            )

    def _at(self, stored: int, plain: int) -> bool:
        """Say whether a frame or member begins at a stored and an unpacked offset."""
        found = self._record.starts(stored)
        if found is None and self._record.forgetful:
            self.uncompared += 1
            return True
        return found == plain

    def _zero_digest(self, size: int) -> bytes:
        if size not in self._zeros:
            digest = hashlib.sha256()
            block = bytes(min(size, MIB))
            left = size
            while left:
                digest.update(block[: min(left, MIB)])
                left -= min(left, MIB)
            if len(self._zeros) > 1000:
                self._zeros.clear()
            self._zeros[size] = digest.digest()
        return self._zeros[size]


def _above(name: bytes) -> Iterator[bytes]:
    """Yield the folders that a path lies in."""
    while name := name.rpartition(b"/")[0]:
        yield name


def _hidden(name: bytes) -> bytes:
    """Return the path that an entry is the whiteout of, or what no entry is named."""
    folder, _, base = name.rpartition(b"/")
    if not base.startswith(b".wh."):
        return b"/"
    return folder + b"/" + base[4:] if folder else base[4:]


def _show(path: bytes) -> str:
    return path[:200].decode("utf-8", "backslashreplace")


def _pair(owner: tuple[int, int]) -> str:
    return f"{owner[0]}:{owner[1]}"
