# SPDX-License-Identifier: Apache-2.0
"""Reader of diffs: what `git apply` accepts, with the meaning that it gives it.

Where `git apply` refuses, this reader refuses. Where `git apply` accepts a text that
can hide a mistake or do harm, it refuses too:

- submodules, and paths that leave the tree or reach into `.git` in any spelling;
- repeated or contradicting header lines, a `diff --git` line that says no change,
  `--- /dev/null` or two names without the header line that explains them, badly quoted
  names, a rename or copy onto itself;
- lines like `+...` or `-...` right after the last line of a hunk: the counts of its
  header are too small, and git would drop those lines silently;
- a missing-newline marker that is not at the end of its side;
- binary data without the full `index` ids, `Binary files ... differ`, and binary data
  that declares more than `binary.MAX_BINARY_BYTES`.
"""

import re
from dataclasses import dataclass
from io import BytesIO
from typing import Final, NoReturn

from stackctl.errors import InputError
from stackctl.git.patchtext.binary import (
    MAX_BINARY_BYTES,
    CorruptBinaryError,
    read_binary_hunk,
)
from stackctl.git.patchtext.model import BinaryHunk, ChangeKind, FileChange, Hunk
from stackctl.git.patchtext.paths import path_problem, unquote

# Numbers of at most nine digits: no patch text that is read has more lines.
_HUNK: Final = re.compile(
    rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?([^\n]*)\n"
)
_EXTENDED: Final = re.compile(
    rb"@@ -|--- |\+\+\+ |index |old mode |new mode |deleted file mode |new file mode "
    rb"|copy from |copy to |rename old |rename new |rename from |rename to "
    rb"|similarity index |dissimilarity index "
)
_FULL_INDEX: Final = re.compile(
    rb"index ([0-9a-f]{40})\.\.([0-9a-f]{40}) (?:(100644)|100755)\n"
)
_INDEX: Final = re.compile(rb"([^.]*)\.\.([^ ]*)(?: (.*))?\Z", re.DOTALL)
_SIMPLE_NAME: Final = re.compile(rb"[!#-~]+\Z")
_HEX: Final = re.compile(rb"[0-9a-f]{4,64}\Z")
_FULL_IDS: Final = (40, 64)
_MODE: Final = re.compile(rb"([0-7]{1,7})(?:[ \t\r].*)?\Z", re.DOTALL)
_DEV_NULL: Final = re.compile(rb"/dev/null(?:[ \t\r]|\Z)")
_TIMESTAMP: Final = re.compile(
    rb"[\t ](?:\d\d)?\d\d-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?"
    rb"(?: [+-]\d\d:?\d\d)?\Z"
)
_EPOCH: Final = re.compile(
    rb"(1969-12-31|1970-01-01) ([0-2]\d):([0-5]\d):00(?:\.0+)?"
    rb" ([-+])([0-2]\d):?([0-5]\d)\Z"
)
_MARKER_LENGTH: Final = 12
_TYPE: Final = 0o170000
_REGULAR: Final = 0o100000
_LINK: Final = 0o120000
_GITLINK: Final = 0o160000


@dataclass(frozen=True, slots=True)
class ParsedDiff:
    """A diff and where it stands in the text it was read from.

    Attributes:
        changes: Changes in the order of the text; empty where the text has no diff.
        start: Byte offset of the first diff line.
        end: Byte offset after the last line of the diff.
    """

    changes: tuple[FileChange, ...]
    start: int
    end: int


class _Header:
    """What the header lines of one file say."""

    __slots__ = (
        "copy",
        "default",
        "delete",
        "extension",
        "line",
        "new",
        "new_id",
        "new_mode",
        "old",
        "old_id",
        "old_mode",
        "rename",
        "unsure",
    )

    def __init__(self, line: int) -> None:
        self.line = line
        self.default: bytes | None = None
        self.old: bytes | None = None
        self.new: bytes | None = None
        self.old_mode: int | None = None
        self.new_mode: int | None = None
        self.old_id: str | None = None
        self.new_id: str | None = None
        self.delete = False
        self.rename = False
        self.copy = False
        # `new` is a name; whether the file is new is `extension == "add"`.
        self.extension: ChangeKind = "modify"
        # A plain diff does not say whether it creates its file.
        self.unsure = False


class _Parser:
    def __init__(self, data: bytes, name: str, first_line: int) -> None:
        self.lines = BytesIO(data).readlines()
        self.name = name
        self.first_line = first_line
        self.strip = 1
        self.strip_known = False
        self.binary_left = MAX_BINARY_BYTES

    # -- errors ------------------------------------------------------------------

    def fail(
        self,
        index: int,
        message: str,
        hint: str,
        *,
        kind: str = "bad-patch",
        path: bytes | None = None,
    ) -> NoReturn:
        where: dict[str, object] = {
            "file": re.sub(r"#\d+\Z", "", self.name),
            "line": self.first_line + index,
            "patch": self.name,
        }
        if path is not None:
            where["path"] = path.decode("utf-8", "replace")
        raise InputError(
            f"{self.name}:{self.first_line + index}: {message}",
            kind=kind,
            hint=hint,
            where=where,
        )

    def shown(self, index: int) -> str:
        if index >= len(self.lines):
            return "the end of the patch"
        text = self.lines[index].decode("utf-8", "replace").rstrip("\n")
        return repr(text if len(text) <= 60 else text[:57] + "...")

    # -- names -------------------------------------------------------------------

    def quoted(self, value: bytes, index: int) -> tuple[bytes, bytes]:
        parts = unquote(value)
        if parts is None:
            self.fail(
                index,
                "the quoted path is not closed or has an unknown escape, "
                f"found {self.shown(index)}",
                "write the path as `git diff` quotes it",
            )
        if b"\x00" in parts[0]:
            self.fail(index, "the path has a NUL byte", "give the file another name")
        return parts

    def find_name(
        self,
        value: bytes,
        strip: int,
        index: int,
        *,
        stop_at_tab: bool = False,
        default: bytes | None = None,
        whole: bool = False,
    ) -> bytes | None:
        """Return the path that a header line names, or None where it names none."""
        if value[:1] == b'"':
            name = self.quoted(value, index)[0]
            if strip:
                parts = name.split(b"/", strip)
                if len(parts) <= strip:
                    return None
                name = parts[strip]
            return name
        if b"\x00" in value:
            self.fail(
                index, "the header line has a NUL byte", "give the file another name"
            )
        if not whole:
            if b"\r" in value:
                value = value[: value.index(b"\r")]
            if stop_at_tab and b"\t" in value:
                value = value[: value.index(b"\t")]
        if strip:
            parts = value.split(b"/", strip)
            if len(parts) <= strip:
                return default
            value = parts[strip]
        if not value:
            return default
        if default and len(default) < len(value) and value.startswith(default):
            return default
        return value

    def default_name(self, value: bytes, index: int) -> bytes | None:
        """Return the path that a `diff --git` line names twice, or None."""
        strip = self.strip
        if strip == 1 and value[:2] == b"a/":
            # The common form, with one length that fits: a/NAME b/NAME.
            half = (len(value) - 1) // 2
            name = value[2:half]
            if value[half:] == b" b/" + name and b'"' not in value:
                return name or None
        if value[:1] == b'"':
            first, rest = self.quoted(value, index)
            name_or_none = _strip_prefix(first, strip)
            if name_or_none is None:
                return None
            rest = rest.lstrip(b" \t\r")
            if not rest:
                return None
            second = self.quoted(rest, index)[0] if rest[:1] == b'"' else rest
            return (
                name_or_none if _strip_prefix(second, strip) == name_or_none else None
            )
        start = _prefix_end(value, strip, 0)
        if start is None:
            return None
        quote = value.find(b'"', start)
        if quote >= 0:
            second = self.quoted(value[quote:], index)[0]
            name_or_none = _strip_prefix(second, strip)
            if name_or_none is None:
                return None
            size = len(name_or_none)
            follow = value[start + size : start + size + 1]
            if (
                size < quote - start
                and value.startswith(name_or_none, start)
                and follow in (b" ", b"\t", b"\r")
            ):
                return name_or_none
            return None
        return _repeated_name(value, strip, start)

    # -- headers -----------------------------------------------------------------

    def mode(self, value: bytes, index: int) -> int:
        match = _MODE.match(value)
        if match is None:
            self.fail(
                index,
                f"expected a file mode in octal, found {self.shown(index)}",
                "file modes are 100644, 100755 and 120000",
            )
        mode = int(match[1], 8)
        kind = mode & _TYPE
        if kind == _REGULAR:
            return 0o100755 if mode & 0o100 else 0o100644
        if kind == _LINK:
            return _LINK
        if kind == _GITLINK:
            self.fail(
                index,
                "the patch changes a submodule (mode 160000), and a composed tree "
                "has none",
                "leave the submodule change out of the patch",
                kind="submodule",
            )
        return self.fail(
            index,
            f"mode {match[1].decode()} is neither a file nor a symbolic link",
            "file modes are 100644, 100755 and 120000",
        )

    def git_header(self, index: int) -> tuple[_Header, int]:
        """Read a `diff --git` header; return it and the index after it."""
        lines = self.lines
        strip = self.strip
        header = _Header(self.first_line + index)
        if self.common_header(header, index):
            return header, index + 4
        first = lines[index]
        header.default = default = self.default_name(first[11:].rstrip(b"\n"), index)
        seen: set[bytes] = set()
        at = index + 1
        count = len(lines)
        while at < count:
            line = lines[at]
            match = _EXTENDED.match(line)
            if match is None or line[-1] != 10:
                break
            key = match[0]
            if key == b"@@ -":
                break
            if key in seen:
                self.fail(
                    at,
                    f"the header line `{key.decode().strip()}` stands twice for one "
                    "file",
                    "keep one of the two lines",
                )
            seen.add(key)
            value = line[match.end() : -1]
            if key == b"index ":
                self.index_line(header, value, at)
            elif key == b"--- ":
                self.side(header, value, at, old=True)
            elif key == b"+++ ":
                self.side(header, value, at, old=False)
            elif key == b"old mode ":
                header.old_mode = self.mode(value, at)
            elif key == b"new mode ":
                header.new_mode = self.mode(value, at)
            elif key == b"deleted file mode ":
                self.extend(header, "delete", at)
                header.old = default
                header.old_mode = self.mode(value, at)
            elif key == b"new file mode ":
                self.extend(header, "add", at)
                header.new = default
                header.new_mode = self.mode(value, at)
            elif key in (b"copy from ", b"rename from ", b"rename old "):
                self.extend(header, "copy" if key[:1] == b"c" else "rename", at)
                header.old = self.find_name(value, strip - 1 if strip else 0, at)
            elif key in (b"copy to ", b"rename to ", b"rename new "):
                self.extend(header, "copy" if key[:1] == b"c" else "rename", at)
                header.new = self.find_name(value, strip - 1 if strip else 0, at)
            at += 1
        if at == index + 1:
            self.fail(
                index,
                "the `diff --git` line is not followed by a header line, expected "
                "`index`, `---`, a mode, a rename or a copy, "
                f"found {self.shown(at)}",
                "remove the line, or add the change that it announces",
            )
        self.settle(header, index)
        return header, at

    def common_header(self, header: _Header, index: int) -> bool:
        """Read the header of a plain change with full ids, the common one, at once."""
        if self.strip != 1 or index + 5 > len(self.lines):
            return False
        first, ids, old, new, hunk = self.lines[index : index + 5]
        match = _FULL_INDEX.match(ids)
        if match is None or hunk[:4] != b"@@ -":
            return False
        name = old[6:-1]
        if (
            old[:6] != b"--- a/"
            or new != b"+++ b/%s\n" % name
            or first != b"diff --git a/%s b/%s\n" % (name, name)
            or not name
            or not _SIMPLE_NAME.match(name)
        ):
            return False
        header.old = header.new = name
        header.old_mode = 0o100644 if match[3] else 0o100755
        header.old_id = match[1].decode()
        header.new_id = match[2].decode()
        return True

    def extend(self, header: _Header, kind: ChangeKind, index: int) -> None:
        if header.extension not in ("modify", kind):
            self.fail(
                index,
                f"the header says `{header.extension}` and `{kind}` for one file",
                "keep one of the two",
            )
        header.extension = kind

    def index_line(self, header: _Header, value: bytes, index: int) -> None:
        match = _INDEX.match(value)
        if match is None:
            return
        old, new = match[1], match[2].rstrip(b"\r")
        if _HEX.match(old) and _HEX.match(new):
            header.old_id = old.decode()
            header.new_id = new.decode()
        if match[3] is not None:
            mode = self.mode(match[3], index)
            if header.old_mode not in (None, mode) and header.extension != "add":
                self.fail(
                    index,
                    f"the `index` line says mode {mode:o}, the header said "
                    f"{header.old_mode:o}",
                    "keep the mode that the old file has",
                )
            header.old_mode = mode

    def side(self, header: _Header, value: bytes, index: int, *, old: bool) -> None:
        """Read a `---` or `+++` line of a git header."""
        label = "old" if old else "new"
        absent = header.extension == ("add" if old else "delete")
        null = _DEV_NULL.match(value) is not None
        if absent:
            if not null:
                self.fail(
                    index,
                    f"expected /dev/null as the {label} name, since the header says "
                    f"`{header.extension}`, found {self.shown(index)}",
                    "write /dev/null, or drop the header line that says so",
                )
            return
        if null:
            self.fail(
                index,
                f"/dev/null stands as the {label} name, but no `new file mode` or "
                "`deleted file mode` line says so",
                "add that line with the file's mode",
            )
        name = self.find_name(value, self.strip, index, stop_at_tab=True)
        known = header.old if old else header.new
        if known is not None and name != known:
            self.fail(
                index,
                f"the {label} name differs from the one in the lines above, "
                f"found {self.shown(index)}",
                "use one name for one file",
            )
        if old:
            header.old = name
        else:
            header.new = name

    def settle(self, header: _Header, index: int) -> None:
        """Fill in the names of a git header and check them."""
        kind = header.extension
        if header.old is None and header.new is None:
            if header.default is None:
                self.fail(
                    index,
                    "the header names no file when one leading directory is taken "
                    f"off, found {self.shown(index)}",
                    "write `diff --git a/PATH b/PATH`",
                )
            header.old = header.new = header.default
        if kind == "add":
            header.old = None
        elif kind == "delete":
            header.new = None
        if (header.new is None and kind != "delete") or (
            header.old is None and kind != "add"
        ):
            self.fail(
                index,
                "the header names only one of the two files, "
                f"found {self.shown(index)}",
                "add the missing `rename`, `copy`, `---` or `+++` line",
            )
        if kind in ("rename", "copy"):
            if header.old == header.new:
                self.fail(
                    index,
                    f"the header says `{kind}` of a file onto itself",
                    f"drop the `{kind}` lines",
                )
        elif kind == "modify" and header.old != header.new:
            self.fail(
                index,
                "the header names two files but says neither `rename` nor `copy`",
                "add `rename from` and `rename to` lines, or use one name",
            )
        elif (
            header.default is not None
            and kind in ("modify", "add", "delete")
            and header.default != (header.new if kind == "add" else header.old)
        ):
            self.fail(
                index,
                "the `diff --git` line names another file than the lines below it",
                "use one name for one file",
            )

    def plain_header(self, index: int) -> tuple[_Header, int]:
        """Read the `---` and `+++` lines of a plain unified diff."""
        header = _Header(self.first_line + index)
        first = self.lines[index][4:-1]
        second = self.lines[index + 1][4:-1]
        if not self.strip_known:
            one = self.guess_strip(first, index)
            two = self.guess_strip(second, index + 1)
            if one is None:
                one = two
            if one is not None and one == two:
                self.strip = one
                self.strip_known = True
        if _DEV_NULL.match(first):
            header.extension = "add"
            name = header.new = self.plain_name(second, index + 1)
        elif _DEV_NULL.match(second):
            header.extension = "delete"
            name = header.old = self.plain_name(first, index)
        else:
            name = self.plain_name(
                second, index + 1, default=self.plain_name(first, index)
            )
            if _is_epoch(first):
                header.extension = "add"
                header.new = name
            elif _is_epoch(second):
                header.extension = "delete"
                header.old = name
            else:
                header.old = header.new = name
                header.unsure = True
        if name is None:
            self.fail(
                index,
                "no file name is left when one leading directory is taken off, "
                f"found {self.shown(index)}",
                "write `--- a/PATH` and `+++ b/PATH`",
            )
        return header, index + 2

    def plain_name(
        self, value: bytes, index: int, *, default: bytes | None = None
    ) -> bytes | None:
        return self.plain_name_at(value, index, self.strip, default)

    def plain_name_at(
        self, value: bytes, index: int, strip: int, default: bytes | None
    ) -> bytes | None:
        if value[:1] != b'"':
            match = _TIMESTAMP.search(value)
            if match is not None and match.start():
                name = value[: match.start()]
                if value[match.start()] == 32:
                    name = name.rstrip(b" ")
                return self.find_name(name, strip, index, default=default, whole=True)
        return self.find_name(value, strip, index, default=default, stop_at_tab=True)

    def guess_strip(self, value: bytes, index: int) -> int | None:
        """Return 0 where a name has no directory that could be taken off."""
        if _DEV_NULL.match(value):
            return None
        name = self.plain_name_at(value, index, 0, None)
        return 0 if name is not None and b"/" not in name else None

    # -- hunks -------------------------------------------------------------------

    def hunk(self, index: int) -> tuple[Hunk, int]:
        """Read one hunk; return it and the index after it."""
        lines = self.lines
        match = _HUNK.match(lines[index])
        if match is None:
            self.fail(
                index,
                "expected a hunk header like `@@ -1,3 +1,4 @@`, "
                f"found {self.shown(index)}",
                "restore the header, or make the patch again",
            )
        old_start = int(match[1])
        old_count = 1 if match[2] is None else int(match[2])
        new_start = int(match[3])
        new_count = 1 if match[4] is None else int(match[4])
        old: list[bytes] = []
        new: list[bytes] = []
        add_old = old.append
        add_new = new.append
        old_open = new_open = -1
        leading = -1
        trailing = 0
        previous = 0
        left = old_count + new_count
        total = len(lines)
        at = index + 1
        # One line more for each marker; a count that is too large ends at the first
        # line that is not one of the hunk's.
        for line in lines[at : at + left + 2] if left else ():
            start = line[0]
            if start == 32:
                text = line[1:]
                add_old(text)
                add_new(text)
                left -= 2
                trailing += 1
            elif start == 43:
                add_new(line[1:])
                left -= 1
                if leading < 0:
                    leading = trailing
                trailing = 0
            elif start == 45:
                add_old(line[1:])
                left -= 1
                if leading < 0:
                    leading = trailing
                trailing = 0
            elif start == 92:
                if not self.is_marker(at):
                    break
                if previous in (0, 10, 92):
                    self.stray_marker(at)
                if previous != 43:
                    old[-1] = old[-1][:-1]
                    old_open = len(old)
                if previous != 45:
                    new[-1] = new[-1][:-1]
                    new_open = len(new)
            elif start == 10:
                add_old(line)
                add_new(line)
                left -= 2
                trailing += 1
            else:
                break
            previous = start
            at += 1
            if left <= 0:
                break
        if (
            len(old) != old_count
            or len(new) != new_count
            or (at == total and lines[-1][-1] != 10)
        ):
            self.fail(
                min(at, total - 1),
                f"the hunk at line {self.first_line + index} declares {old_count} old "
                f"and {new_count} new lines, found {len(old)} and {len(new)} before "
                f"{self.shown(at)}",
                "the patch is cut short or was edited by hand: make it again",
            )
        if leading < 0:
            self.fail(index, "the hunk changes no line", "remove the hunk")
        if at < total and lines[at][0] == 92 and self.is_marker(at):
            if previous in (10, 92):
                self.stray_marker(at)
            if previous != 43:
                old[-1] = old[-1][:-1]
                old_open = len(old)
            if previous != 45:
                new[-1] = new[-1][:-1]
                new_open = len(new)
            at += 1
        if old_open not in (-1, len(old)) or new_open not in (-1, len(new)):
            self.fail(
                index,
                "the hunk marks a line as the last one without a newline, "
                "but further lines follow it on the same side",
                "make the patch again",
            )
        return (
            Hunk(
                old_start,
                old_count,
                new_start,
                new_count,
                tuple(old),
                tuple(new),
                leading,
                trailing,
                match[5],
                self.first_line + index,
            ),
            at,
        )

    def stray_marker(self, index: int) -> NoReturn:
        self.fail(
            index,
            "the missing-newline marker does not follow a line that has text",
            "make the patch again",
        )

    def is_marker(self, index: int) -> bool:
        line = self.lines[index]
        return len(line) >= _MARKER_LENGTH and line[1] == 32

    def hunks(self, header: _Header, index: int) -> tuple[tuple[Hunk, ...], int]:
        lines = self.lines
        total = len(lines)
        at = index
        hunks: list[Hunk] = []
        old_lines = new_lines = 0
        while at < total and lines[at][:4] == b"@@ -":
            hunk, at = self.hunk(at)
            hunks.append(hunk)
            old_lines += hunk.old_count
            new_lines += hunk.new_count
        if not hunks:
            return (), at
        if at < total:
            follow = lines[at][:2]
            if follow[:1] == b"+" or (follow[:1] == b"-" and follow != b"--"):
                self.fail(
                    at,
                    "a changed line follows after the lines that the hunk's header "
                    f"declares, found {self.shown(at)}",
                    "correct the counts in the hunk header, or make the patch again",
                )
        if header.extension == "add" and old_lines:
            self.fail(
                index,
                "the header says that the file is new, but a hunk has old lines",
                "drop the `new file` header, or make the patch again",
                path=header.new,
            )
        if header.extension == "delete" and new_lines:
            self.fail(
                index,
                "the header says that the file is deleted, but a hunk has new lines",
                "drop the `deleted file` header, or make the patch again",
                path=header.old,
            )
        if header.unsure and (old_lines or len(hunks) > 1):
            header.unsure = False
        return tuple(hunks), at

    # -- binary ------------------------------------------------------------------

    def binary(self, header: _Header, index: int) -> tuple[BinaryHunk, int]:
        for oid in (header.old_id, header.new_id):
            if oid is None or len(oid) not in _FULL_IDS:
                self.fail(
                    index,
                    "binary data needs an `index` line with the full ids of the old "
                    "and the new content",
                    "make the patch with `git diff --binary --full-index`",
                    path=header.new or header.old,
                )
        try:
            read = read_binary_hunk(
                self.lines, index + 1, keep=True, budget=self.binary_left
            )
            if read is None:
                self.fail(
                    min(index + 1, len(self.lines) - 1),
                    "expected `literal SIZE` or `delta SIZE` after "
                    f"`GIT binary patch`, found {self.shown(index + 1)}",
                    "make the patch again with `git diff --binary`",
                )
            forward, at = read
            start = at
        except CorruptBinaryError as error:
            self.corrupt(index + 1, error)
        self.binary_left -= forward.size
        try:
            reverse = read_binary_hunk(
                self.lines, start, keep=False, budget=MAX_BINARY_BYTES
            )
        except CorruptBinaryError as error:
            self.corrupt(start, error)
        return forward, at if reverse is None else reverse[1]

    def corrupt(self, index: int, error: CorruptBinaryError) -> NoReturn:
        self.fail(
            min(index + error.offset, len(self.lines) - 1),
            f"corrupt binary data: {error.reason}",
            "make the patch again with `git diff --binary --full-index`",
            kind="bad-binary",
        )

    # -- one file ----------------------------------------------------------------

    def change(self, index: int, *, git: bool) -> tuple[FileChange, int]:
        """Read the change of one file; return it and the index after it."""
        if git:
            header, at = self.git_header(index)
        else:
            header, at = self.plain_header(index)
        hunks, end = self.hunks(header, at)
        binary: BinaryHunk | None = None
        lines = self.lines
        if not hunks and at < len(lines):
            line = lines[at]
            if line == b"GIT binary patch\n":
                binary, end = self.binary(header, at)
            elif line.endswith(b" differ\n") and line.startswith(
                (b"Binary files ", b"Files ")
            ):
                self.fail(
                    at,
                    "the patch says that a binary file differs but does not carry "
                    f"its content, found {self.shown(at)}",
                    "make the patch with `git diff --binary --full-index`",
                    kind="bad-binary",
                    path=header.new or header.old,
                )
        kind = header.extension
        old_mode, new_mode = header.old_mode, header.new_mode
        if (
            kind == "modify"
            and not hunks
            and binary is None
            and (old_mode is None or new_mode is None or old_mode == new_mode)
        ):
            self.fail(
                index,
                f"the header announces a change but none follows, found "
                f"{self.shown(at)}",
                "remove the header, or make the patch again",
                path=header.new,
            )
        if (
            kind not in ("add", "delete")
            and old_mode is not None
            and new_mode is not None
            and (old_mode ^ new_mode) & _TYPE
        ):
            self.fail(
                index,
                f"the mode changes from {old_mode:o} to {new_mode:o}: a change of "
                "type is a deletion followed by a new file",
                "make the patch again with `git diff`",
                path=header.new,
            )
        if kind == "add" and new_mode is None:
            new_mode = 0o100644
        link = _LINK in (old_mode, new_mode)
        for path in {header.old, header.new}:
            if path is None:
                continue
            problem = path_problem(path, symlink=link)
            if problem is not None:
                self.fail(
                    index,
                    f"the path {path.decode('utf-8', 'replace')!r} is refused: "
                    f"{problem}",
                    "a patch may only touch files below the top of the tree",
                    kind="unsafe-path",
                    path=path,
                )
        return (
            FileChange(
                kind,
                header.old,
                header.new,
                old_mode if kind != "add" else None,
                new_mode,
                header.old_id,
                header.new_id,
                hunks,
                binary,
                header.line,
                header.unsure,
            ),
            end,
        )

    def parse(self) -> ParsedDiff:
        lines = self.lines
        total = len(lines)
        changes: list[FileChange] = []
        first = last = -1
        at = 0
        while at < total:
            line = lines[at]
            head = line[:4]
            if head == b"diff":
                if line[:11] == b"diff --git " and line[-1] == 10:
                    if first < 0:
                        first = at
                    change, at = self.change(at, git=True)
                    changes.append(change)
                    last = at
                    continue
            elif head == b"--- ":
                if (
                    len(line) > 5
                    and at + 2 < total
                    and lines[at + 1][:4] == b"+++ "
                    and lines[at + 2][:4] == b"@@ -"
                ):
                    if first < 0:
                        first = at
                    change, at = self.change(at, git=False)
                    changes.append(change)
                    last = at
                    continue
            elif head == b"@@ -" and _HUNK.match(line):
                self.fail(
                    at,
                    "a hunk stands without the header of its file, "
                    f"found {self.shown(at)}",
                    "add the `---` and `+++` lines, or make the patch again",
                )
            at += 1
        if first < 0:
            return ParsedDiff((), 0, 0)
        start = sum(map(len, lines[:first]))
        return ParsedDiff(
            tuple(changes), start, start + sum(map(len, lines[first:last]))
        )


def _prefix_end(text: bytes, strip: int, start: int) -> int | None:
    """Return where the name begins after `strip` leading components."""
    if not strip:
        return None if text[start : start + 1] == b"/" else start
    at = start
    for _ in range(strip):
        slash = text.find(b"/", at)
        if slash < 0:
            return None
        at = slash + 1
    return None if text[start : start + 1] == b"/" and strip == 1 else at


def _repeated_name(value: bytes, strip: int, start: int) -> bytes | None:
    """Find NAME in `prefix/NAME prefix/NAME`, where NAME may have spaces itself."""
    end = len(value)
    second: int | None = -1
    for gap in re.finditer(rb"[ \t]", value[start:]):
        size = gap.start()
        after = start + size + 1
        if strip != 1:
            second = _prefix_end(value, strip, after)
        elif second is not None and second <= after:
            slash = value.find(b"/", after)
            second = slash + 1 if slash >= 0 else None
        if second is None or end - size <= start + size:
            return None
        # The second name is as long as the first and ends the line.
        if second == end - size and second != after + 1:
            name = value[start : start + size]
            if value.endswith(name):
                return name
    return None


def _strip_prefix(text: bytes, strip: int) -> bytes | None:
    end = _prefix_end(text, strip, 0)
    return None if end is None else text[end:]


def _is_epoch(value: bytes) -> bool:
    """Tell whether a name line ends in the epoch, GNU diff's word for no file."""
    _, tab, stamp = value.rpartition(b"\t")
    match = _EPOCH.match(stamp) if tab else None
    if match is None:
        return False
    zone = int(match[5]) * 60 + int(match[6])
    if match[4] == b"-":
        zone = -zone
    day = 24 * 60 if match[1] == b"1969-12-31" else 0
    return int(match[2]) * 60 + int(match[3]) - zone == day


def parse_diff_span(data: bytes, *, name: str, first_line: int) -> ParsedDiff:
    """Read a diff and say where in the text it stands.

    Args:
        data: Text with a diff; prose before, between and after is skipped.
        name: Name of the patch for messages (`FILE` or `FILE#n`).
        first_line: Line number of the text's first line in its file.

    Returns:
        The changes with the extent of the diff; none where the text has no diff.

    Raises:
        InputError: The diff is malformed, ambiguous, unsafe or too large; `where` has
            `file`, `line`, `patch` and, where known, `path`.
    """
    return _Parser(data, name, first_line).parse()


def parse_diff(data: bytes, *, name: str, first_line: int) -> tuple[FileChange, ...]:
    """Read a diff: git's extended form or a plain unified one.

    Args:
        data: Text with a diff; prose before, between and after is skipped.
        name: Name of the patch for messages (`FILE` or `FILE#n`).
        first_line: Line number of the text's first line in its file.

    Returns:
        The changes in the order of the text, at least one.

    Raises:
        InputError: There is no diff, or it is malformed, ambiguous, unsafe or too
            large; `where` has `file`, `line`, `patch` and, where known, `path`.
    """
    parser = _Parser(data, name, first_line)
    parsed = parser.parse()
    if not parsed.changes:
        parser.fail(
            0,
            "there is no diff in the patch, expected a line `diff --git a/PATH b/PATH` "
            "or `--- a/PATH`",
            "remove the empty patch, or add its diff",
            kind="empty-patch",
        )
    return parsed.changes
