# SPDX-License-Identifier: Apache-2.0
"""The tree editor against git's index: any sequence of edits gives the same tree."""

import random

import pytest
from support import git

from stackctl.errors import InputError
from stackctl.git.objects import (
    BLOB,
    MODE_EXEC,
    MODE_FILE,
    MODE_LINK,
    MODE_TREE,
    Entry,
    index_tree,
)
from stackctl.git.store import Store
from stackctl.git.tree import TreeEditor

NAMES = (b"a", b"a.b", b"a-b", b"a0", b"b", b"\xff", b"Z", b"z", b"ab")


def empty(store: Store) -> str:
    writer = store.writer()
    tree = writer.add(2, b"").hex()
    writer.finish()
    store.refresh()
    return tree


def tree_by_git(store: Store, files: dict[bytes, tuple[int, bytes]]) -> str:
    lines = b"".join(
        b"%o %s\t%s\0" % (mode, oid.hex().encode(), path)
        for path, (mode, oid) in files.items()
    )
    index = store.git_dir / "index"
    index.unlink(missing_ok=True)
    env = {"GIT_INDEX_FILE": str(index), "GIT_DIR": str(store.git_dir)}
    git("update-index", "-z", "--index-info", stdin=lines, env=env)
    return git("write-tree", env=env).decode().strip()


def conflicts(path: bytes, files: dict[bytes, tuple[int, bytes]]) -> bool:
    parts = path.split(b"/")
    parents = {b"/".join(parts[:n]) for n in range(1, len(parts))}
    return bool(parents & files.keys()) or any(
        other.startswith(path + b"/") for other in files
    )


@pytest.mark.parametrize("seed", range(12))
def test_edits_give_the_tree_that_git_gives(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    writer = store.writer()
    blobs = [writer.add(BLOB, b"%d" % n) for n in range(20)]
    writer.finish()
    editor = TreeEditor(store, empty(store))
    writer = store.writer()
    files: dict[bytes, tuple[int, bytes]] = {}
    trees = []
    for _ in range(150):
        if files and rng.random() < 0.35:
            path = rng.choice(sorted(files))
            editor.delete(path)
            del files[path]
        else:
            path = b"/".join(rng.choice(NAMES) for _ in range(rng.randint(1, 4)))
            entry = (
                rng.choice((MODE_FILE, MODE_EXEC, MODE_LINK)), rng.choice(blobs),
            )  # fmt: skip
            if conflicts(path, files):
                with pytest.raises(InputError):
                    editor.put(path, *entry)
                continue
            editor.put(path, *entry)
            files[path] = entry
        if rng.random() < 0.3:
            trees.append((editor.write(writer), dict(files)))
    trees.append((editor.write(writer), dict(files)))
    writer.finish()
    for tree, content in trees:
        assert tree == tree_by_git(store, content)
    for path, entry in files.items():
        assert editor.get(path) == entry
    git("--git-dir", str(store.git_dir), "fsck", "--strict", "--no-dangling")


def test_writing_twice_writes_nothing_new(store: Store) -> None:
    writer = store.writer()
    oid = writer.add(BLOB, b"x")
    editor = TreeEditor(store, empty(store))
    editor.put(b"d/f", MODE_FILE, oid)
    first = editor.write(writer)
    count = len(writer)
    assert editor.write(writer) == first
    assert len(writer) == count
    writer.abort()


def test_deleting_the_last_file_removes_its_folders(store: Store) -> None:
    writer = store.writer()
    oid = writer.add(BLOB, b"x")
    start = empty(store)
    editor = TreeEditor(store, start)
    editor.put(b"a/b/c/d", MODE_FILE, oid)
    editor.put(b"a/e", MODE_FILE, oid)
    editor.delete(b"a/b/c/d")
    assert editor.get(b"a/b") is None
    editor.put(b"a/b", MODE_FILE, oid)
    editor.delete(b"a/b")
    editor.delete(b"a/e")
    assert editor.write(writer) == start
    writer.abort()


def test_what_is_in_the_way_is_named(store: Store) -> None:
    writer = store.writer()
    oid = writer.add(BLOB, b"x")
    writer.abort()
    editor = TreeEditor(store, empty(store))
    editor.put(b"a/b", MODE_FILE, oid)
    assert editor.blocking(b"a/b/c/d") == b"a/b"
    assert editor.blocking(b"a/c") is None
    assert editor.blocking(b"x/y") is None
    with pytest.raises(InputError, match="parent folder of a/b/c"):
        editor.put(b"a/b/c", MODE_FILE, oid)
    with pytest.raises(InputError, match="a is a folder"):
        editor.put(b"a", MODE_FILE, oid)
    entry = editor.get(b"a")
    assert entry is not None
    assert entry.mode == MODE_TREE
    for path in (b"a", b"a/x", b"x/y"):
        with pytest.raises(KeyError):
            editor.delete(path)


def test_first_file_looks_past_the_named_ones(store: Store) -> None:
    writer = store.writer()
    oid = writer.add(BLOB, b"x")
    writer.abort()
    editor = TreeEditor(store, empty(store))
    for path in (b"d/a", b"d/b/c", b"d/z"):
        editor.put(path, MODE_FILE, oid)
    assert editor.first_file(b"d") == (b"d/a", (MODE_FILE, oid))
    assert editor.first_file(b"d", {b"d/a", b"d/b/c"}) == (b"d/z", (MODE_FILE, oid))
    assert editor.first_file(b"d", {b"d/a", b"d/b/c", b"d/z"}) is None
    assert editor.first_file(b"d/a") is None
    assert editor.first_file(b"none") is None


def test_a_folder_is_read_once_however_many_files_come_and_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch may bring thousands of files into one folder."""
    writer = store.writer()
    blob = writer.add(BLOB, b"x")
    writer.finish()
    editor = TreeEditor(store, empty(store))
    calls = []

    def counted(raw: bytes) -> dict[bytes, tuple[int, int]]:
        calls.append(len(raw))
        return index_tree(raw)

    monkeypatch.setattr("stackctl.git.tree.index_tree", counted)
    names = [b"d/%03d" % (n * 7 % 500) for n in range(500)]
    writer = store.writer()
    for name in names:
        editor.put(name, MODE_FILE, blob)
    editor.write(writer)
    for name in names[:200]:
        editor.delete(name)
    editor.put(names[0], MODE_EXEC, blob)
    tree = editor.write(writer)
    writer.finish()
    files = dict.fromkeys(names[200:], (MODE_FILE, blob))
    files[names[0]] = (MODE_EXEC, blob)
    assert tree == tree_by_git(store, files)
    assert len(calls) < 10


def test_files_that_come_between_writes_are_seen_at_once(store: Store) -> None:
    writer = store.writer()
    blob = writer.add(BLOB, b"x")
    writer.finish()
    editor = TreeEditor(store, empty(store))
    editor.put(b"d/a", MODE_FILE, blob)
    editor.put(b"d/b/c", MODE_FILE, blob)
    editor.delete(b"d/a")
    assert editor.get(b"d/a") is None
    assert editor.first_file(b"d") == (b"d/b/c", Entry(MODE_FILE, blob))
    editor.put(b"d/a", MODE_LINK, blob)
    assert editor.get(b"d/a") == Entry(MODE_LINK, blob)
    editor.delete(b"d/b/c")
    assert editor.get(b"d/b") is None
    editor.delete(b"d/a")
    assert editor.get(b"d") is None
    writer = store.writer()
    assert editor.write(writer) == empty(store)
    writer.abort()
