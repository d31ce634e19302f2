# SPDX-License-Identifier: Apache-2.0
"""Canonical patch text: the bytes that `git format-patch` writes with pinned options.

The options are `--no-renames --binary --full-index --zero-commit --no-signature
--no-stat -N --diff-algorithm=myers --unified=3 --no-ext-diff --no-textconv
--src-prefix=a/ --dst-prefix=b/`, with configuration and attributes emptied. The header
is written here; the diff comes from `git diff-tree` with the same options.

Not every commit survives the way through a mail: `round_trip_problem` says what would
be lost, so that an export can refuse instead of losing it.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from stackctl.errors import InputError, StackctlError
from stackctl.git.patchtext.mail import (
    IN_BODY,
    PATCH_BREAK,
    GitRunner,
    as_utf8,
    clean_ident,
    clean_subject,
    read_patches,
    strip_space,
)
from stackctl.git.patchtext.model import Identity, Patch

FORMAT_PATCH_OPTIONS: Final = (
    "--no-renames",
    "--binary",
    "--full-index",
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "-N",
    "--diff-algorithm=myers",
    "--unified=3",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
"""Options of `git format-patch` that define the canonical text."""

DIFF_OPTIONS: Final = (
    "-p",
    "-r",
    "--no-renames",
    "--binary",
    "--full-index",
    "--diff-algorithm=myers",
    "--unified=3",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
"""Options of `git diff-tree` that give the diff of a canonical patch."""

_ZERO: Final = b"0" * 40
_HEADER_WIDTH: Final = 78
_WORD_WIDTH: Final = 76
_WORD_START: Final = b"=?UTF-8?q?"
_NAME_MAX: Final = 64
_SUFFIX: Final = b".patch"
_ENCODE: Final = re.compile(rb"[^\x00-\x1a\x1c-\x7f]|=\?|\n")
_EIGHT_BIT: Final = re.compile(rb"[^\x00-\x1a\x1c-\x7f]")
_SPECIALS: Final = re.compile(rb'[()<>\[\]:;@,."\\]')
_QUOTE: Final = re.compile(rb'(["\\])')
_BREAK: Final = re.compile(rb"[ \t\r]|\Z")
_SUBJECT_SAFE: Final = frozenset(code for code in range(33, 127) if code not in b"=?_")
_ADDRESS_SAFE: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/"
)
_NOT_TITLE: Final = re.compile(rb"[^A-Za-z0-9._]+")
_DOTS: Final = re.compile(rb"\.{2,}")
_ZONE: Final = re.compile(rb"[-+](\d\d)([0-5]\d)\Z")
_DAYS: Final = b"Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS: Final = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_YEAR: Final = 2099


def _used(text: bytes) -> int:
    """Return how many bytes the last line of a text has."""
    return len(text) - (text.rfind(b"\n") + 1)


def _width(text: bytes) -> int:
    """Return the columns of ASCII text; a control character counts as -1, as in git."""
    controls = sum(1 for code in text if code < 32 or code == 127)
    return len(text) - 2 * controls


def _wrap(text: bytes, used: int) -> bytes:
    """Fold an ASCII header value at white space; later lines start with a space.

    Args:
        text: The value.
        used: Columns that the first line already has.
    """
    out: list[bytes] = []
    line_start = 0
    last_space: int | None = 0
    column = used
    at = 0
    indent = b""
    while True:
        match = _BREAK.search(text, at)
        end = len(text) if match is None else match.start()
        column += _width(text[at:end])
        if column <= _HEADER_WIDTH or last_space is None:
            if last_space is None:
                out.append(indent)
                out.append(text[line_start:end])
            else:
                out.append(text[last_space:end])
            if end == len(text):
                return b"".join(out)
            last_space = end
            if text[end] == 9:
                column |= 7
            column += 1
            at = end + 1
        else:
            out.append(b"\n")
            line_start = last_space + (text[last_space : last_space + 1] in _BLANKS)
            at = line_start
            last_space = None
            column = 1
            indent = b" "


_BLANKS: Final = (b" ", b"\t", b"\r", b"\n")


def _encode(text: bytes, used: int, safe: frozenset[int]) -> bytes:
    """Write a header value as encoded words of whole characters."""
    out = [_WORD_START]
    column = used + len(_WORD_START)
    for char in text.decode("utf-8"):
        raw = char.encode()
        if len(raw) == 1 and raw[0] in safe:
            word = raw
        else:
            word = b"".join(b"=%02X" % code for code in raw)
        if column + len(word) + 2 > _WORD_WIDTH:
            out.append(b"?=\n " + _WORD_START)
            column = len(_WORD_START) + 1
        out.append(word)
        column += len(word)
    out.append(b"?=")
    return b"".join(out)


def _from_header(author: Identity) -> bytes:
    name = author.name
    header = b"From: "
    width = _HEADER_WIDTH
    if _ENCODE.search(name):
        header += _encode(name, len(header), _ADDRESS_SAFE)
        width = _WORD_WIDTH
    elif _SPECIALS.search(name):
        header += _wrap(b'"' + _QUOTE.sub(rb"\\\1", name) + b'"', len(header))
    else:
        header += _wrap(name, len(header))
    if _used(header) + len(author.email) + 3 > width:
        header += b"\n"
    return b"%s <%s>\n" % (header, author.email)


def _date_header(author: Identity) -> bytes:
    match = _ZONE.match(author.zone)
    moment = None
    if match is not None and author.seconds >= 0:
        minutes = int(match[1]) * 60 + int(match[2])
        if author.zone[:1] == b"-":
            minutes = -minutes
        try:
            moment = _EPOCH + timedelta(seconds=author.seconds + minutes * 60)
        except OverflowError:
            moment = None
    if moment is None or not 1970 <= moment.year <= _LAST_YEAR:
        raise InputError(
            f"the author date {author.seconds} with the zone {author.zone!r} cannot be "
            "written in a mail",
            kind="bad-date",
            hint="amend the commit with a date from 1970 to 2099",
        )
    zone = author.zone if author.zone != b"-0000" else b"+0000"
    return b"Date: %s, %d %s %d %02d:%02d:%02d %s\n" % (
        _DAYS[moment.weekday()],
        moment.day,
        _MONTHS[moment.month - 1],
        moment.year,
        moment.hour,
        moment.minute,
        moment.second,
        zone,
    )


def write_header(author: Identity, message: bytes) -> bytes:
    """Write what stands above the diff of a canonical patch.

    Args:
        author: Author and date.
        message: Commit message.

    Returns:
        The header, up to and with the empty line before the diff.

    Raises:
        InputError: The author or message is not UTF-8, has a NUL byte or a line feed
            where none can be, or the date is out of range.
    """
    for label, text in (
        ("author's name", author.name),
        ("author's address", author.email),
        ("message", message),
    ):
        if as_utf8(text) != text or b"\x00" in text:
            raise InputError(
                f"the {label} is not UTF-8 text",
                kind="bad-message",
                hint="amend the commit",
            )
        if label != "message" and (b"\n" in text or not text):
            raise InputError(
                f"the {label} is empty or has a line feed",
                kind="bad-author",
                hint="amend the commit's author",
            )
    lines = [line.rstrip(b" \t\r") for line in message.split(b"\n")]
    while lines and not lines[0]:
        del lines[0]
    title_lines = lines.index(b"") if b"" in lines else len(lines)
    title = b" ".join(lines[:title_lines])
    body = b"\n".join(lines[title_lines:]).strip(b"\n")
    if not title:
        return _header_without_message(author)
    subject = b"Subject: [PATCH] "
    if _ENCODE.search(title):
        subject += _encode(title, len(subject), _SUBJECT_SAFE)
    else:
        subject += _wrap(title, len(subject))
    parts = [
        b"From %s Mon Sep 17 00:00:00 2001\n" % _ZERO,
        _from_header(author),
        _date_header(author),
        subject,
        b"\n",
    ]
    if _EIGHT_BIT.search(message):
        parts.append(
            b"MIME-Version: 1.0\n"
            b"Content-Type: text/plain; charset=UTF-8\n"
            b"Content-Transfer-Encoding: 8bit\n"
        )
    parts.append(b"\n%s\n\n" % body if body else b"\n\n")
    return b"".join(parts)


def _header_without_message(author: Identity) -> bytes:
    return b"From %s Mon Sep 17 00:00:00 2001\n%s%sSubject: [PATCH]\n\n\n" % (
        _ZERO,
        _from_header(author),
        _date_header(author),
    )


def write_patch(author: Identity, message: bytes, diff: bytes) -> bytes:
    """Write a canonical patch.

    Args:
        author: Author and date.
        message: Commit message.
        diff: The diff, as `git diff-tree` writes it with `DIFF_OPTIONS`.

    Returns:
        The bytes of `git format-patch` with `FORMAT_PATCH_OPTIONS`.

    Raises:
        InputError: See `write_header`.
    """
    return write_header(author, message) + diff


def file_name(index: int, message: bytes) -> str:
    """Return the file name that `git format-patch` gives to a patch.

    Args:
        index: Place in the series, from 1.
        message: Commit message.
    """
    title = message.lstrip(b" \t\r\n").split(b"\n", 1)[0]
    title = _DOTS.sub(b".", _NOT_TITLE.sub(b"-", title)).lstrip(b"-").rstrip(b".-")
    name = b"%04d-%s" % (index, title)
    return (name[: _NAME_MAX - len(_SUFFIX) - 1] + _SUFFIX).decode("ascii")


def is_canonical(patch: Patch) -> bool:
    """Tell whether a patch's bytes are the canonical ones.

    The header is compared byte for byte. Of the diff it is checked that it is all of
    the rest, has full object ids, and no renames or copies; whether its hunks are the
    ones that git would make cannot be told without the files.

    Args:
        patch: A patch as it was read.
    """
    try:
        text = write_patch(patch.author, patch.message, patch.diff)
    except InputError:
        return False
    if text != patch.raw or not patch.diff.startswith(b"diff --git "):
        return False
    for change in patch.changes:
        if change.kind in ("rename", "copy"):
            return False
        ids = (change.old_id, change.new_id)
        content = bool(change.hunks or change.binary or change.kind != "modify")
        if content and not all(oid is not None and len(oid) == 40 for oid in ids):
            return False
    return True


def round_trip_problem(
    author: Identity, message: bytes, diff: bytes, *, git: GitRunner | None = None
) -> str | None:
    """Say what would be lost when a commit is written as a patch and read again.

    Args:
        author: Author and date.
        message: Commit message.
        diff: The commit's diff, made with `DIFF_OPTIONS`.
        git: Reads the patch where its form is not the plain one.

    Returns:
        One sentence, or None where nothing is lost.
    """
    if not message.strip(b" \t\r\n"):
        return "The commit has no message."
    try:
        text = write_patch(author, message, diff)
        patches = read_patches(text, name="patch", git=git)
    except StackctlError as error:
        return _specific_problem(author, message, diff) or (
            f"The patch could not be read again: {error.message}."
        )
    if len(patches) == 1:
        patch = patches[0]
        if (patch.author, patch.message, patch.diff) == (author, message, diff):
            return None
    return _specific_problem(author, message, diff) or (
        "The patch would not give the same commit when it is read again."
    )


def _specific_problem(author: Identity, message: bytes, diff: bytes) -> str | None:
    """Name the best-known reasons why a commit does not survive the way."""
    if not diff:
        return "The commit changes nothing."
    if as_utf8(message) != message or b"\x00" in message:
        return "The message is not UTF-8 text."
    if as_utf8(author.name) != author.name or as_utf8(author.email) != author.email:
        return "The author is not UTF-8 text."
    clean = strip_space(message)
    if clean != message:
        return (
            "The message has white space at line ends, repeated empty lines, or no "
            "line feed at its end; these would be lost."
        )
    title, _, body = message.partition(b"\n\n")
    title = title.rstrip(b"\n")
    if b"\n" in title:
        return (
            "The first paragraph of the message has several lines; they would be "
            "joined into one subject."
        )
    if clean_subject(title) != title:
        return (
            "The subject starts with `[...PATCH...]`, `Re:` or a colon, or has "
            "repeated white space; these would be lost."
        )
    if re.search(rb"[\x00-\x1f\x7f]", title):
        return "The subject has control characters, which a mail cannot carry."
    start = len(message) - len(body)
    match = PATCH_BREAK.search(body)
    if match is not None:
        number = 1 + message.count(b"\n", 0, start + match.start())
        return (
            f"Line {number} of the message starts like a diff or is a `---` line; the "
            "message would end there."
        )
    if IN_BODY.match(body):
        return (
            "The text after the subject starts like a mail header; it would be taken "
            "for one."
        )
    if re.search(rb"(?m)^From .*:", body):
        return "The message has a line like the first one of a mail."
    if author.zone == b"-0000":
        return "The author date has the zone -0000, which would become +0000."
    if (
        clean_ident(author.name) != author.name
        or re.search(rb"[@<>]", author.name)
        or len(author.name) > 60
    ):
        return (
            "The author's name is longer than 60 bytes, has `@` or brackets, or "
            "starts or ends with punctuation; it would be changed."
        )
    if clean_ident(author.email) != author.email or b"@" not in author.email:
        return "The author's address is not one that a mail can carry."
    if re.search(rb'[\x00-\x1f\x7f()"\\]|  ', author.name):
        return (
            "The author's name has repeated spaces, brackets, quotes, backslashes or "
            "control characters; these would be lost."
        )
    return None
