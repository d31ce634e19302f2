# SPDX-License-Identifier: Apache-2.0
"""Applying patches: where it is done here, where git does it, and what is refused."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Repo, git

from stackctl.errors import ConflictError, InputError
from stackctl.git.apply import Workspace, apply_in_place
from stackctl.git.command import HermeticGit
from stackctl.git.objects import BLOB, object_id
from stackctl.git.packs import apply_delta, encode_delta
from stackctl.git.patchtext.diff import parse_diff
from stackctl.git.patchtext.mail import read_patches
from stackctl.git.patchtext.model import Patch
from stackctl.git.store import Store

LINES = "".join(f"line {n}\n" for n in range(1, 41))


class Bench:
    """A base, a change of it, and a workspace that the change is applied in."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repo(folder / "repo")
        self.folder = folder
        self.number = 0
        self.workspaces: list[Workspace] = []

    def patch(self, *options: str) -> Patch:
        self.number += 1
        (path,) = self.repo.patches(
            "HEAD~1..HEAD", self.folder / f"p{self.number}", *options
        )
        (patch,) = read_patches(path.read_bytes(), name=path.name, git=HermeticGit())
        return patch

    def store(self) -> Store:
        return Store(self.repo.path / ".git")

    def workspace(self, tree: str, **options: bool) -> Workspace:
        self.workspaces.append(Workspace(self.store(), tree, **options))
        return self.workspaces[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for workspace in made.workspaces:
        workspace.abort()


def loose_count(store: Store) -> int:
    return sum(1 for path in store.git_dir.glob("objects/??/*") if path.is_file())


def test_what_matches_its_ids_is_applied_without_git(bench: Bench) -> None:
    bench.repo.commit("base\n", {"f": LINES, "gone": "x\n", "b": b"\0old"})
    before = bench.repo.tree
    bench.repo.commit("change\n", {
        "f": LINES.replace("line 20\n", "twenty\n"), "gone": None, "new/er": "n\n",
        "b": b"\0new", "l": "-> f",
    })  # fmt: skip
    workspace = bench.workspace(before)
    assert workspace.apply(bench.patch())
    assert (workspace.native, workspace.fallback) == (1, 0)
    assert workspace.write_tree() == bench.repo.tree
    workspace.abort()


def test_a_binary_delta_is_applied_without_git(bench: Bench) -> None:
    data = bytes(range(256)) * 40
    bench.repo.commit("base\n", {"b": data})
    before = bench.repo.tree
    bench.repo.commit("change\n", {"b": data[:5000] + b"!" + data[5000:]})
    patch = bench.patch()
    change = patch.changes[0].binary
    assert change is not None
    assert change.method == "delta"
    workspace = bench.workspace(before)
    assert workspace.apply(patch)
    assert workspace.write_tree() == bench.repo.tree


@pytest.mark.parametrize("known", [True, False])
def test_a_forged_binary_change_is_refused_whatever_the_store_has(
    bench: Bench, known: bool, tmp_path: Path
) -> None:
    """git skips the change where it has the result; the answer would depend on that."""
    data = bytes(range(256)) * 40
    bench.repo.commit("base\n", {"b": data})
    before = bench.repo.tree
    bench.repo.commit("change\n", {"b": data[:5000] + b"!" + data[5000:]})
    good = bench.patch()
    bench.repo.commit("forge\n", {"b": data[:5000] + b"?" + data[5000:]})
    bench.repo.git("reset", "-q", "--soft", "HEAD~2")
    bench.repo.commit("forged\n")
    forged = bench.patch()
    right, wrong = (change.new_id for p in (good, forged) for change in p.changes)
    assert right is not None
    assert wrong is not None
    raw = forged.raw.replace(wrong.encode(), right.encode())
    (patch,) = read_patches(raw, name="forged.patch", git=HermeticGit())
    store = bench.store()
    if not known:
        store = Store.create(tmp_path / "other.git")
        objects = git("rev-list", "--objects", "--no-walk", before, cwd=bench.repo.path)
        pack = git("pack-objects", "--stdout", "-q", cwd=bench.repo.path,
                   stdin=objects)  # fmt: skip
        store.git.run("index-pack", "--stdin", stdin=pack)
    with pytest.raises(InputError, match="does not give blob"):
        Workspace(store, before).apply(patch)


def test_an_offset_goes_to_git(bench: Bench) -> None:
    bench.repo.commit("base\n", {"f": LINES})
    bench.repo.commit("change\n", {"f": LINES.replace("line 20\n", "twenty\n")})
    patch = bench.patch()
    bench.repo.commit("moved\n", {"f": "before\n" * 3 + LINES})
    workspace = bench.workspace(bench.repo.tree)
    assert not workspace.apply(patch)
    expected = "before\n" * 3 + LINES.replace("line 20\n", "twenty\n")
    tree = workspace.write_tree()
    workspace.publish()
    assert git("show", f"{tree}:f", cwd=bench.repo.path).decode() == expected


@pytest.mark.parametrize("every_step", [True, False])
def test_git_sees_what_is_not_published_and_we_what_git_made(
    bench: Bench, every_step: bool
) -> None:
    """Native, git, native, git on one file: each builds on the other's result."""
    bench.repo.commit("base\n", {"f": LINES})
    before = bench.repo.tree
    patches = []
    text = LINES
    for number in range(8):
        bench.repo.git("mv", "f", "g") if number == 3 else None
        name = "g" if number >= 3 else "f"
        text = text.replace(f"line {4 * number + 2}\n", f"changed {number}\n")
        bench.repo.commit(f"{number}\n", {name: text})
        patches.append(bench.patch(*(("-M", "--no-full-index") if number % 2 else ())))
    store = bench.store()
    count = loose_count(store)
    workspace = Workspace(store, before, every_step=every_step)
    for patch in patches:
        workspace.apply(patch)
    assert workspace.fallback == 4
    assert workspace.native == 4
    assert workspace.write_tree() == bench.repo.tree
    assert loose_count(store) == count
    workspace.publish()
    git("fsck", "--strict", cwd=bench.repo.path)


def test_a_refusal_leaves_the_tree_and_the_store_as_they_were(bench: Bench) -> None:
    bench.repo.commit("base\n", {"f": LINES, "g": LINES})
    bench.repo.commit("change\n", {
        "f": LINES.replace("line 2\n", "two\n"), "g": LINES.replace("line 9\n", "n\n"),
    })  # fmt: skip
    patch = bench.patch()
    bench.repo.commit("other\n", {"f": LINES, "g": LINES.replace("line 9\n", "9\n")})
    tree = bench.repo.tree
    store = bench.store()
    before = loose_count(store)
    workspace = Workspace(store, tree)
    with pytest.raises(ConflictError):
        workspace.apply(patch)
    assert workspace.write_tree() == tree
    workspace.publish()
    assert loose_count(store) == before
    assert not list((store.git_dir / "scratch").glob("*"))


def test_a_folder_becomes_a_file_only_where_it_gets_empty(bench: Bench) -> None:
    bench.repo.commit("base\n", {"d/a": "1\n"})
    full = bench.repo.tree
    bench.repo.git("rm", "-q", "-r", "d")
    bench.repo.commit("swap\n", {"d": "a file\n"})
    patch, after = bench.patch(), bench.repo.tree
    workspace = bench.workspace(full)
    workspace.apply(patch)
    assert workspace.write_tree() == after
    bench.repo.git("reset", "-q", "--hard", "HEAD~1")
    bench.repo.commit("more\n", {"d/b": "2\n"})
    more = bench.repo.tree
    workspace = bench.workspace(more)
    with pytest.raises(ConflictError):
        workspace.apply(patch)
    assert workspace.write_tree() == more
    # And the order of names must not matter: `d/0` comes before `d/a`.
    bench.repo.git("mv", "d/b", "d/0")
    bench.repo.commit("renamed\n")
    with pytest.raises(ConflictError):
        bench.workspace(bench.repo.tree).apply(patch)


def test_no_fuzz_no_reverse_no_white_space(bench: Bench) -> None:
    bench.repo.commit("base\n", {"f": LINES})
    before = bench.repo.tree
    bench.repo.commit("change\n", {"f": LINES.replace("line 20\n", "twenty\n")})
    patch = bench.patch()
    after = bench.repo.tree
    for spoilt in (
        LINES.replace("line 18\n", "18\n"),  # fuzz would skip a line of context
        LINES.replace("line 19\n", "line  19\n"),
        LINES.replace("line 19\n", "line 19 \n"),
        LINES.replace("\n", "\r\n"),
    ):
        bench.repo.commit("spoilt\n", {"f": spoilt})
        with pytest.raises(ConflictError):
            bench.workspace(bench.repo.tree).apply(patch)
    with pytest.raises(ConflictError, match="already"):
        bench.workspace(after).apply(patch)
    assert bench.workspace(before).apply(patch)


def test_attributes_of_the_tree_have_no_say(bench: Bench) -> None:
    attributes = (
        "* text eol=crlf whitespace=trailing-space ident filter=x merge=union\n"
    )
    bench.repo.git("config", "core.attributesFile", os.devnull)
    (bench.repo.path / ".git/info").mkdir(exist_ok=True)
    (bench.repo.path / ".git/info/attributes").write_text(
        "* -text !eol !ident !filter !whitespace\n"
    )
    bench.repo.commit("base\n", {".gitattributes": attributes, "f": "$Id$ \n" + LINES})
    before = bench.repo.tree
    bench.repo.commit("change\n", {"f": "$Id$ \n" + LINES.replace("line 4\n", "4 \n")})
    for options in ((), ("--no-full-index",)):
        workspace = bench.workspace(before)
        workspace.apply(bench.patch(*options))
        assert workspace.write_tree() == bench.repo.tree


CASES = {
    "in the middle": (b"a\nb\nc\n", b"@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n", b"a\nx\nc\n"),
    "no trailing context before the end": (
        b"a\nb\nc\n", b"@@ -1,2 +1,2 @@\n a\n-b\n+x\n", None,
    ),
    "no trailing context at the end": (
        b"a\nb\n", b"@@ -1,2 +1,2 @@\n a\n-b\n+x\n", b"a\nx\n",
    ),
    "wrong line number": (b"0\na\nb\nc\n", b"@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n", None),
    "wrong context": (b"a\nB\nc\n", b"@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n", None),
    "past the end": (b"a\n", b"@@ -9,3 +9,3 @@\n a\n-b\n+x\n c\n", None),
    "loses the last line feed": (
        b"a\nb\n", b"@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n",
        b"a\nb",
    ),
    "gains the last line feed": (
        b"a\nb", b"@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n",
        b"a\nb\n",
    ),
    "a last line without line feed is not a middle line": (
        b"a\nb\nc\n", b"@@ -1,2 +1,2 @@\n-a\n+x\n b\n\\ No newline at end of file\n",
        None,
    ),
    "new lines shift later hunks": (
        b"a\nb\nc\nd\ne\n",
        b"@@ -1,2 +1,3 @@\n+0\n a\n b\n@@ -4,2 +5,2 @@\n d\n-e\n+E\n",
        b"0\na\nb\nc\nd\nE\n",
    ),
    "a shift that does not add up": (
        b"a\nb\nc\nd\ne\n",
        b"@@ -1,2 +1,3 @@\n+0\n a\n b\n@@ -4,2 +4,2 @@\n d\n-e\n+E\n",
        None,
    ),
    "everything goes": (b"a\nb\n", b"@@ -1,2 +0,0 @@\n-a\n-b\n", b""),
    "everything goes but the file has more": (
        b"a\nb\nc\n", b"@@ -1,2 +0,0 @@\n-a\n-b\n", None,
    ),
    "everything comes": (b"", b"@@ -0,0 +1,2 @@\n+a\n+b\n", b"a\nb\n"),
    "everything comes but something is there": (
        b"z\n", b"@@ -0,0 +1,2 @@\n+a\n+b\n", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_apply_in_place(case: str) -> None:
    data, hunks, expected = CASES[case]
    (change,) = parse_diff(b"--- a/f\n+++ b/f\n" + hunks, name="p", first_line=1)
    result = apply_in_place(data, change.hunks)
    if expected is None:
        assert result is None
        return
    assert result is not None
    assert result[0] == expected
    # The edit is also told as a delta, which the pack writer uses as it is.
    assert apply_delta(data, encode_delta(len(data), len(expected), result[1])) == (
        expected
    )


def test_a_step_is_kept_only_where_it_is_asked_for(bench: Bench) -> None:
    bench.repo.commit("base\n", {"f": LINES})
    before = bench.repo.tree
    first = LINES.replace("line 20\n", "twenty\n")
    bench.repo.commit("one\n", {"f": first})
    one = bench.patch()
    bench.repo.commit("two\n", {"f": first + "more\n"})
    two = bench.patch()
    for every_step in (True, False):
        workspace = bench.workspace(before, every_step=every_step)
        workspace.apply(one)
        workspace.apply(two)
        workspace.write_tree()
        oid = object_id(BLOB, first.encode())
        assert (oid in workspace.writer) is every_step
        workspace.abort()
