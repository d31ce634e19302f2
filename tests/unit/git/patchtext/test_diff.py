# SPDX-License-Identifier: Apache-2.0
import time
import zlib
from base64 import b85encode

import pytest

from stackctl.errors import InputError
from stackctl.git.patchtext import binary
from stackctl.git.patchtext.diff import parse_diff, parse_diff_span

HUNK = b"@@ -1 +1 @@\n-a\n+b\n"


def parse(text: bytes):
    return parse_diff(text, name="x.patch", first_line=1)


def refused(text: bytes, *, line: int, words: str, kind: str = "bad-patch"):
    with pytest.raises(InputError) as caught:
        parse_diff(text, name="x.patch#2", first_line=101)
    error = caught.value
    assert words in error.message
    assert error.hint
    assert error.kind == kind
    assert error.where["file"] == "x.patch"
    assert error.where["patch"] == "x.patch#2"
    assert error.where["line"] == 100 + line
    return error


def test_a_change_keeps_ids_modes_section_and_lines():
    (change,) = parse(
        b"diff --git a/d/f b/d/f\nindex 1234567..89abcde 100755\n--- a/d/f\n+++ b/d/f\n"
        b"@@ -3,3 +3,4 @@ class A:\n x\n-y\n+z\r\n+w\n v\n"
    )
    assert (change.kind, change.old_path, change.new_path) == ("modify", b"d/f", b"d/f")
    assert (change.old_mode, change.new_mode) == (0o100755, None)
    assert (change.old_id, change.new_id) == ("1234567", "89abcde")
    (hunk,) = change.hunks
    assert hunk.old == (b"x\n", b"y\n", b"v\n")
    assert hunk.new == (b"x\n", b"z\r\n", b"w\n", b"v\n")
    assert (hunk.leading, hunk.trailing) == (1, 1)
    assert (hunk.section, hunk.line, change.line) == (b"class A:", 5, 1)
    assert (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count) == (
        3,
        3,
        3,
        4,
    )


def test_counts_of_one_are_omitted_and_empty_context_may_lack_its_space():
    (change,) = parse(
        b"--- a/f\n+++ b/f\n@@ -2 +2 @@\n-a\n+b\n@@ -9,2 +9,3 @@\n\n+c\n d\n"
    )
    first, second = change.hunks
    assert (first.old_count, first.new_count) == (1, 1)
    assert second.old == (b"\n", b"d\n")
    assert second.new == (b"\n", b"c\n", b"d\n")


def test_missing_newlines_of_either_side():
    (change,) = parse(
        b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"
    )
    assert change.hunks[0].old == (b"a\n", b"b")
    assert change.hunks[0].new == (b"a\n", b"b\n")
    (change,) = parse(
        b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-b\n\\ No newline at end of file\n+c\n"
        b"\\ Kein Zeilenumbruch\n"
    )
    assert (change.hunks[0].old, change.hunks[0].new) == ((b"b",), (b"c",))
    (change,) = parse(
        b"--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n+c\n b\n\\ No newline at end of file\n"
    )
    assert (change.hunks[0].old, change.hunks[0].new) == ((b"b",), (b"c\n", b"b"))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"new file mode 100644\nindex 0000000..e69de29\n", "add"),
        (b"deleted file mode 100644\nindex e69de29..0000000\n", "delete"),
        (b"old mode 100644\nnew mode 100755\n", "modify"),
    ],
)
def test_changes_without_content(header: bytes, expected: str):
    (change,) = parse(b"diff --git a/e f b/e f\n" + header)
    assert change.kind == expected
    assert change.hunks == ()
    assert (change.new_path or change.old_path) == b"e f"


def test_renames_copies_and_links():
    rename, copy, link = parse(
        b"diff --git a/o b/p\nsimilarity index 100%\nrename from o\nrename to p\n"
        b"diff --git a/o b/q r\nsimilarity index 90%\ncopy from o\ncopy to q r\n"
        b"--- a/o\n+++ b/q r\t\n" + HUNK + b"diff --git a/l b/l\n"
        b"new file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+t\n"
        b"\\ No newline at end of file\n"
    )
    assert (rename.kind, rename.old_path, rename.new_path) == ("rename", b"o", b"p")
    assert (copy.kind, copy.old_path, copy.new_path) == ("copy", b"o", b"q r")
    assert (link.kind, link.new_mode, link.hunks[0].new) == ("add", 0o120000, (b"t",))


def test_quoted_and_other_paths():
    (change,) = parse(
        b'diff --git "a/\\303\\244\\tx\\"" "b/\\303\\244\\tx\\""\n'
        b"old mode 100644\nnew mode 100755\n"
    )
    assert change.new_path == 'ä\tx"'.encode()
    (change,) = parse(b"--- a/latin\xe4\n+++ b/latin\xe4\n" + HUNK)
    assert change.new_path == b"latin\xe4"


@pytest.mark.parametrize(
    ("first", "second", "kind", "path", "may_add"),
    [
        (b"a/f\t2020-01-01 10:00:00.0 +0100", b"b/f", "modify", b"f", False),
        (b"a/f 2020-01-01 10:00:00", b"b/f 2020-01-01 10:00:01", "modify", b"f", False),
        (b"a/f.orig", b"b/f", "modify", b"f", False),
        (b"f.c", b"f.c", "modify", b"f.c", False),
        (b"old/d/f", b"new/d/f", "modify", b"d/f", False),
    ],
)
def test_plain_headers(
    first: bytes, second: bytes, kind: str, path: bytes, may_add: bool
):
    (change,) = parse(b"--- %s\n+++ %s\n" % (first, second) + HUNK)
    assert (change.kind, change.new_path, change.may_add) == (kind, path, may_add)


def test_plain_headers_of_new_and_deleted_files():
    added = b"@@ -0,0 +1 @@\n+b\n"
    (change,) = parse(b"--- /dev/null\n+++ b/f\n" + added)
    assert (change.kind, change.old_path, change.new_mode) == ("add", None, 0o100644)
    epoch = (
        b"--- a/f\t1970-01-01 00:00:00.000 +0000\n+++ b/f\t2020-01-01 00:00:00 +0000\n"
    )
    (change,) = parse(epoch + added)
    assert (change.kind, change.new_path) == ("add", b"f")
    west = b"--- a/f\t2020-01-01 00:00:00 +0000\n+++ b/f\t1969-12-31 19:00:00 -0500\n"
    (change,) = parse(west + b"@@ -1 +0,0 @@\n-b\n")
    assert (change.kind, change.old_path, change.new_path) == ("delete", b"f", None)
    (change,) = parse(b"--- a/f\n+++ b/f\n" + added)
    assert (change.kind, change.may_add) == ("modify", True)


def test_prose_around_a_diff_is_not_part_of_it():
    body = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n" + HUNK
    text = b"prose\n--- not a header\n" + body + b"-- \n2.39.5\n"
    parsed = parse_diff_span(text, name="x", first_line=5)
    assert text[parsed.start : parsed.end] == body
    assert parsed.changes[0].line == 7


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (b"../f", "component `..`"),
        (b"d/../../f", "component `..`"),
        (b"./f", "component `.`"),
        (b"/etc/passwd", "absolute"),
        (b"d//f", "empty component"),
        (b"d/", "empty component"),
        (b".git/config", ".git"),
        (b"d/.GIT/config", ".git"),
        (b".git /config", ".git"),
        (b"git~1/config", ".git"),
        (b".git::$INDEX_ALLOCATION/x", ".git"),
        (b"a\\.git\\config", ".git"),
        (b"d/" * 300 + b"f", "more than 256 components"),
        (b"d" * 5000, "longer than 4096 bytes"),
        (".g\u200cit/config".encode(), ".git"),
    ],
)
@pytest.mark.parametrize("form", ["plain", "add", "rename"])
def test_paths_that_leave_the_tree_are_refused(path: bytes, reason: str, form: str):
    quoted = b'"b/' + path.replace(b"\\", b"\\\\") + b'"'
    if form == "plain":
        text = b"--- a/x\n+++ %s\n" % quoted + HUNK
    elif form == "add":
        text = b"diff --git a/x %s\nnew file mode 100644\n--- /dev/null\n" % quoted
        text += b"+++ %s\n@@ -0,0 +1 @@\n+b\n" % quoted
    else:
        name = b'"' + path.replace(b"\\", b"\\\\") + b'"'
        text = b"diff --git a/x b/y\nrename from x\nrename to %s\n" % name
    error = refused(text, line=1, words=reason, kind="unsafe-path")
    assert "path" in error.where


def test_ordinary_dot_names_are_not_refused():
    for path in (b".github/x", b".gitignore", b"a.git/x", b"...", b"git~2", b"d/.gitx"):
        assert parse(b"--- a/%s\n+++ b/%s\n" % (path, path) + HUNK)


def test_a_symlink_named_gitmodules_is_refused():
    text = b"diff --git a/.gitmodules b/.gitmodules\nnew file mode %s\n"
    assert parse(text % b"100644")
    refused(text % b"120000", line=1, words=".gitmodules", kind="unsafe-path")


@pytest.mark.parametrize(
    ("text", "line", "words", "kind"),
    [
        (b"prose only\n", 1, "no diff", "empty-patch"),
        (b"x\n@@ -1 +1 @@\n-a\n+b\n", 2, "without the header", "bad-patch"),
        (
            b"diff --git a/s b/s\nindex 1111111..2222222 160000\n",
            2,
            "submodule",
            "submodule",
        ),
        (b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+c\n", 6, "cut short", None),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b", 5, "declares 1 old", "bad-patch"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n+c\n", 6, "follows after", None),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n a\n", 3, "changes no line", "bad-patch"),
        (b"--- a/f\n+++ b/f\n@@ -x +1 @@\n-a\n", 3, "expected a hunk header", None),
        (
            b"diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n"
            + HUNK,
            5,
            "has old lines",
            "bad-patch",
        ),
        (
            b"diff --git a/f b/f\nnew file mode 100644\ndeleted file mode 100644\n",
            3,
            "`add` and `delete`",
            "bad-patch",
        ),
        (
            b"diff --git a/f b/f\nold mode 100644\nold mode 100644\nnew mode 100755\n",
            3,
            "twice",
            "bad-patch",
        ),
        (b"diff --git a/f b/g\n--- a/f\n+++ b/g\n" + HUNK, 1, "two files", "bad-patch"),
        (b"diff --git a/f b/g\n--- a/f\n+++ b/f\n", 1, "none follows", "bad-patch"),
        (b"diff --git a/f b/f\n\n" + b"x\n" * 9, 1, "not followed", "bad-patch"),
        (
            b"diff --git a/f b/f\nindex 1..2\nBinary files a/f and b/f differ\n",
            3,
            "does not carry",
            "bad-binary",
        ),
        (
            b"diff --git a/f b/f\nold mode 100644\nnew mode 120000\n",
            1,
            "change of type",
            "bad-patch",
        ),
        (b"diff --git a/f b/f\nnew file mode 040000\n", 2, "neither", "bad-patch"),
        (b'--- "a/f\n+++ b/f\n' + HUNK, 1, "not closed", "bad-patch"),
        (b"--- a/f\x00\n+++ b/f\n" + HUNK, 1, "NUL", "bad-patch"),
    ],
)
def test_malformed_diffs_are_refused_at_their_line(
    text: bytes, line: int, words: str, kind: str | None
):
    if words == "cut short":
        with pytest.raises(InputError) as caught:
            parse_diff(text, name="x.patch", first_line=1)
        assert "declares 3 old and 3 new lines, found 2 and 2" in caught.value.message
        assert words in (caught.value.hint or "")
        return
    refused(text, line=line, words=words, kind=kind or "bad-patch")


def binary_diff(data: bytes, *, size: int | None = None, ids: int = 40) -> bytes:
    packed = zlib.compress(data)
    lines = []
    for at in range(0, len(packed), 52):
        piece = packed[at : at + 52]
        letter = len(piece) + (64 if len(piece) <= 26 else 70)
        text = b85encode(piece + bytes(-len(piece) % 4))
        lines.append(bytes((letter,)) + text + b"\n")
    return (
        b"diff --git a/b b/b\nindex %s..%s 100644\nGIT binary patch\nliteral %d\n%s\n"
        % (
            b"1" * ids,
            b"2" * ids,
            len(data) if size is None else size,
            b"".join(lines),
        )
    )


def test_binary_content_is_inflated():
    data = bytes(range(256)) * 40
    (change,) = parse(binary_diff(data))
    assert change.binary is not None
    assert change.binary.data == data
    assert (change.binary.method, change.binary.size) == ("literal", len(data))


def test_the_forward_half_of_a_binary_patch_is_kept_and_the_reverse_checked():
    good = b"literal 0\nHcmV?d00001\n\n"
    (change,) = parse(binary_diff(b"xy") + good)
    assert change.binary is not None and change.binary.data == b"xy"
    bad = good.replace(b"V?", b"V!")
    refused(binary_diff(b"xy") + bad, line=8, words="corrupt", kind="bad-binary")


def test_a_binary_bomb_is_stopped_at_its_declared_size(monkeypatch):
    bomb = b"\0" * 30_000_000
    refused(binary_diff(bomb, size=1000), line=5, words="more than", kind="bad-binary")
    monkeypatch.setattr(binary, "MAX_BINARY_BYTES", 1000)
    text = binary_diff(b"x", size=10**12)
    refused(text, line=4, words="bytes are left", kind="bad-binary")


def test_all_binary_hunks_of_a_patch_share_one_limit(monkeypatch):
    monkeypatch.setattr("stackctl.git.patchtext.diff.MAX_BINARY_BYTES", 1000)
    one = binary_diff(b"x" * 600)
    assert parse(one)
    refused(
        one + one.replace(b"a/b b/b", b"a/c b/c"),
        line=4 + one.count(b"\n"),
        words="400 bytes are left",
        kind="bad-binary",
    )


def test_binary_content_needs_full_ids():
    refused(
        binary_diff(b"x", ids=7), line=3, words="needs an `index`", kind="bad-patch"
    )


@pytest.mark.parametrize(
    "text",
    [
        b"--- a/f\n+++ b/f\n@@ -0,0 +1,300000 @@\n" + b"+x\n" * 300_000,
        b"diff --git a/" + b"x " * 200_000 + b"\n",
        b"diff --git a/" + b"x " * 100_000 + b"b/" + b"x " * 100_000 + b"\n",
        b"--- a/f" + b" " * 400_000 + b"x\n+++ b/f\n" + HUNK,
        b'--- "' + b"\\303" * 200_000 + b"\n+++ b/f\n" + HUNK,
        b"--- a/" + b"d/" * 200_000 + b"\n+++ b/f\n" + HUNK,
        HUNK[:8] + b"9" * 400_000 + b" @@\n",
        (b"--- a/f\n+++ b/f\n" + HUNK) * 8_000,
        b"--- a/f\n+++ b/f\n" + HUNK * 20_000,
        b"x\n" * 400_000,
    ],
    ids=range(10),
)
def test_hostile_text_is_read_in_linear_time(text: bytes):
    start = time.process_time()
    try:
        parse(text)
    except InputError as error:
        assert len(error.message) < 2_000_000
    assert time.process_time() - start < 5
