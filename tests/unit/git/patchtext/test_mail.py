# SPDX-License-Identifier: Apache-2.0
import contextlib
import time

import pytest

from stackctl.errors import InputError
from stackctl.git.command import HermeticGit
from stackctl.git.patchtext.mail import read_patches

GIT = HermeticGit()
DIFF = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
FROM = b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
HEAD = b"From: A B <a@x.org>\nDate: Mon, 1 Jan 2024 12:34:56 +0100\n"
MAIL = FROM + HEAD + b"Subject: [PATCH] one\n\nbody\n\n" + DIFF


class NoGit:
    """Proof that a text is read without git."""

    def run(self, *args, **kwargs):
        raise AssertionError(f"git was started: {args}")


def read(text: bytes, git=GIT, name="x.patch"):
    return read_patches(text, name=name, git=git)


def refused(text: bytes, *, kind: str, words: str, line: int = 1):
    with pytest.raises(InputError) as caught:
        read(text)
    error = caught.value
    assert error.kind == kind
    assert words in error.message
    assert error.hint
    assert error.where["file"] == "x.patch"
    assert error.where["line"] == line
    return error


def test_a_canonical_patch_is_read_without_git():
    (patch,) = read(MAIL, NoGit())
    assert (patch.author.name, patch.author.email) == (b"A B", b"a@x.org")
    assert (patch.author.seconds, patch.author.zone) == (1704108896, b"+0100")
    assert patch.message == b"one\n\nbody\n"
    assert (patch.name, patch.line) == ("x.patch", 1)
    assert (patch.raw, patch.diff) == (MAIL, DIFF)
    assert patch.changes[0].line == 8


def test_encoded_and_folded_headers_of_format_patch_are_read_without_git():
    text = (
        FROM
        + b"From: =?UTF-8?q?J=C3=B6rg=20=C3=84=2E?= <j@x.org>\n"
        + b"Date: Mon, 1 Jan 2024 12:34:56 +0100\n"
        + b"Subject: [PATCH] =?UTF-8?q?Gr=C3=B6=C3=9Fe?=\n =?UTF-8?q?=20und=20mehr?=\n"
        + b"MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\n"
        + b"Content-Transfer-Encoding: 8bit\n\nb\xc3\xb6dy\n\n"
        + DIFF
    )
    (patch,) = read(text, NoGit())
    assert patch.author.name == "Jörg Ä".encode()
    assert patch.message == "Größe und mehr\n\nbödy\n".encode()
    folded = MAIL.replace(b"one\n", b"one\n two\n").replace(b"A B", b'"A B."')
    (patch,) = read(folded, NoGit())
    assert patch.message.startswith(b"one two\n")
    assert patch.author.name == b"A B"


def test_several_messages_are_numbered_and_keep_their_lines():
    first, second = read(MAIL + MAIL.replace(b"one", b"two"), NoGit())
    assert (first.name, second.name) == ("x.patch#1", "x.patch#2")
    assert second.line == 1 + MAIL.count(b"\n")
    assert second.changes[0].line == second.line + 7
    assert second.message == b"two\n\nbody\n"
    assert first.raw + second.raw == MAIL + MAIL.replace(b"one", b"two")


def test_an_error_in_the_second_message_names_it():
    broken = MAIL + MAIL.replace(b"+b\n", b"+b")
    with pytest.raises(InputError) as caught:
        read(broken)
    assert caught.value.where["patch"] == "x.patch#2"
    assert caught.value.where["line"] == broken.count(b"\n") + 1


def test_other_mails_are_read_as_git_reads_them():
    quoted = (
        HEAD
        + b"Subject: =?iso-8859-1?Q?[PATCH]_Gr=F6=DFe?=\n"
        + b"Content-Type: text/plain; charset=iso-8859-1\n"
        + b"Content-Transfer-Encoding: quoted-printable\n\n"
        + b"From: C D <c@x.org>\n\nb=F6dy=\n more\n---\n"
        + DIFF
    )
    (patch,) = read(quoted)
    assert patch.message == "Größe\n\nbödy more\n".encode()
    assert (patch.author.name, patch.author.email) == (b"C D", b"c@x.org")
    assert patch.diff == DIFF


def test_crlf_of_the_content_is_kept():
    crlf = DIFF.replace(b"-a\n+b\n", b"-a\r\n+b\r\n")
    (patch,) = read(MAIL.replace(DIFF, crlf), NoGit())
    assert patch.changes[0].hunks[0].new == (b"b\r\n",)
    (patch,) = read(HEAD + b"Subject: x\r\n\r\nbody\r\n---\r\n" + crlf)
    assert patch.changes[0].hunks[0].new == (b"b\r\n",)
    assert patch.message == b"x\n\nbody\n"


def test_mboxrd_is_read_on_request():
    text = MAIL.replace(b"body\n", b"body\n>From here 10:20:30 2020\n>>From x\n")
    (patch,) = read_patches(text, name="x", git=GIT, mboxrd=True)
    assert patch.message == b"one\n\nbody\nFrom here 10:20:30 2020\n>From x\n"
    (patch,) = read_patches(text, name="x", git=GIT)
    assert b">From here" in patch.message


def test_dates_of_other_forms_are_read_as_git_does():
    for date, seconds, zone in (
        (b"1 Feb 2024 02:03:04 -0730", 1706779984, b"-0730"),
        (b"Mon, 1 Jan 2024 12:34:56 GMT", 1704112496, b"+0000"),
        (b"2024-01-02T03:04:05Z", 1704164645, b"+0000"),
        (b"Mon, 1 Jan 2024 12:34:56", 1704112496, b"+0000"),
        (b"1700000000 +0200", 1700000000, b"+0200"),
    ):
        (patch,) = read(MAIL.replace(b"Mon, 1 Jan 2024 12:34:56 +0100", date))
        assert (patch.author.seconds, patch.author.zone) == (seconds, zone)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (b" \n", "empty-patch", "is empty"),
        (MAIL.replace(DIFF, b""), "empty-patch", "no diff"),
        (MAIL.replace(b"From: A B <a@x.org>\n", b""), "no-author", "author"),
        (MAIL.replace(b"A B <a@x.org>", b"nobody"), "no-author", "author"),
        (MAIL.replace(b"Date: Mon, 1 Jan 2024 12:34:56 +0100\n", b""), "no-date", ""),
        (MAIL.replace(b"Mon, 1 Jan 2024", b"01/02/2024"), "no-date", "cannot be read"),
        (MAIL.replace(b"Mon, 1 Jan 2024 12:34:56 +0100", b"soon"), "no-date", "soon"),
        (
            FROM + HEAD + b"Subject: [PATCH]\n\n---\n" + DIFF,
            "no-subject",
            "no subject",
        ),
        (b"just text\n\n" + DIFF, "no-author", "author is missing"),
        (b"From: A <a@x>\nsubject line\n\n" + DIFF, "no-date", "date is missing"),
        (b"Author: nobody\nfix\n\n" + DIFF, "no-author", "Name <mail"),
        (b"Author: A <a@x>\nFrom: B <b@x>\nfix\n" + DIFF, "no-author", "two values"),
    ],
)
def test_nothing_is_guessed(text: bytes, kind: str, words: str):
    if words == "two values":
        kind = "bad-patch"
    refused(text, kind=kind, words=words)


def test_without_git_other_mails_are_refused():
    with pytest.raises(InputError) as caught:
        read_patches(MAIL.replace(b"body", b"From: C <c@x>"), name="x.patch")
    assert caught.value.kind == "needs-git"


def test_dep3_headers():
    text = (
        b"Description: Fix the parser\n It was wrong.\n .\n  Twice.\n"
        b"Author: A B <a@x.org>\nOrigin: upstream, https://example.org/1\n"
        b"Bug: https://example.org/2\nLast-Update: 2024-01-02\n\nFree text.\n---\n"
        b" f | 2 +-\n\nIndex: f\n=====\n" + DIFF.split(b"\n", 1)[1]
    )
    (patch,) = read(text, NoGit())
    assert patch.author.name == b"A B"
    assert (patch.author.seconds, patch.author.zone) == (1704153600, b"+0000")
    assert patch.message == (
        b"Fix the parser\n\nIt was wrong.\n\nTwice.\n\nFree text.\n\n"
        b"Origin: upstream, https://example.org/1\nBug: https://example.org/2\n"
    )
    assert patch.changes[0].line == 16


def test_plain_text_headers_as_quilt_keeps_them():
    text = (
        b"[PATCH] Fix the parser\n\nIt was wrong.\nFrom: A B <a@x.org>\n"
        b"Date: Mon, 1 Jan 2024 12:34:56 +0100\n\nSigned-off-by: A B <a@x.org>\n\n"
    ) + DIFF
    (patch,) = read(text, NoGit())
    assert patch.message == (
        b"Fix the parser\n\nIt was wrong.\n\nSigned-off-by: A B <a@x.org>\n"
    )
    assert patch.author.seconds == 1704108896
    assert patch.diff == DIFF
    (patch,) = read(
        b"Subject: Other\nAuthor: A <a@x>\nLast-Update: 2024-01-02\n\ntext\n" + DIFF,
        NoGit(),
    )
    assert patch.message == b"Other\n\ntext\n"


def test_contradicting_fields_are_refused_at_their_line():
    text = b"fix\nDate: Mon, 1 Jan 2024 12:34:56 +0100\nAuthor: A <a@x>\n"
    refused(text + b"Author: B <b@x>\n" + DIFF, kind="bad-patch", words="twice", line=4)


@pytest.mark.parametrize(
    "text",
    [
        MAIL.replace(b"one", b":" * 300_000),
        MAIL.replace(b"one", b" " * 300_000 + b"x"),
        MAIL.replace(b"one", b"=?UTF-8?q?a?= " * 30_000 + b"x"),
        MAIL.replace(b"A B", b"A" + b" " * 300_000 + b"\tB"),
        MAIL.replace(b"body", b"\xe4\xf6" * 200_000),
        MAIL.replace(b"body", b"From \n" * 100_000),
        b"fix\nAuthor: A" + b" " * 300_000 + b"x\n" + DIFF,
        b"A:b\n" * 200_000 + DIFF,
        MAIL.replace(b"body", b" \n" * 200_000 + b"x" + b"\n" * 200_000),
    ],
    ids=range(9),
)
def test_hostile_headers_are_read_in_linear_time(text: bytes):
    start = time.process_time()
    with contextlib.suppress(InputError):
        read(text)
    assert time.process_time() - start < 5


def test_four_hundred_canonical_patches_need_no_process_and_little_time():
    hunk = b"@@ -%d,7 +%d,8 @@ def f():\n a\n b\n c\n-d\n+e\n+f\n g\n h\n i\n"
    texts = []
    for number in range(400):
        parts = [FROM, HEAD, b"Subject: [PATCH] Change %d\n\nWhy.\n\n" % number]
        for file in range(1 + number % 3):
            path = b"dir%d/file%d.py" % (number % 7, file)
            parts.append(b"diff --git a/%s b/%s\n" % (path, path))
            parts.append(b"index %s..%s 100644\n" % (b"1" * 40, b"2" * 40))
            parts.append(b"--- a/%s\n+++ b/%s\n" % (path, path))
            parts.append(hunk % (10, 10) + hunk % (50, 51))
        texts.append(b"".join(parts))
    best = 9.0
    for _ in range(5):
        start = time.process_time()
        for text in texts:
            read(text, NoGit())
        best = min(best, time.process_time() - start)
    # Measured 0.03 s; the bound leaves room for slower and busy machines.
    assert best < 0.25
