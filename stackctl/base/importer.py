# SPDX-License-Identifier: Apache-2.0
"""Files on their way into the object store: hashed and packed in threads, then written.

`git add` of the vLLM base costs 4 s, most of it compression and a process that looks at
every file again. Here every file's bytes pass once: SHA-1 and SHA-256 and a fast
compression run outside the interpreter lock while the next files are being read.
Nothing is visible in the store before `finish`.
"""

import os
import zlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha1, sha256

from stackctl.base.limits import LIMITS, MIB, Limits
from stackctl.base.names import component_problem, shown
from stackctl.cache import Cache
from stackctl.errors import InputError
from stackctl.git.objects import (
    BLOB,
    COMMIT,
    MODE_EXEC,
    MODE_FILE,
    MODE_LINK,
    MODE_TREE,
    TREE,
    Entry,
    encode_commit,
    encode_tree,
    object_id,
)
from stackctl.git.packs import deflate
from stackctl.model.ids import CommitId, TreeId
from stackctl.progress import SILENT, Progress

_BATCH_BYTES = MIB // 2
_BATCH_FILES = 64
_IN_FLIGHT_BYTES = 48 * MIB
STREAM_FROM = 16 * MIB
"""Files from this size on are hashed and packed piece by piece, never held whole."""

IDENTITY = b"stackctl <stackctl@localhost> 0 +0000"

Packed = tuple[bytes, bytes, int, bytes]


def _pack(datas: list[bytes]) -> list[Packed]:
    return [
        (object_id(BLOB, data), sha256(data).digest(), len(data), deflate(data))
        for data in datas
    ]


@dataclass(slots=True, eq=False)
class Leaf:
    """A file or link of the tree being built.

    Attributes:
        mode: Git's mode.
        oid: Raw id of its blob; empty until its bytes were hashed.
        target: What a link points to, None for files.
    """

    mode: int
    oid: bytes = b""
    target: bytes | None = None


Folder = dict[bytes, "Leaf | Folder"]


class Importer:
    """Builds one tree in the store.

    Use it as a context manager: leaving it without `finish` forgets everything.

    Args:
        cache: The cache whose store takes the objects.
        limits: Bounds.
        progress: Told how many files are done.
        kind: Kind of the errors about entries.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        limits: Limits = LIMITS,
        progress: Progress = SILENT,
        kind: str = "archive-refused",
    ) -> None:
        self.root: Folder = {}
        self.files = 0
        self._last_path: tuple[bytes, ...] = ()
        self._last_folder = self.root
        self._entries = 0
        self._links: list[tuple[tuple[bytes, ...], Leaf]] = []
        self._cache = cache
        self._limits = limits
        self._progress = progress
        self._kind = kind
        self._store = cache.store
        self._store.refresh()
        self._writer = self._store.writer()
        self._digests: dict[bytes, bytes] = {}
        self._pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "stackctl-import")
        self._pending: deque[tuple[Future[list[Packed]], list[Leaf], int]] = deque()
        self._in_flight = 0
        self._batch: list[bytes] = []
        self._batch_leaves: list[Leaf] = []
        self._batch_bytes = 0

    def __enter__(self) -> "Importer":
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._writer.abort()

    def refuse(self, parts: tuple[bytes, ...], problem: str) -> InputError:
        """Return the error about an entry."""
        text = shown(b"/".join(parts))
        return InputError(
            f"entry {text!r} {problem}",
            kind=self._kind,
            hint="a tree holds files and links, each at one safe path: take the entry "
            "out of the base, or pin another base",
            where={"entry": text},
        )

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.entries:
            raise InputError(
                f"there are more than {self._limits.entries:,} entries",
                kind="limit",
            )

    def folder(self, parts: tuple[bytes, ...], entry: tuple[bytes, ...]) -> Folder:
        """Return the folder at a path, made where it is missing.

        Args:
            parts: The path.
            entry: The entry that needs it, for messages.

        Raises:
            InputError: A component is a file or a link, or may not be in a tree.
        """
        if parts == self._last_path:
            return self._last_folder
        folder = self.root
        for depth, part in enumerate(parts):
            below = folder.get(part)
            if below is None:
                problem = component_problem(part)
                if problem is not None:
                    raise self.refuse(entry, problem)
                below = folder[part] = {}
            elif isinstance(below, Leaf):
                what = "a file" if below.target is None else "a symbolic link"
                raise self.refuse(
                    entry,
                    f"lies below {shown(b'/'.join(parts[: depth + 1]))!r}, "
                    f"which is {what}",
                )
            folder = below
        self._last_path, self._last_folder = parts, folder
        return folder

    def add_folder(self, parts: tuple[bytes, ...]) -> None:
        """Take note of a folder. Empty ones are no part of a git tree."""
        self._count()
        self.folder(parts, parts)

    def _place(self, parts: tuple[bytes, ...], leaf: Leaf) -> None:
        self._count()
        folder = self.folder(parts[:-1], parts)
        name = parts[-1]
        if name in folder:
            raise self.refuse(parts, "is there twice")
        problem = component_problem(name, link=leaf.target is not None)
        if problem is not None:
            raise self.refuse(parts, problem)
        folder[name] = leaf
        self.files += 1
        if not self.files & 255:
            self._progress.update("import", self.files, None)

    def add_file(self, parts: tuple[bytes, ...], executable: bool, data: bytes) -> None:
        """Add a file by its bytes."""
        leaf = Leaf(MODE_EXEC if executable else MODE_FILE)
        self._place(parts, leaf)
        self._submit(leaf, data)

    def add_stream(
        self,
        parts: tuple[bytes, ...],
        executable: bool,
        size: int,
        pieces: Iterable[bytes],
    ) -> None:
        """Add a large file piece by piece.

        Args:
            parts: Its path.
            executable: Whether the owner may execute it.
            size: Its size in bytes, which git hashes first.
            pieces: Its bytes; as many as `size` says.

        Raises:
            InputError: There were more or fewer bytes.
        """
        leaf = Leaf(MODE_EXEC if executable else MODE_FILE)
        self._place(parts, leaf)
        # zlib stores what does not compress; a pack reader relies on that bound.
        packer = zlib.compressobj(1)
        inner = sha1(b"blob %d\0" % size, usedforsecurity=False)
        outer = sha256()
        packed = []
        done = 0
        for piece in pieces:
            done += len(piece)
            inner.update(piece)
            outer.update(piece)
            packed.append(packer.compress(piece))
        if done != size:
            raise self.refuse(parts, f"has {done} bytes where {size} were announced")
        packed.append(packer.flush())
        leaf.oid = inner.digest()
        self._digests[leaf.oid] = outer.digest()
        if not self._store.knows(leaf.oid):
            self._writer.add_packed(BLOB, size, b"".join(packed), leaf.oid)

    def add_link(self, parts: tuple[bytes, ...], target: bytes) -> None:
        """Add a symbolic link."""
        problem = None
        if not target:
            problem = "is a symbolic link to nothing"
        elif b"\0" in target or len(target) > 4095:
            problem = "is a symbolic link whose target no file system can hold"
        if problem is not None:
            raise self.refuse(parts, problem)
        leaf = Leaf(MODE_LINK, target=target)
        self._place(parts, leaf)
        self._links.append((parts, leaf))
        self._submit(leaf, target)

    def add_hard_link(
        self, parts: tuple[bytes, ...], target: tuple[bytes, ...]
    ) -> None:
        """Add a second name of a file that was added before."""
        found: Leaf | Folder | None = self.root
        for part in target:
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, Leaf):
            raise self.refuse(
                parts,
                f"is a hard link to {shown(b'/'.join(target))!r}, which is no earlier "
                "file of the archive",
            )
        self._place(parts, found)
        if found.target is not None:
            self._links.append((parts, found))

    def _submit(self, leaf: Leaf, data: bytes) -> None:
        self._batch.append(data)
        self._batch_leaves.append(leaf)
        self._batch_bytes += len(data)
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_FILES:
            self._send()

    def _send(self) -> None:
        if not self._batch:
            return
        future = self._pool.submit(_pack, self._batch)
        self._pending.append((future, self._batch_leaves, self._batch_bytes))
        self._in_flight += self._batch_bytes
        self._batch, self._batch_leaves, self._batch_bytes = [], [], 0
        while self._pending and (
            self._in_flight > _IN_FLIGHT_BYTES or self._pending[0][0].done()
        ):
            self._collect()

    def _collect(self) -> None:
        future, leaves, size = self._pending.popleft()
        self._in_flight -= size
        for leaf, (oid, digest, length, packed) in zip(
            leaves, future.result(), strict=True
        ):
            leaf.oid = oid
            self._digests[oid] = digest
            if not self._store.knows(oid):
                self._writer.add_packed(BLOB, length, packed, oid)

    def refuse_links_out(self) -> None:
        """Refuse symbolic links that lead out of the tree, through other links too.

        Raises:
            InputError: One does.
        """
        for parts, leaf in self._links:
            if self._leads_out(parts, leaf):
                raise self.refuse(
                    parts,
                    f"is a symbolic link to {shown(leaf.target or b'')!r}, which leads "
                    "out of the archive",
                )

    def _leads_out(self, parts: tuple[bytes, ...], leaf: Leaf) -> bool:
        # Places are None where nothing is: a path there is judged by its words alone.
        places: list[Folder | None] = [self.root]
        for part in parts[:-1]:
            above = places[-1]
            below = above[part] if above is not None else None
            places.append(below if isinstance(below, dict) else None)
        todo = [leaf.target or b""]
        queue: deque[bytes] = deque()
        hops = 0
        while todo or queue:
            if todo:
                target = todo.pop()
                if target.startswith(b"/"):
                    return True
                queue.extendleft(reversed(target.split(b"/")))
                hops += 1
                # Linux follows 40 links, then gives up; so a loop leads nowhere.
                if hops > 40:
                    return False
                continue
            part = queue.popleft()
            if part in (b"", b"."):
                continue
            if part == b"..":
                places.pop()
                if not places:
                    return True
                continue
            here = places[-1]
            below = here.get(part) if here is not None else None
            if isinstance(below, Leaf) and below.target is not None:
                todo.append(below.target)
            else:
                places.append(below if isinstance(below, dict) else None)
        return False

    def finish(self) -> tuple[TreeId, CommitId]:
        """Publish the tree and its base commit, and what SHA-256 its files have.

        Returns:
            The tree, and a parentless commit of it.

        Raises:
            InputError: There is no file at all.
        """
        if not self.files:
            raise InputError("there are no files in it", kind=self._kind)
        self._send()
        while self._pending:
            self._collect()
        tree = TreeId((self._write(self.root) or b"").hex())
        raw = base_commit(tree)
        oid = object_id(COMMIT, raw)
        if not self._store.knows(oid):
            self._writer.add(COMMIT, raw, oid)
        commit = CommitId(oid.hex())
        self._writer.finish()
        self._cache.put("sha256", self._digests)
        self._progress.update("import", self.files, self.files)
        return tree, commit

    def _write(self, folder: Folder) -> bytes | None:
        entries = {}
        for name, below in folder.items():
            if isinstance(below, Leaf):
                entries[name] = Entry(below.mode, below.oid)
            else:
                oid = self._write(below)
                if oid is not None:
                    entries[name] = Entry(MODE_TREE, oid)
        if not entries:
            return None
        raw = encode_tree(entries)
        oid = object_id(TREE, raw)
        # A folder that was imported before, and a little edited since, adds little.
        return oid if self._store.knows(oid) else self._writer.add(TREE, raw, oid)


def base_commit(tree: TreeId) -> bytes:
    """Return the content of the commit that stands for a base without history."""
    return encode_commit(tree, (), IDENTITY, IDENTITY, b"base " + tree.encode() + b"\n")
