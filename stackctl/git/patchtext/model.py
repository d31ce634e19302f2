# SPDX-License-Identifier: Apache-2.0
"""What a patch file says, before it meets a tree; paths and messages are bytes."""

from dataclasses import dataclass
from typing import Literal

ChangeKind = Literal["modify", "add", "delete", "rename", "copy"]


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk of a text diff.

    Attributes:
        old_start: First line in the old file, as written (0 for an empty side).
        old_count: Lines of the old side.
        new_start: First line in the new file, as written.
        new_count: Lines of the new side.
        old: The old side's lines with their line feed (the last may lack it).
        new: The new side's lines with their line feed (the last may lack it).
        leading: Context lines before the first change.
        trailing: Context lines after the last change.
        section: Text after the second `@@`.
        line: Line number of the hunk header in its file, 1-based.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    leading: int
    trailing: int
    section: bytes
    line: int


@dataclass(frozen=True, slots=True)
class BinaryHunk:
    """One direction of a git binary patch, decoded (inflated).

    Attributes:
        method: `literal` (data is the whole content) or `delta` (git delta).
        data: The inflated bytes.
        size: The size that the text declares for `data`.
    """

    method: Literal["literal", "delta"]
    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a patch does to one file.

    Attributes:
        kind: Kind of change; a mode change is `modify` with two modes.
        old_path: Path before; None for `add`.
        new_path: Path after; None for `delete`.
        old_mode: Git mode before as an int (0o100644, ...), None where not said.
        new_mode: Git mode after, None where not said.
        old_id: Hex id of the old blob as written (maybe short), None where absent.
        new_id: Hex id of the new blob as written.
        hunks: Text hunks in order.
        binary: Forward binary hunk, or None.
        line: Line number of this change's first line in the patch file, 1-based.
        may_add: A plain diff without old lines that does not say whether its file is
            new: the file is created where it does not exist, else changed.
    """

    kind: ChangeKind
    old_path: bytes | None
    new_path: bytes | None
    old_mode: int | None
    new_mode: int | None
    old_id: str | None
    new_id: str | None
    hunks: tuple[Hunk, ...]
    binary: BinaryHunk | None
    line: int
    may_add: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Author of a patch.

    Attributes:
        name: UTF-8 name, no angle brackets, no line feed.
        email: UTF-8 address without brackets.
        seconds: Seconds since the epoch (UTC).
        zone: Offset as git writes it, like `+0000` or `-0730`.
    """

    name: bytes
    email: bytes
    seconds: int
    zone: bytes


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch: what becomes one commit.

    Attributes:
        name: File it was read from (for messages), with `#n` when several share it.
        line: Line in the file where this patch starts, 1-based.
        author: Author and date.
        message: Commit message as git would store it (cleaned, ends in one line feed).
        changes: Changes in the order of the text.
        raw: The exact bytes of this patch (its part of the file).
        diff: The exact bytes from the first diff line to the end of the diff.
    """

    name: str
    line: int
    author: Identity
    message: bytes
    changes: tuple[FileChange, ...]
    raw: bytes
    diff: bytes
