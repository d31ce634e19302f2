# SPDX-License-Identifier: Apache-2.0
"""Writing a tree into a folder, byte for byte, with nothing half-written.

No checkout: `.gitattributes` in the tree could change line endings, and the umask the
modes. Files are written into a temporary folder beside the target and renamed at the
end.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import folder_error
from stackctl.git.objects import MODE_EXEC, MODE_LINK, MODE_SUBMODULE, MODE_TREE
from stackctl.git.patchtext.paths import path_problem
from stackctl.model.ids import TreeId
from stackctl.progress import SILENT, Progress
from stackctl.scratch import scratch_folder


class TreeSource(Protocol):
    """What holds trees: the store, or something that looks like it here."""

    def walk(self, tree: str) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield path, mode and raw id of every file of a tree."""

    def blob(self, oid: bytes) -> bytes:
        """Return a file's bytes."""


def _check_target(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(
            f"{target} exists and is not a folder",
            kind="out-exists",
            hint="name a new or an empty folder",
            where={"file": str(target)},
        )
    if target.is_dir() and any(target.iterdir()):
        raise UsageError(
            f"{target} is not empty",
            kind="out-exists",
            hint="name a new or an empty folder",
            where={"file": str(target)},
        )


def write_tree(
    store: TreeSource, tree: TreeId, folder: Path, progress: Progress
) -> int:
    """Write a tree's files below an existing empty folder.

    Args:
        store: Holds the tree.
        tree: Hex id of the tree.
        folder: An empty folder that nobody else writes to.
        progress: Told the number of files written.

    Returns:
        Number of files.

    Raises:
        InputError: The tree has a submodule, or two of its paths are one path on this
            file system.
    """
    made: set[bytes] = set()
    root = os.fsencode(folder)
    files = list(store.walk(tree))
    for number, (path, mode, oid) in enumerate(files):
        if number % 500 == 0:
            progress.update("write", number, len(files))
        check_path(path, mode)
        parent = os.path.dirname(path)
        if parent not in made:
            _make_parents(root, parent, made)
        write_file(root, path, mode, store.blob(oid))
    progress.update("write", len(files), len(files))
    return len(files)


def check_path(path: bytes, mode: int) -> None:
    """Refuse a path or a mode that cannot be written safely.

    Args:
        path: Path within the tree.
        mode: Its mode.

    Raises:
        InputError: The path is unsafe, or it is a submodule.
    """
    shown = path.decode("utf-8", "backslashreplace")
    # A tree of a git base may hold any name; git would refuse to check it out too.
    problem = path_problem(path, symlink=mode == MODE_LINK)
    if problem is not None:
        raise InputError(
            f"{shown} cannot be written: {problem}",
            kind="unsafe-path",
            where={"path": shown},
        )
    if mode == MODE_SUBMODULE:
        raise InputError(f"{shown} is a submodule, which cannot be written")


def write_file(root: bytes, path: bytes, mode: int, data: bytes) -> None:
    """Write one file or link that is not there yet.

    Args:
        root: The folder of the tree.
        path: Path within it; its parents exist and are folders.
        mode: Mode of a file, an executable or a link.
        data: Bytes of the file, or target of the link.

    Raises:
        InputError: Something has that name already.
    """
    target = root + b"/" + path
    try:
        if mode == MODE_LINK:
            os.symlink(data, target)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(target, flags, 0o600)
    except (OSError, ValueError) as error:
        raise _path_error(path, mode, data, error) from None
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, 0o755 if mode == MODE_EXEC else 0o644)
    finally:
        os.close(descriptor)


# What a file system says of one name, and not of itself.
_OF_NAMES = frozenset(
    (errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL, errno.EILSEQ)
)  # fmt: skip


def _path_error(
    path: bytes, mode: int, data: bytes, error: OSError | ValueError
) -> Exception:
    """Return the error for a path that this file system does not take."""
    shown = path.decode("utf-8", "backslashreplace")
    where = {"path": shown}
    if isinstance(error, FileExistsError):
        return InputError(
            f"{shown} collides with another path of the tree on this file system",
            kind="path-collision",
            hint="write the tree to a file system that tells the two apart",
            where=where,
        )
    if isinstance(error, OSError) and error.errno not in _OF_NAMES:
        return error
    problem = str(error)
    if isinstance(error, OSError):
        problem = error.strerror or problem
    if mode == MODE_LINK:
        problem = f"it is a link whose target has {len(data)} bytes ({problem})"
    return InputError(
        f"{shown} cannot be written on this file system: {problem}",
        kind="unwritable-path",
        hint="the tree is as it should be, only not as a folder here",
        where=where,
    )


def _make_parents(root: bytes, parent: bytes, made: set[bytes]) -> None:
    parts = parent.split(b"/") if parent else []
    for depth in range(len(parts) + 1):
        folder = b"/".join(parts[:depth])
        if folder in made:
            continue
        if folder:
            target = root + b"/" + folder
            try:
                os.mkdir(target, 0o700)
            except OSError as error:
                raise _path_error(folder, MODE_TREE, b"", error) from None
            os.chmod(target, 0o755)
        made.add(folder)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make a folder that appears whole at the end, or not at all.

    Args:
        target: Where it appears; nothing or an empty folder may be there.

    Yields:
        An empty folder beside it, to fill.

    Raises:
        UsageError: The target is not empty.
        InputError: The disk is full, or the target cannot be written.
    """
    target = Path(os.path.abspath(target))
    _check_target(target)
    try:
        with scratch_folder(target.parent, f".{target.name}.stackctl-") as folder:
            os.chmod(folder, 0o755)
            yield folder
            # Replaces an empty folder; fails where somebody filled it meanwhile.
            os.rename(folder, target)
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EXDEV):
            raise UsageError(
                f"{target} is a mount point, which a finished folder cannot replace",
                kind="out-exists",
                hint="name a folder inside it",
                where={"file": str(target)},
            ) from error
        raise folder_error(target, error) from error


def materialise(
    store: TreeSource, tree: TreeId, target: Path, progress: Progress = SILENT
) -> int:
    """Write a tree into a folder that does not exist yet or is empty.

    Args:
        store: Holds the tree.
        tree: Hex id of the tree.
        target: The folder.
        progress: Told the number of files written.

    Returns:
        Number of files.

    Raises:
        UsageError: The folder is not empty.
        InputError: The disk is full, or the tree cannot be written here.
    """
    with new_folder(target) as folder:
        return write_tree(store, tree, folder, progress)
