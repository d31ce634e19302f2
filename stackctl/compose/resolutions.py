# SPDX-License-Identifier: Apache-2.0
"""Conflict resolutions: files that people review, found again by what conflicted.

A resolution says what becomes of one path on which two sides disagree. It is keyed by
both sides' modes and blobs, in no order, so that it serves wherever the same two files
meet: in another composition, in another order, on another machine. Where a side has no
file, the common ancestor's belongs to the key: "this file against nothing" alone would
fit too much.

The file has a head of `key value` lines, an empty line, and the resolved bytes: as they
are where they are UTF-8 text, else in base64.
"""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from stackctl.errors import InputError
from stackctl.fsutil import read_regular, refuse_link_out, write_atomic
from stackctl.git.merge import Conflict
from stackctl.git.objects import (
    BLOB,
    MODE_SUBMODULE,
    Entry,
    object_id,
)
from stackctl.model.ids import Sha256

FOLDER = "patches/resolutions"
SUFFIX = ".resolution"
MAGIC = b"stackctl-resolution 1"

MAX_BYTES = 64 << 20
"""Largest resolution that is read: bytes."""

_ENTRY = re.compile(rb"(100644|100755|120000|160000) ([0-9a-f]{40})\Z")

Key = tuple[bytes, bytes, bytes]


def _text(entry: Entry | None) -> bytes:
    return (
        b"none"
        if entry is None
        else b"%06o %s" % (entry.mode, entry.oid.hex().encode())
    )


def conflict_key(conflict: Conflict) -> Key:
    """Return what identifies a conflict: both sides, and the base where one is gone."""
    one, other = sorted((_text(conflict.ours), _text(conflict.theirs)))
    alone = conflict.ours is None or conflict.theirs is None
    return one, other, _text(conflict.base) if alone else b""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What becomes of a conflicting path.

    Attributes:
        conflict: What conflicted, with the path at which it was met first.
        entry: The resolved file; None where the path goes away.
        data: Its bytes (empty for a submodule or a removal).
    """

    conflict: Conflict
    entry: Entry | None
    data: bytes

    @property
    def file_name(self) -> str:
        """Name of its file: the ids of both sides, and the base's where one is gone."""
        ids = [
            part.split(b" ")[-1][:20].decode("ascii")
            for part in conflict_key(self.conflict)
            if part
        ]
        # Only the mode differs: then the ids alone would name two conflicts.
        modes = {entry.mode for entry in self.conflict[1:] if isinstance(entry, Entry)}
        digest = ""
        if len(modes) > 1:
            joined = b"\n".join(conflict_key(self.conflict))
            digest = "-" + sha256(joined).hexdigest()[:8]
        return "-".join(ids) + digest + SUFFIX

    def to_bytes(self) -> bytes:
        """Return the bytes of its file."""
        encoding = b"text"
        body = self.data
        if b"\0" in body or not _is_utf8(body):
            encoding = b"base64"
            body = base64.encodebytes(body)
        path = self.conflict.path.decode("utf-8", "backslashreplace")
        shown = path.encode("unicode_escape") if "\n" in path else path.encode()
        lines = [
            MAGIC,
            b"path " + shown,
            b"base " + _text(self.conflict.base),
            b"ours " + _text(self.conflict.ours),
            b"theirs " + _text(self.conflict.theirs),
            b"result " + (b"removed" if self.entry is None else _text(self.entry)),
        ]
        if self.entry is not None and self.entry.mode != MODE_SUBMODULE:
            lines.append(b"encoding " + encoding)
        return b"\n".join(lines) + b"\n\n" + body


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_resolution(data: bytes, file: str) -> Resolution:
    """Read a resolution file.

    Args:
        data: Its bytes.
        file: Its name, for messages.

    Raises:
        InputError: It breaks a rule of the format, or its bytes are not those of the
            blob that it names.
    """

    def bad(line: int, expected: str) -> InputError:
        return InputError(
            f"{file}:{line}: expected {expected}",
            kind="bad-resolution",
            hint="write it again with `stackctl resolve SET`",
            where={"file": file, "line": line},
        )

    head, found, body = data.partition(b"\n\n")
    lines = head.split(b"\n")
    if not found or lines[0] != MAGIC:
        raise bad(1, f"`{MAGIC.decode()}`, and an empty line after the head")
    values: dict[bytes, bytes] = {}
    numbers: dict[bytes, int] = {}
    names = (b"path", b"base", b"ours", b"theirs", b"result", b"encoding")
    for number, line in enumerate(lines[1:], 2):
        name, _, value = line.partition(b" ")
        if name not in names or name in values or not value:
            raise bad(number, "`path`, `base`, `ours`, `theirs`, `result`, `encoding`")
        values[name] = value
        numbers[name] = number
    entries: dict[bytes, Entry | None] = {}
    for name in (b"base", b"ours", b"theirs", b"result"):
        text = values.get(name, b"")
        match = _ENTRY.match(text)
        nothing = b"removed" if name == b"result" else b"none"
        if match is None and text != nothing:
            raise bad(
                numbers.get(name, len(lines)),
                f"`{name.decode()} MODE BLOB` or `{name.decode()} {nothing.decode()}`",
            )
        entries[name] = match and Entry(
            int(match[1], 8), bytes.fromhex(match[2].decode())
        )
    entry = entries[b"result"]
    if entry is None or entry.mode == MODE_SUBMODULE:
        if body.strip():
            raise bad(len(lines) + 2, "nothing after the head")
        body = b""
    else:
        encoding = values.get(b"encoding")
        if encoding == b"base64":
            try:
                body = base64.b64decode(body.replace(b"\n", b""), validate=True)
            except ValueError:
                raise bad(len(lines) + 2, "base64") from None
        elif encoding != b"text":
            raise bad(numbers.get(b"encoding", len(lines)), "`encoding text|base64`")
        oid = object_id(BLOB, body)
        if oid != entry.oid:
            raise InputError(
                f"{file}: `result` names blob {entry.oid.hex()}, but the bytes below "
                f"are {oid.hex()}",
                kind="bad-resolution",
                hint=f"after an edit by hand, write `result {entry.mode:06o} "
                f"{oid.hex()}`",
                where={"file": file, "line": numbers[b"result"]},
            )
    conflict = Conflict(
        values.get(b"path", b"?"),
        entries[b"base"],
        entries[b"ours"],
        entries[b"theirs"],
    )
    if conflict.ours is None and conflict.theirs is None:
        raise bad(numbers[b"ours"], "a side that has the file")
    return Resolution(conflict, entry, body)


class Resolutions:
    """The resolutions of a project, read when the first conflict asks for them.

    Args:
        project: The project folder.
    """

    def __init__(self, project: Path) -> None:
        self._project = project
        self._known: dict[Key, tuple[str, Sha256, Resolution]] | None = None

    def _load(self) -> dict[Key, tuple[str, Sha256, Resolution]]:
        if self._known is None:
            known: dict[Key, tuple[str, Sha256, Resolution]] = {}
            for name in self.files():
                path = self._project / name
                data = read_regular(path, MAX_BYTES)
                resolution = parse_resolution(data, str(path))
                key = conflict_key(resolution.conflict)
                if key in known:
                    raise InputError(
                        f"{path} and {known[key][0]} resolve the same conflict",
                        kind="ambiguous-resolution",
                        hint="remove one of them",
                        where={"file": str(path)},
                    )
                known[key] = (name, Sha256(sha256(data).hexdigest()), resolution)
            self._known = known
        return self._known

    def files(self) -> list[str]:
        """Return the resolution files, relative to the project, in order."""
        folder = self._project / FOLDER
        if not folder.is_dir():
            return []
        return sorted(
            f"{FOLDER}/{path.name}"
            for path in folder.iterdir()
            if path.suffix == SUFFIX
        )

    def find(self, conflict: Conflict) -> tuple[str, Resolution] | None:
        """Return the file and the resolution of a conflict, None where there is none.

        Raises:
            InputError: A resolution file is bad.
        """
        found = self._load().get(conflict_key(conflict))
        return found and (found[0], found[2])

    def digest(self, name: str) -> Sha256 | None:
        """Return the digest of a resolution file, None where there is no such file."""
        return next(
            (digest for file, digest, _ in self._load().values() if file == name), None
        )

    def unused(self, used: Iterable[str]) -> list[str]:
        """Return the files that no conflict asked for.

        Args:
            used: The files that were used.
        """
        gone = set(used)
        return [name for name in self.files() if name not in gone]

    def save(self, resolution: Resolution) -> str:
        """Write a resolution; return its file, relative to the project.

        Raises:
            InputError: The file cannot be written.
        """
        folder = self._project / FOLDER
        refuse_link_out(self._project, folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{folder}: cannot be made: {error.strerror}", kind="not-writable"
            ) from error
        found = self.find(resolution.conflict)
        name = found[0] if found else f"{FOLDER}/{resolution.file_name}"
        write_atomic(self._project / name, resolution.to_bytes())
        self._known = None
        return name
