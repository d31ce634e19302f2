# SPDX-License-Identifier: Apache-2.0
"""`git patch-id --stable` of a diff, without a process.

The id of a diff does not depend on line numbers, white space or the order of its files:
each file is hashed without white space, and the hashes are added up.
"""

import hashlib
import re
from io import BytesIO
from typing import Final

_WHITE: Final = b" \t\n\r"
_COUNTS: Final = re.compile(rb"@@ -\d+(?:(,)(\d+))? \+\d+(?:(,)(\d+))?")
_INDEX: Final = re.compile(rb"index (.*?)\.\.([^ \n]*)", re.DOTALL)
_NEXT: Final = re.compile(rb"(?:commit |From )?[0-9a-fA-F]{40}")
_MARKER_LENGTH: Final = 13
_HASH_BITS: Final = 160


class _Sum:
    """Adds up the hashes of the files, byte by byte with carry."""

    def __init__(self) -> None:
        self.value = 0
        self.lines: list[bytes] = []

    def flush(self) -> None:
        text = b"".join(self.lines).translate(None, _WHITE)
        self.lines.clear()
        digest = hashlib.sha1(text, usedforsecurity=False).digest()
        self.value += int.from_bytes(digest, "little")

    def hex(self) -> str:
        value = self.value % (1 << _HASH_BITS)
        return value.to_bytes(_HASH_BITS // 8, "little").hex()


def patch_id(diff: bytes) -> str:
    """Return the stable patch id of a diff.

    Args:
        diff: A diff as `git diff-tree -p` writes it.

    Returns:
        40 hex digits, equal to what `git patch-id --stable` prints; empty for a text
        without a diff, where git prints nothing.
    """
    total = _Sum()
    add = total.lines.append
    found = False
    before = after = -1
    binary = False
    old_id = new_id = b""
    for line in BytesIO(diff).readlines():
        start = line[0]
        if start == 92 and line[1:2] == b" " and len(line) >= _MARKER_LENGTH:
            continue
        if _NEXT.match(line):
            break
        if not found and not line.startswith(b"diff "):
            continue
        if before == -1:
            if line.startswith((b"GIT binary patch", b"Binary files")):
                binary = True
                before = 0
                add(old_id)
                add(new_id)
                total.flush()
                continue
            if line.startswith(b"index "):
                match = _INDEX.match(line)
                if match is not None:
                    old_id, new_id = match[1], match[2]
                continue
            if line.startswith(b"--- "):
                before = after = 1
            elif not line[:1].isalpha():
                break
        if binary:
            if line.startswith(b"diff "):
                binary = False
                before = -1
            continue
        if before == 0 and after == 0:
            if line.startswith(b"@@ -"):
                counts = _COUNTS.match(line)
                if counts is not None:
                    before = int(counts[2]) if counts[1] else 1
                    after = int(counts[4]) if counts[3] else 1
                continue
            if not line.startswith(b"diff "):
                break
            total.flush()
            before = after = -1
        if start == 32:
            before -= 1
            after -= 1
        elif start == 45:
            before -= 1
        elif start == 43:
            after -= 1
        if b"\x00" in line:
            line = line[: line.index(b"\x00")]
        add(line)
        found = True
    total.flush()
    return total.hex() if found else ""
