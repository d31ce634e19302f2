# SPDX-License-Identifier: Apache-2.0
"""Names of files that come from outside: what a git tree may hold, and what may not.

Names are bytes and stay bytes. The rules are those of git's own index (no `.git` in any
spelling that some file system takes for it), plus what no file system can store.
"""

import re

from stackctl.errors import InputError

MAX_NAME = 255
"""Longest component in bytes; what ext4, XFS, Btrfs and APFS can store."""

MAX_PATH = 4096
"""Longest path in bytes; Linux's PATH_MAX."""

MAX_DEPTH = 256
"""Most components of a path."""

_DOT_GIT = re.compile(rb"(?:\.git|git~1)[ .]*(?:[\\:].*)?\Z", re.DOTALL | re.IGNORECASE)
_DOT_GITMODULES = re.compile(rb"(?:\.gitmodules|gitmod~[1-4])[ .]*\Z", re.IGNORECASE)
# Code points that HFS+ leaves out of comparisons, as UTF-8.
_IGNORED_BY_HFS = re.compile(
    rb"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf"
)


def shown(name: bytes) -> str:
    """Return a name as text that is safe to print, without control characters."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def component_problem(name: bytes, *, link: bool = False) -> str | None:
    """Return why a name cannot be a component of a path in a tree, None where it can.

    Args:
        name: The component.
        link: Whether it names a symbolic link.
    """
    if name in (b"", b".", b".."):
        return f"has the component {shown(name)!r}"
    if b"\0" in name or b"/" in name:
        return "has a NUL byte or a slash in a component"
    if len(name) > MAX_NAME:
        return f"has a component of {len(name)} bytes; at most {MAX_NAME} can be stored"
    # Cheap test first: almost no name comes near.
    lowered = name.lower()
    if b"git" in lowered or b"\xe2\x80" in name or b"\xe2\x81" in name:
        plain = _IGNORED_BY_HFS.sub(b"", name)
        if _DOT_GIT.match(name) or _DOT_GIT.match(plain):
            return (
                f"has the component {shown(name)!r}, which git or a file system "
                "takes for .git"
            )
        if link and (_DOT_GITMODULES.match(name) or _DOT_GITMODULES.match(plain)):
            return "makes .gitmodules a symbolic link, which git refuses"
    return None


def split_member(name: bytes, what: str = "entry") -> tuple[bytes, ...]:
    """Return the components of an archive member's name.

    Empty components and `.` carry no meaning and are dropped, as unpacking would do.

    Args:
        name: Name as it stands in the archive.
        what: What it names, for the message.

    Raises:
        InputError: The name is absolute, climbs, or is too long.
    """
    problem = None
    parts: tuple[bytes, ...] = ()
    if name.startswith(b"/"):
        problem = "is an absolute path"
    elif b"\0" in name:
        problem = "has a NUL byte"
    elif len(name) > MAX_PATH:
        problem = f"is longer than {MAX_PATH} bytes"
    else:
        pieces = name.split(b"/")
        if b"" in pieces or b"." in pieces:
            pieces = [piece for piece in pieces if piece not in (b"", b".")]
        parts = tuple(pieces)
        if len(parts) > MAX_DEPTH:
            problem = f"has more than {MAX_DEPTH} components"
        # The importer judges the other components, each once, as it takes them.
        elif b".." in parts:
            problem = "climbs with '..'"
    if problem is not None:
        text = shown(name[:200]) + ("…" if len(name) > 200 else "")
        raise InputError(
            f"{what} {text!r} {problem}",
            kind="archive-refused",
            where={"entry": text},
        )
    return parts
