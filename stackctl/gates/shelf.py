# SPDX-License-Identifier: Apache-2.0
"""The folders of trees in a cache: held while they are used, and bounded in number.

A tree can always be written again, so what is not in use may go. Whoever uses a tree
holds a lock for it, shared with others; the lock dies with the process. Its file's time
says when the tree was last taken into use.
"""

import fcntl
import os
import re
import shutil
import threading
import weakref
from pathlib import Path
from typing import Final

from stackctl.fsutil import remove_folder

MOST: Final = 8
"""Trees that are kept; those that are in use are kept beyond it."""

_TREE: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REMAINS: Final = re.compile(rf"\.{_TREE.pattern}\.\d+\.old")


class Shelf:
    """The folders of trees in one cache.

    Args:
        folder: The cache's folder.
        most: Trees that are kept when one is written.
    """

    def __init__(self, folder: Path, most: int = MOST) -> None:
        self._trees = folder / "trees"
        self._locks = folder / "locks"
        self._most = most
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._held)

    def hold(self, tree: str) -> Path:
        """Return the folder of a tree, which nobody puts away while this object lives.

        It need not be there yet: held first and looked at then, it cannot go between.

        Args:
            tree: Hex id of the tree.
        """
        with self._lock:
            if tree not in self._held:
                self._locks.mkdir(parents=True, exist_ok=True)
                descriptor = _open(self._used(tree))
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                self._held[tree] = descriptor
            os.utime(self._held[tree])
        return self._trees / tree

    def trees(self) -> list[str]:
        """Return the hex ids of the trees that are there, the last used first."""
        found = filter(_TREE.fullmatch, self._names())
        return sorted(found, key=self._last_use, reverse=True)

    def put_away(self) -> list[str]:
        """Remove the trees that were not used for longest, and never one in use.

        Returns:
            Hex ids of the trees that went.
        """
        for name in filter(_REMAINS.fullmatch, self._names()):  # of who was killed
            shutil.rmtree(self._trees / name, ignore_errors=True)
        return [tree for tree in self.trees()[self._most :] if self._remove(tree)]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._trees)
        except FileNotFoundError:
            return []

    def _used(self, tree: str) -> Path:
        return self._locks / f"tree-used-{tree}"

    def _last_use(self, tree: str) -> int:
        for path in (self._used(tree), self._trees / tree):
            try:
                return path.stat().st_mtime_ns
            except OSError:
                continue
        return 0

    def _remove(self, tree: str) -> bool:
        """Remove a tree unless somebody uses it."""
        self._locks.mkdir(parents=True, exist_ok=True)
        descriptor = _open(self._used(tree))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(self._trees / tree)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _close(held: dict[str, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)
    held.clear()
