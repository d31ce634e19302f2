# SPDX-License-Identifier: Apache-2.0
"""Paths in patch text: C quoting, and which paths may never be touched."""

import re
from typing import Final

MAX_DEPTH: Final = 256
"""Most components of a path."""

MAX_PATH: Final = 4096
"""Longest path in bytes; Linux's PATH_MAX."""

_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\(?:[abfnrtv"\\]|[0-3][0-7]{2}))*)"')
_ESCAPE: Final = re.compile(rb"\\([abfnrtv\"\\]|[0-3][0-7]{2})")
_LETTERS: Final = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b'"': b'"',
    b"\\": b"\\",
}

# Anything that could be refused; a path without a match is good at once.
_SUSPECT: Final = re.compile(
    rb"(?:\A|/)(?:/|\.\.?(?:/|\Z)|\Z)|\x00|(?i:\.git|git~|gitmod~|gi7eba~)|[\x80-\xff]"
)
# What NTFS ignores after a name: dots, spaces, and a stream behind a colon.
_NTFS_GIT: Final = re.compile(rb"(?i)(?:\.git|git~1)[. ]*(?:\Z|[\\/:])")
_NTFS_MODULES: Final = re.compile(
    rb"(?i)(?:\.gitmodules|gitmod~[1-4]|gi7eba~[1-9]|gi7eb~[1-9]\d)[. ]*(?:\Z|[\\/:])"
)
# Code points that HFS+ ignores in names.
_HFS_IGNORED: Final = re.compile(
    rb"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf"
)


def unquote(text: bytes) -> tuple[bytes, bytes] | None:
    """Undo git's C quoting of a path.

    Args:
        text: Text that starts with a double quote.

    Returns:
        The path and what follows the closing quote; None where the quoting is bad.
    """
    match = _QUOTED.match(text)
    if match is None:
        return None

    def plain(escape: re.Match[bytes]) -> bytes:
        body = escape[1]
        return _LETTERS.get(body) or bytes((int(body, 8),))

    body = match[1]
    if b"\\" in body:
        body = _ESCAPE.sub(plain, body)
    return body, text[match.end() :]


def path_problem(path: bytes, *, symlink: bool = False) -> str | None:
    """Say why a path may not be touched by a patch.

    The rules are those of git on every platform at once (case folding, NTFS and HFS+
    spellings of `.git`), because a tree that is made here is checked out anywhere.

    Args:
        path: Path relative to the top of the tree.
        symlink: The path is or becomes a symbolic link.

    Returns:
        The reason, or None where the path is good.
    """
    if len(path) > MAX_PATH:
        return f"it is longer than {MAX_PATH} bytes"
    if path.count(b"/") >= MAX_DEPTH:
        return f"it has more than {MAX_DEPTH} components"
    if _SUSPECT.search(path) is None:
        return None
    if b"\x00" in path:
        return "it has a NUL byte"
    if path.startswith(b"/"):
        return "it is absolute"
    for part in path.split(b"/"):
        if part == b"":
            return "it has an empty component"
        if part in (b".", b".."):
            return f"it has a component `{part.decode()}`"
        folded = _HFS_IGNORED.sub(b"", part)
        for name in {part, folded}:
            for piece in name.split(b"\\"):
                if _NTFS_GIT.match(piece):
                    return "it reaches into `.git`"
                if symlink and _NTFS_MODULES.match(piece):
                    return "it makes `.gitmodules` a symbolic link"
    return None
