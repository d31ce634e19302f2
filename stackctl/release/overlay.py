# SPDX-License-Identifier: Apache-2.0
"""A release image made of a base image and one more layer, without a daemon.

The layer holds what a composition changes of an installed package: changed and added
files, whiteouts of deleted ones, and whiteouts of the bytecode of all of them. Whatever
needs a compiler is refused, since the installation in the base image would keep what
was compiled from the old sources.

The layer is the same on every machine: its files are in the order of their names, with
numbers for owners, uncompressed. The modification time of a file is made of its
content. Bytecode that is kept elsewhere (in a volume, or by `PYTHONPYCACHEPREFIX`) is
bound to a source by its time and size alone, and with one fixed time the bytecode of
one release would run in the next.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stackctl.compose.materialise import new_folder
from stackctl.errors import (
    ExitCode,
    InputError,
    InternalError,
    PinError,
    RemoteError,
)
from stackctl.image.attribute import Touch
from stackctl.image.compare import Comparison, compare_root
from stackctl.image.expectation import (
    MODE_EXECUTABLE,
    MODE_GITLINK,
    MODE_SYMLINK,
    Entries,
    ExpectedTree,
)
from stackctl.image.layers import Budget, Interest, scan_layer
from stackctl.image.limits import Limits
from stackctl.image.report import MATCH, Report
from stackctl.image.source import Image
from stackctl.image.view import Applier, Node, View, show
from stackctl.image.write import Item, LayoutWriter, sha256, tar_bytes
from stackctl.release.label import MANIFEST_PATH, Labels

#: Transports whose layers have digests of their own, so that they can be copied.
TRANSPORTS: Final = ("oci", "oci-archive", "dir", "docker")
#: Modification time of folders and whiteouts, and the least of a file: 2001-09-09.
_TIME: Final = 1_000_000_000
_CREATED_BY: Final = "stackctl image overlay"

_COMPILED = (
    ".a", ".c", ".cc", ".cmake", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".inl",
    ".o", ".proto", ".pyd", ".pyx", ".rs", ".so",
)  # fmt: skip
#: Folders at the top of the tree that no installation has anything of.
_NOT_INSTALLED = (
    ".agents", ".buildkite", ".claude", ".github", "benchmarks", "docs", "examples",
    "recipes", "tests", "tools",
)  # fmt: skip
_TEXTS = (".md", ".rst", ".yaml", ".yml", ".txt")


def changed_paths(before: Entries, after: Entries) -> list[bytes]:
    """Return the paths that two trees do not have alike, sorted."""
    return sorted(
        path for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    )  # fmt: skip


def needs_build(path: bytes, folders: Iterable[str]) -> str:
    """Say why a change of a path cannot be made by laying files over an installation.

    Args:
        path: Path in the tree.
        folders: Folders of the tree that are installed as packages.

    Returns:
        The reason, or nothing.
    """
    text = show(path)
    top, slash, _ = text.partition("/")
    name = text.rpartition("/")[2]
    if text.endswith(_COMPILED) or name == "CMakeLists.txt":
        return "is compiled, or compiled against"
    if any(text.startswith(folder + "/") for folder in folders) or (
        slash and top in _NOT_INSTALLED
    ):
        return ""
    if not slash and (text.startswith(".") or text.endswith(_TEXTS)):
        return "names what is installed beside it" if "requirements" in text else ""
    return "is not in an installed package, and an installation may be built from it"


def check_python_only(
    before: Entries,
    after: Entries,
    folders: Sequence[str],
    touching: Callable[[bytes], Sequence[Touch]],
) -> list[bytes]:
    """Return the paths that a composition changes, all of which an overlay can carry.

    Args:
        before: The base.
        after: The composition.
        folders: Folders of the tree that are installed as packages.
        touching: Gives the patches that change a path.

    Raises:
        InputError: Some files need a build (`needs-build`).
    """
    paths = changed_paths(before, after)
    bad: list[dict[str, object]] = []
    for path in paths:
        why = needs_build(path, folders)
        mode = after.get(path, (0, b""))[0]
        if not why and mode == MODE_GITLINK:
            why = "is a submodule"
        if why:
            touches = [f"{t.set}/{t.patch}".rstrip("/") for t in touching(path)]
            bad.append({"path": show(path), "why": why, "changed_by": touches})
    if bad:
        first = bad[0]
        by = first["changed_by"]
        who = f" (changed by {', '.join(map(str, by))})" if isinstance(by, list) else ""
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise InputError(
            f"an overlay cannot carry this composition: {first['path']} "
            f"{first['why']}{who}{more}",
            kind="needs-build",
            hint="build the image from the composed tree (stackctl compose --out DIR), "
            "or leave the set out (--without SET)",
            where={"files": bad[:50]},
        )
    return paths


@dataclass(slots=True)
class Layer:
    """What an overlay does to an image.

    Attributes:
        items: Entries in order, folders before what is in them.
        changed: Paths in the image of files that are replaced.
        added: Of files that are new.
        deleted: Of files and folders that are removed.
        bytecode: Of bytecode that is removed.
    """

    items: list[Item] = field(default_factory=list)
    changed: list[bytes] = field(default_factory=list)
    added: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    bytecode: list[bytes] = field(default_factory=list)


class _Planner:
    """Collects what goes into the layer, by its place in the image."""

    def __init__(self, view: View, read: Callable[[bytes], bytes]) -> None:
        self._view = view
        self._read = read
        self._puts: dict[bytes, Item] = {}
        self._removed: set[bytes] = set()
        self.layer = Layer()

    def root(self, comparison: Comparison, before: Entries, after: Entries) -> None:
        real = comparison.real_path
        for path in changed_paths(before, after):
            place = real + b"/" + path if real else path
            if path in after:
                self._put(place, *after[path])
                known = path in comparison.nodes
                (self.layer.changed if known else self.layer.added).append(place)
            elif path in comparison.nodes:
                self._removed.add(place)
                self.layer.deleted.append(place)
            if path.endswith(b".py"):
                self._bytecode(place, gone=path not in after)

    def file(self, place: bytes, data: bytes) -> None:
        self._puts[place] = Item(place, "0", 0o644, mtime=content_time(data), data=data)

    def _put(self, place: bytes, mode: int, oid: bytes) -> None:
        data = self._read(oid)
        link = mode == MODE_SYMLINK
        bits = 0o777 if link else 0o755 if mode == MODE_EXECUTABLE else 0o644
        self._puts[place] = Item(
            place,
            "2" if link else "0",
            bits,
            self._owner(place),
            content_time(data),
            data,
        )

    def _owner(self, place: bytes) -> tuple[int, int]:
        """Return the owner of what is replaced, or of the folder that it goes into."""
        while True:
            node = self._view.lookup(place, follow=False).node
            if node is not None:
                return _valid(node.owner)
            place = place.rpartition(b"/")[0]

    def _bytecode(self, place: bytes, *, gone: bool) -> None:
        folder, _, name = place.rpartition(b"/")
        stem = name.removesuffix(b".py")
        cache = folder + b"/__pycache__" if folder else b"__pycache__"
        node = self._view.lookup(cache, follow=False).node
        if node is not None and node.kind == "l":
            self._drop(cache)  # what it leads to may be anybody's, and would run
        for other in (node.children or {}) if node is not None else ():
            if other.startswith(stem + b".") and other.endswith((b".pyc", b".pyo")):
                self._drop(cache + b"/" + other)
        # Without a source, Python takes bytecode that stands in its place.
        beside = place + b"c"
        if gone and self._view.lookup(beside, follow=False).node is not None:
            self._drop(beside)

    def _drop(self, place: bytes) -> None:
        self._removed.add(place)
        self.layer.bytecode.append(place)

    def finish(self) -> Layer:
        """Return the layer."""
        above = _ancestors(self._puts)
        self._remove_empty(above)
        removed = {
            place
            for place in self._removed
            # What turns into a folder, or lies below what turns into a file, is hidden
            # by that; a whiteout beside it would mean two things.
            if place not in above and not _ancestors([place]) & self._puts.keys()
        }
        removed = {p for p in removed if not _ancestors([p]) & removed}
        items = dict(self._puts)
        for place in removed:
            folder, slash, name = place.rpartition(b"/")
            white = folder + slash + b".wh." + name
            items[white] = Item(white, "0", 0o644, mtime=_TIME)
        for folder in _ancestors(items):
            node = self._view.lookup(folder, follow=False).node
            there = node is not None and node.kind == "d"
            mode = node.mode & 0o7777 if node is not None and there else 0o755
            items[folder] = Item(folder, "5", mode, self._owner(folder), _TIME)
        order = sorted(items, key=lambda name: name.split(b"/"))
        self.layer.items = [items[name] for name in order]
        return self.layer

    def _remove_empty(self, above: set[bytes]) -> None:
        """Remove folders of which nothing would be left: Python imports empty ones."""
        for place in sorted(_ancestors(self.layer.deleted), key=len, reverse=True):
            node = self._view.lookup(place, follow=False).node
            if node is None or place in above or not node.children:
                continue
            if all(self._is_gone(place, n, c) for n, c in node.children.items()):
                self._removed.add(place)

    def _is_gone(self, place: bytes, name: bytes, child: Node) -> bool:
        path = place + b"/" + name
        if path in self._removed:
            return True
        if child.kind != "d":
            return False
        return all(self._is_gone(path, n, c) for n, c in (child.children or {}).items())


def content_time(data: bytes) -> int:
    """Return a modification time that is another for other content."""
    return _TIME + (int.from_bytes(hashlib.sha256(data).digest()[:4], "big") >> 3)


def _valid(owner: tuple[int, int]) -> tuple[int, int]:
    return max(owner[0], 0), max(owner[1], 0)


def _ancestors(places: Iterable[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    for place in places:
        folder = place.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return found


def plan_layer(
    report: Report, before: ExpectedTree, after: ExpectedTree, labels: Labels
) -> Layer:
    """Return the layer that turns an image of the base into one of a composition.

    Args:
        report: The base image, verified against the base.
        before: The base.
        after: The composition.
        labels: What the image says of itself.
    """
    assert report.view is not None
    planner = _Planner(report.view, after.read)
    for comparison in report.comparisons:
        tree = comparison.root.tree
        planner.root(comparison, before.subtree(tree), after.subtree(tree))
    roots = [comparison.real_path for comparison in report.comparisons]
    planner.file(_manifest_place(report.view, roots), labels.manifest)
    return planner.finish()


def _manifest_place(view: View, roots: Sequence[bytes]) -> bytes:
    """Return where the file goes that says what the image holds.

    Folders on the way may be links. What has the name of the file is replaced and never
    followed: a link there could name any file of the image.

    Raises:
        InputError: The image has no place for it.
    """
    folder, _, name = MANIFEST_PATH.encode().rpartition(b"/")
    parent = view.lookup(folder).path
    above = parent
    while above and view.lookup(above, follow=False).node is None:
        above = above.rpartition(b"/")[0]
    there = view.lookup(above, follow=False).node
    place = parent + b"/" + name
    old = view.lookup(place, follow=False).node
    if there is None or there.kind != "d":
        why = f"/{show(above)} is no folder"
    elif old is not None and old.kind == "d":
        why = "there is a folder of that name"
    elif any(place.startswith(root + b"/") for root in roots):
        why = f"it would be /{show(place)}, inside the package"
    else:
        return place
    raise InputError(
        f"the base image has no place for {MANIFEST_PATH}: {why}",
        kind="base-image",
        hint="the overlay adds this file to say which composition the image holds",
        where={"file": MANIFEST_PATH},
    )


def check_base(report: Report) -> None:
    """Refuse an image that does not hold exactly the base.

    Raises:
        PinError: It holds something else, or a digest does not hold.
        RemoteError: The registry cannot be reached.
        InputError: It cannot be read, or means different things to different runtimes.
    """
    if report.verdict == MATCH:
        return
    message = f"the base image does not hold the base: {report.reason['message']}"
    hint = str(report.reason.get("hint") or "") or (
        "run stackctl verify-image on it; an overlay goes over an installation of the "
        "pinned base"
    )
    where = {"verdict": report.verdict, "code": report.reason["code"]}
    kind = "base-image"
    if report.exit_code == ExitCode.REMOTE:
        raise RemoteError(message, kind=kind, hint=hint, where=where)
    if report.exit_code == ExitCode.BAD_INPUT:
        raise InputError(message, kind=kind, hint=hint, where=where)
    raise PinError(message, kind=kind, hint=hint, where=where)


def check_result(report: Report, tar: bytes, after: ExpectedTree) -> list[Comparison]:
    """Lay the layer over what was read of the base image, and compare.

    Raises:
        InternalError: The outcome is not the composition.
    """
    view, source = report.view, report.source
    assert view is not None and source is not None
    scan = scan_layer([tar], Budget(Limits()), Interest(), size_hint=len(tar))
    layers = len(source.layers)
    Applier(view, layers).apply(scan.entries)
    found = [
        compare_root(view, c.root, after, report.policy) for c in report.comparisons
    ]
    doubted = any(doubt.layer == layers for doubt in view.doubts)
    if doubted or not all(c.equal for c in found):
        raise InternalError("the overlay does not give the composition")
    return found


def write_image(
    report: Report, tar: bytes, labels: Labels, target: Path, tag: str, name: str
) -> str:
    """Write the base image and the layer as an OCI layout, whole or not at all.

    Args:
        report: The base image.
        tar: The layer.
        labels: What the image says of itself.
        target: A new or empty folder.
        tag: Tag of the image in the layout.
        name: What the base image is called.

    Returns:
        Digest of the manifest.

    Raises:
        UsageError: The folder is not empty.
        InputError: It cannot be written.
        DigestError: The base image is not any more what was read of it.
    """
    source = report.source
    assert source is not None
    annotations = {
        **labels.labels,
        "org.opencontainers.image.base.digest": source.digest,
        "org.opencontainers.image.base.name": name,
    }
    read = report.image["layers"]
    assert isinstance(read, list)
    with new_folder(target) as folder:
        writer = LayoutWriter(folder)
        for layer, about in zip(source.layers, read, strict=True):
            writer.copy_layer(layer.open(), about["compression"])
        digest = writer.add_layer(tar)
        config = _config(source, digest, annotations)
        return writer.finish(config, annotations, source.platform, tag)


def _config(
    source: Image, diff_id: str, labels: Mapping[str, str]
) -> dict[str, object]:
    """Return the config of the base image with one layer more."""
    config = dict(source.config)
    run = config.get("config")
    run = dict(run) if isinstance(run, dict) else {}
    known = run.get("Labels")
    run["Labels"] = {**(known if isinstance(known, dict) else {}), **labels}
    config["config"] = run
    rootfs = config["rootfs"]
    assert isinstance(rootfs, dict)
    config["rootfs"] = {**rootfs, "diff_ids": [*rootfs["diff_ids"], diff_id]}
    history = config.get("history")
    if isinstance(history, list):
        entry: dict[str, object] = {"created_by": _CREATED_BY}
        # The time of the base: one of our own would not be the same everywhere.
        if isinstance(config.get("created"), str):
            entry["created"] = config["created"]
        config["history"] = [*history, entry]
    return config


@dataclass(frozen=True, slots=True)
class Overlay:
    """An image that was written.

    Attributes:
        digest: Digest of its manifest.
        layer: The layer that was added.
        layer_digest: Digest of the layer; its diff_id too.
        size: Bytes of the layer.
        roots: The comparison with the composition.
    """

    digest: str
    layer: Layer
    layer_digest: str
    size: int
    roots: list[Comparison]


def make_overlay(
    report: Report,
    before: ExpectedTree,
    after: ExpectedTree,
    labels: Labels,
    target: Path,
    *,
    tag: str,
    name: str,
) -> Overlay:
    """Write an image of a composition over an image of its base.

    Args:
        report: The base image, verified against the base.
        before: The base.
        after: The composition.
        labels: What the image says of itself.
        target: A new or empty folder.
        tag: Tag of the image in the layout.
        name: What the base image is called.

    Raises:
        PinError: The base image does not hold the base.
    """
    check_base(report)
    layer = plan_layer(report, before, after, labels)
    tar = tar_bytes(layer.items)
    roots = check_result(report, tar, after)
    digest = write_image(report, tar, labels, target, tag, name)
    return Overlay(digest, layer, sha256(tar), len(tar), roots)
