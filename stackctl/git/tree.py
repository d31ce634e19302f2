# SPDX-License-Identifier: Apache-2.0
"""Editing a tree without an index: only the folders that a change touches are read.

A full index of the vLLM base costs 9 ms to read and write and 10 ms to turn into a
tree; a change touches one path of folders. The cost of an edit depends on the size of
the folders on that path, not on the size of the tree.
"""

from collections.abc import Collection, Iterator

from stackctl.errors import InputError
from stackctl.git.objects import (
    MODE_TREE,
    TREE,
    Entry,
    index_tree,
    object_id,
    tree_sort_key,
)
from stackctl.git.packs import Copy, DeltaOp, PackWriter
from stackctl.git.store import Store
from stackctl.model.ids import TreeId


class _Folder:
    """One loaded folder: its encoded entries and the folders below that were visited.

    Attributes:
        raw: The folder's tree object, as of the last write, with ids changed since.
        places: Name -> (mode, offset of the raw id in `raw`).
        moved: What came, changed its mode or went (None) since the last write: a patch
            may bring thousands of files into one folder.
        count: Number of entries.
        below: Visited folders by name.
        dirty: Whether `raw` differs from what was last written.
        written: Raw id of the last written version (b"" where there is none).
        written_size: Its size in bytes.
        patches: Offsets of ids that were replaced since; None where entries came or
            went, which shifts offsets.
    """

    __slots__ = (
        "below",
        "count",
        "dirty",
        "moved",
        "patches",
        "places",
        "raw",
        "written",
        "written_size",
    )

    def __init__(self, raw: bytes, written: bytes) -> None:
        self.raw = bytearray(raw)
        self.places = index_tree(raw)
        self.moved: dict[bytes, Entry | None] = {}
        self.count = len(self.places)
        self.below: dict[bytes, _Folder] = {}
        self.dirty = False
        self.written = written
        self.written_size = len(raw)
        self.patches: set[int] | None = set()

    def entry(self, name: bytes) -> Entry | None:
        if name in self.moved:
            return self.moved[name]
        place = self.places.get(name)
        if place is None:
            return None
        mode, offset = place
        return Entry(mode, bytes(self.raw[offset : offset + 20]))

    def names(self) -> Iterator[bytes]:
        """Yield the names of all entries, those of the last write first, in order."""
        for name in self.places:
            if self.moved.get(name, _THERE) is not None:
                yield name
        for name, entry in self.moved.items():
            if entry is not None and name not in self.places:
                yield name

    def set(self, name: bytes, mode: int, oid: bytes) -> None:
        place = self.places.get(name)
        if place is not None and place[0] == mode and name not in self.moved:
            offset = place[1]
            if self.raw[offset : offset + 20] != oid:
                self.raw[offset : offset + 20] = oid
                if self.patches is not None:
                    self.patches.add(offset)
                self.dirty = True
            return
        if self.entry(name) is None:
            self.count += 1
        self._move(name, Entry(mode, oid))

    def remove(self, name: bytes) -> None:
        self.count -= 1
        self._move(name, None)

    def _move(self, name: bytes, entry: Entry | None) -> None:
        if entry is None and name not in self.places:
            del self.moved[name]
        else:
            self.moved[name] = entry
        self.patches = None
        self.dirty = True

    def settle(self) -> bytes:
        """Return the folder's tree object, with everything that moved in its place."""
        if self.moved:
            self._merge()
        return bytes(self.raw)

    def _merge(self) -> None:
        fresh = [
            (
                tree_sort_key(name, entry.mode),
                b"%o %s\0%s" % (entry.mode, name, entry.oid),
            )
            for name, entry in self.moved.items()
            if entry is not None
        ]
        fresh.sort(reverse=True)
        pieces: list[bytes | bytearray] = []
        copied = end = 0
        for name, (mode, offset) in self.places.items():
            begin, end = end, offset + 20
            while fresh and fresh[-1][0] < tree_sort_key(name, mode):
                pieces += (self.raw[copied:begin], fresh.pop()[1])
                copied = begin
            if name in self.moved:
                pieces.append(self.raw[copied:begin])
                copied = end
        pieces.append(self.raw[copied:])
        pieces += [raw for _, raw in reversed(fresh)]
        self.raw = bytearray().join(pieces)
        self.places = index_tree(bytes(self.raw))
        self.moved.clear()


_THERE = Entry(0, b"")


class TreeEditor:
    """A tree being changed.

    Args:
        store: Where the starting tree's objects lie.
        root: Hex id of the starting tree.
    """

    def __init__(self, store: Store, root: TreeId) -> None:
        self._store = store
        raw_id = bytes.fromhex(root)
        self._root = _Folder(store.tree(raw_id), raw_id)

    def _below(self, folder: _Folder, name: bytes) -> _Folder | None:
        found = folder.below.get(name)
        if found is not None:
            return found
        entry = folder.entry(name)
        if entry is None or entry.mode != MODE_TREE:
            return None
        found = _Folder(self._store.tree(entry.oid), entry.oid)
        folder.below[name] = found
        return found

    def get(self, path: bytes) -> Entry | None:
        """Return the entry at a path, None where nothing is.

        Args:
            path: Path from the root, components joined by `/`.

        Returns:
            The entry; for a folder its mode is MODE_TREE and its id may be out of date.
        """
        folder: _Folder | None = self._root
        *parents, name = path.split(b"/")
        for parent in parents:
            assert folder is not None
            folder = self._below(folder, parent)
            if folder is None:
                return None
        assert folder is not None
        return folder.entry(name)

    def blocking(self, path: bytes) -> bytes | None:
        """Return the parent of a path that is a file or a link, None where none is."""
        folder = self._root
        parts = path.split(b"/")
        for depth, parent in enumerate(parts[:-1]):
            entry = folder.entry(parent)
            if entry is None:
                return None
            if entry.mode != MODE_TREE:
                return b"/".join(parts[: depth + 1])
            below = self._below(folder, parent)
            assert below is not None
            folder = below
        return None

    def first_file(
        self, path: bytes, besides: Collection[bytes] = ()
    ) -> tuple[bytes, Entry] | None:
        """Return the first file below a folder that is not one of some others.

        Args:
            path: Path of the folder.
            besides: Paths that do not count.

        Returns:
            Path and entry; None where there is none, or the path is no folder.
        """
        folder: _Folder | None = self._root
        for part in path.split(b"/"):
            assert folder is not None
            folder = self._below(folder, part)
            if folder is None:
                return None
        assert folder is not None
        return self._first(folder, path, besides)

    def _first(
        self, folder: _Folder, prefix: bytes, besides: Collection[bytes]
    ) -> tuple[bytes, Entry] | None:
        for name in folder.names():
            path = prefix + b"/" + name
            below = self._below(folder, name)
            if below is not None:
                found = self._first(below, path, besides)
                if found is not None:
                    return found
            elif path not in besides:
                entry = folder.entry(name)
                assert entry is not None
                return path, entry
        return None

    def put(self, path: bytes, mode: int, oid: bytes) -> None:
        """Set a file.

        Args:
            path: Path from the root.
            mode: Mode of a file, link or submodule.
            oid: Raw id of the blob.

        Raises:
            InputError: A parent of the path is a file, or the path is a folder.
        """
        folder = self._root
        *parents, name = path.split(b"/")
        for parent in parents:
            below = self._below(folder, parent)
            if below is None:
                if folder.entry(parent) is not None:
                    shown = path.decode("utf-8", "replace")
                    raise InputError(f"a parent folder of {shown} is a file")
                below = _Folder(b"", b"")
                folder.below[parent] = below
                folder.set(parent, MODE_TREE, b"\0" * 20)
            folder = below
        present = folder.entry(name)
        if present is not None and present.mode == MODE_TREE:
            shown = path.decode("utf-8", "replace")
            raise InputError(f"{shown} is a folder and cannot become a file")
        folder.set(name, mode, oid)
        self._touch(parents)

    def delete(self, path: bytes) -> None:
        """Remove a file, and every folder that becomes empty.

        Raises:
            KeyError: There is no such file.
        """
        *parents, name = path.split(b"/")
        chain = [self._root]
        for parent in parents:
            below = self._below(chain[-1], parent)
            if below is None:
                raise KeyError(path)
            chain.append(below)
        entry = chain[-1].entry(name)
        if entry is None or entry.mode == MODE_TREE:
            raise KeyError(path)
        self._touch(parents)
        chain[-1].remove(name)
        for depth in range(len(parents), 0, -1):
            if chain[depth].count:
                break
            chain[depth - 1].remove(parents[depth - 1])
            chain[depth - 1].below.pop(parents[depth - 1], None)

    def _touch(self, parents: list[bytes]) -> None:
        folder = self._root
        folder.dirty = True
        for parent in parents:
            below = folder.below.get(parent)
            if below is None:
                return
            below.dirty = True
            folder = below

    def write(self, writer: PackWriter) -> TreeId:
        """Write the changed folders and return the tree's id.

        Args:
            writer: Takes the new tree objects.
        """
        return TreeId(self._write(self._root, writer).hex())

    def _write(self, folder: _Folder, writer: PackWriter) -> bytes:
        if not folder.dirty and folder.written:
            return folder.written
        for name, below in folder.below.items():
            if below.dirty:
                folder.set(name, MODE_TREE, self._write(below, writer))
        raw = folder.settle()
        oid = object_id(TREE, raw)
        if oid != folder.written:
            if folder.patches is not None and folder.written in writer:
                ops: list[DeltaOp] = []
                position = 0
                for offset in sorted(folder.patches):
                    ops.append(Copy(position, offset - position))
                    ops.append(raw[offset : offset + 20])
                    position = offset + 20
                ops.append(Copy(position, len(raw) - position))
                writer.add_version(
                    TREE, raw, oid, folder.written, folder.written_size, ops
                )
            else:
                writer.add(TREE, raw, oid)
        folder.written = oid
        folder.written_size = len(raw)
        folder.patches = set()
        folder.dirty = False
        return oid
