# SPDX-License-Identifier: Apache-2.0
"""Reader of patch files: who wrote a patch, when, and with which message.

Three kinds of file are told apart by their first lines:

- *mail*: an mbox (`From ` line first) or one bare mail. The result is what
  `git mailsplit --keep-cr`, `git mailinfo -b` and `git am` make of it. What
  `git format-patch` writes is read here; everything else is given to git.
- *DEP-3*: fields such as `Description:`, `Author:`, `Last-Update:` before the diff.
- *plain*: free text before the diff, as quilt keeps it.

Rules for DEP-3 and plain files (git has none):

- The header is everything above the first `---`, `Index:` or `diff -` line.
- Author: `Author:` or `From:`; written `Name <mail>`. Date: `Date:`, else
  `Last-Update:`; a date without a time of day is midnight, one without a zone is UTC.
- Subject: `Subject:` or the first line of `Description:`, else the first paragraph of
  the text. Leading `[PATCH ...]` is taken off.
- Message: subject; then the further lines of the description (` .` is an empty line);
  then the free text; then the other DEP-3 fields as they stand, as trailers.
- Author or date absent, or given twice with two values: refused. Nothing is guessed.
"""

import codecs
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Final, NoReturn, Protocol

from stackctl.errors import InputError, StackctlError, UsageError
from stackctl.git.patchtext.diff import parse_diff_span
from stackctl.git.patchtext.model import Identity, Patch
from stackctl.scratch import scratch_folder

MAX_PATCH_FILE_BYTES: Final = 1023 * 1024 * 1024
"""Largest patch file, the limit of `git apply`."""


class GitRunner(Protocol):
    """Runs git in a closed environment (`stackctl.git.command.HermeticGit`)."""

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run git and return its standard output; raise a StackctlError on failure."""
        ...


# -- shared with canonical.py ----------------------------------------------------------

# First line of what follows the message in a mail (`git mailinfo`'s rule). A line
# without a line feed at the end of the file is not always one: git decides those.
PATCH_BREAK: Final = re.compile(
    rb"^(?:diff -|Index: |--- [^ \t\r\n]|---[ \t\r]*$)", re.MULTILINE
)
IN_BODY: Final = re.compile(rb"(?i)(?:From|Subject|Date):|>From[ \t\r\n]|\[PATCH\]\s")

_UNTIDY: Final = re.compile(rb"[ \t\r]\n|\n\n\n|\A\n|[^\n]\Z|\n\n\Z")
_BLANKS: Final = re.compile(rb"\n{3,}")


def strip_space(text: bytes) -> bytes:
    """Clean a message as `git stripspace` does.

    Args:
        text: The message.

    Returns:
        The message without trailing white space, without repeated, leading and
        trailing empty lines, ending in one line feed; empty where nothing is left.
    """
    if _UNTIDY.search(text) is None:
        return text
    lines = [line.rstrip(b" \t\r") for line in text.split(b"\n")]
    text = _BLANKS.sub(b"\n\n", b"\n".join(lines)).strip(b"\n")
    return text + b"\n" if text else b""


_NONCHARACTER: Final = re.compile(
    "[\ufdd0-\ufdef"
    + "".join(
        f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}"
        for plane in range(17)
    )
    + "]"
)


_AS_LATIN1: Final = "stackctl-latin-1"


def _one_byte_as_latin1(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    byte = error.object[error.start : error.start + 1]
    return byte.decode("latin-1"), error.start + 1


codecs.register_error(_AS_LATIN1, _one_byte_as_latin1)


def as_utf8(text: bytes) -> bytes:
    """Return text as git stores it in a commit: bytes that are not UTF-8 as Latin-1.

    Args:
        text: A message or a name.
    """
    if text.isascii():
        return text
    plain = text.decode("utf-8", _AS_LATIN1)
    if _NONCHARACTER.search(plain) is not None:
        # Code points that are no characters are not UTF-8 for git either.
        plain = _NONCHARACTER.sub(
            lambda match: match[0].encode().decode("latin-1"), plain
        )
    return plain.encode()


_CRUD: Final = bytes(range(33)) + b".,:;<>\"\\'"


def clean_ident(text: bytes) -> bytes:
    """Return a name or an address as git stores it: no crud around it, no brackets.

    Args:
        text: The name or address.
    """
    return text.strip(_CRUD).translate(None, b"\n<>")


# -- dates -----------------------------------------------------------------------------

_MONTHS: Final = {
    name: index + 1
    for index, name in enumerate(
        b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    )
}
_RFC2822: Final = re.compile(
    rb"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), )?(\d{1,2}) (%s) (\d{4}) "
    rb"(\d\d):(\d\d):(\d\d) ([-+])(\d\d)(\d\d)\Z" % b"|".join(_MONTHS)
)
_ISO: Final = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)"
    rb"(?:[ T](\d\d):(\d\d):(\d\d)(?: ?([-+])(\d\d):?(\d\d)|Z)?)?\Z"
)
# Which number is the month depends on today's date in git's reading.
_AMBIGUOUS_DATE: Final = re.compile(rb"\b\d{1,2}[-/.]\d{1,2}[-/.]\d{1,4}\b")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _seconds(day: tuple[int, int, int], time: tuple[int, int, int]) -> int | None:
    """Return the seconds since the epoch of a date and a time of day, or None."""
    try:
        moment = datetime(*day, *time, tzinfo=UTC)
    except ValueError:
        return None
    if not 1970 <= moment.year < 2100:
        return None
    delta = moment - _EPOCH
    return delta.days * 86400 + delta.seconds


def _zone(sign: bytes, hours: bytes, minutes: bytes) -> int | None:
    hour, minute = int(hours), int(minutes)
    if hour > 23 or minute > 59:
        return None
    offset = hour * 60 + minute
    return -offset if sign == b"-" else offset


def _with_zone(seconds: int | None, offset: int) -> tuple[int, bytes] | None:
    """Return a local time as seconds since the epoch and git's text of its zone."""
    if seconds is None or seconds < offset * 60:
        return None
    seconds -= offset * 60
    sign = b"-" if offset < 0 else b"+"
    offset = abs(offset)
    return seconds, b"%s%02d%02d" % (sign, offset // 60, offset % 60)


def parse_mail_date(text: bytes) -> tuple[int, bytes] | None:
    """Read a date in the form that `git format-patch` writes.

    Args:
        text: A date like `Mon, 1 Jan 2024 12:34:56 +0100`.

    Returns:
        Seconds since the epoch and the zone; None where git must read the date.
    """
    match = _RFC2822.match(text)
    if match is None:
        return None
    day, month, year, hour, minute, second, sign, east, west = match.groups()
    offset = _zone(sign, east, west)
    if offset is None:
        return None
    seconds = _seconds(
        (int(year), _MONTHS[month], int(day)), (int(hour), int(minute), int(second))
    )
    return _with_zone(seconds, offset)


def _parse_iso_date(text: bytes) -> tuple[int, bytes] | None:
    """Read `YYYY-MM-DD`, with a time and a zone or without (midnight, UTC)."""
    match = _ISO.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, sign, east, west = match.groups()
    offset = 0 if sign is None else _zone(sign, east, west)
    if offset is None:
        return None
    seconds = _seconds(
        (int(year), int(month), int(day)),
        (int(hour or 0), int(minute or 0), int(second or 0)),
    )
    return _with_zone(seconds, offset)


# -- one patch -------------------------------------------------------------------------


class _Place:
    """Where a patch stands, for its errors."""

    __slots__ = ("file", "line", "name")

    def __init__(self, file: str, name: str, line: int) -> None:
        self.file = file
        self.name = name
        self.line = line

    def fail(self, message: str, hint: str, *, kind: str = "bad-patch") -> NoReturn:
        raise InputError(
            f"{self.name}:{self.line}: {message}",
            kind=kind,
            hint=hint,
            where={"file": self.file, "line": self.line, "patch": self.name},
        )


_IDENT_LINE: Final = re.compile(rb"(.*) <([^<>\n]*)> (\d+) ([-+]\d{4})\n\Z", re.DOTALL)
_AUTHOR_HINT: Final = "add a header line `From: Name <mail@example.org>`"
_DATE_HINT: Final = "add a header line like `Date: Mon, 1 Jan 2024 12:00:00 +0000`"


def _author(name: bytes, email: bytes, place: _Place) -> tuple[bytes, bytes]:
    """Return name and address as `git am` would store them."""
    stored = as_utf8(clean_ident(name))
    address = as_utf8(clean_ident(email))
    if not stored or not address or b"\x00" in stored or b"\x00" in address:
        place.fail(
            f"the author is missing or incomplete, found name {_show(name)} and "
            f"address {_show(email)}",
            _AUTHOR_HINT,
            kind="no-author",
        )
    return stored, address


def _when(text: bytes, place: _Place, git: GitRunner | None) -> tuple[int, bytes]:
    """Return a date as seconds since the epoch and a zone."""
    if not text:
        place.fail("the date is missing", _DATE_HINT, kind="no-date")
    return parse_mail_date(text) or _git_date(text, place, git)


def _git_date(when: bytes, place: _Place, git: GitRunner | None) -> tuple[int, bytes]:
    """Let git read a date (in UTC where it names no zone)."""
    problem = f"the date {_show(when)} cannot be read"
    if _AMBIGUOUS_DATE.search(when) or b"\x00" in when or not when.isascii():
        place.fail(problem, _DATE_HINT, kind="no-date")
    runner = _need(git, place, "a date that is not in the form of `git format-patch`")
    try:
        line = runner.run(
            "var",
            "GIT_AUTHOR_IDENT",
            env={
                "GIT_AUTHOR_NAME": "name",
                "GIT_AUTHOR_EMAIL": "email",
                "GIT_AUTHOR_DATE": when.decode(),
                "TZ": "UTC",
            },
        )
    except UsageError:
        raise
    except StackctlError:
        place.fail(problem, _DATE_HINT, kind="no-date")
    match = _IDENT_LINE.match(line)
    if match is None:
        place.fail(problem, _DATE_HINT, kind="no-date")
    return int(match[3]), match[4]


def _need(git: GitRunner | None, place: _Place, what: str) -> GitRunner:
    if git is None:
        place.fail(
            f"git is needed to read {what}",
            "rewrite the patch with `git format-patch`",
            kind="needs-git",
        )
    return git


def _show(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))


def _message(text: bytes, place: _Place) -> bytes:
    """Clean a message as `git am` does and refuse what git cannot store."""
    message = as_utf8(strip_space(text))
    if not message:
        place.fail(
            "the patch has no subject and no message",
            "add a header line `Subject: ...` that says what the patch does",
            kind="no-subject",
        )
    if b"\x00" in message:
        place.fail("the message has a NUL byte", "remove the byte from the message")
    return message


# -- mail, as git format-patch writes it -----------------------------------------------

_MAIL: Final = re.compile(
    rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\n"
    rb"From: ([^\n]*(?:\n [^\n]+)*)\n"
    rb"Date: ([^\n]*)\n"
    rb"Subject: ([^\n]*(?:\n [^\n]+)*)\n"
    rb"(?:MIME-Version: 1\.0\n"
    rb"Content-Type: text/plain; charset=UTF-8\n"
    rb"Content-Transfer-Encoding: 8bit\n)?"
    rb"\n+"
)
_FOLD: Final = re.compile(rb"(?<![ \t\r])[ \t\r]*\n ")
_PRINTABLE: Final = re.compile(rb"[ -~]*\Z")
_WORDS: Final = rb"=\?UTF-8\?q\?[!->@-~]*\?=(?: =\?UTF-8\?q\?[!->@-~]*\?=)*"
_PLAIN_FROM: Final = re.compile(
    rb'(?:(%s)|([^"()<>@\\]+)|"([^"()<>@\\]+)")'
    rb" <([!#-'*-;=?A-~]+@[!#-'*-;=?A-~]+)>\Z" % _WORDS
)
_ENCODED: Final = re.compile(_WORDS + rb"\Z")
_HEX_PAIR: Final = re.compile(rb"=([0-9A-Fa-f]{2})")
_BAD_WORD: Final = re.compile(rb"=(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_SPACES: Final = re.compile(rb"[ \t\r\n]+")
_MAX_NAME: Final = 60
_MIN_LABEL: Final = len("[PATCH]")


def _decode_words(text: bytes) -> bytes | None:
    """Decode adjacent encoded words; None where git must."""
    out: list[bytes] = []
    for word in text.split(b" "):
        body = word[10:-2]
        if b"?" in body or _BAD_WORD.search(body):
            return None
        out.append(
            _HEX_PAIR.sub(
                lambda pair: bytes((int(pair[1], 16),)), body.replace(b"_", b" ")
            )
        )
    decoded = b"".join(out)
    return None if _CONTROL.search(decoded) else decoded


def _native_author(value: bytes) -> tuple[bytes, bytes] | None:
    """Read a From header; None where git must."""
    value = _FOLD.sub(b" ", value).strip(b" ")
    match = _PLAIN_FROM.match(value)
    if match is None or not _PRINTABLE.match(value):
        return None
    words, plain, quoted, email = match.groups()
    if words is not None:
        decoded = _decode_words(words)
        if decoded is None or re.search(rb'["()<>@\\]', decoded):
            return None
        name = decoded
    else:
        name = plain if plain is not None else quoted
        if b"=?" in name:
            return None
    name = _SPACES.sub(b" ", name).strip(b" ")
    if not name or len(name) > _MAX_NAME or b"=?" in email:
        return None
    return name, email


def clean_subject(subject: bytes) -> bytes:
    """Take `Re:`, `[PATCH ...]` and white space off, as `git mailinfo -b` does.

    Args:
        subject: The decoded subject in one line.
    """
    kept: list[bytes] = []
    at = 0
    end = len(subject)
    while at < end:
        start = subject[at : at + 1]
        if start in (b"r", b"R"):
            if end <= at + 3 or subject[at + 1 : at + 3] not in (b"e:", b"E:"):
                break
            at += 3
        elif start in (b" ", b"\t", b":"):
            at += 1
        elif start == b"[":
            close = subject.find(b"]", at)
            if close < 0:
                break
            label = subject[at : close + 1]
            at = close + 1
            if len(label) < _MIN_LABEL or b"PATCH" not in label:
                if subject[at : at + 1] in (b" ", b"\t", b"\r", b"\n"):
                    label += subject[at : at + 1]
                    at += 1
                kept.append(label)
        else:
            break
    kept.append(subject[at:])
    return _SPACES.sub(b" ", b"".join(kept).strip(b" \t\r\n"))


def _native_subject(value: bytes) -> bytes | None:
    """Read a Subject header; None where git must."""
    value = _FOLD.sub(b" ", value).strip(b" ")
    if not _PRINTABLE.match(value):
        return None
    if b"=?" in value:
        start = value.index(b"=?")
        if _ENCODED.match(value, start) is None:
            return None
        decoded = _decode_words(value[start:])
        if decoded is None:
            return None
        value = value[:start] + decoded
    return clean_subject(value)


def _native_mail(
    raw: bytes, place: _Place
) -> tuple[bytes, bytes, bytes, bytes, int] | None:
    """Read a mail in the form of `git format-patch`.

    Returns:
        Name, address, date, message and the offset of the patch; None where the mail
        has anything whose reading is not certain.
    """
    head = _MAIL.match(raw)
    if head is None:
        return None
    start = head.end()
    if IN_BODY.match(raw, start):
        return None
    stop = PATCH_BREAK.search(raw, start)
    if stop is None or stop.end() >= len(raw):
        return None
    author = _native_author(head[1])
    subject = _native_subject(head[3])
    if author is None or subject is None or not _PRINTABLE.match(head[2]):
        return None
    if author[0] == b"Mail System Internal Data":
        return None
    body = raw[start : stop.start()]
    if b"\x00" in body:
        return None
    when = _SPACES.sub(b" ", head[2]).strip(b" ")
    if b"=?" in when:
        return None
    message = _message(subject + b"\n\n" + body, place)
    return author[0], author[1], when, message, stop.start()


# -- mail, read by git -----------------------------------------------------------------


def _git_mail(
    raw: bytes, place: _Place, git: GitRunner | None
) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """Let git read a mail.

    Returns:
        Name, address, date, message and patch text; None for a mailbox's own data.
    """
    runner = _need(git, place, "a mail that `git format-patch` would not write")
    with scratch_folder(Path(gettempdir()), "stackctl-mail-") as folder:
        message_file = Path(folder, "message")
        patch_file = Path(folder, "patch")
        try:
            # `--encoding` does nothing in git 2.39; the configured encoding does.
            info = runner.run(
                "-c",
                "i18n.commitEncoding=UTF-8",
                "mailinfo",
                "-b",
                "-u",
                "--no-scissors",
                "--quoted-cr=nowarn",
                str(message_file),
                str(patch_file),
                stdin=raw,
            )
        except UsageError:
            raise
        except StackctlError as error:
            place.fail(
                f"the mail cannot be read: {error.message}",
                "rewrite the patch with `git format-patch`",
            )
        message = message_file.read_bytes()
        patch = patch_file.read_bytes()
    name = email = when = b""
    subjects: list[bytes] = []
    for line in info.split(b"\n"):
        key, _, value = line.partition(b": ")
        if key == b"Subject":
            subjects.append(value)
        elif key == b"Author":
            name = value
        elif key == b"Email":
            email = value
        elif key == b"Date":
            when = value
    if name == b"Mail System Internal Data":
        return None
    text = b"\n".join(subjects) + b"\n\n" + message
    return name, email, when, _message(text, place), patch


# -- splitting -------------------------------------------------------------------------

_FROM_YEAR: Final = re.compile(rb"[ \t\v\f\r]*(?:\+?0*(?=\d)|(?=-\d))(-?\d+)")
_QUOTED_FROM: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_MIN_FROM_LINE: Final = 20
_MAX_OLD_YEAR: Final = 90
_LONG_YEAR: Final = 10


def _is_from_line(line: bytes) -> bool:
    """Tell whether a line starts a message in an mbox (`git mailsplit`'s rule)."""
    if len(line) < _MIN_FROM_LINE or line[:5] != b"From ":
        return False
    colon = line.rfind(b":", 5, len(line) - 2)
    if colon < 0:
        return False
    digits = (
        line[colon - 4 : colon - 3]
        + line[colon - 2 : colon]
        + line[colon + 1 : colon + 3]
    )
    if len(digits) != 5 or not digits.isdigit():
        return False
    year = _FROM_YEAR.match(line, colon + 3)
    if year is None or year[1].startswith(b"-"):
        return False
    return len(year[1]) > _LONG_YEAR or int(year[1]) > _MAX_OLD_YEAR


def _split_mbox(data: bytes) -> list[tuple[int, int]]:
    """Return the extent of each message, as `git mailsplit -b` splits."""
    start = len(data) - len(data.lstrip(b" \t\r\n"))
    end = data.find(b"\n", start) + 1 or len(data)
    if not _is_from_line(data[start:end]):
        return [(start, len(data))]
    starts = [start]
    at = data.find(b"\nFrom ", end - 1)
    while at >= 0:
        end = data.find(b"\n", at + 1) + 1 or len(data)
        if _is_from_line(data[at + 1 : end]):
            starts.append(at + 1)
        at = data.find(b"\nFrom ", end - 1)
    return list(zip(starts, [*starts[1:], len(data)], strict=True))


# -- DEP-3 and plain text --------------------------------------------------------------

_FIELD: Final = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):(?:[ \t]+|\Z)(.*)\Z", re.DOTALL)
_DEP3_ONLY: Final = re.compile(
    rb"(?im)^(?:Author|Description|Origin|Bug|Bug-[A-Za-z0-9]+|Forwarded|Last-Update"
    rb"|Applied-Upstream)[ \t]*:"
)
_MAIL_FIELDS: Final = re.compile(
    rb"(?:[!-9;-~]+:[^\n]*(?:\n[ \t][^\n]*)*\n)+(?:[ \t\r]*\n|\Z)"
)
_ADDRESS: Final = re.compile(rb"([^<>]*)<([^<>]*)>[ \t]*\Z")
_TAKEN: Final = frozenset(
    (b"author", b"from", b"date", b"last-update", b"subject", b"description")
)


def _is_mail(data: bytes) -> bool:
    """Tell a mail from DEP-3 fields and from free text."""
    text = data.lstrip(b" \t\r\n")
    line = text[: text.find(b"\n") + 1 or len(text)]
    if line.startswith(b"From "):
        return True
    block = _MAIL_FIELDS.match(text)
    if block is None:
        return False
    fields = block[0].lower()
    if not re.search(rb"(?m)^from:", fields):
        return False
    if re.search(rb"(?m)^date:", fields):
        return not re.search(rb"(?m)^(?:description|last-update):", fields)
    return _DEP3_ONLY.search(fields) is None


def _plain_patch(
    raw: bytes, place: _Place, git: GitRunner | None
) -> tuple[Identity, bytes, int]:
    """Read free text or DEP-3 fields; return author, message and the patch's offset."""
    stop = PATCH_BREAK.search(raw)
    if stop is None:
        place.fail(
            "there is no diff in the patch, expected a line `diff --git a/PATH b/PATH` "
            "or `--- a/PATH`",
            "remove the empty patch, or add its diff",
            kind="empty-patch",
        )
    fields: dict[bytes, list[bytes]] = {}
    trailers: list[bytes] = []
    text: list[bytes] = []
    current: list[bytes] | None = None
    for number, line in enumerate(raw[: stop.start()].split(b"\n")):
        line = line.rstrip(b" \t\r")
        if current is not None and line[:1] in (b" ", b"\t"):
            current.append(line)
            continue
        current = None
        match = _FIELD.match(line)
        key = match[1].lower() if match else b""
        if match is not None and key in _TAKEN:
            if key in fields and fields[key][0] != match[2]:
                place.line += number
                place.fail(
                    f"the field `{match[1].decode()}` stands twice with two values",
                    "keep the one that is true",
                )
            current = fields.setdefault(key, [])
            if current:
                current = []
            current.append(match[2])
        elif match is not None and _DEP3_ONLY.match(line):
            current = trailers
            trailers.append(line)
        else:
            text.append(line)
    author = _one(fields, (b"author", b"from"), place)
    if author is None:
        place.fail("the author is missing", _AUTHOR_HINT, kind="no-author")
    address = _ADDRESS.match(author)
    if address is None:
        place.fail(
            f"expected an author like `Name <mail@example.org>`, found {_show(author)}",
            _AUTHOR_HINT,
            kind="no-author",
        )
    name = address[1].strip()
    if len(name) > 1 and name[:1] == name[-1:] == b'"':
        name = re.sub(rb"\\(.)", rb"\1", name[1:-1])
    when = (
        _one(fields, (b"date",), place) or _one(fields, (b"last-update",), place) or b""
    )
    identity = Identity(
        *_author(name, address[2], place),
        *(_parse_iso_date(when) or _when(when, place, git)),
    )
    description = fields.get(b"description", [])
    subject = b" ".join(
        part.strip() for part in fields.get(b"subject", description[:1])
    )
    subject = clean_subject(subject)
    more = fields.get(b"description", [])
    if b"subject" not in fields:
        more = more[1:]
    paragraphs = [
        subject,
        b"\n".join(b"" if part.strip() == b"." else part.strip() for part in more),
        b"\n".join(text),
        b"\n".join(trailers),
    ]
    parts = [part.strip(b"\n") for part in paragraphs]
    message = b"\n\n".join(part for part in parts if part)
    if not subject:
        message = (
            clean_subject(message.split(b"\n", 1)[0])
            + message[len(message.split(b"\n", 1)[0]) :]
        )
    return identity, _message(message + b"\n", place), stop.start()


def _one(
    fields: Mapping[bytes, list[bytes]], keys: tuple[bytes, ...], place: _Place
) -> bytes | None:
    """Return the one value that the fields of these names give, or None."""
    values = {fields[key][0].strip() for key in keys if key in fields}
    values.discard(b"")
    if len(values) > 1:
        names = " and ".join(f"`{key.decode()}`" for key in keys)
        place.fail(f"{names} give two values", "keep the one that is true")
    return values.pop() if values else None


# -- the reader ------------------------------------------------------------------------


def read_patches(
    data: bytes, *, name: str, git: GitRunner | None = None, mboxrd: bool = False
) -> tuple[Patch, ...]:
    """Read a patch file with one or more patches.

    Args:
        data: The file's bytes.
        name: Its name, for messages and for `Patch.name` (`NAME#n` where it holds
            several).
        git: Reads what `git format-patch` would not write; without it such a file is
            refused.
        mboxrd: The file quotes `From ` lines with `>` (`--pretty=mboxrd`).

    Returns:
        The patches in order, at least one.

    Raises:
        InputError: The file is malformed or says too little; `where` has `file`,
            `line` and `patch`.
    """
    if len(data) > MAX_PATCH_FILE_BYTES:
        _Place(name, name, 1).fail(
            f"the file has {len(data)} bytes, at most {MAX_PATCH_FILE_BYTES} are read",
            "split the patch",
            kind="too-large",
        )
    if not data.strip(b" \t\r\n"):
        _Place(name, name, 1).fail(
            "the file is empty", "remove it from the series", kind="empty-patch"
        )
    if not (mboxrd or _is_mail(data)):
        return (_read_plain(data, name, git),)
    patches: list[Patch] = []
    extents = _split_mbox(data)
    line = 1 + data.count(b"\n", 0, extents[0][0])
    for number, (start, end) in enumerate(extents, 1):
        raw = data[start:end]
        label = name if len(extents) == 1 else f"{name}#{number}"
        patch = _read_mail(raw, _Place(name, label, line), git, mboxrd=mboxrd)
        if patch is not None:
            patches.append(patch)
        if len(extents) > 1:
            line += raw.count(b"\n")
    if not patches:
        _Place(name, name, 1).fail(
            "the mailbox has no patch", "remove it from the series", kind="empty-patch"
        )
    return tuple(patches)


def _read_mail(
    raw: bytes, place: _Place, git: GitRunner | None, *, mboxrd: bool
) -> Patch | None:
    text = _QUOTED_FROM.sub(rb"\1", raw) if mboxrd else raw
    native = _native_mail(text, place)
    if native is not None:
        name, email, when, message, offset = native
        body = text[offset:]
        line = place.line + text.count(b"\n", 0, offset)
    else:
        read = _git_mail(text, place, git)
        if read is None:
            return None
        name, email, when, message, body = read
        # A decoded body has no place of its own in the file.
        offset = len(text) - len(body) if text.endswith(body) else 0
        line = place.line + text.count(b"\n", 0, offset)
    author = Identity(*_author(name, email, place), *_when(when, place, git))
    return _finish(raw, body, line, place, author, message)


def _read_plain(data: bytes, name: str, git: GitRunner | None) -> Patch:
    place = _Place(name, name, 1)
    author, message, offset = _plain_patch(data, place, git)
    line = 1 + data.count(b"\n", 0, offset)
    return _finish(data, data[offset:], line, place, author, message)


def _finish(
    raw: bytes, body: bytes, line: int, place: _Place, author: Identity, message: bytes
) -> Patch:
    parsed = parse_diff_span(body, name=place.name, first_line=line)
    if not parsed.changes:
        place.fail(
            "there is no diff in the patch, expected a line `diff --git a/PATH b/PATH` "
            "or `--- a/PATH`",
            "remove the empty patch (or the cover letter), or add its diff",
            kind="empty-patch",
        )
    return Patch(
        place.name,
        place.line,
        author,
        message,
        parsed.changes,
        raw,
        body[parsed.start : parsed.end],
    )
