# SPDX-License-Identifier: Apache-2.0
"""A folder that holds one tree after another.

The first tree is written whole. Every later one costs a look at each file and the
writing of what differs: what the command left behind is removed (also files that git
would ignore, such as compiled Python), what it changed is written again.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stackctl.bisect.inotify import Touched
from stackctl.cache import disk_error
from stackctl.compose.materialise import check_path, write_file, write_tree
from stackctl.errors import InputError
from stackctl.git.changes import tree_changes
from stackctl.git.objects import BLOB, MODE_LINK, Entry, object_id
from stackctl.git.store import Store
from stackctl.model.ids import TreeId
from stackctl.progress import SILENT, Progress

_TICK = 50_000_000
"""Two writes within one tick of the kernel's clock leave the same change time: ns.

A tick is 1 to 10 ms; git calls such files racily clean.
"""


class _Seen(NamedTuple):
    """What the file system says of a file that we wrote."""

    inode: int
    changed: int
    size: int
    mode: int


def _seen(found: os.stat_result) -> _Seen:
    return _Seen(found.st_ino, found.st_ctime_ns, found.st_size, found.st_mode)


@dataclass(frozen=True, slots=True)
class Switched:
    """What it took to bring a folder to a tree.

    Attributes:
        first: Whether the whole tree was written.
        written: Files written.
        removed: Files of the tree before that were removed.
        leftovers: Files and folders that the command had left and that were removed.
        restored: Files of the tree that the command had changed or removed.
        ns: Time it took: ns.
    """

    first: bool
    written: int
    removed: int
    leftovers: int
    restored: int
    ns: int


class WorkFolder:
    """A folder for trees, one after another.

    Args:
        store: Holds the trees. Only this object may use it while it works.
        path: An empty folder that nobody else writes to, except commands while they
            are running.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self.path = path
        self.tree: TreeId | None = None
        self._store = store
        self._root = os.fsencode(path)
        self._entries: dict[bytes, Entry] = {}
        self._known: dict[bytes, _Seen] = {}
        # Files below each folder, at any depth; the root stays without any.
        self._folders: dict[bytes, int] = {b"": 0}
        self._new_folders: set[bytes] = set()
        self._new_files: set[bytes] = set()
        self._handed_over = 0
        self._touched: Touched | None = None

    def switch(self, tree: TreeId, progress: Progress = SILENT) -> Switched:
        """Make the folder hold exactly a tree.

        Args:
            tree: Hex id of the tree.
            progress: Told the files written, where the whole tree is.

        Returns:
            What was done.

        Raises:
            InputError: The disk is full, or the tree cannot be written here.
        """
        started = time.perf_counter_ns()
        first = self.tree is None
        try:
            if os.path.islink(self._root) or not os.path.isdir(self._root):
                self._start_again()
            if self.tree is None:
                counts = (self._write_all(tree, progress), 0, 0, 0)
            else:
                counts = self._change(tree)
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.tree = tree
        self._begin_to_watch()
        # Files that are as young as this may change without leaving a trace.
        self._handed_over = time.time_ns()
        return Switched(first, *counts, time.perf_counter_ns() - started)

    def close(self) -> None:
        """Let go of what the kernel holds for this folder."""
        if self._touched is not None:
            self._touched.close()
            self._touched = None

    def _begin_to_watch(self) -> None:
        """Have the kernel tell from now on what is touched."""
        try:
            if self._touched is None:
                self._touched = Touched(self._root)
                self._touched.watch(self._folders, self._known)
            else:
                self._touched.watch(self._new_folders, self._new_files)
                self._touched.forget()
        except OSError:
            # Then every file is looked at.
            self.close()
        self._new_folders.clear()
        self._new_files.clear()

    def _start_again(self) -> None:
        """Make the folder anew, where the command removed even that."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._root)
        os.mkdir(self._root, 0o755)
        os.chmod(self._root, 0o755)
        self.tree = None
        self.close()
        self._known.clear()
        self._folders = {b"": 0}

    def _write_all(self, tree: TreeId, progress: Progress) -> int:
        self._entries = {
            path: Entry(mode, oid) for path, mode, oid in self._store.walk(tree)
        }
        count = write_tree(self._store, tree, self.path, progress)
        for path in self._entries:
            self._count_in(path)
        for path in self._entries:
            self._note(path)
        return count

    def _change(self, tree: TreeId) -> tuple[int, int, int, int]:
        assert self.tree is not None
        leftovers, restore = self._look()
        for path in leftovers:
            remove(self._root + b"/" + path)
        changes = list(tree_changes(self._store, self.tree, tree))
        for path, before, _ in changes:
            if before is not None:
                self._drop(path)
        written = set(restore)
        for path, _, after in changes:
            if after is None:
                written.discard(path)
            else:
                check_path(path, after.mode)
                self._entries[path] = after
                self._count_in(path)
                written.add(path)
        for path in sorted(written):
            self._write(path)
        removed = sum(after is None for _, _, after in changes)
        return len(written), removed, len(leftovers), len(restore)

    def _look(self) -> tuple[list[bytes], list[bytes]]:
        """Return what does not belong here, and what is not as we wrote it."""
        touched = self._touched.names() if self._touched is not None else None
        if touched is None:
            self.close()
            return self._look_at_all()
        strange: list[bytes] = []
        changed: list[bytes] = []
        for path in sorted(touched):
            full = self._root + b"/" + path if path else self._root
            if path in self._folders:
                if not os.path.isdir(full) or os.path.islink(full):
                    # Gone without a word: then nothing else can be believed either.
                    self.close()
                    return self._look_at_all()
                if stat.S_IMODE(os.lstat(full).st_mode) != 0o755:
                    os.chmod(full, 0o755)
            elif path in self._known:
                changed.append(path)
            elif os.path.lexists(full):
                strange.append(path)
        return strange, [path for path in changed if self._is_changed(path)]

    def _is_changed(self, path: bytes) -> bool:
        try:
            now = _seen(os.lstat(self._root + b"/" + path))
        except FileNotFoundError:
            return True
        return now != self._known[path] or self._differs(path, now)

    def _look_at_all(self) -> tuple[list[bytes], list[bytes]]:
        """Return the same by a look at every file."""
        strange: list[bytes] = []
        changed: list[bytes] = []
        found = 0
        folders = [b""]
        missing = set(self._folders) - {b""}
        while folders:
            folder = folders.pop()
            prefix = folder + b"/" if folder else b""
            for entry in self._list(folder):
                path = prefix + entry.name
                known = self._known.get(path)
                if known is not None:
                    found += 1
                    now = _seen(entry.stat(follow_symlinks=False))
                    if now != known or self._differs(path, now):
                        changed.append(path)
                elif path in self._folders and entry.is_dir(follow_symlinks=False):
                    missing.discard(path)
                    folders.append(path)
                else:
                    strange.append(path)
        if missing or found != len(self._known):
            changed += [
                path
                for path in self._known
                if not os.path.lexists(self._root + b"/" + path)
            ]
        # A link in place of a folder would lead what is written here elsewhere; it is
        # strange and goes first, and with it all that stood below.
        gone = tuple(path + b"/" for path in missing)
        changed += [p for p in self._known if gone and p.startswith(gone)]
        return strange, sorted(set(changed))

    def _list(self, folder: bytes) -> Iterable["os.DirEntry[bytes]"]:
        path = self._root + b"/" + folder if folder else self._root
        if stat.S_IMODE(os.lstat(path).st_mode) != 0o755:
            os.chmod(path, 0o755)
        with os.scandir(path) as entries:
            return list(entries)

    def _differs(self, path: bytes, now: _Seen) -> bool:
        """Compare the bytes of a file too young for its times to tell."""
        if self._handed_over - now.changed > _TICK:
            return False
        entry = self._entries[path]
        full = self._root + b"/" + path
        if entry.mode == MODE_LINK:
            data = os.readlink(full)
        else:
            with open(full, "rb") as file:
                data = file.read()
        return object_id(BLOB, data) != entry.oid

    def _count_in(self, path: bytes) -> None:
        """Count a file in the folders above it."""
        while path:
            path = path.rpartition(b"/")[0]
            self._folders[path] = self._folders.get(path, 0) + 1

    def _drop(self, path: bytes) -> None:
        """Remove a file of the tree before, and the folders that it leaves empty."""
        if os.path.lexists(self._root + b"/" + path):
            remove(self._root + b"/" + path)
        del self._entries[path]
        self._known.pop(path, None)
        folder = path
        while folder:
            folder = folder.rpartition(b"/")[0]
            self._folders[folder] -= 1
            if folder and not self._folders[folder]:
                del self._folders[folder]
                self._new_folders.discard(folder)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(self._root + b"/" + folder)

    def _write(self, path: bytes) -> None:
        entry = self._entries[path]
        full = self._root + b"/" + path
        if os.path.lexists(full):
            remove(full)
        self._make_folders(path.rpartition(b"/")[0])
        write_file(self._root, path, entry.mode, self._store.blob(entry.oid))
        self._note(path)
        self._new_files.add(path)

    def _make_folders(self, folder: bytes) -> None:
        target = self._root + b"/" + folder if folder else self._root
        if os.path.isdir(target) and not os.path.islink(target):
            return
        self._make_folders(folder.rpartition(b"/")[0])
        os.mkdir(target, 0o700)
        os.chmod(target, 0o755)
        self._new_folders.add(folder)

    def _note(self, path: bytes) -> None:
        self._known[path] = _seen(os.lstat(self._root + b"/" + path))


def remove(path: bytes) -> None:
    """Remove a file, a link or a whole folder, whatever its permissions.

    Args:
        path: What to remove. A link is removed, not what it leads to.

    Raises:
        InputError: Something stays, such as a mount point.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return
    # A command may leave folders without permissions, as package caches do.
    os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            below = os.path.join(folder, name)
            if not os.path.islink(below):
                os.chmod(below, 0o700)
    try:
        shutil.rmtree(path)
    except OSError as error:
        shown = os.fsdecode(path)
        raise InputError(
            f"{shown}: what the command left cannot be removed: {error.strerror}",
            kind="cannot-remove",
            hint="end what still uses it, or unmount it, and run the search again",
            where={"file": shown},
        ) from error
