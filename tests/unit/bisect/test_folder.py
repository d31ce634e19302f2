# SPDX-License-Identifier: Apache-2.0
"""One folder, many trees: it holds exactly the last one, whatever a command did."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Repo, files_below

from stackctl.bisect.folder import WorkFolder
from stackctl.compose.materialise import materialise
from stackctl.errors import InputError
from stackctl.git.store import Store
from stackctl.model.ids import TreeId

FILES: dict[str, bytes | str | None] = {
    "a": "1\n", "d/b": "2\n", "d/e/f": "3\n", "run": "#!/bin/sh\n", "l": "-> d/b",
    "out": "-> /etc", ".gitignore": "*.pyc\n", "d/same": "0123456789",
}  # fmt: skip


class Trees:
    """A repository with a few trees, and a folder that goes through them."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repo(folder / "repo")
        self.store = Store(self.repo.path / ".git")
        self.path = folder / "work"
        self.path.mkdir()
        self.work = WorkFolder(self.store, self.path)
        self.folder = folder

    def commit(self, files: dict[str, bytes | str | None]) -> TreeId:
        self.repo.commit("x\n", files)
        return TreeId(self.repo.tree)

    def only(self, files: Mapping[str, bytes | str | None]) -> TreeId:
        """Commit these files and no others."""
        for each in self.repo.path.iterdir():
            if each.is_symlink() or each.is_file():
                each.unlink()
            elif each.name != ".git":
                shutil.rmtree(each)
        return self.commit(dict(files))

    def expected(self, tree: TreeId) -> dict[str, tuple[int, bytes]]:
        target = self.folder / f"expected-{tree}"
        if not target.exists():
            materialise(self.store, tree, target)
        return files_below(target)

    def check(self, tree: TreeId) -> None:
        assert files_below(self.path) == self.expected(tree)
        folders = [p for p in self.path.rglob("*") if p.is_dir() and not p.is_symlink()]
        assert all(p.stat().st_mode & 0o777 == 0o755 for p in folders)
        assert all(any(p.iterdir()) for p in folders), "no empty folder stays"


@pytest.fixture(params=["told by the kernel", "by looking"])
def trees(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Trees]:
    if request.param == "by looking":

        def none(_root: bytes) -> None:
            raise OSError("no watches")

        monkeypatch.setattr("stackctl.bisect.folder.Touched", none)
    made = Trees(tmp_path)
    yield made
    made.work.close()


def test_only_what_differs_is_written(trees: Trees) -> None:
    one = trees.commit(FILES)
    two = trees.commit({"d/b": "two\n", "new/deep/file": "n\n", "a": None})
    first = trees.work.switch(one)
    assert (first.first, first.written) == (True, len(FILES))
    before = (trees.path / "run").stat()
    second = trees.work.switch(two)
    assert (second.first, second.written, second.removed) == (False, 2, 1)
    assert (second.leftovers, second.restored) == (0, 0)
    trees.check(two)
    assert (trees.path / "run").stat() == before
    back = trees.work.switch(one)
    assert (back.written, back.removed) == (2, 1)
    trees.check(one)
    assert not (trees.path / "new").exists()


def test_what_a_command_left_and_changed_is_undone(trees: Trees) -> None:
    one = trees.commit(FILES)
    trees.work.switch(one)
    path = trees.path
    outside = trees.folder / "outside"
    outside.mkdir()
    (outside / "mine").write_text("keep")
    (path / "d/__pycache__").mkdir()
    (path / "d/__pycache__/b.pyc").write_bytes(b"ignored by git")
    (path / "locked").mkdir()
    (path / "locked/file").write_text("x")
    (path / "locked").chmod(0)
    (path / "to-outside").symlink_to(outside)
    (path / "a").write_text("9\n")
    (path / "run").chmod(0o755)
    (path / "l").unlink()
    (path / "l").mkdir()
    (path / "l/x").write_text("a folder now")
    shutil.rmtree(path / "d/e")
    (path / "d/e").symlink_to(outside)
    (outside / "f").write_text("3\n")
    (path / "d").chmod(0o700)
    done = trees.work.switch(one)
    trees.check(one)
    assert done.leftovers == 4
    assert done.restored == 4
    assert sorted(os.listdir(outside)) == ["f", "mine"]
    assert trees.work.switch(one).written == 0


def test_a_change_of_the_same_size_at_the_same_moment_is_seen(trees: Trees) -> None:
    one = trees.commit(FILES)
    trees.work.switch(one)
    path = trees.path / "d/same"
    before = path.stat()
    # What a command could do within one tick of the clock, in the inode we wrote.
    with path.open("r+b") as file:
        file.write(b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    known = trees.work._known[b"d/same"]
    now = path.lstat()
    trees.work._known[b"d/same"] = known._replace(changed=now.st_ctime_ns)
    assert trees.work.switch(one).restored == 1
    trees.check(one)


def test_a_folder_that_the_command_removed_is_made_again(trees: Trees) -> None:
    one = trees.commit(FILES)
    trees.work.switch(one)
    shutil.rmtree(trees.path)
    assert trees.work.switch(one).first is False
    trees.check(one)
    shutil.rmtree(trees.path)
    trees.path.symlink_to(trees.folder)
    trees.work.switch(one)
    trees.check(one)


def test_moved_folders_and_hard_links_are_seen(trees: Trees) -> None:
    one = trees.commit(FILES)
    trees.work.switch(one)
    path = trees.path
    (path / "d").rename(path / "elsewhere")
    (path / "elsewhere").rename(path / "d")
    assert trees.work.switch(one).written == 0
    # Another folder in its place, of which no watch would tell.
    (path / "d").rename(path / "elsewhere")
    (path / "d").mkdir()
    (path / "d/b").write_text("2\n")
    done = trees.work.switch(one)
    assert done.leftovers == 1
    trees.check(one)
    (path / "d/e/f").write_text("again\n")
    trees.work.switch(one)
    trees.check(one)
    # Written through a name outside of the folder.
    os.link(path / "d/same", trees.folder / "other-name")
    (trees.folder / "other-name").write_text("9876543210")
    trees.work.switch(one)
    trees.check(one)
    (trees.folder / "other-name").write_text("9876543210")
    assert trees.work.switch(one).written == 0
    trees.check(one)


def test_a_burst_of_changes_is_not_lost(trees: Trees) -> None:
    one = trees.commit(FILES)
    trees.work.switch(one)
    # More than the kernel keeps: 16,384 events by default.
    for number in range(6000):
        (trees.path / "d" / f"left-{number % 50}").write_text(str(number))
    (trees.path / "a").write_text("changed\n")
    done = trees.work.switch(one)
    assert (done.leftovers, done.restored) == (50, 1)
    trees.check(one)


def test_files_become_folders_and_back(trees: Trees) -> None:
    one = trees.commit({"x": "file\n", "y/z": "deep\n", "w": "-> y"})
    two = trees.only({})
    three = trees.only({"x/a": "1\n", "y": "file now\n", "w/v/u": "2\n"})
    for tree in (one, three, two, three, one, two, one):
        trees.work.switch(tree)
        trees.check(tree)


def test_what_cannot_be_written_is_refused(trees: Trees) -> None:
    one = trees.commit(FILES)
    trees.work.switch(one)
    blob = trees.repo.git("rev-parse", "HEAD:a")
    line = f"100644 blob {blob}\t.git\n".encode()
    bad = trees.repo.git("mktree", stdin=line)
    with pytest.raises(InputError, match="cannot be written"):
        trees.work.switch(TreeId(bad))


_NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "c/d/e", "c/d", "c", "e/a", "e/b"])
_TREE = st.dictionaries(_NAMES, st.sampled_from(["1", "2", "-> a"]), max_size=6)


def _possible(files: dict[str, str]) -> dict[str, str]:
    return {
        name: data
        for name, data in files.items()
        if not any(other.startswith(name + "/") for other in files)
    }


@given(rows=st.lists(st.tuples(_TREE, _TREE), min_size=1, max_size=5))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_follows_any_other(
    rows: list[tuple[dict[str, str], dict[str, str]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    trees = Trees(tmp_path_factory.mktemp("trees"))
    for files, mess in rows:
        tree = trees.only(_possible(files))
        trees.work.switch(tree)
        trees.check(tree)
        for name, data in _possible(mess).items():
            path = trees.path / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(data)
            except OSError:
                continue
    trees.work.close()
