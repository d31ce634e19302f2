# SPDX-License-Identifier: Apache-2.0
"""The shared object store: one bare repository that git and this process both read.

Reading an object here costs no process. Whatever real git writes into the store
(merges, fallback applications, fetches) is found as well: loose objects and packs are
looked up again when an id is not known yet.
"""

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stackctl.errors import PinError
from stackctl.git.command import HermeticGit
from stackctl.git.objects import (
    BLOB,
    COMMIT,
    KIND_NAMES,
    KIND_NUMBERS,
    MODE_TREE,
    TREE,
    commit_tree_of,
    iterate_tree,
    object_id,
)
from stackctl.git.packs import Pack, PackGoneError, PackWriter, remove_remains

MANY_PACKS = 100
"""More packs than this are put together: at 100, a look-up in all takes 0.3 ms."""

_STALE_LOCK = 600
"""Age (seconds) at which a lock of git's is taken for a killed process's remains."""

SMALL_PACK = 16 << 20
"""Only packs below this size are put together: bytes. The pack of a base is larger."""

_CONFIG = b"""\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\tlogAllRefUpdates = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""


def create_bare(path: Path) -> None:
    """Create an empty bare repository without templates, hooks or configuration.

    Written here and not by `git init`, whose result depends on the user's templates and
    default object format. Safe when several processes do it at once, and mends the
    two files of one that is there: damaged or edited, they would be obeyed.

    Args:
        path: Folder of the repository.
    """
    from stackctl.fsutil import write_atomic

    for folder in ("objects/pack", "objects/info", "refs/heads", "refs/tags"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    for name, data in (
        ("config", _CONFIG),
        # HEAD must not name a branch that exists: newer gits read attributes from it.
        ("HEAD", b"ref: refs/heads/none\n"),
    ):
        if _content(path / name) != data:
            write_atomic(path / name, data)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_loose(objects: Path, oid: bytes) -> tuple[int, bytes] | None:
    """Return kind and content of a loose object, None where there is none.

    Args:
        objects: An object folder.
        oid: Raw id, 20 bytes.

    Raises:
        PinError: The object is damaged.
    """
    name = oid.hex()
    try:
        data = (objects / name[:2] / name[2:]).read_bytes()
    except FileNotFoundError:
        return None
    try:
        raw = zlib.decompress(data)
    except zlib.error:
        raw = b""
    head, _, body = raw.partition(b"\0")
    kind, _, size = head.partition(b" ")
    if kind not in KIND_NUMBERS or size != b"%d" % len(body):
        raise PinError(
            f"object {name} is damaged",
            kind="bad-object",
            hint="run `stackctl cache clean` and compose again",
        )
    return KIND_NUMBERS[kind], body


def write_loose(objects: Path, oid: bytes, kind: int, data: bytes) -> None:
    """Write a loose object into an object folder that nobody else uses."""
    name = oid.hex()
    target = objects / name[:2] / name[2:]
    target.parent.mkdir(exist_ok=True)
    head = b"%s %d\0" % (KIND_NAMES[kind], len(data))
    target.write_bytes(zlib.compress(head + data, 1))


class Store:
    """Reads and writes objects of one repository.

    Args:
        git_dir: Folder of the (bare) repository.
    """

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir
        self.git = HermeticGit(git_dir)
        self._objects = git_dir / "objects"
        self._packs: dict[str, Pack] = {}
        self._recent: list[Pack] = []
        self._alternates: list[Store] | None = None

    @classmethod
    def create(cls, git_dir: Path) -> "Store":
        """Open a store, creating it where it is missing and tidying what is dead."""
        create_bare(git_dir)
        remove_remains(git_dir / "objects" / "pack")
        return cls(git_dir)

    def remove_fetch_remains(self) -> None:
        """Remove what a killed fetch left; only called while no other can run."""
        (self.git_dir / "shallow.lock").unlink(missing_ok=True)
        folder = self._objects / "pack"
        for pattern in ("tmp_pack_*", "tmp_idx_*", "tmp_rev_*"):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)

    def tidy(self, limit: int = MANY_PACKS) -> bool:
        """Put many small packs into one, where there are more than a limit.

        Every run that makes something adds a pack, and each look-up asks all of them.
        Readers are not disturbed: they keep the old packs mapped, and find the new one
        when they look again.

        Args:
            limit: Packs that are not too many.

        Returns:
            Whether something was done.
        """
        if len(list((self._objects / "pack").glob("*.idx"))) <= limit:
            return False
        lock = self._objects / "pack" / "multi-pack-index.lock"
        with suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime > _STALE_LOCK:
                lock.unlink()
        # By size, not by reachability: nothing here is reachable from a ref.
        self.git.run("multi-pack-index", "write")
        self.git.run("multi-pack-index", "repack", f"--batch-size={SMALL_PACK}")
        self.git.run("multi-pack-index", "expire")
        self.refresh()
        return True

    def writer(self) -> PackWriter:
        """Return a writer for a new pack of this store."""
        return PackWriter(self._objects / "pack")

    def refresh(self) -> bool:
        """Look for packs that appeared since; return whether there were any."""
        found = False
        try:
            names = [n for n in os.listdir(self._objects / "pack") if n.endswith("idx")]
        except FileNotFoundError:
            return False
        for name in names:
            if name not in self._packs:
                try:
                    pack = Pack(self._objects / "pack" / name)
                except FileNotFoundError:
                    continue
                self._packs[name] = pack
                self._recent.insert(0, pack)
                found = True
        return found

    def knows(self, oid: bytes) -> bool:
        """Return whether an object lies in a pack that is open already.

        Quicker than `in` for many ids that are mostly new: it never looks for packs.

        Args:
            oid: Raw id, 20 bytes.
        """
        return any(pack.offset(oid) is not None for pack in self._recent)

    def _locate(self, oid: bytes) -> tuple[Pack, int] | None:
        for _ in range(2):
            for number, pack in enumerate(self._recent):
                offset = pack.offset(oid)
                if offset is not None:
                    if number:
                        # Neighbours of an object mostly lie in the same pack.
                        self._recent.insert(0, self._recent.pop(number))
                    return pack, offset
            if not self.refresh():
                return None
        return None

    def _others(self) -> "list[Store]":
        if self._alternates is None:
            self._alternates = []
            try:
                text = (self._objects / "info" / "alternates").read_bytes()
            except FileNotFoundError:
                text = b""
            for line in text.split(b"\n"):
                if line and not line.startswith(b"#"):
                    folder = (self._objects / os.fsdecode(line)).resolve()
                    self._alternates.append(Store(folder.parent))
        return self._alternates

    def find(self, oid: bytes) -> tuple[int, bytes] | None:
        """Return kind and content of an object, or None where it is missing.

        Args:
            oid: Raw id, 20 bytes.
        """
        while (place := self._locate(oid)) is not None:
            try:
                return place[0].read_at(place[1], self.read_raw)
            except PackGoneError:
                # Another process put small packs together since we listed them.
                self._recent.remove(place[0])
                self.refresh()
        loose = read_loose(self._objects, oid)
        if loose is not None:
            return loose
        for other in self._others():
            found = other.find(oid)
            if found is not None:
                return found
        return None

    def read_raw(self, oid: bytes) -> tuple[int, bytes]:
        """Return kind and content of an object.

        Raises:
            PinError: The object is missing.
        """
        found = self.find(oid)
        if found is None:
            raise PinError(
                f"object {oid.hex()} is missing from the store",
                kind="missing-object",
                hint="run `stackctl cache clean` and compose again",
            )
        return found

    def read(self, oid: bytes, kind: int) -> bytes:
        """Return the content of an object of a known kind.

        Raises:
            PinError: The object is missing, of another kind, or does not hash to its
            id.
        """
        found, data = self.read_raw(oid)
        if found != kind or object_id(kind, data) != oid:
            raise PinError(
                f"object {oid.hex()} is not the {KIND_NAMES[kind].decode()} it should "
                "be, or its bytes are damaged",
                kind="bad-object",
                hint="run `stackctl cache clean` and compose again",
            )
        return data

    def blob(self, oid: bytes) -> bytes:
        """Return a blob's bytes, checked against their id."""
        return self.read(oid, BLOB)

    def tree(self, oid: bytes) -> bytes:
        """Return a tree's raw content, checked against its id."""
        return self.read(oid, TREE)

    def commit(self, oid: bytes) -> bytes:
        """Return a commit's raw content, checked against its id."""
        return self.read(oid, COMMIT)

    def find_commit(self, commit: str) -> bytes | None:
        """Look a commit up, by the id that somebody pinned.

        Args:
            commit: Its hex id.

        Returns:
            Its raw content, not checked against its id; None where it is not there.

        Raises:
            PinError: The id is another object's.
        """
        found = self.find(bytes.fromhex(commit))
        if found is not None and found[0] != COMMIT:
            raise PinError(
                f"{commit} is a {KIND_NAMES[found[0]].decode()}, not a commit",
                kind="not-a-commit",
                hint="pin a commit; `git rev-parse NAME^{commit}` prints a tag's",
                where={"commit": commit},
            )
        return None if found is None else found[1]

    def commit_tree(self, commit: str) -> str:
        """Return the hex id of a commit's tree."""
        return commit_tree_of(self.commit(bytes.fromhex(commit)))

    def __contains__(self, hex_id: str) -> bool:
        oid = bytes.fromhex(hex_id)
        if self._locate(oid) is not None:
            return True
        name = oid.hex()
        if (self._objects / name[:2] / name[2:]).exists():
            return True
        return any(hex_id in other for other in self._others())

    def walk(self, tree: str) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield path, mode and raw id of every file of a tree, in path order.

        Args:
            tree: Hex id of the tree.
        """
        return self._walk(b"", bytes.fromhex(tree))

    def _walk(self, prefix: bytes, oid: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        for name, mode, child, _ in iterate_tree(self.tree(oid)):
            if mode == MODE_TREE:
                yield from self._walk(prefix + name + b"/", child)
            else:
                yield prefix + name, mode, child
