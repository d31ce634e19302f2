# SPDX-License-Identifier: Apache-2.0
"""Where each key and value of a TOML text stands. `tomllib` gives values alone.

The scan expects text that `tomllib` has accepted: it knows where strings, arrays and
tables begin and end, and nothing about whether they are allowed. It takes time linear
in the text.
"""

import re
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

Step = str | int
Path = tuple[Step, ...]
"""Keys and indexes (from 0) from the top of the document to a value."""

_BLANK = re.compile(r"[ \t]*+")
# No possessive quantifier behind a group: Python before 3.11.5 goes wrong there.
# Each alternative begins with another character, so nothing is tried twice.
_BETWEEN = re.compile(r"[ \t\r\n]*+(?:#[^\n]*+[ \t\r\n]*+)*")
_BARE = re.compile(r"[A-Za-z0-9_-]++")
_BASIC = re.compile(r'"([^"\\\n]*+(?:\\.[^"\\\n]*+)*)"')
_LITERAL = re.compile(r"'([^'\n]*+)'")
_LONG_BASIC = re.compile(r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*"{3,5}+', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''[^']*+(?:'(?!'')[^']*+)*'{3,5}+")
_SCALAR = re.compile(r"[^,\]}#\r\n]++")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|(.))")
_SHORT = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


class _UnexpectedError(Exception):
    """The text is not the TOML that the scan knows."""


class Pair(NamedTuple):
    """A key and its value as they are written.

    Attributes:
        path: Path of the value.
        start: Offset of the key's first character.
        value: Offset of the value's first character.
        end: Offset behind the value.
    """

    path: Path
    start: int
    value: int
    end: int


class Section(NamedTuple):
    """A table with its own lines: the top of the document, `[table]` or `[[table]]`.

    Attributes:
        path: Path of the table.
        start: Offset of the header.
        body: Offset behind the header.
        pairs: Its pairs in the order of the text.
    """

    path: Path
    start: int
    body: int
    pairs: list[Pair]


class Inline(NamedTuple):
    """An inline table.

    Attributes:
        end: Offset of its closing brace.
        pairs: Its pairs in the order of the text.
    """

    end: int
    pairs: list[Pair]


class Positions:
    """Places of the keys, tables and array items of one TOML text.

    Attributes:
        sections: The tables with lines of their own, in the order of the text; the
            first is the top of the document.
        inline: The inline tables.
        pairs: Every key with a value.

    Args:
        text: TOML text that `tomllib` accepts. Other text gives fewer positions, never
            an error.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._offsets: dict[Path, int] = {}
        self._arrays: dict[Path, int] = {}
        self._starts: list[int] | None = None
        self.sections: list[Section] = [Section((), 0, 0, [])]
        self.inline: dict[Path, Inline] = {}
        self.pairs: dict[Path, Pair] = {}
        with suppress(_UnexpectedError, RecursionError):
            self._document()

    def line(self, path: Path) -> int:
        """Return the line of a value's key, or of the nearest table that has one.

        Args:
            path: Keys and indexes from the top; arrays of tables count from 0.

        Returns:
            Line number from 1; 1 where not even the outermost key is known.
        """
        if self._starts is None:
            lengths = (len(line) + 1 for line in self._text.split("\n"))
            self._starts = [0, *accumulate(lengths)]
        while path:
            if (offset := self._offsets.get(path)) is not None:
                return bisect_right(self._starts, offset)
            path = path[:-1]
        return 1

    def known(self) -> frozenset[Path]:
        """Return every path that has a line of its own."""
        return frozenset(self._offsets)

    def _document(self) -> None:
        while True:
            self._skip(_BETWEEN)
            if self._at >= len(self._text):
                return
            start = self._at
            if self._take("[["):
                path = self._array_of_tables(self._key(), start)
                self._expect("]]")
                self.sections.append(Section(path, start, self._at, []))
            elif self._take("["):
                path = self._resolve(self._key(), start)
                self._offsets[path] = start
                self._expect("]")
                self.sections.append(Section(path, start, self._at, []))
            else:
                section = self.sections[-1]
                section.pairs.append(self._pair(section.path))

    def _resolve(self, keys: tuple[str, ...], start: int) -> Path:
        """Return the path that a header means: in arrays of tables, the last item."""
        path: Path = ()
        for key in keys:
            path += (key,)
            self._offsets.setdefault(path, start)
            if path in self._arrays:
                path += (self._arrays[path],)
        return path

    def _array_of_tables(self, keys: tuple[str, ...], start: int) -> Path:
        array = (*self._resolve(keys[:-1], start), keys[-1])
        self._offsets.setdefault(array, start)
        self._arrays[array] = self._arrays.get(array, -1) + 1
        item = (*array, self._arrays[array])
        self._offsets[item] = start
        return item

    def _pair(self, table: Path) -> Pair:
        start = self._at
        path = table
        for key in self._key():
            path += (key,)
            self._offsets.setdefault(path, start)
        self._expect("=")
        self._skip(_BLANK)
        value = self._at
        self._value(path)
        pair = Pair(path, start, value, self._at)
        self.pairs[path] = pair
        return pair

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip(_BLANK)
            if match := _BARE.match(self._text, self._at):
                parts.append(match[0])
            elif match := _BASIC.match(self._text, self._at):
                parts.append(_ESCAPE.sub(_unescape, match[1]))
            elif match := _LITERAL.match(self._text, self._at):
                parts.append(match[1])
            else:
                raise _UnexpectedError
            self._at = match.end()
            self._skip(_BLANK)
            if not self._take("."):
                return tuple(parts)

    def _value(self, path: Path) -> None:
        text, at = self._text, self._at
        if text.startswith('"""', at):
            self._skip(_LONG_BASIC, needed=True)
        elif text.startswith("'''", at):
            self._skip(_LONG_LITERAL, needed=True)
        elif text.startswith('"', at):
            self._skip(_BASIC, needed=True)
        elif text.startswith("'", at):
            self._skip(_LITERAL, needed=True)
        elif self._take("["):
            self._array(path)
        elif self._take("{"):
            self._inline_table(path)
        else:
            self._skip(_SCALAR, needed=True)
            while text[self._at - 1] in " \t":
                self._at -= 1

    def _array(self, path: Path) -> None:
        index = 0
        while True:
            self._skip(_BETWEEN)
            if self._take("]"):
                return
            item = (*path, index)
            self._offsets[item] = self._at
            self._value(item)
            self._skip(_BETWEEN)
            if not self._take(","):
                self._expect("]")
                return
            index += 1

    def _inline_table(self, path: Path) -> None:
        pairs: list[Pair] = []
        while True:
            self._skip(_BETWEEN)
            if self._take("}"):
                break
            pairs.append(self._pair(path))
            self._skip(_BETWEEN)
            if not self._take(","):
                self._expect("}")
                break
        self.inline[path] = Inline(self._at - 1, pairs)

    def _skip(self, pattern: re.Pattern[str], *, needed: bool = False) -> None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()
        elif needed:
            raise _UnexpectedError

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        self._skip(_BLANK)
        if not self._take(token):
            raise _UnexpectedError


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code:
        number = int(code, 16)
        return chr(number) if number <= 0x10FFFF else match[0]
    return _SHORT.get(match[4], match[4])
