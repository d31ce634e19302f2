# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from stackctl.errors import InputError
from stackctl.git.command import HermeticGit
from stackctl.git.patchtext.canonical import (
    file_name,
    is_canonical,
    round_trip_problem,
    write_patch,
)
from stackctl.git.patchtext.mail import read_patches
from stackctl.git.patchtext.model import Identity

GIT = HermeticGit()
AUTHOR = Identity(b"A B", b"a@x.org", 1704108896, b"+0100")
DIFF = (
    b"diff --git a/f b/f\nindex %s..%s 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    % (b"1" * 40, b"2" * 40)
)
MESSAGE = b"Fix it\n\nBecause.\n\nSigned-off-by: A B <a@x.org>\n"


def test_the_text_of_a_patch():
    assert write_patch(AUTHOR, MESSAGE, DIFF) == (
        b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        b"From: A B <a@x.org>\n"
        b"Date: Mon, 1 Jan 2024 12:34:56 +0100\n"
        b"Subject: [PATCH] Fix it\n"
        b"\n"
        b"Because.\n"
        b"\n"
        b"Signed-off-by: A B <a@x.org>\n"
        b"\n" + DIFF
    )


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (b"Fix it\n", "0007-Fix-it.patch"),
        (b"[foo] a/b: c...d.\n\nx\n", "0007-foo-a-b-c.d.patch"),
        (b"x" * 80 + b"\n", "0007-" + "x" * 52 + ".patch"),
        ("Größe\n".encode(), "0007-Gr-e.patch"),
    ],
)
def test_file_names(message: bytes, name: str):
    assert file_name(7, message) == name


def test_a_patch_is_canonical_only_byte_for_byte():
    def read(text: bytes):
        return read_patches(text, name="x", git=GIT)[0]

    text = write_patch(AUTHOR, MESSAGE, DIFF)
    assert is_canonical(read(text))
    for other in (
        text.replace(b"From 0", b"From 1"),
        text + b"-- \n2.39.5\n\n",
        text.replace(b"Because.\n", b"Because. \n"),
        text.replace(b"[PATCH]", b"[PATCH 1/2]"),
        text.replace(b"index 1", b"index "),
        text.replace(b"\ndiff", b"---\n f | 2 +-\n\ndiff"),
    ):
        assert not is_canonical(read(other))


@pytest.mark.parametrize(
    ("author", "message", "words"),
    [
        ({}, b"Fix\n\na\n---\nb\n", "Line 4 of the message"),
        ({}, b"Fix\n\na\n\ndiff --git a/a b/a\n", "Line 5 of the message"),
        ({}, b"Fix\n\nFrom: C <c@x>\n", "mail header"),
        ({}, b"Fix\n\nFrom x 10:20:30 2020\n", "first one of a mail"),
        ({}, b"[PATCH] Fix\n", "[...PATCH...]"),
        ({}, b"Re: Fix\n", "Re:"),
        ({}, b"Fix  it\n", "repeated white space"),
        ({}, b"Fix\nit\n", "several lines"),
        ({}, b"Fix \n", "white space at line ends"),
        ({}, b"Fix", "no line feed"),
        ({}, b"Fix\xff\n", "not UTF-8"),
        ({}, b"\n", "no message"),
        ({"name": b"a@b"}, MESSAGE, "`@`"),
        ({"name": b"x" * 61}, MESSAGE, "60 bytes"),
        ({"name": b"A B."}, MESSAGE, "punctuation"),
        ({"email": b"a@x."}, MESSAGE, "address"),
        ({"zone": b"-0000"}, MESSAGE, "-0000"),
        ({"seconds": 10**12}, MESSAGE, "date"),
    ],
)
def test_what_would_be_lost_is_said(author: dict, message: bytes, words: str):
    changed = dataclasses.replace(AUTHOR, **author)
    problem = round_trip_problem(changed, message, DIFF, git=GIT)
    assert problem is not None
    assert words in problem


@pytest.mark.parametrize(
    ("author", "message"),
    [
        ({}, MESSAGE),
        ({}, b"[foo] bar\n"),
        ({}, "Größe: ändern\n\nWarum? 日本\n".encode()),
        ({}, b"word " * 40 + b"end\n"),
        ({}, b"Fix\n\n  indented\n\tcode\n\nFrom here on\nSubject: x\n"),
        ({"name": "Jörg Ä".encode()}, MESSAGE),
        ({"name": b"A. B"}, MESSAGE),
        ({"name": b"A (B) C"}, MESSAGE),
        ({"email": b"root"}, MESSAGE),
        ({}, b"Fix \x01it\n"),
        ({"name": b'A "B" C'}, MESSAGE),
        ({"zone": b"-0730", "seconds": 10**9}, MESSAGE),
    ],
)
def test_what_survives_the_way(author: dict, message: bytes):
    changed = dataclasses.replace(AUTHOR, **author)
    assert round_trip_problem(changed, message, DIFF, git=GIT) is None


def test_what_a_mail_cannot_hold_is_not_written():
    for author in (
        {"name": b"A\nB"},
        {"name": b""},
        {"name": b"\xff"},
        {"seconds": -1},
        {"zone": b"+9960"},
    ):
        with pytest.raises(InputError):
            write_patch(dataclasses.replace(AUTHOR, **author), MESSAGE, DIFF)


def test_an_empty_diff_is_a_problem():
    problem = round_trip_problem(AUTHOR, MESSAGE, b"", git=GIT)
    assert problem == "The commit changes nothing."
