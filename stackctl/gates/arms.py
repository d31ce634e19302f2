# SPDX-License-Identifier: Apache-2.0
"""From an arm's definition to a folder: found, written once a tree, and verified.

Trees come from the project (composed) or from a pack (`pack.py`); this module knows
only what both give. It needs neither git nor GitPython, so that a pack can be run where
there is none.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from stackctl.errors import InputError, PinError, UsageError
from stackctl.fsutil import remove_folder, sha256_of_file
from stackctl.gates.evidence import EXTERNAL
from stackctl.git.objects import (
    BLOB,
    MODE_EXEC,
    MODE_FILE,
    MODE_LINK,
    MODE_TREE,
    TREE,
    Entry,
    encode_tree,
    object_id,
)
from stackctl.progress import SILENT, Progress

if TYPE_CHECKING:
    from stackctl.cache import Cache
    from stackctl.compose.compose import Composer
    from stackctl.compose.plan import Selection
    from stackctl.gates.shelf import Shelf
    from stackctl.git.store import Store
    from stackctl.model.series import Series

PACKAGE: Final = "vllm"
"""Folder of the tree that an installation has as a package."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an arm's definition means.

    Attributes:
        tree: Hex id of its git tree; None for `external`.
        composition: Composition id; None for the bare base and for a tree by its id.
    """

    tree: str | None
    composition: str | None = None


class Trees(Protocol):
    """Where the trees of arms come from."""

    @property
    def base(self) -> Mapping[str, Any]:
        """Identity, tree and commit of the base."""

    def find(self, definition: str) -> Found:
        """Return what a definition means."""

    def folder(self, tree: str) -> Path:
        """Return a folder with exactly the files of a tree."""

    def forget(self, tree: str) -> None:
        """Throw away the folder of a tree, which is no longer what it was."""

    def tests_of(self, name: str) -> tuple[str, ...]:
        """Return the test files that a set adds or changes."""

    def base_package(self) -> frozenset[bytes]:
        """Return the paths below the package's folder that the base tracks."""

    def paths(self, tree: str) -> frozenset[bytes]:
        """Return the paths of a tree's files."""


def folder_tree(folder: Path) -> str:
    """Return the git id of a folder's files, whatever wrote them.

    The owner's executable bit decides the mode; links stand for themselves; empty
    folders do not count, as for git.

    Args:
        folder: The folder.

    Raises:
        InputError: It holds something that is neither file, link nor folder.
    """
    found = _tree_of(os.fsencode(folder))
    return (found or object_id(TREE, b"")).hex()


def holds(folder: Path, tree: str) -> bool:
    """Tell whether a folder holds exactly the files of a tree.

    Empty folders, which no tree has and a unit may have left, are taken out: Python
    would import them.

    Args:
        folder: The folder; it may be gone, or be something else by now.
        tree: Hex id of the tree.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        _remove_empty(folder)
        return folder_tree(folder) == tree
    except (InputError, OSError):  # a socket, a folder that nobody may read
        return False


def _remove_empty(folder: Path) -> None:
    for place, _, files in os.walk(folder, topdown=False):
        if not files and Path(place) != folder and not os.listdir(place):
            os.rmdir(place)  # noqa: PTH106 - names may be any bytes


def _tree_of(folder: bytes) -> bytes | None:
    entries: dict[bytes, Entry] = {}
    with os.scandir(folder) as items:
        for item in items:
            info = item.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                inner = _tree_of(item.path)
                if inner is not None:
                    entries[item.name] = Entry(MODE_TREE, inner)
            elif stat.S_ISLNK(info.st_mode):
                target = os.readlink(item.path)  # noqa: PTH115 - bytes
                entries[item.name] = Entry(MODE_LINK, object_id(BLOB, target))
            elif stat.S_ISREG(info.st_mode):
                with open(item.path, "rb") as file:  # noqa: PTH123
                    oid = object_id(BLOB, file.read())
                mode = MODE_EXEC if info.st_mode & stat.S_IXUSR else MODE_FILE
                entries[item.name] = Entry(mode, oid)
            else:
                raise InputError(
                    f"{os.fsdecode(item.path)} is neither a file, a link nor a folder",
                    kind="untrackable",
                )
    return object_id(TREE, encode_tree(entries)) if entries else None


def selection_of(definition: str) -> "Selection":
    """Return the subset of the series that a definition names.

    Raises:
        UsageError: It names none.
    """
    from stackctl.compose.plan import WHOLE, Selection

    word, _, rest = definition.partition(":")
    names = tuple(rest.split(",")) if rest else ()
    if definition == "base":
        return Selection(base_only=True)
    if definition == "composed":
        return WHOLE
    if word == "only" and names:
        return Selection(only=names)
    if word == "without" and names:
        return Selection(without=names)
    if word == "upto" and len(names) == 1:
        return Selection(upto=rest)
    raise UsageError(
        f"`{definition}` is no arm",
        kind="unknown-arm",
        hint="arms are base, composed, only:SET, without:SET, upto:SET, tree:ID",
    )


class ComposedTrees:
    """Trees of a project, composed when they are asked for.

    Args:
        series: The series.
        cache: Store, facts, and where trees are written.
        offline: Never use the network.
        progress: Told what is being done.
    """

    def __init__(
        self,
        series: "Series",
        cache: "Cache",
        offline: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        self._series = series
        self._cache = cache
        self._offline = offline
        self._progress = progress
        self._composer: Composer | None = None
        self._found: dict[str, Found] = {}
        self._folders: dict[str, Path] = {}
        self._tests: dict[str, tuple[str, ...]] = {}
        self._package: frozenset[bytes] | None = None
        self._shelf: Shelf | None = None

    @property
    def _compose(self) -> "Composer":
        if self._composer is None:
            from stackctl.compose.compare import make_composer

            self._composer = make_composer(
                self._series, self._cache, self._offline, self._progress
            )
        return self._composer

    @property
    def store(self) -> "Store":
        """The store that holds the trees."""
        return self._cache.store

    @property
    def base(self) -> Mapping[str, Any]:
        """Identity, tree and commit of the base."""
        base = self._compose.base
        return {"identity": base.identity, "tree": base.tree, "commit": base.commit}

    def find(self, definition: str) -> Found:
        """Return what a definition means, composing it."""
        if definition == EXTERNAL:
            return Found(None)
        if definition not in self._found:
            self._found[definition] = self._find(definition)
        return self._found[definition]

    def _find(self, definition: str) -> Found:
        if definition.startswith("tree:"):
            return Found(definition.removeprefix("tree:"))
        selection = selection_of(definition)
        if selection.base_only:
            return Found(self._compose.base.tree)
        composition = self._compose.compose(selection)
        return Found(composition.tree, composition.composition)

    def folder(self, tree: str) -> Path:
        """Return a folder with exactly the files of a tree.

        It lies in the cache under the tree's id and is verified before its first use
        in this process: what is not the tree any more is written again. It is held as
        long as this object lives; others that were not used for longest may go.
        """
        if tree not in self._folders:
            from stackctl.compose.materialise import materialise
            from stackctl.gates.shelf import Shelf
            from stackctl.model.ids import TreeId

            if self._shelf is None:
                self._shelf = Shelf(self._cache.folder)
            target = self._shelf.hold(tree)
            written = False
            with self._cache.lock(f"tree-{tree}"):
                if os.path.lexists(target) and not holds(target, tree):
                    self._progress.note(f"tree {tree[:12]} was changed; written again")
                    remove_folder(target)
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    materialise(self._cache.store, TreeId(tree), target, self._progress)
                    if not holds(target, tree):
                        raise PinError(
                            f"{target} does not have the tree {tree} after writing it",
                            kind="tree-not-kept",
                            hint="the file system changes names or modes; set "
                            "STACKCTL_CACHE_DIR to another one",
                        )
                    written = True
            self._folders[tree] = target
            if written:
                self._shelf.put_away()
        return self._folders[tree]

    def forget(self, tree: str) -> None:
        """Throw away the folder of a tree, which is no longer what it was."""
        target = self._folders.pop(tree, None)
        if target is not None:
            with self._cache.lock(f"tree-{tree}"):
                remove_folder(target)

    def tests_of(self, name: str) -> tuple[str, ...]:
        """Return the test files that a set adds or changes."""
        from stackctl.compose.compare import before_set
        from stackctl.compose.plan import Selection

        if name not in self._tests:
            before = self._compose.compose(before_set(self._series, name)).tree
            after = self._compose.compose(Selection(upto=name)).tree
            walk = self._cache.store.walk
            known = {path: oid for path, _, oid in walk(before)}
            changed = [p for p, _, oid in walk(after) if known.get(p) != oid]
            paths = sorted(map(os.fsdecode, changed))
            self._tests[name] = tuple(path for path in paths if is_test(path))
        return self._tests[name]

    def base_package(self) -> frozenset[bytes]:
        """Return the paths below the package's folder that the base tracks."""
        if self._package is None:
            prefix = os.fsencode(PACKAGE) + b"/"
            walk = self._cache.store.walk(self._compose.base.tree)
            paths = [path for path, _, _ in walk if path.startswith(prefix)]
            self._package = frozenset(paths)
        return self._package

    def paths(self, tree: str) -> frozenset[bytes]:
        """Return the paths of a tree's files."""
        return frozenset(path for path, _, _ in self._cache.store.walk(tree))


def is_test(path: str) -> bool:
    """Whether a path of the tree is a test file of pytest."""
    name = path.rpartition("/")[2]
    return path.startswith("tests/") and name.startswith("test_") and path[-3:] == ".py"


@dataclass(frozen=True, slots=True)
class ArmFolder:
    """An arm, ready to run in.

    Attributes:
        tree: Hex id of its tree; None for an arm that is no tree.
        files: Folder with the tree's files.
        site: Folder to import from: the installation with the arm's files laid over,
            or the tree itself where no site was named.
        env: Its switches.
    """

    tree: str | None
    files: Path | None
    site: Path | None
    env: Mapping[str, str] = field(default_factory=dict)


def files_below(folder: bytes, prefix: bytes = b"") -> Iterator[bytes]:
    """Yield the paths of what is no folder."""
    with os.scandir(folder + b"/" + prefix if prefix else folder) as items:
        for item in sorted(items, key=lambda item: item.name):
            path = prefix + b"/" + item.name if prefix else item.name
            if item.is_dir(follow_symlinks=False):
                yield from files_below(folder, path)
            else:
                yield path


def site_digest(site: Path, tracked: Iterable[bytes]) -> str:
    """Return a digest of what a site adds to every arm: all untracked package files.

    Args:
        site: Folder with the installation.
        tracked: Paths that the base tracks, which come from the arm.
    """
    known = set(tracked)
    total = hashlib.sha256()
    top = os.fsencode(site)
    package = os.fsencode(PACKAGE)
    for path in files_below(top, package):
        if path in known or b"/__pycache__/" in path:
            continue
        digest = sha256_of_file(top + b"/" + path)
        total.update(b"%s %s\0" % (digest.encode(), path))
    return total.hexdigest()


def lay_over(site: Path, files: Path, tracked: frozenset[bytes], target: Path) -> None:
    """Make an arm's installation: the site as links, the arm's own package files.

    What the base tracks never comes from the site: a file that an arm deletes is not
    there. Compiled extensions and generated files do.

    Args:
        site: Folder with the installation (a `site-packages`).
        files: Folder with the arm's tree.
        tracked: Paths below the package's folder that the base tracks.
        target: Folder to make; must not exist.

    Raises:
        UsageError: The site holds no package.
    """
    package = os.fsencode(PACKAGE)
    source, own, made = os.fsencode(site), os.fsencode(files), os.fsencode(target)
    if not (site / PACKAGE).is_dir():
        raise UsageError(
            f"{site} holds no folder `{PACKAGE}`",
            kind="no-site",
            hint="--site wants the site-packages folder of an installed vLLM",
            where={"file": str(site)},
        )
    os.mkdir(made)
    for name in os.listdir(source):
        if name not in (package, b"__pycache__"):
            os.symlink(source + b"/" + name, made + b"/" + name)
    for path in files_below(source, package):
        if path not in tracked and b"/__pycache__/" not in path:
            _parents(made, path)
            os.symlink(source + b"/" + path, made + b"/" + path)
    for path in files_below(own, package) if (files / PACKAGE).is_dir() else ():
        _parents(made, path)
        place = made + b"/" + path
        if os.path.lexists(place):  # generated in the site, tracked in the arm
            os.unlink(place)
        # A copy: what a unit does to it must not reach the verified tree.
        shutil.copy2(own + b"/" + path, place, follow_symlinks=False)


def _parents(top: bytes, path: bytes) -> None:
    os.makedirs(os.path.dirname(top + b"/" + path), exist_ok=True)
