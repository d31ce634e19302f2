# SPDX-License-Identifier: Apache-2.0
"""A folder on this machine as a view: an unpacked root or an installed environment.

Folders are opened one below the other without following links, so a folder that changes
while it is read cannot lead the reader out of it. Only files under the roots are read.
"""

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from stackctl.image.errors import ImageFormatError, LimitError
from stackctl.image.layers import blob_id
from stackctl.image.limits import MIB, Limits
from stackctl.image.view import Node, View, show

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Folders at the top that the kernel makes up, where it has them mounted.
_KERNEL = (b"dev", b"proc", b"sys")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Folder:
    """A folder that is read as the root of an image.

    Args:
        path: The folder.
        limits: Its `entries` bound the number of files.
        prefix: Where the folder stands in the view; the root if empty.
    """

    def __init__(self, path: Path, limits: Limits, prefix: bytes = b"") -> None:
        self._path = path
        self._limits = limits
        self._prefix = prefix
        self._count = 0
        if not path.is_dir():
            raise ImageFormatError(
                f"{path} is not a folder",
                kind="not-a-folder",
                hint="expected the root of an unpacked image",
                where={"file": str(path)},
            )

    def view(self) -> View:
        """Return the tree of names; contents are hashed by `hash_files`."""
        view = View()
        node = view.root
        for part in self._prefix.split(b"/"):
            if part:
                assert node.children is not None
                child = node.children[part] = Node("d")
                node = child
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fill(node, descriptor)
        finally:
            os.close(descriptor)
        return view

    def _fill(self, top: Node, top_fd: int) -> None:
        # Depth is bounded by PATH_MAX for real trees; a stack keeps it off Python's.
        stack: list[tuple[Node, list[bytes]]] = [(top, [])]
        while stack:
            node, parts = stack.pop()
            descriptor = _open_below(top_fd, parts)
            if descriptor is None:
                # What cannot be looked into could hide anything.
                raise self._unreadable(parts)
            try:
                names = os.listdir(descriptor)
                for text in names:
                    name = os.fsencode(text)
                    self._count += 1
                    if self._count > self._limits.entries:
                        raise LimitError(
                            f"{self._path} has over {self._limits.entries} files",
                            kind="limit-entries",
                            hint="raise the limit with --max-entries",
                        )
                    child = _node(descriptor, name)
                    if child is None:
                        continue
                    assert node.children is not None
                    node.children[name] = child
                    if child.kind == "d" and not (
                        not parts and name in _KERNEL and _is_mounted(descriptor, name)
                    ):
                        stack.append((child, [*parts, name]))
            finally:
                os.close(descriptor)

    def hash_files(
        self, view: View, roots: Iterable[bytes], *, sha256: bool = False
    ) -> None:
        """Hash every file below some folders of the view.

        Args:
            view: The view that `view` returned.
            roots: Resolved paths in the view.
            sha256: Hash files with SHA-256 too.
        """
        done: set[int] = set()
        for root in roots:
            found = view.lookup(root, follow=False)
            if found.node is None:
                continue
            items = [(root, found.node)]
            if found.node.kind == "d":
                items = list(view.walk(found.node, root))
            for path, node in items:
                if node.kind == "f" and id(node) not in done:
                    done.add(id(node))
                    self._hash(path, node, sha256)

    def read(self, path: bytes) -> bytes:
        """Return the content of one file of the view, at most what is kept of any."""
        parts = self._inner(path)
        with os.fdopen(self._open(parts), "rb", buffering=0) as stream:
            return stream.read(self._limits.kept)

    def keeps(self, size: int) -> bool:
        """Whether `read` gives the whole of a file of some size in bytes."""
        return size <= self._limits.kept

    def _inner(self, path: bytes) -> list[bytes]:
        inner = path
        if self._prefix:
            inner = path.removeprefix(self._prefix).lstrip(b"/")
        return [part for part in inner.split(b"/") if part]

    def _open(self, parts: list[bytes]) -> int:
        top = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folder = _open_below(top, parts[:-1])
            if folder is not None:
                try:
                    descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        return descriptor
                    os.close(descriptor)
                except OSError:
                    pass
                finally:
                    os.close(folder)
        finally:
            os.close(top)
        raise self._unreadable(parts)

    def _unreadable(self, parts: list[bytes]) -> ImageFormatError:
        return ImageFormatError(
            f"{self._path}: {show(b'/'.join(parts))} cannot be read",
            kind="unreadable",
            hint="run as a user who may read every file, while nothing changes them",
            where={"file": show(b"/".join(parts))},
        )

    def _hash(self, path: bytes, node: Node, every: bool) -> None:
        with os.fdopen(self._open(self._inner(path)), "rb", buffering=0) as stream:
            info = os.fstat(stream.fileno())
            sha1 = hashlib.sha1(b"blob %d\0" % info.st_size, usedforsecurity=False)
            sha256 = hashlib.sha256() if every else None
            total = 0
            while chunk := stream.read(MIB):
                if not total:
                    node.head = chunk[:16]
                total += len(chunk)
                sha1.update(chunk)
                if sha256 is not None:
                    sha256.update(chunk)
            if total != info.st_size:
                raise ImageFormatError(
                    f"{show(path)} changed while it was read",
                    kind="unreadable",
                    hint="verify a folder that nothing changes",
                    where={"file": show(path)},
                )
        node.size = total
        node.oid = sha1.digest()
        node.sha256 = sha256.digest() if sha256 is not None else None


def _open_below(top: int, parts: list[bytes]) -> int | None:
    current = os.dup(top)
    for part in parts:
        try:
            following = os.open(part, _DIRECTORY, dir_fd=current)
        except OSError:
            return None
        finally:
            os.close(current)
        current = following
    return current


def _is_mounted(folder: int, name: bytes) -> bool:
    """Whether a folder's entry is on another file system than the folder."""
    there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return there.st_dev != os.fstat(folder).st_dev


def _node(folder: int, name: bytes) -> Node | None:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}.get(
            stat.S_IFMT(info.st_mode), "o"
        )
        node = Node(kind, 0, stat.S_IMODE(info.st_mode))
        node.size = info.st_size
        node.mtime = int(info.st_mtime // 1)
        if kind == "l":
            node.link = os.fsencode(os.readlink(name, dir_fd=folder))
            node.oid = blob_id(node.link)
    except FileNotFoundError:
        return None
    return node
