# SPDX-License-Identifier: Apache-2.0
"""A folder of this machine as a base: every file in it, as it is.

No ignore rules and no attributes apply. Only a `.git` at the top is left out. The
folder is looked at again after the last byte was read; if anything moved, there is no
base.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from stackctl.base.importer import STREAM_FROM, Importer
from stackctl.base.limits import LIMITS, MIB, Limits
from stackctl.base.names import MAX_DEPTH, shown
from stackctl.cache import Cache, disk_error
from stackctl.errors import InputError
from stackctl.model.ids import CommitId, TreeId
from stackctl.progress import SILENT, Progress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}

State = tuple[int, int, int, int, int]


def _state(status: os.stat_result) -> State:
    return (
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class _Reader:
    """Walks one folder without ever following a link below its top."""

    def __init__(self, importer: Importer, limits: Limits) -> None:
        self._importer = importer
        self._limits = limits
        self._total = 0
        self.seen: list[tuple[bytes, State]] = []

    def changed(self, parts: tuple[bytes, ...]) -> InputError:
        text = shown(b"/".join(parts)) or "."
        return InputError(
            f"{text!r} changed while the folder was read",
            kind="base-changed",
            hint="stop what writes there and run the command again",
            where={"entry": text},
        )

    def walk(self, descriptor: int, parts: tuple[bytes, ...]) -> None:
        if len(parts) >= MAX_DEPTH:
            raise self._importer.refuse(parts, f"lies deeper than {MAX_DEPTH} folders")
        self.seen.append((b"/".join(parts), _state(os.fstat(descriptor))))
        # Order has no influence on the tree, but errors should name the same file.
        for name in sorted(os.fsencode(entry) for entry in os.listdir(descriptor)):
            path = (*parts, name)
            if path == (b".git",):
                continue
            try:
                self._take(descriptor, name, path)
            except FileNotFoundError:
                raise self.changed(path) from None
            except OSError as error:
                raise InputError(
                    f"{shown(b'/'.join(path))!r} cannot be read: {error.strerror}",
                    kind="file-unreadable",
                    hint="let it be read, or take it out of the folder",
                    where={"entry": shown(b"/".join(path))},
                ) from None

    def _take(self, folder: int, name: bytes, path: tuple[bytes, ...]) -> None:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            self._importer.add_folder(path)
            descriptor = os.open(name, _FOLDER, dir_fd=folder)
            try:
                self.walk(descriptor, path)
            finally:
                os.close(descriptor)
            return
        if kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=folder)
            self._importer.add_link(path, target)
        elif kind == stat.S_IFREG:
            descriptor = os.open(name, _FILE, dir_fd=folder)
            try:
                if _state(os.fstat(descriptor)) != _state(status):
                    raise self.changed(path)
                self._add(descriptor, path, status)
            finally:
                os.close(descriptor)
        else:
            raise self._importer.refuse(
                path, f"is {_KINDS.get(kind, 'no file')}, which a git tree cannot hold"
            )
        self.seen.append((b"/".join(path), _state(status)))

    def _add(
        self, descriptor: int, path: tuple[bytes, ...], status: os.stat_result
    ) -> None:
        size = status.st_size
        executable = bool(status.st_mode & stat.S_IXUSR)
        self._total += size
        for found, limit, what in (
            (size, self._limits.file_bytes, "a file has"),
            (self._total, self._limits.total_bytes, "the folder has"),
        ):
            if found > limit:
                raise self._importer.refuse(
                    path, f"passes a limit: {what} more than {limit:,} bytes"
                )
        pieces = self._pieces(descriptor, path, size)
        if size >= STREAM_FROM:
            self._importer.add_stream(path, executable, size, pieces)
        else:
            self._importer.add_file(path, executable, b"".join(pieces))

    def _pieces(
        self, descriptor: int, path: tuple[bytes, ...], size: int
    ) -> Iterator[bytes]:
        left = size
        while left:
            piece = os.read(descriptor, min(left, MIB))
            if not piece:
                raise self.changed(path)
            left -= len(piece)
            yield piece

    def look_again(self, top: int) -> None:
        """Refuse the folder where anything is not as it was."""
        for path, before in self.seen:
            try:
                status = os.stat(path or b".", dir_fd=top, follow_symlinks=False)
            except OSError:
                raise self.changed((path,)) from None
            if _state(status) != before:
                raise self.changed((path,))


def import_path(
    folder: Path,
    *,
    cache: Cache,
    limits: Limits = LIMITS,
    progress: Progress = SILENT,
) -> tuple[TreeId, CommitId]:
    """Import a folder into the cache's store.

    Args:
        folder: The folder; a link to one is followed, links below are taken as links.
        cache: Takes the objects.
        limits: Bounds.
        progress: Told how many files are done.

    Returns:
        The tree of all its files, and the commit that stands for it.

    Raises:
        InputError: The folder is missing, cannot be read, holds what no tree can hold,
            or changed while it was read; nothing was published.
    """
    where = {"file": str(folder)}
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be read: {error.strerror}",
            kind="file-unreadable",
            hint="name a folder that is there and may be read",
            where=where,
        ) from None
    try:
        with Importer(
            cache, limits=limits, progress=progress, kind="path-refused"
        ) as importer:
            reader = _Reader(importer, limits)
            reader.walk(top, ())
            reader.look_again(top)
            return importer.finish()
    except InputError as error:
        if "file" not in error.where:
            error.where["file"] = str(folder)
            error.message = f"{folder}: {error.message}"
            error.args = (error.message,)
        raise
    except OSError as error:
        raise disk_error(error, cache.folder) from error
    finally:
        os.close(top)
