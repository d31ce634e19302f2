# SPDX-License-Identifier: Apache-2.0
"""What an image is expected to contain: a git tree, and how to read its blobs."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stackctl.errors import InputError, UsageError
from stackctl.git.objects import COMMIT
from stackctl.git.store import Store
from stackctl.image.layers import blob_id

MODE_FILE = 0o100644
MODE_EXECUTABLE = 0o100755
MODE_SYMLINK = 0o120000
MODE_GITLINK = 0o160000

#: Paths of a tree with their git mode and blob id.
Entries = Mapping[bytes, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class ExpectedTree:
    """A tree that an image is compared with.

    Attributes:
        entries: Mode and git id of every tracked path.
        read: Returns the bytes of a blob by its id.
        label: What to call the tree: a composition, a tree id, a folder.
        removed: Returns the paths that its base has and it has not, if a base is known.
    """

    entries: Entries
    read: Callable[[bytes], bytes]
    label: str = ""
    removed: Callable[[], frozenset[bytes]] = frozenset
    _folders: dict[str, tuple[Entries, bytes]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def _folder(self, path: str) -> tuple[Entries, bytes]:
        """Return a folder's entries and id, worked out once."""
        if path not in self._folders:
            below: Entries = self.entries
            if path not in (".", ""):
                prefix = os.fsencode(path.strip("/")) + b"/"
                below = {
                    name[len(prefix) :]: value
                    for name, value in self.entries.items()
                    if name.startswith(prefix)
                }
            self._folders[path] = (below, tree_id(below))
        return self._folders[path]

    def subtree(self, path: str) -> Entries:
        """Return what is below a folder, by paths relative to it; `.` is everything."""
        return self._folder(path)[0]

    def subtree_id(self, path: str) -> bytes:
        """Return the git id of a folder."""
        return self._folder(path)[1]


def tree_id(entries: Entries) -> bytes:
    """Return the git id of the tree with these files.

    Args:
        entries: Mode and blob id by path; folders follow from the paths.
    """
    folders: dict[bytes, list[tuple[bytes, int, bytes]]] = {b"": []}
    for path, (mode, oid) in entries.items():
        folder, _, name = path.rpartition(b"/")
        folders.setdefault(folder, []).append((name, mode, oid))
        while folder and (parent := folder.rpartition(b"/")[0]) not in folders:
            folders[parent] = []
            folder = parent
    ids: dict[bytes, bytes] = {}
    for folder in sorted(folders, key=lambda f: (-f.count(b"/") - bool(f), f)):
        rows = folders[folder]
        # Git sorts a folder as if its name ended in a slash.
        rows.sort(key=lambda row: row[0] + (b"/" if row[1] == 0o40000 else b""))
        body = b"".join(b"%o %s\0%s" % (mode, name, oid) for name, mode, oid in rows)
        oid = hashlib.sha1(
            b"tree %d\0" % len(body) + body, usedforsecurity=False
        ).digest()
        ids[folder] = oid
        if folder:
            parent, _, name = folder.rpartition(b"/")
            folders[parent].append((name, 0o40000, oid))
    return ids[b""]


def folder_tree(path: Path) -> ExpectedTree:
    """Return a folder as an expected tree.

    The owner's executable bit decides the mode; symlinks stand for themselves; a `.git`
    at the top is left out, as git does.

    Raises:
        InputError: It is no folder, or holds something git cannot track.
    """
    if not path.is_dir():
        raise InputError(
            f"{path} is not a folder",
            kind="not-a-folder",
            hint="--expect wants the folder that the image must contain",
            where={"file": str(path)},
        )
    entries: dict[bytes, tuple[int, bytes]] = {}
    places: dict[bytes, Path] = {}
    for name, full in _files(path):
        info = full.lstat()
        if stat.S_ISLNK(info.st_mode):
            mode = MODE_SYMLINK
        elif stat.S_ISREG(info.st_mode):
            mode = MODE_EXECUTABLE if info.st_mode & stat.S_IXUSR else MODE_FILE
        else:
            raise InputError(
                f"{full} is neither a file nor a symlink",
                kind="untrackable",
                hint="remove it from the expected folder",
                where={"file": str(full)},
            )
        entries[name] = (mode, blob_id(_bytes_of(full)))
        places[entries[name][1]] = full
    return ExpectedTree(entries, lambda oid: _bytes_of(places[oid]), str(path))


def _bytes_of(path: Path) -> bytes:
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes()


def stored_tree(tree: str, repo: Path, label: str = "") -> ExpectedTree:
    """Return a tree of a git repository as an expected tree.

    Args:
        tree: Hex id of the tree, or of a commit, whose tree is meant.
        repo: The repository, bare or with a work tree.
        label: What to call it; the tree's id by default.

    Raises:
        UsageError: There is no such repository, or the id is none.
        PinError: The object is missing.
    """
    git_dir = repo / ".git" if (repo / ".git").is_dir() else repo
    if not (git_dir / "objects").is_dir():
        raise UsageError(
            f"{repo} is no git repository",
            hint="--repo wants a git folder",
            where={"file": str(repo)},
        )
    if not re.fullmatch("[0-9a-f]{40}", tree):
        raise UsageError(
            f"{tree!r} is no git id",
            hint="--tree wants the 40 hex digits that `git rev-parse REV^{tree}` gives",
        )
    return from_store(Store(git_dir), tree, label)


def from_store(
    store: Store, tree: str, label: str = "", base: str = ""
) -> ExpectedTree:
    """Return a tree of an object store as an expected tree.

    Args:
        store: Where the tree is.
        tree: Hex id of the tree, or of a commit, whose tree is meant.
        label: What to call it; the tree's id by default.
        base: Tree that it was composed from, in the same store, if that is known.

    Raises:
        PinError: The tree, or a part of it, is missing.
    """
    kind, _ = store.read_raw(bytes.fromhex(tree))
    if kind == COMMIT:
        tree = store.commit_tree(tree)
    entries = {path: (mode, oid) for path, mode, oid in store.walk(tree)}

    def removed() -> frozenset[bytes]:
        paths = {path for path, _, _ in store.walk(base)} if base else set()
        return frozenset(paths - entries.keys())

    return ExpectedTree(entries, store.blob, label or f"tree {tree}", removed)


def _files(top: Path) -> Iterator[tuple[bytes, Path]]:
    stack = [b""]
    while stack:
        folder = stack.pop()
        with os.scandir(top / os.fsdecode(folder)) as found:
            for item in found:
                name = os.fsencode(item.name)
                name = folder + b"/" + name if folder else name
                if name == b".git":
                    continue
                if item.is_dir(follow_symlinks=False):
                    stack.append(name)
                else:
                    yield name, Path(item.path)
