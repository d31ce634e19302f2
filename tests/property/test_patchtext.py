# SPDX-License-Identifier: Apache-2.0
"""The patch text readers and writers against git itself, on generated input.

Everything here runs twice as strict as a user would: with a hostile git configuration,
locale and time zone in the environment, which may not change a byte.
"""

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stackctl.errors import InputError, StackctlError
from stackctl.git.command import HermeticGit
from stackctl.git.patchtext import mail
from stackctl.git.patchtext.binary import apply_binary
from stackctl.git.patchtext.canonical import (
    DIFF_OPTIONS,
    FORMAT_PATCH_OPTIONS,
    file_name,
    is_canonical,
    round_trip_problem,
    write_patch,
)
from stackctl.git.patchtext.diff import parse_diff
from stackctl.git.patchtext.mail import as_utf8, clean_ident, read_patches, strip_space
from stackctl.git.patchtext.model import FileChange, Identity
from stackctl.git.patchtext.patchid import patch_id

EXAMPLES = int(os.environ.get("STACKCTL_PROPERTY_EXAMPLES", "0"))
GIT = HermeticGit()


def examples(default: int) -> settings:
    return settings(
        max_examples=EXAMPLES or default,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@pytest.fixture(scope="module", autouse=True)
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A user whose configuration would change every patch."""
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n quotePath = false\n abbrev = 5\n"
        "[diff]\n noprefix = true\n mnemonicPrefix = true\n renames = copies\n"
        " algorithm = histogram\n context = 9\n external = false\n"
        "[format]\n signature = x\n attach\n subjectPrefix = NO\n"
        "[mailinfo]\n scissors = true\n[am]\n keepcr = false\n"
        "[i18n]\n logOutputEncoding = latin1\n commitEncoding = latin1\n"
    )
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(home))
    patch.setenv("LC_ALL", "tr_TR.UTF-8")
    patch.setenv("TZ", "Pacific/Chatham")
    patch.setenv("GIT_CONFIG_COUNT", "1")
    patch.setenv("GIT_CONFIG_KEY_0", "diff.noprefix")
    patch.setenv("GIT_CONFIG_VALUE_0", "true")
    patch.setenv("GIT_AUTHOR_DATE", "1 +0000")
    yield
    patch.undo()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


# -- generated repositories ------------------------------------------------------------

NAMES = st.sampled_from(
    [
        b"a",
        b"b.txt",
        b"dir/c",
        b"dir/sub/d.py",
        b"with space",
        b"tab\there",
        b'quo"te',
        b"back\\slash",
        "ümlaut".encode(),
        b"latin\xe4",
        b"new\nline",
        b"x b/x",
        b"a -> b",
        b"-- ",
        b".gitignore",
        b"dir/e ",
    ]
)
LINES = st.sampled_from(
    [
        b"",
        b"alpha",
        b"beta",
        b"gamma ",
        b"\tdelta",
        b"- minus",
        b"-- dash",
        b"+ plus",
        b"@@ -1 +1 @@",
        b"diff --git a/a b/a",
        b"\\ No newline at end of file",
        b"crlf\r",
        b"From: x",
        b"\xff\xfe",
        b"void f(int x)",
    ]
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300)) * draw(st.integers(1, 3))
    text = b"\n".join(draw(st.lists(LINES, max_size=40)))
    return text + draw(st.sampled_from([b"\n", b"\n", b"\n", b""]))


File = tuple[int, bytes]
Tree = dict[bytes, File]


@st.composite
def trees(draw: st.DrawFn, before: Tree) -> Tree:
    """A tree that differs from another in every way that a patch can say."""
    after = dict(before)
    for _ in range(draw(st.integers(1, 4))):
        name = draw(NAMES)
        action = draw(
            st.sampled_from(["write", "edit", "delete", "mode", "move", "copy", "link"])
        )
        if action == "write":
            after[name] = (0o100644, draw(contents()))
        elif action == "link":
            after[name] = (0o120000, draw(st.sampled_from([b"target", b"../x", b"a"])))
        elif name in after:
            mode, data = after[name]
            if action == "delete":
                del after[name]
            elif action == "mode" and mode != 0o120000:
                after[name] = (mode ^ 0o111, data)
            elif action == "edit" and mode != 0o120000:
                lines = data.split(b"\n")
                at = draw(st.integers(0, len(lines) - 1))
                lines[at : at + draw(st.integers(0, 2))] = draw(
                    st.lists(LINES, max_size=3)
                )
                after[name] = (mode, b"\n".join(lines))
            elif action in ("move", "copy"):
                target = draw(NAMES)
                after[target] = after[name]
                if action == "move" and target != name:
                    del after[name]
    return after


@st.composite
def histories(draw: st.DrawFn) -> list[Tree]:
    history: list[Tree] = [{}]
    for _ in range(draw(st.integers(1, 4))):
        history.append(draw(trees(history[-1])))
    return history


def quote(path: bytes) -> bytes:
    out = b"".join(
        b"\\%03o" % code
        if code < 32 or code > 126 or code in b'"\\'
        else bytes((code,))
        for code in path
    )
    return b'"%s"' % out


Commit = tuple[bytes, bytes, Tree]


def import_commits(repo: Path, commits: list[Commit]) -> list[str]:
    """Make a chain of commits (author line, message, tree); return their ids."""
    stream: list[bytes] = []
    for number, (author, message, tree) in enumerate(commits, 1):
        stream.append(b"commit refs/heads/main\nmark :%d\n" % number)
        stream.append(b"author %s\n" % author)
        stream.append(b"committer C <c@x> 0 +0000\n")
        stream.append(b"data %d\n%s\n" % (len(message), message))
        if number > 1:
            stream.append(b"from :%d\n" % (number - 1))
        stream.append(b"deleteall\n")
        for path, (mode, data) in sorted(tree.items()):
            stream.append(b"M %o inline %s\n" % (mode, quote(path)))
            stream.append(b"data %d\n%s\n" % (len(data), data))
    GIT.run("init", "-q", "--bare", str(repo))
    git = HermeticGit(repo)
    marks = repo / "marks"
    git.run(
        "fast-import",
        "--quiet",
        "--date-format=raw-permissive",
        f"--export-marks={marks}",
        stdin=b"".join(stream),
    )
    ids = dict(line.split() for line in marks.read_text().splitlines())
    return [ids[f":{number}"] for number in range(1, len(commits) + 1)]


def apply_exactly(tree: Tree, changes: tuple[FileChange, ...]) -> Tree:
    """Apply changes at the very lines that they name (the base is known)."""
    after = dict(tree)
    for change in changes:
        old = tree.get(change.old_path) if change.old_path is not None else None
        if change.kind in ("delete", "rename") or (
            change.kind == "modify" and change.old_path is not None
        ):
            after.pop(change.old_path, None)  # type: ignore[arg-type]
    for change in changes:
        old = tree[change.old_path] if change.old_path is not None else None
        data = old[1] if old is not None else b""
        if change.old_mode is not None and old is not None:
            assert old[0] == change.old_mode
        if change.binary is not None:
            data = apply_binary(data, change.binary)
        elif change.hunks:
            lines = re.findall(rb"[^\n]*\n|[^\n]+\Z", data)
            out: list[bytes] = []
            at = 0
            for hunk in change.hunks:
                start = hunk.old_start - (1 if hunk.old_count else 0)
                assert tuple(lines[start : start + hunk.old_count]) == hunk.old
                common = min(hunk.leading, len(hunk.new))
                assert hunk.old[:common] == hunk.new[:common]
                if hunk.trailing:
                    assert hunk.old[-hunk.trailing :] == hunk.new[-hunk.trailing :]
                out += lines[at:start]
                out += hunk.new
                at = start + hunk.old_count
            data = b"".join(out + lines[at:])
        if change.kind == "delete":
            assert data == b""
            continue
        assert change.new_path is not None
        mode = change.new_mode or (old[0] if old is not None else 0o100644)
        after[change.new_path] = (mode, data)
    return after


def without_conflicts(tree: Tree) -> Tree:
    """Drop files that stand where another has its folder."""
    return {
        path: file
        for path, file in tree.items()
        if not any(other.startswith(path + b"/") for other in tree)
    }


@examples(60)
@given(histories(), st.sampled_from(["0", "1", "3", "20"]), st.booleans())
def test_reading_a_diff_gives_the_tree_that_git_diffed(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[Tree],
    context: str,
    renames: bool,
) -> None:
    history = [without_conflicts(tree) for tree in history]
    repo = tmp_path_factory.mktemp("repo") / "r.git"
    ids = import_commits(repo, [(b"A <a@x> 1 +0000", b"m\n", t) for t in history])
    git = HermeticGit(repo)
    for number in range(1, len(ids)):
        options = [option for option in DIFF_OPTIONS if "unified" not in option]
        if renames:
            options = [o for o in options if o != "--no-renames"]
            options += ["-M10%", "-C10%", "--find-copies-harder"]
        diff = git.run(
            "diff-tree", *options, f"--unified={context}", ids[number - 1], ids[number]
        )
        if not diff:
            assert history[number] == history[number - 1]
            continue
        changes = parse_diff(diff, name="p", first_line=1)
        assert apply_exactly(history[number - 1], changes) == history[number]


@examples(25)
@given(histories())
def test_patch_ids_are_those_of_git(
    tmp_path_factory: pytest.TempPathFactory, history: list[Tree]
) -> None:
    history = [without_conflicts(tree) for tree in history]
    repo = tmp_path_factory.mktemp("repo") / "r.git"
    ids = import_commits(repo, [(b"A <a@x> 1 +0000", b"m\n", t) for t in history])
    git = HermeticGit(repo)
    for options in (DIFF_OPTIONS, ("-p", "-r", "--full-index", "--no-renames")):
        for old, new in pairwise(ids):
            diff = git.run("diff-tree", *options, old, new)
            printed = GIT.run("patch-id", "--stable", stdin=diff).split()
            assert patch_id(diff) == (printed[0].decode() if printed else "")


# -- mail ------------------------------------------------------------------------------

NAME_PARTS = st.sampled_from(
    [
        "Ann",
        "Lee",
        "Jörg",
        "Ä.",
        "Q.",
        "O'Neil",
        "(x)",
        "a@b",
        '"q"',
        "b\\s",
        "=?x",
        "Jr.",
        "[bot]",
        "名前",
        "long" * 9,
        "a,b",
        "_",
    ]
)
AUTHORS = st.lists(NAME_PARTS, min_size=1, max_size=6).map(" ".join)
EMAILS = st.sampled_from(
    [
        "a@x.org",
        "long." * 8 + "@example.org",
        "ä@x.org",
        "root",
        "a@b@c",
        "x+y@z",
        "-@-",
    ]
)
ZONES = st.sampled_from(["+0000", "-0000", "+0530", "-0730", "+1400", "-1200", "+0001"])
SECONDS = st.one_of(
    st.integers(0, 4_102_358_399), st.sampled_from([0, 86400, 951_782_400])
)
WORDS = st.one_of(
    st.sampled_from(
        [
            "[PATCH]",
            "[PATCH v2 1/3]",
            "[foo]",
            "Re:",
            ":",
            "fix",
            "the",
            "a-very-long-word-that-does-not-fit" * 2,
            "Größe",
            "日本語のテキスト",
            "=?UTF-8?q?x?=",
            "a=b?",
            "under_score",
            "tab\there",
            "\x1besc",
            "\x01",
            "\u200b",
            "🎉",
            "x" * 70,
            "..",
            "a..b",
            "--",
            "",
        ]
    ),
    st.text("abc XYZ.-_=?ä", max_size=12),
)
TITLES = st.lists(WORDS, min_size=1, max_size=25).map(" ".join)
BODY_LINES = st.one_of(
    st.sampled_from(
        [
            "",
            "",
            "---",
            "--- ",
            "--- x",
            "---- x",
            "diff --git a/a b/a",
            "diff -u",
            "Index: x",
            "From: Someone <s@x>",
            "Subject: other",
            "date: today",
            ">From x",
            "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001",
            "From here 10:20:30 2020",
            "[PATCH] x",
            "-- >8 --",
            "trailing ",
            " indented",
            "\tt",
            "cr\r",
            "Signed-off-by: A <a@x>",
            "ünïcode",
            "-- ",
            "+++ b/x",
            "@@ -1 +1 @@",
        ]
    ),
    TITLES,
)
MESSAGES = st.tuples(TITLES, st.lists(BODY_LINES, max_size=8)).map(
    lambda parts: "\n".join([parts[0], *([""] if parts[1] else []), *parts[1]]) + "\n"
)


def ident(author: str, email: str, seconds: int, zone: str) -> Identity | None:
    name = clean_ident(author.encode())
    address = clean_ident(email.encode())
    if not name or not address:
        return None
    return Identity(name, address, seconds, zone.encode())


COMMITS = st.tuples(AUTHORS, EMAILS, SECONDS, ZONES, MESSAGES)


@examples(30)
@example([('Jörg "q"', "a@x.org", 0, "+0000", "[foo]\n")])
@given(st.lists(COMMITS, min_size=1, max_size=8))
def test_patches_are_written_and_read_as_git_does(
    tmp_path_factory: pytest.TempPathFactory,
    commits: list[tuple[str, str, int, str, str]],
) -> None:
    identities: list[Identity] = []
    stream: list[Commit] = [(b"A <a@x> 0 +0000", b"base\n", {})]
    for number, (name, email, seconds, zone, message) in enumerate(commits):
        author = ident(name, email, seconds, zone)
        if author is None:
            return
        identities.append(author)
        line = b"%s <%s> %d %s" % (author.name, author.email, seconds, zone.encode())
        stream.append((line, message.encode(), {b"f": (0o100644, b"%d\n" % number)}))
    root = tmp_path_factory.mktemp("repo")
    ids = import_commits(root / "r.git", stream)
    git = HermeticGit(root / "r.git")
    out = root / "out"
    try:
        git.run(
            "format-patch", *FORMAT_PATCH_OPTIONS, "-o", str(out), ids[0] + "..main"
        )
    except StackctlError:
        # git 2.39 cannot show a local time before 1970.
        return
    files = sorted(out.iterdir())
    assert len(files) == len(commits)
    for number, file in enumerate(files, 1):
        author, message = identities[number - 1], stream[number][1]
        text = file.read_bytes()
        diff = git.run("diff-tree", *DIFF_OPTIONS, ids[number - 1], ids[number])
        expected_name = file_name(number, message)
        assert file.name == expected_name
        try:
            written = write_patch(author, message, diff)
        except InputError as error:
            assert error.kind == "bad-date"
            continue
        assert written == text
        check_round_trip(author, message, diff, text)


def check_round_trip(
    author: Identity, message: bytes, diff: bytes, text: bytes
) -> None:
    problem = round_trip_problem(author, message, diff, git=GIT)
    zone = author.zone if author.zone != b"-0000" else b"+0000"
    try:
        patches = read_patches(text, name="x.patch", git=GIT)
    except InputError:
        assert problem is not None
        return
    kept = len(patches) == 1 and (
        patches[0].author == Identity(author.name, author.email, author.seconds, zone)
        and patches[0].message == message
        and patches[0].diff == diff
    )
    if zone == author.zone:
        assert kept == (problem is None), problem
    if problem is None:
        assert is_canonical(patches[0])
    assert problem != "The patch would not give the same commit when it is read again."


def by_git(raw: bytes, root: Path, *, mboxrd: bool = False) -> list[object]:
    """Split and read a mailbox with git alone, as `git am` does."""
    box = root / "box"
    box.write_bytes(raw)
    parts = root / "parts"
    parts.mkdir()
    options = ["--mboxrd"] if mboxrd else []
    GIT.run("mailsplit", "-b", "--keep-cr", *options, f"-o{parts}", str(box))
    found: list[object] = []
    for part in sorted(parts.iterdir()):
        if part.name.startswith("m"):
            continue
        try:
            info = GIT.run(
                "mailinfo",
                "-b",
                "-u",
                "--no-scissors",
                str(parts / "m-msg"),
                str(parts / "m-patch"),
                stdin=part.read_bytes(),
            )
        except StackctlError:
            found.append(None)
            continue
        values: dict[bytes, list[bytes]] = {}
        for line in info.split(b"\n"):
            key, _, value = line.partition(b": ")
            values.setdefault(key, []).append(value)
        message = b"\n".join(values.get(b"Subject", []))
        message += b"\n\n" + (parts / "m-msg").read_bytes()
        clean = GIT.run("stripspace", stdin=message)
        name = b"".join(values.get(b"Author", []))
        email = b"".join(values.get(b"Email", []))
        date = b"".join(values.get(b"Date", []))
        try:
            line = GIT.run(
                "var",
                "GIT_AUTHOR_IDENT",
                env={
                    "GIT_AUTHOR_NAME": os.fsdecode(name),
                    "GIT_AUTHOR_EMAIL": os.fsdecode(email),
                    "GIT_AUTHOR_DATE": os.fsdecode(date),
                },
            )
        except (StackctlError, ValueError):
            found.append(None)
            continue
        patch = (parts / "m-patch").read_bytes()
        found.append((line.rstrip(b"\n"), clean, patch))
    return found


HEADERS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "From: A B <a@x.org>",
                "From: =?UTF-8?q?J=C3=B6?= <j@x>",
                "From: =?UTF-8?q?J=C3=B6?=\n =?UTF-8?q?_rg?= <j@x>",
                "From: =?iso-8859-1?Q?J=F6?= <j@x>",
                'From: "A \\"B\\" C." <a@x>',
                "From: a@x (A B)",
                "From: nobody",
                "From: A  B\n C <a@x>",
                "Date: Mon, 1 Jan 2024 12:34:56 +0100",
                "Date: 1 Feb 2024 02:03:04 -0730",
                "Date: Thu, 31 Feb 2024 02:03:04 +0000",
                "Date: Mon, 1 Jan 2024 12:34:56",
                "Date: Mon, 1 Jan 2024 24:00:60 +0000",
                "Date: 2024-01-02T03:04:05Z",
                "Date: 1700000000 +0200",
                "Subject: [PATCH] simple",
                "Subject: [PATCH 1/2] [x] re: two\n  folded ",
                "Subject: =?UTF-8?q?[PATCH]_a=C3=A4?=",
                "Subject: [PATCH] =?UTF-8?q?a=C3=A4?=\n =?UTF-8?q?b_c?= tail",
                "Subject: =?UTF-8?b?w6R4?=",
                "Subject: [PATCH] =?broken",
                "Subject: r",
                "Subject: [a] [b] PATCH",
                "Subject:",
                "MIME-Version: 1.0",
                "Content-Type: text/plain; charset=UTF-8",
                "Content-Type: text/plain; charset=iso-8859-1",
                "Content-Type: text/plain; charset=UTF-8; format=flowed",
                "Content-Transfer-Encoding: 8bit",
                "Content-Transfer-Encoding: quoted-printable",
                "Message-Id: <x@y>",
                "X-Other: z",
            ]
        ),
    ),
    max_size=6,
)
COMMON = [
    "From: A B <a@x.org>",
    "Date: Mon, 1 Jan 2024 12:34:56 +0100",
    "Subject: [PATCH] simple",
]
FROM_LINES = st.sampled_from(
    [
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n",
        "From a@x Mon Jan  1 10:00:00 2024\n",
        "",
        "\n \n",
    ]
)
DIFF = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
MAILS = st.tuples(
    FROM_LINES,
    st.one_of(HEADERS, HEADERS.map(lambda more: [*COMMON, *more]), st.just(COMMON)),
    st.sampled_from(["\n", "\n\n", "\r\n", ""]),
    st.lists(BODY_LINES, max_size=6),
    st.sampled_from(["---\n f | 2 +-\n\n", "", "--- \n", "\n"]),
    st.sampled_from([DIFF, DIFF, DIFF + "-- \n2.39.5\n\n", DIFF.replace("\n", "\r\n")]),
).map(
    lambda parts: (
        parts[0]
        + "".join(header + "\n" for header in parts[1])
        + parts[2]
        + "".join(line + "\n" for line in parts[3])
        + parts[4]
        + parts[5]
    )
)


@examples(90)
@given(st.lists(MAILS, min_size=1, max_size=3).map("".join), st.booleans())
def test_mails_are_read_as_git_reads_them(
    tmp_path_factory: pytest.TempPathFactory, text: str, mboxrd: bool
) -> None:
    raw = text.encode()
    if not (mboxrd or mail._is_mail(raw)):
        return
    expected = by_git(raw, tmp_path_factory.mktemp("mail"), mboxrd=mboxrd)
    try:
        patches = read_patches(raw, name="box", git=GIT, mboxrd=mboxrd)
    except InputError as error:
        # One message that cannot be a commit is enough to refuse the file.
        assert any(
            found is None or not found[1] for found in expected
        ) or error.kind in (
            "empty-patch",
            "no-date",
            "no-author",
            "no-subject",
            "bad-patch",
        ), error
        return
    assert len(patches) == len(expected)
    for patch, found in zip(patches, expected, strict=True):
        assert found is not None
        line, message, body = found  # type: ignore[misc]
        author = patch.author
        assert line == b"%s <%s> %d %s" % (
            author.name,
            author.email,
            author.seconds,
            author.zone,
        )
        assert patch.message == message
        assert patch.diff in body
        assert patch.diff.startswith((b"diff --git", b"--- "))


@examples(100)
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
@example(b"a \r\n\n\n\nb")
@example(b"\n")
def test_messages_are_cleaned_as_git_stripspace_does(text: bytes) -> None:
    assert strip_space(text) == GIT.run("stripspace", stdin=text)


@examples(40)
@given(
    st.binary(min_size=1, max_size=40)
    | st.text(min_size=1, max_size=20).map(str.encode)
)
@example("\ufdd0x\uffff\U0001fffe".encode())
@example(b"a\xc3")
def test_bytes_that_are_not_utf8_are_stored_as_git_stores_them(text: bytes) -> None:
    text = text.replace(b"\x00", b"")
    tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    identity = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x"}
    identity |= {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x"}
    repo = _empty_repository()
    git = HermeticGit(repo)
    git.run("mktree", stdin=b"")
    commit = git.run("commit-tree", tree, stdin=text, env=identity).decode().strip()
    stored = git.run("cat-file", "commit", commit).split(b"\n\n", 1)[1]
    assert as_utf8(text) == stored


_REPOSITORIES: list[Path] = []


def _empty_repository() -> Path:
    if not _REPOSITORIES:
        import tempfile

        root = Path(tempfile.mkdtemp(prefix="stackctl-test-"))
        GIT.run("init", "-q", "--bare", str(root / "r.git"))
        _REPOSITORIES.append(root / "r.git")
    return _REPOSITORIES[0]


# -- what git apply refuses ------------------------------------------------------------

# Reasons for which this reader refuses a text that `git apply` accepts.
STRICTER = re.compile(
    "stands twice|not followed by a header line|/dev/null stands as|names two files"
    "|onto itself|is not closed|names another file|changed line follows"
    "|as the last one without a newline|needs an `index` line|does not carry"
    "|submodule|neither a file|is refused|bytes are left|follows the end"
    "|decimal|does not follow a line that|changes from|header line has a NUL"
    "|announces a change|names no file when|a file mode in octal"
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A diff with lines dropped, repeated, swapped or edited."""
    base = draw(st.sampled_from(DIFFS))
    lines = base.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        action = draw(st.integers(0, 4))
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(at, lines[at])
        elif action == 2:
            lines.insert(at, draw(st.sampled_from(PIECES)))
        elif action == 3:
            lines[at] = draw(st.sampled_from(PIECES))
        elif lines[at]:
            cut = draw(st.integers(0, len(lines[at]) - 1))
            lines[at] = lines[at][:cut] + lines[at][cut + 1 :]
        lines = lines or [b""]
    return b"\n".join(lines)


DIFFS = [
    b"diff --git a/f b/f\nindex 1234567..89abcde 100644\n--- a/f\n+++ b/f\n"
    b"@@ -1,3 +1,4 @@ sec\n a\n-b\n+c\n+d\n e\n@@ -9 +10,0 @@\n-x\n",
    b"diff --git a/n b/n\nnew file mode 100755\nindex 0000000..89abcde\n--- /dev/null\n"
    b"+++ b/n\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n",
    b"diff --git a/d b/d\ndeleted file mode 100644\nindex 1234567..0000000\n--- a/d\n"
    b"+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
    b"diff --git a/o b/p\nsimilarity index 90%\nrename from o\nrename to p\n"
    b"index 1234567..89abcde 100644\n--- a/o\n+++ b/p\n@@ -1 +1 @@\n-a\n+b\n",
    b"diff --git a/o b/p\nsimilarity index 100%\ncopy from o\ncopy to p\n",
    b"diff --git a/m b/m\nold mode 100644\nnew mode 100755\n",
    b'diff --git "a/q\\tx" "b/q\\tx"\nold mode 100644\nnew mode 100755\n'
    b'--- "a/q\\tx"\n+++ "b/q\\tx"\n@@ -1 +1 @@\n-a\n+b\n',
    b"--- a/f.orig\t2020-01-01 00:00:00.000 +0000\n+++ a/f\t2020-01-01\n"
    b"@@ -1 +1 @@\n-a\n+b\n",
    b"--- f\n+++ f\n@@ -0,0 +1 @@\n+b\n",
    b"--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n",
    b"--- old/x\t1970-01-01 01:00:00.000 +0100\n+++ new/x\t2020-01-01 00:00:00 +0000\n"
    b"@@ -0,0 +1 @@\n+b\n",
    b"diff --git a/b b/b\nindex " + b"1" * 40 + b".." + b"2" * 40 + b" 100644\n"
    b"GIT binary patch\nliteral 2\nJcmZQz1ONa700IC2\n\nliteral 0\nHcmV?d00001\n\n",
]
PIECES = [
    b"",
    b" ",
    b" a",
    b"+a",
    b"-a",
    b"\\ No newline at end of file",
    b"\\ x",
    b"@@ -1 +1 @@",
    b"@@ -1,2 +1 @@",
    b"@@ -1 @@",
    b"diff --git a/f b/f",
    b"diff --git a/f b/g",
    b"--- a/f",
    b"+++ b/f",
    b"--- /dev/null",
    b"+++ /dev/null",
    b"new file mode 100644",
    b"deleted file mode 100644",
    b"old mode 100644",
    b"new mode 120000",
    b"new mode 100755 ",
    b"index 1234567..89abcde 100644",
    b"index x",
    b"rename from f",
    b"rename to g",
    b"copy to g",
    b"GIT binary patch",
    b"literal 3",
    b"Binary files a/f and b/f differ",
    b"prose",
    b"--- x",
    b"+++ y",
]


@examples(250)
@given(damaged())
def test_what_git_apply_refuses_is_refused_and_the_rest_means_the_same(
    diff: bytes,
) -> None:
    try:
        printed = GIT.run("apply", "--numstat", "-z", stdin=diff)
    except StackctlError:
        printed = None
    try:
        changes = parse_diff(diff, name="p", first_line=1)
    except InputError as error:
        assert error.where["file"] == "p"
        line = error.where["line"]
        assert isinstance(line, int) and 1 <= line <= diff.count(b"\n") + 1
        if printed is not None:
            assert STRICTER.search(error.message), error.message
        return
    assert printed is not None
    assert numstat(changes) == printed


def numstat(changes: tuple[FileChange, ...]) -> bytes:
    out = []
    for change in changes:
        added = deleted = 0
        for hunk in change.hunks:
            kept = 0
            # Context lines stand on both sides: count by the difference.
            kept = _kept(hunk.old, hunk.new, hunk.leading, hunk.trailing)
            added += len(hunk.new) - kept
            deleted += len(hunk.old) - kept
        path = change.new_path or change.old_path
        if change.binary is not None:
            out.append(b"-\t-\t%s\0" % path)
        else:
            out.append(b"%d\t%d\t%s\0" % (added, deleted, path))
    return b"".join(out)


def _kept(old: tuple, new: tuple, leading: int, trailing: int) -> int:
    # The damaged hunks are small and have no context between their changes.
    return leading + trailing
