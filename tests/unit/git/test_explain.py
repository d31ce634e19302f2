# SPDX-License-Identifier: Apache-2.0
"""Why a patch does not apply: file, hunk, lines, and the likely cause."""

from pathlib import Path

import pytest
from support import Repo

from stackctl.errors import ConflictError
from stackctl.git.apply import Workspace
from stackctl.git.command import HermeticGit
from stackctl.git.patchtext.mail import read_patches
from stackctl.git.store import Store

LINES = [f"line {n}\n" for n in range(1, 61)]


class Case:
    def __init__(self, folder: Path) -> None:
        self.repo = Repo(folder / "repo")
        self.folder = folder

    def refuse(
        self,
        base: dict[str, bytes | str | None],
        change: dict[str, bytes | str | None],
        other: dict[str, bytes | str | None],
        *options: str,
    ) -> ConflictError:
        """Make a patch of `change` on `base`, apply it on `base` with `other`."""
        self.repo.commit("base\n", base)
        self.repo.commit("change\n", change)
        (path,) = self.repo.patches("HEAD~1..HEAD", self.folder / "p", *options)
        (patch,) = read_patches(path.read_bytes(), name=path.name, git=HermeticGit())
        self.repo.git("reset", "-q", "--hard", "HEAD~1")
        self.repo.commit("other\n", other)
        workspace = Workspace(Store(self.repo.path / ".git"), self.repo.tree)
        with pytest.raises(ConflictError) as error:
            workspace.apply(patch)
        assert error.value.where["patch"] == path.name
        assert path.name in error.value.message
        return error.value


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def changed(**lines: str) -> str:
    out = list(LINES)
    for key, text in lines.items():
        out[int(key[1:]) - 1] = text
    return "".join(out)


def test_the_hunk_and_the_lines_are_shown(case: Case) -> None:
    error = case.refuse(
        {"pkg/f.py": "".join(LINES)},
        {"pkg/f.py": changed(_10="ten\n", _40="forty\n")},
        {"pkg/f.py": changed(_39="thirty-nine\n")},
    )
    assert error.where["path"] == "pkg/f.py"
    assert error.where["hunk"] == 2
    assert error.where["file_line"] == 39
    assert "pkg/f.py: hunk 2 does not match" in error.message
    assert "39   expected  line 39" in error.message
    assert "39   found     thirty-nine" in error.message
    assert "line 10" not in error.message
    line = error.where["line"]
    assert isinstance(line, int)
    patch = next((case.folder / "p").glob("*.patch")).read_text().split("\n")
    assert patch[line - 1].startswith("@@ -37,7")


def test_a_line_that_moved_is_named(case: Case) -> None:
    moved = changed(_38="x\n", _41="y\n", _42="z\n").replace("line 40\n", "")
    error = case.refuse(
        {"f": "".join(LINES)}, {"f": changed(_40="forty\n")},
        {"f": "line 40\n" + moved},
    )  # fmt: skip
    assert "stands at line" in error.message or "nowhere" in error.message


def test_a_line_that_is_gone_is_said_to_be(case: Case) -> None:
    error = case.refuse(
        {"f": "".join(LINES)}, {"f": changed(_40="forty\n")}, {"f": changed(_40="q\n")}
    )
    assert "nowhere in the file" in error.message


def test_what_is_applied_already_is_recognised(case: Case) -> None:
    error = case.refuse(
        {"f": "".join(LINES)}, {"f": changed(_40="forty\n")},
        {"f": changed(_40="forty\n", _3="three\n")},
    )  # fmt: skip
    assert "hunk 1 is in already" in error.message
    assert error.hint is not None
    assert "in the tree already" in error.hint


def test_a_part_that_is_applied_already_is_told_apart(case: Case) -> None:
    error = case.refuse(
        {"f": "".join(LINES), "g": "".join(LINES)},
        {"f": changed(_40="forty\n"), "g": changed(_20="twenty\n")},
        {"f": changed(_40="forty\n"), "g": changed(_20="other\n")},
    )
    assert "f: hunk 1 is in already" in error.message
    assert "g: hunk 1 does not match" in error.message
    assert error.hint is not None
    assert "a part is" in error.hint


def test_line_ends_are_made_visible(case: Case) -> None:
    error = case.refuse(
        {"f": "".join(LINES)}, {"f": changed(_40="forty\n")},
        {"f": changed(_40="line 40\r\n")},
    )  # fmt: skip
    assert "found     line 40  (ends in CR LF)" in error.message
    assert "expected  line 40\n" in error.message


def test_a_missing_last_line_feed_is_made_visible(case: Case) -> None:
    error = case.refuse({"g": "a\nb\n"}, {"g": "a\nc\n"}, {"g": "a\nb"})
    assert "b  (no line feed at the end)" in error.message


@pytest.mark.parametrize(
    ("base", "change", "other", "text"),
    [
        ({"f": "x\n"}, {"f": "y\n"}, {"f": None, "k": "k"}, "f does not exist"),
        ({"k": "k"}, {"n": "new\n"}, {"n": "else\n"}, "n should be new but exists"),
        ({"k": "k"}, {"n": "new\n"}, {"n": "new\n"}, "exactly this content"),
        ({"k": "k"}, {"n": "new\n"}, {"n/x": "1"}, "n should be new but is a folder"),
        ({"k": "k"}, {"n/x": "new\n"}, {"n": "1"}, "its parent n is a file"),
        ({"k": "k"}, {"n/x": "new\n"}, {"n": "-> k"}, "its parent n is a symbolic"),
        ({"f": "x\n"}, {"f": "y\n"}, {"f": "-> k"}, "f is of another type"),
        ({"f": b"\0a"}, {"f": b"\0b"}, {"f": b"\0c"}, "the binary patch is for"),
        ({"f": b"\0a"}, {"f": b"\0b"}, {"f": b"\0b"}, "has the new content already"),
    ],
)
def test_each_cause_has_its_sentence(
    case: Case,
    base: dict[str, bytes | str | None],
    change: dict[str, bytes | str | None],
    other: dict[str, bytes | str | None],
    text: str,
) -> None:
    assert text in case.refuse(base, change, other).message


def test_a_rename_onto_a_file_names_the_file(case: Case) -> None:
    data = "".join(LINES)
    error = case.refuse(
        {"f": data}, {"f": None, "to": data}, {"to": "in the way\n"}, "-M"
    )
    assert "to exists already" in error.message


def test_paths_that_are_not_text_are_shown_escaped(case: Case) -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    error = case.refuse({name: "x\n"}, {name: "y\n"}, {name: "z\n"})
    assert "caf\\xe9" in error.message
    error.message.encode("utf-8")


def test_a_huge_line_is_cut(case: Case) -> None:
    error = case.refuse(
        {"f": "a\n" + "z" * 1_000_000 + "\nb\n"}, {"f": "a\nc\nb\n"}, {"f": "x\ny\n"}
    )
    assert "zzz... (1000001 bytes)" in error.message
    assert len(error.message) < 10_000
