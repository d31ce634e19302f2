# SPDX-License-Identifier: Apache-2.0
"""Gates as a folder that runs where there is neither git nor network.

    manifest.json   what arms mean, what a set's tests are, digests of the project files
    trees.zip       every tree as a listing, every file once, by its git id
    project/        the gates, their scripts, series.toml and series.lock
    lib/            stackctl itself, and on request the packages it needs for this

Nothing of a pack is believed: project files are checked against the manifest, files of
trees against their git id, and a written tree against its own.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stackctl import __version__
from stackctl.compose.materialise import TreeSource, materialise, new_folder
from stackctl.errors import InputError, PinError, UsageError
from stackctl.fsutil import read_regular, reason, remove_folder, write_atomic
from stackctl.gates.arms import ComposedTrees, Found, folder_tree, holds
from stackctl.gates.evidence import EXTERNAL
from stackctl.gates.model import Gate
from stackctl.gates.run import Engine
from stackctl.git.objects import BLOB, object_id
from stackctl.model.canonical import loads_strict
from stackctl.model.ids import TreeId
from stackctl.progress import SILENT, Progress
from stackctl.project import LOCK_FILE, SERIES_FILE

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
TREES: Final = "trees.zip"
PROJECT: Final = "project"
LIBRARIES: Final = "lib"

NEEDED: Final = ("typer", "rich", "packaging")
"""Packages that running a pack needs; they bring what they need themselves."""

MAX_MANIFEST: Final = 64 << 20
MAX_FILE: Final = 1 << 30
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_pack(
    engine: Engine,
    gates: Sequence[Gate],
    out: Path,
    *,
    definitions: Iterable[str] = (),
    libraries: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write gates and all that they need into a folder.

    Args:
        engine: The engine of the project, on composed trees.
        gates: The gates.
        out: Folder to make; must not exist or be empty.
        definitions: Further trees that arms may be given there.
        libraries: Also copy the packages that stackctl needs to run it.
        progress: Told what is being done.

    Returns:
        The manifest, without the long lists.

    Raises:
        UsageError: The folder is not empty.
        InputError: The disk is full; then the folder is as it was.
    """
    trees = engine.trees
    assert isinstance(trees, ComposedTrees)
    wanted = {"base": None, **dict.fromkeys(definitions)}
    for gate in gates:
        wanted |= {spec.tree: None for spec in gate.arms.values()}
    found = {name: trees.find(name) for name in wanted}
    ids = sorted({item.tree for item in found.values() if item.tree is not None})
    sets = {g.tests.of for g in gates if g.tests is not None and g.tests.of is not None}
    manifest = {
        "schema": SCHEMA,
        "stackctl": __version__,
        "gates": [gate.name for gate in gates],
        "base": dict(trees.base),
        "definitions": {
            name: {"tree": item.tree, "composition": item.composition}
            for name, item in sorted(found.items())
        },
        "tests": {name: list(trees.tests_of(name)) for name in sorted(sets)},
        "package": sorted(map(os.fsdecode, trees.base_package())),
    }
    with new_folder(out) as folder:
        write_trees(trees.store, ids, folder / TREES, progress)
        files = _copy_project(engine, gates, folder / PROJECT)
        _copy_libraries(folder / LIBRARIES, libraries)
        whole = {**manifest, "files": files}
        data = json.dumps(whole, indent=1, sort_keys=True).encode() + b"\n"
        loads_strict(data, file=str(out / MANIFEST))  # or nobody could read it there
        write_atomic(folder / MANIFEST, data)
        paths = list(folder.rglob("*"))
        size = sum(path.stat().st_size for path in paths if path.is_file())
    return {
        "pack": str(out),
        "gates": manifest["gates"],
        "trees": ids,
        "definitions": manifest["definitions"],
        "files": len(files),
        "bytes": size,
    }


def write_trees(
    store: TreeSource, ids: Sequence[str], path: Path, progress: Progress
) -> None:
    """Write trees as listings and files by their id, each once, always the same."""
    listings: dict[str, list[bytes]] = {}
    blobs: dict[bytes, None] = {}
    for tree in ids:
        rows = []
        for name, mode, oid in store.walk(tree):
            rows.append(b"%o %s %s\0" % (mode, oid.hex().encode(), name))
            blobs[oid] = None
        listings[tree] = rows
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for tree, rows in listings.items():
            archive.writestr(_entry(f"trees/{tree}"), b"".join(rows))
        for number, oid in enumerate(sorted(blobs)):
            if number % 200 == 0:
                progress.update("pack", number, len(blobs))
            archive.writestr(_entry(f"blobs/{oid.hex()}"), store.blob(oid))


def _entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info


def _copy_project(engine: Engine, gates: Sequence[Gate], out: Path) -> dict[str, str]:
    """Copy the files that the gates depend on; return their digests by path."""
    digests = {}
    for name, data in project_files(engine, gates).items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, data)
        digests[name] = hashlib.sha256(data).hexdigest()
    return digests


def project_files(engine: Engine, gates: Sequence[Gate]) -> dict[str, bytes]:
    """Return what gates need of their project, by path.

    Args:
        engine: The engine of the project.
        gates: The gates.
    """
    wanted: dict[str, None] = {}
    for gate in gates:
        for item in engine.files(gate):
            if not item["path"].startswith(("stackctl/", "generated:")):
                wanted[item["path"]] = None
    for name in (SERIES_FILE, LOCK_FILE):
        if (engine.project / name).is_file():
            wanted[name] = None
    return {name: (engine.project / name).read_bytes() for name in sorted(wanted)}


def _copy_libraries(out: Path, everything: bool) -> None:
    """Copy stackctl, and on request what it imports to run a pack."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    source = Path(__file__).resolve().parents[1]
    shutil.copytree(source, out / "stackctl", ignore=ignore)
    if not everything:
        return
    queue = list(NEEDED)
    seen: set[str] = set()
    for name in queue:
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        for requirement in distribution.requires or ():
            head = requirement.partition(";")
            if not head[2].strip():
                queue.append(_bare(head[0]))
        for path in distribution.files or ():
            parts = PurePosixPath(path).parts
            if ".." in parts or "__pycache__" in parts or path.is_absolute():
                continue
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(path.locate()), target)


def _bare(requirement: str) -> str:
    from packaging.requirements import Requirement

    return Requirement(requirement).name


class PackedStore:
    """The trees of a pack, as far as writing them needs them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._archive: zipfile.ZipFile | None = None

    def _read(self, name: str) -> bytes:
        try:
            if self._archive is None:
                self._archive = zipfile.ZipFile(self._path)
            info = self._archive.getinfo(name)
            if info.file_size > MAX_FILE:
                raise InputError(f"{self._path}: {name} is too large", kind="bad-pack")
            return self._archive.read(info)
        except KeyError:
            raise PinError(
                f"{self._path} has no {name}",
                kind="missing-object",
                hint="pack the gate again",
            ) from None
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise InputError(
                f"{self._path}: {reason(error)}",
                kind="bad-pack",
                hint="pack the gate again",
            ) from None

    def walk(self, tree: str) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield path, mode and id of every file of a tree."""
        for row in self._read(f"trees/{tree}").split(b"\0")[:-1]:
            try:
                mode, oid, path = row.split(b" ", 2)
                yield path, int(mode, 8), bytes.fromhex(oid.decode())
            except ValueError:
                raise InputError(
                    f"{self._path}: the listing of {tree} is damaged", kind="bad-pack"
                ) from None

    def blob(self, oid: bytes) -> bytes:
        """Return a file's bytes.

        Raises:
            PinError: They are not what the id says.
        """
        data = self._read(f"blobs/{oid.hex()}")
        if object_id(BLOB, data) != oid:
            raise PinError(
                f"{self._path}: blobs/{oid.hex()} has other bytes than its id says",
                kind="digest",
            )
        return data


class PackedTrees:
    """Trees of a pack.

    Args:
        folder: The pack.
        progress: Told what is being done.

    Raises:
        InputError: It is no pack.
        PinError: A project file is not what the manifest says.
    """

    def __init__(self, folder: Path, progress: Progress = SILENT) -> None:
        self.project = folder / PROJECT
        self._folder = folder
        self._progress = progress
        self._store = PackedStore(folder / TREES)
        self._manifest = _read_manifest(folder)
        self._folders: dict[str, Path] = {}
        for name, digest in self._manifest["files"].items():
            _check_file(self.project, name, digest)

    @property
    def store(self) -> PackedStore:
        """What holds the trees."""
        return self._store

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that were packed."""
        return tuple(self._manifest["gates"])

    @property
    def base(self) -> Mapping[str, Any]:
        """Identity, tree and commit of the base."""
        base: dict[str, Any] = self._manifest["base"]
        return base

    def find(self, definition: str) -> Found:
        """Return what a definition means.

        Raises:
            UsageError: It was not packed.
        """
        if definition == EXTERNAL:
            return Found(None)
        found = self._manifest["definitions"].get(definition)
        if found is None:
            known = ", ".join(self._manifest["definitions"])
            raise UsageError(
                f"the pack has no tree `{definition}`; it has {known}",
                kind="unknown-arm",
                hint=f"pack it: stackctl gate pack ... --tree {definition}",
            )
        return Found(found["tree"], found["composition"])

    def folder(self, tree: str) -> Path:
        """Return a folder with exactly the files of a tree, written and verified."""
        if tree not in self._folders:
            target = self._folder / "trees" / tree
            if os.path.lexists(target) and not holds(target, tree):
                self._progress.note(f"tree {tree[:12]} was changed; written again")
                remove_folder(target)
            if not target.exists():
                target.parent.mkdir(exist_ok=True)
                materialise(self._store, TreeId(tree), target, self._progress)
                found = folder_tree(target)
                if found != tree:
                    shutil.rmtree(target)
                    raise PinError(
                        f"the pack's tree {tree} is {found} once it is written",
                        kind="tree-mismatch",
                        hint="pack the gate again",
                    )
            self._folders[tree] = target
        return self._folders[tree]

    def forget(self, tree: str) -> None:
        """Throw away the folder of a tree, which is no longer what it was."""
        target = self._folders.pop(tree, None)
        if target is not None:
            remove_folder(target)

    def tests_of(self, name: str) -> tuple[str, ...]:
        """Return the test files that a set adds or changes."""
        return tuple(self._manifest["tests"].get(name, ()))

    def base_package(self) -> frozenset[bytes]:
        """Return the paths below the package's folder that the base tracks."""
        return frozenset(map(os.fsencode, self._manifest["package"]))

    def paths(self, tree: str) -> frozenset[bytes]:
        """Return the paths of a tree's files."""
        return frozenset(path for path, _, _ in self._store.walk(tree))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    data = read_regular(path, MAX_MANIFEST)
    shape = {
        "gates": list,
        "base": dict,
        "definitions": dict,
        "tests": dict,
        "package": list,
        "files": dict,
    }
    found = loads_strict(data, file=str(path), hint="pack the gates again")
    try:
        if found["schema"] != SCHEMA:
            raise InputError(
                f"{path}: schema {found['schema']!r}, but this stackctl knows {SCHEMA}",
                kind="bad-pack",
                hint="use the stackctl in the pack's own lib folder",
            )
        good = all(isinstance(found[key], kind) for key, kind in shape.items())
        good = good and all(
            isinstance(item, dict) and {"tree", "composition"} <= set(item)
            for item in found["definitions"].values()
        )
    except (KeyError, TypeError):
        good = False
    if not good:
        raise InputError(
            f"{path}: is no manifest of a pack",
            kind="bad-pack",
            hint="pack the gates again",
            where={"file": str(path)},
        )
    manifest: dict[str, Any] = found
    return manifest


def _check_file(project: Path, name: str, digest: object) -> None:
    path = project / name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise InputError(f"the pack names {name}, outside of it", kind="bad-pack")
    if hashlib.sha256(read_regular(path, MAX_FILE)).hexdigest() != digest:
        raise PinError(
            f"{path} is not the file that was packed",
            kind="digest",
            hint="change it in the project and pack again",
            where={"file": str(path)},
        )
