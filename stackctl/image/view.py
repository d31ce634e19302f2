# SPDX-License-Identifier: Apache-2.0
"""The file tree that a runtime makes of an image's layers.

Layers are applied in order to a tree of nodes in memory. Where all common runtimes
agree on the outcome, the outcome is theirs. Where they do not, the tree holds one of
the outcomes and a *doubt* records the paths whose content depends on who reads the
image; whether that matters is decided by who knows the roots.

Two families of runtimes read layers. *Merging* ones (containerd's and Docker's overlay
drivers, podman, buildah) unpack each layer into a folder of its own, blind to what is
below, and let the kernel merge the folders. *Unpacking* ones (umoci, the vfs and native
drivers) apply every layer to the same folder. Most doubts are a layer whose meaning
changes with what its reader can see.

The rules, within one layer, in the order of its entries:

- Parents are resolved through symlinks, clamped at the root; a missing one is made.
- A later entry replaces an earlier one of its name, except that a folder entry on a
  folder keeps what is in it.
- A hard link shares the file that its target names at that moment. Replacing the target
  later does not change it.
- `.wh.NAME` removes NAME of lower layers, whatever its own type; `.wh..wh..opq` removes
  everything of lower layers from its folder and leaves what its own layer puts there,
  before or after it.

A doubt ends where a later layer removes or replaces all that it is about, since then
every runtime has the same there again. This holds for doubts about a layer that every
runtime takes, and of which the tree has the outcome of unpacking runtimes: merging ones
are blind to what is below, so that nothing in a doubtful place leads them elsewhere.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from stackctl.image.errors import ImageFormatError
from stackctl.image.layers import MAX_PATH, ZERO_DEVICE, LayerEntry, clean_path

#: Symlinks followed in one lookup; the kernel's limit.
MAX_SYMLINKS = 40

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = b".wh..wh."
_OPAQUE_MARK = "trusted.overlay.opaque"


class Node:
    """A file, folder, symlink or special file.

    Attributes:
        kind: `f` file, `d` folder, `l` symlink, `o` anything else.
        mode: Permission bits.
        size: Content size in bytes.
        mtime: Seconds since 1970.
        times: Other times that the headers of its further names give.
        oid: Git blob id of the content or link target.
        sha256: SHA-256 of the content, if it was computed.
        link: Target of a symlink.
        layer: The last layer that touched it.
        first: The layer that made it.
        ref: Where its content is: `(layer, ordinal)`.
        head: First bytes of a bytecode file.
        entry: The layer entry, if its content was kept.
        children: What a folder holds.
        owner: User and group number.
        names: All names of a file with hard links, the first being the source.
    """

    __slots__ = (
        "children",
        "entry",
        "first",
        "head",
        "kind",
        "layer",
        "link",
        "mode",
        "mtime",
        "names",
        "oid",
        "owner",
        "ref",
        "sha256",
        "size",
        "times",
    )

    def __init__(self, kind: str, layer: int = 0, mode: int = 0o755) -> None:
        self.kind = kind
        self.mode = mode
        self.size = 0
        self.mtime = 0
        self.times: tuple[int, ...] = ()
        self.oid: bytes | None = None
        self.sha256: bytes | None = None
        self.link = b""
        self.layer = layer
        self.first = layer
        self.ref: tuple[int, int] | None = None
        self.head = b""
        self.entry: LayerEntry | None = None
        self.children: dict[bytes, Node] | None = {} if kind == "d" else None
        self.names: list[bytes] | None = None
        self.owner = (0, 0)


#: The two families of runtimes, as their names in JSON and in a sentence.
FAMILIES = (
    ("overlay", "with an overlay driver (containerd, Docker, podman, buildah)"),
    ("one-folder", "where layers are applied to one folder (umoci, vfs)"),
)
#: Who obeys a global PAX header and who does not.
_READERS = (
    ("runtimes", "container runtimes"),
    ("tar-programs", "tar programs as Python's and GNU's"),
)
_DOCKER = (("docker", "Docker and podman"), ("containerd", "containerd"))
_DOCKER_UMOCI = (
    ("docker", "Docker and podman"),
    ("containerd", "containerd and umoci"),
)
_CONTAINERD = (("containerd", "containerd"), ("others", "the others"))
_UMOCI = (("runtimes", "Docker, podman and containerd"), ("umoci", "umoci"))
#: Entries behind a renaming global header that are told apart from the whole image.
_MOST_RENAMED = 10_000
#: Paths in doubts that may end; with more of them, further doubts stay.
_MOST_OPEN = 10_000


class Doubt(NamedTuple):
    """Paths on whose content the common runtimes disagree.

    Attributes:
        code: Stable identifier of the cause.
        layer: Position of the layer, 0 being the lowest.
        paths: The paths concerned, with everything below them.
        merging: What runtimes with an overlay driver see.
        unpacking: What runtimes see that apply layers to one folder.
        modes_only: Only permission bits are in doubt.
        families: Who sees the one and who the other, where it is not these two.
    """

    code: str
    layer: int
    paths: tuple[bytes, ...]
    merging: str
    unpacking: str
    modes_only: bool = False
    families: tuple[tuple[str, str], tuple[str, str]] = FAMILIES


class Lookup(NamedTuple):
    """The end of a path.

    Attributes:
        node: What is there, or None.
        path: Where it really is, symlinks resolved.
        visited: Every path that was looked at on the way, the last included.
    """

    node: Node | None
    path: bytes
    visited: tuple[bytes, ...]


class Doubts:
    """The doubts about a view, and which of them later layers may end."""

    def __init__(self) -> None:
        self._all: dict[int, Doubt] = {}
        self._known: dict[tuple[str, tuple[bytes, ...]], int] = {}
        self._count = 0
        # Doubts that may end, with the last layer that gave rise to them.
        self._open: dict[int, int] = {}
        self._at: dict[bytes, set[int]] = {}
        self._sorted: list[bytes] = []

    def __iter__(self) -> Iterator[Doubt]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    @property
    def may_end(self) -> bool:
        """Whether there is a doubt that a later layer may end."""
        return bool(self._sorted)

    def add(self, doubt: Doubt, *, ends: bool = False) -> None:
        """Add a doubt, or hear of one again.

        Args:
            doubt: The doubt.
            ends: Whether it ends when all it is about is removed or replaced.
        """
        key = (doubt.code, doubt.paths)
        number = self._known.get(key)
        if number is not None:
            if not ends:
                self._forget(number)
            elif number in self._open:
                self._open[number] = doubt.layer
            return
        number = self._known[key] = self._count
        self._count += 1
        self._all[number] = doubt
        if ends and len(self._sorted) < _MOST_OPEN:
            self._open[number] = doubt.layer
            for path in doubt.paths:
                if path not in self._at:
                    self._at[path] = set()
                    insort(self._sorted, path)
                self._at[path].add(number)

    def settle(self, path: bytes, layer: int) -> bool:
        """End what lower layers left in doubt at a path and below it.

        Returns:
            Whether anything was.
        """
        found = [path] if path in self._at else []
        start = bisect_left(self._sorted, path + b"/")
        end = bisect_left(self._sorted, path + b"0", start)
        found += self._sorted[start:end]
        ended = False
        for place in found:
            for number in list(self._at[place]):
                if self._open[number] < layer:
                    self._end(number, place)
                    ended = True
        return ended

    def cover(self, path: bytes) -> bool:
        """Whether a path or a folder above it is in a doubt that may end."""
        while path:
            if path in self._at:
                return True
            path = path.rpartition(b"/")[0]
        return False

    def _end(self, number: int, path: bytes) -> None:
        doubt = self._all[number]
        # Should it arise again, it is another one.
        self._known.pop((doubt.code, doubt.paths), None)
        self._leave(number, path)
        left = tuple(p for p in doubt.paths if p != path)
        if left:
            self._all[number] = doubt._replace(paths=left)
        else:
            del self._all[number], self._open[number]

    def _forget(self, number: int) -> None:
        """Let a doubt stay whatever comes."""
        if self._open.pop(number, None) is not None:
            for path in self._all[number].paths:
                self._leave(number, path)

    def _leave(self, number: int, path: bytes) -> None:
        self._at[path].discard(number)
        if not self._at[path]:
            del self._at[path]
            del self._sorted[bisect_left(self._sorted, path)]


@dataclass(slots=True)
class View:
    """A file tree with the doubts about it.

    Attributes:
        root: The root folder.
        doubts: Where runtimes disagree.
        duplicates: Paths that one layer holds more than once.
    """

    root: Node = field(default_factory=lambda: Node("d"))
    doubts: Doubts = field(default_factory=Doubts)
    duplicates: list[bytes] = field(default_factory=list)

    def lookup(self, path: bytes, *, follow: bool = True) -> Lookup:
        """Resolve a path inside the root, clamped at it.

        Args:
            path: Absolute or relative to the root.
            follow: Whether to follow a symlink at the end.
        """
        pending = [part for part in reversed(path.split(b"/")) if part]
        stack: list[tuple[bytes, Node]] = []
        node = self.root
        visited: list[bytes] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == b".":
                if node.kind != "d":
                    return Lookup(None, _join(stack, part), tuple(visited))
                continue
            if part == b"..":
                if node.kind != "d":
                    return Lookup(None, _join(stack, part), tuple(visited))
                if stack:
                    stack.pop()
                node = stack[-1][1] if stack else self.root
                continue
            here = _join(stack, part)
            visited.append(here)
            child = node.children.get(part) if node.children is not None else None
            if child is None:
                rest = [p for p in reversed(pending) if p not in (b".", b"..")]
                return Lookup(None, b"/".join([here, *rest]), tuple(visited))
            if child.kind == "l" and (pending or follow):
                links += 1
                if links > MAX_SYMLINKS:
                    return Lookup(None, here, tuple(visited))
                if child.link.startswith(b"/"):
                    stack.clear()
                    node = self.root
                pending += [p for p in reversed(child.link.split(b"/")) if p]
                continue
            stack.append((part, child))
            node = child
        return Lookup(node, _join(stack), tuple(visited))

    def walk(self, node: Node, prefix: bytes = b"") -> Iterator[tuple[bytes, Node]]:
        """Yield everything below a folder as relative path and node, sorted."""
        stack = [(prefix, node)]
        while stack:
            at, folder = stack.pop()
            below: list[tuple[bytes, Node]] = []
            children = folder.children or {}
            for name in sorted(children):
                child = children[name]
                path = at + b"/" + name if at else name
                yield path, child
                if child.kind == "d":
                    below.append((path, child))
            stack.extend(reversed(below))

    def folders(self) -> Iterator[tuple[bytes, Node]]:
        """Yield every folder as path and node, in the order of `walk`."""
        stack = [(b"", self.root)]
        while stack:
            at, folder = stack.pop()
            children = (folder.children or {}).items()
            found = sorted(name for name, child in children if child.kind == "d")
            below = [
                (at + b"/" + name if at else name, (folder.children or {})[name])
                for name in found
            ]
            yield from below
            stack.extend(reversed(below))


def _join(stack: list[tuple[bytes, Node]], *more: bytes) -> bytes:
    return b"/".join([name for name, _ in stack] + list(more))


def below(path: bytes, folder: bytes) -> bool:
    """Whether a path is a folder or something in it; the root holds everything."""
    return not folder or path == folder or path.startswith(folder + b"/")


def show(path: bytes) -> str:
    """Return a path as text for messages and JSON."""
    return path.decode("utf-8", "backslashreplace")


class Applier:
    """Applies layers to a view, lowest first.

    Args:
        view: The tree to change.
        below: Layers that were applied to it already.
    """

    def __init__(self, view: View, below: int = 0) -> None:
        self.view = view
        self._layer = below - 1
        self._last: tuple[bytes, Node, bytes] | None = None
        # Whether the parent of the last entry was found without symlinks.
        self._direct = True
        # Whether a folder of lower layers was removed, by the path of the whiteout.
        self._whiteouts: dict[bytes, bool] = {}
        self._hidden: set[bytes] = set()
        self._folders: set[bytes] = set()
        # Files with overlay's marks; the nodes, so that their ids are not used again.
        self._marked: dict[int, tuple[Node, str]] = {}
        # Entries of the layer behind a global header that renames, if there is one.
        self._renamed: int | None = None

    def apply(self, entries: Iterable[LayerEntry]) -> None:
        """Apply the next layer.

        Raises:
            ImageFormatError: No runtime can apply it.
        """
        self.begin()
        for entry in entries:
            self.add(entry)

    def begin(self) -> None:
        """Begin with the next layer, whose entries are then added one by one."""
        self._layer += 1
        self._last = None
        self._whiteouts.clear()
        self._hidden.clear()
        self._folders.clear()
        self._renamed = None

    def add(self, entry: LayerEntry) -> None:
        """Apply the next entry of the layer.

        Raises:
            ImageFormatError: No runtime can apply it; nothing may be added after that.
        """
        if entry.type == "g":
            if entry.link:
                self._renamed = self._renamed or 0
                self._rename(clean_path(entry.link))
            found = self.view.lookup(entry.name, follow=False)
            if entry.name and found.node:
                self._doubt(
                    "global-header-name",
                    [found.path],
                    "remove the file that a global header is named like",
                    "leaves the file alone",
                    families=_DOCKER,
                )
            return
        if not entry.name:
            if entry.type != "5":
                self._refuse(
                    "entry-is-root", entry, "is not a folder but names the root"
                )
            self._check_types(entry, b"")
            return
        head, _, base = entry.name.rpartition(b"/")
        parent, at = self._parent(head, entry)
        path = at + b"/" + base if at else base
        if self._renamed is not None:
            self._rename(path)
        if base.startswith(_WHITEOUT):
            self._last = None
            self._whiteout(parent, at, base, entry)
            return
        self._check_types(entry, path)
        assert parent.children is not None
        existing = parent.children.get(base)
        if entry.type == "5":
            self._folder(parent, base, path, existing, entry)
            return
        if self.view.doubts.may_end and self._settle(path):
            # A folder in its place would merge with what was in doubt.
            self._hidden.add(path)
        if existing is not None:
            self._last = None
            if existing.kind == "d":
                if existing.first < self._layer:
                    self._hidden.add(path)
                self._lose_folders(existing, path)
            if existing.layer == self._layer:
                self.view.duplicates.append(path)
        if entry.type == "1":
            if existing is not None:
                # Runtimes remove what has the name before they look for the target.
                del parent.children[base]
            parent.children[base] = self._hard_link(entry, path)
        else:
            parent.children[base] = self._new(entry)

    def _check_types(self, entry: LayerEntry, path: bytes) -> None:
        if entry.type not in "0123456":
            self._refuse("entry-type", entry, f"has the type {entry.type!r}")
        if entry.type == "2" and not entry.link:
            self._refuse("symlink-empty", entry, "is a symlink to nothing")
        if entry.type == "2" and len(entry.link) > MAX_PATH:
            self._refuse("name-too-long", entry, "is a symlink to too long a path")
        if entry.overlay:
            self._doubt_marker([path], entry.overlay)

    def _new(self, entry: LayerEntry) -> Node:
        kind = {"0": "f", "2": "l"}.get(entry.type, "o")
        node = Node(kind, self._layer, entry.mode)
        node.size = entry.size
        node.mtime = entry.mtime
        node.owner = entry.owner
        node.oid = entry.oid
        node.sha256 = entry.sha256
        node.ref = (self._layer, entry.ordinal)
        node.head = entry.head
        if entry.type == "2":
            node.link = entry.link
        if entry.kept is not None:
            node.entry = entry
        if entry.overlay:
            self._marked[id(node)] = (node, entry.overlay)
        return node

    def _doubt_marker(self, paths: list[bytes], marker: str) -> None:
        self._doubt(
            "overlay-marker",
            paths,
            f"{marker} hides or redirects what lower layers have there",
            "it is an ordinary attribute or device",
            ends=marker in (ZERO_DEVICE, _OPAQUE_MARK),
        )

    def _settle(self, path: bytes) -> bool:
        """End doubts of lower layers about what the layer removes or replaces whole."""
        return self._direct and self.view.doubts.settle(path, self._layer)

    def _rename(self, path: bytes) -> None:
        """Doubt a name that a global header sets, or an entry that follows it."""
        if self._renamed is None or self._renamed > _MOST_RENAMED:
            return
        self._renamed += 1
        self._doubt(
            "global-pax",
            [path if self._renamed <= _MOST_RENAMED else b""],
            "pass over the name that a global header sets for every later entry",
            "obey it",
            families=_READERS,
        )

    def _lose_folders(self, folder: Node, path: bytes) -> None:
        """Doubt a layer that makes folders and then something else of their parent."""
        if folder.layer != self._layer:
            return
        for below, node in self.view.walk(folder, path):
            if node.kind == "d" and below in self._folders:
                self._doubt(
                    "folder-lost",
                    [path],
                    "refuse a layer that replaces the parent of a folder that it has "
                    "named",
                    "replaces it",
                    families=_UMOCI,
                )
                return

    def _folder(
        self,
        parent: Node,
        base: bytes,
        path: bytes,
        existing: Node | None,
        entry: LayerEntry,
    ) -> None:
        assert parent.children is not None
        if path in self._folders:
            self.view.duplicates.append(path)
        self._folders.add(path)
        # Named in the layer, the folder takes the place of the whiteout: only what it
        # should have hidden can show through.
        if self._whiteouts.pop(path, False):
            self._doubt_whiteout_folder(path, ends=True)
        if existing is not None and existing.kind == "d":
            existing.layer = self._layer
            existing.mode = entry.mode
            existing.owner = entry.owner
            return
        if path in self._hidden:
            self._doubt(
                "folder-after-file",
                [path],
                "the folder merges with the one of lower layers",
                "the file removed the folder of lower layers",
            )
        self._last = None
        folder = parent.children[base] = Node("d", self._layer, entry.mode)
        folder.owner = entry.owner

    def _doubt_whiteout_folder(self, path: bytes, *, ends: bool = False) -> None:
        self._doubt(
            "whiteout-and-folder",
            [path],
            "the whiteout is lost or the layer refused: lower files show through",
            "the whiteout removes what is there at its place in the layer",
            ends=ends,
        )

    def _parent(self, head: bytes, entry: LayerEntry) -> tuple[Node, bytes]:
        """Return the folder that an entry goes into, made if missing."""
        self._direct = True
        if not head:
            return self.view.root, b""
        if self._last is not None and self._last[0] == head:
            return self._last[1], self._last[2]
        self._last = None
        pending = head.split(b"/")
        pending.reverse()
        stack: list[tuple[bytes, Node]] = []
        node = self.view.root
        at = b""
        links = 0
        foreign: list[bytes] = []
        dangling = False
        # How much is left of the name itself; what stands above it is a link's target.
        literal = len(pending)
        while pending:
            part = pending.pop()
            if part == b"..":
                if stack:
                    stack.pop()
                node = stack[-1][1] if stack else self.view.root
                at = _join(stack)
                continue
            if part in (b"", b"."):
                continue
            here = at + b"/" + part if at else part
            children = node.children
            assert children is not None
            child = children.get(part)
            if child is not None and child.kind == "l":
                links += 1
                if links > MAX_SYMLINKS:
                    self._refuse("symlink-loop", entry, "lies behind a symlink loop")
                if child.layer != self._layer:
                    foreign.append(here)
                if child.link.startswith(b"/"):
                    stack.clear()
                    node = self.view.root
                    at = b""
                literal = min(literal, len(pending))
                pending += [p for p in reversed(child.link.split(b"/")) if p]
                continue
            if child is None:
                dangling = dangling or (links > 0 and len(pending) >= literal)
                child = Node("d", self._layer)
                children[part] = child
                if here in self._whiteouts:
                    # Where the whiteout is made a device, nothing goes below it.
                    self._doubt_whiteout_folder(here)
            elif child.kind == "d":
                child.layer = self._layer
            else:
                if child.layer == self._layer:
                    self._refuse("entry-under-file", entry, "lies below a file")
                self._doubt(
                    "parent-not-folder",
                    [here],
                    "a folder takes the place of the lower file",
                    "the layer is refused",
                )
                child = Node("d", self._layer)
                children[part] = child
            stack.append((part, child))
            node = child
            at = here
        if foreign:
            # What is in doubt is what a whiteout removes, not its own name.
            base = entry.name.rpartition(b"/")[2]
            gone = b"" if base == _OPAQUE else base.removeprefix(_WHITEOUT)
            self._doubt(
                "parent-symlink",
                [*foreign, (at + b"/" + gone).strip(b"/")],
                "a new folder takes the place of the lower layer's symlink",
                "the lower layer's symlink is followed",
                ends=not dangling,
            )
        elif dangling:
            self._doubt(
                "parent-dangling",
                [at],
                "refuse an entry behind a dangling symlink",
                "make the missing folder",
                families=_DOCKER_UMOCI,
            )
        elif not links:
            # Neighbours in an archive mostly lie in one folder.
            self._last = (head, node, at)
        self._direct = not links
        return node, at

    def _whiteout(
        self, parent: Node, at: bytes, base: bytes, entry: LayerEntry
    ) -> None:
        assert parent.children is not None
        if base == _OPAQUE:
            if not self._direct:
                self._doubt(
                    "opaque-behind-symlink",
                    [at],
                    "pass over an opaque marker behind a symlink, or refuse it",
                    "remove what lower layers have there",
                    families=_DOCKER_UMOCI,
                )
            removed = self._clear(parent, at)
            if parent is self.view.root and removed:
                self._doubt(
                    "opaque-root",
                    [b""],
                    "an opaque marker on the root is not looked at",
                    "all lower layers are removed",
                )
            elif at and self.view.doubts.may_end:
                self._settle(at)
            return
        name = base[len(_WHITEOUT) :]
        if name in (b"", b".", b".."):
            self._doubt(
                "bad-whiteout",
                [at],
                "refuses the layer",
                "remove the folder that holds the whiteout",
                families=_CONTAINERD,
            )
            return
        path = at + b"/" + name if at else name
        if path in self._whiteouts:
            self.view.duplicates.append(path)
        node = parent.children.get(name)
        lower = node is not None and node.layer != self._layer
        self._whiteouts[path] = (
            self._whiteouts.get(path, False)
            or (lower and node is not None and node.kind == "d")
            or self.view.doubts.cover(path)
        )
        if (node is None or lower) and self.view.doubts.may_end:
            self._settle(path)
        if node is None:
            return
        if lower:
            del parent.children[name]
        elif node.kind == "d":
            self._doubt_whiteout_folder(path)
        else:
            self._doubt(
                "whiteout-after-file",
                [path],
                "the whiteout is an error, or removes the file of its own layer",
                "the file of the same layer stays",
            )

    def _clear(self, top: Node, at: bytes) -> bool:
        """Remove what lower layers have in a folder; say whether anything was.

        Drivers that unpack into one folder spare the names that the layer's entries
        have had so far, but not a folder that no entry names, nor what is in it: seen
        of containerd 1.6 in an image's first layer, and of Docker 20.10 in any.
        """
        removed = False
        stack: list[tuple[Node, bytes, bytes | None]] = [(top, at, None)]
        while stack:
            folder, where, unnamed = stack.pop()
            assert folder.children is not None
            for name, child in list(folder.children.items()):
                path = where + b"/" + name if where else name
                if child.layer != self._layer:
                    del folder.children[name]
                    removed = True
                    continue
                is_named = path in self._folders
                if child.kind == "d":
                    child.first = self._layer
                    stack.append((child, path, unnamed or (None if is_named else path)))
                if unnamed is not None and (child.kind != "d" or is_named):
                    self._doubt(
                        "opaque-after-unnamed-folder",
                        [unnamed],
                        "the entries of the opaque marker's own layer stay",
                        "a folder that no entry names is removed, with the layer's "
                        "own files in it",
                    )
        return removed

    def _hard_link(self, entry: LayerEntry, path: bytes) -> Node:
        target = clean_path(entry.link)
        if target.startswith(_AUFS):
            self._doubt(
                "hardlink-aufs",
                [path],
                "pass over files of such names, or lose them",
                "follow the link to an ordinary file",
                families=_DOCKER_UMOCI,
            )
        found = self.view.lookup(target, follow=False)
        if self._leaves_link(entry.link):
            literal = self.view.lookup(entry.link, follow=False)
            if literal.node is not found.node:
                self._doubt(
                    "hardlink-dotdot",
                    [path],
                    "drop '..' before they follow symlinks",
                    "follows symlinks first",
                    families=_DOCKER,
                )
        node = found.node
        if node is None:
            self._refuse(
                "hardlink-missing",
                entry,
                f"links to {show(target)!r}, which is missing",
            )
        if node.kind == "d":
            self._refuse(
                "hardlink-folder",
                entry,
                f"is a hard link to the folder {show(target)!r}",
            )
        crossed = [step for step in found.visited[:-1] if self._is_lower_link(step)]
        if crossed:
            self._doubt(
                "hardlink-symlink",
                [path, *crossed],
                "the layer is refused: its own files have no such name",
                "the link goes through a lower layer's symlink",
            )
        if node.layer != self._layer:
            self._doubt(
                "hardlink-lower-layer",
                [path, found.path],
                "the layer is refused: the target is not in the same layer",
                "the lower layer's file gets a second name",
            )
        if entry.overlay:
            self._marked[id(node)] = (node, entry.overlay)
        if id(node) in self._marked:
            # All names of a file are marked together.
            names = dict.fromkeys([path, found.path, *(node.names or ())])
            self._doubt_marker(list(names), self._marked[id(node)][1])
        if node.kind == "f" and (node.mode ^ entry.mode) & 0o100:
            self._doubt(
                "hardlink-mode",
                [path, found.path],
                "give the file the mode of the link's header",
                "keeps the mode of the file's own header",
                modes_only=True,
                families=_DOCKER,
            )
        if node.mtime != entry.mtime:
            # Some runtimes give the file the time of the link's header.
            node.times = (*node.times, node.mtime)
            node.mtime = entry.mtime
        if node.names is None:
            node.names = [found.path]
        node.names.append(path)
        return node

    def _leaves_link(self, link: bytes) -> bool:
        """Whether the target of a hard link leaves a symlink by `..`."""
        parts = link.split(b"/")
        if b".." not in parts:
            return False
        if len(link) > MAX_PATH:
            return True
        above: list[bytes] = []
        for part in parts:
            if part == b"..":
                node = self.view.lookup(b"/".join(above), follow=False).node
                if node is not None and node.kind == "l":
                    return True
                del above[-1:]
            elif part not in (b"", b"."):
                above.append(part)
        return False

    def _is_lower_link(self, path: bytes) -> bool:
        node = self.view.lookup(path, follow=False).node
        return node is not None and node.kind == "l" and node.layer != self._layer

    def _doubt(
        self,
        code: str,
        paths: list[bytes],
        merging: str,
        unpacking: str,
        *,
        modes_only: bool = False,
        families: tuple[tuple[str, str], tuple[str, str]] = FAMILIES,
        ends: bool = False,
    ) -> None:
        self.view.doubts.add(
            Doubt(
                code,
                self._layer,
                tuple(paths),
                merging,
                unpacking,
                modes_only,
                families,
            ),
            ends=ends,
        )

    def _refuse(self, code: str, entry: LayerEntry, what: str) -> NoReturn:
        raise ImageFormatError(
            f"layer {self._layer}: the entry {show(entry.name)!r} {what}; runtimes "
            "refuse it or lose a file",
            kind=code,
            hint="build the image again with an unmodified tool",
            where={"layer": self._layer, "path": show(entry.name)},
        )
