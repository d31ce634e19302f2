# SPDX-License-Identifier: Apache-2.0
"""An archive file as a base: its digest first, then its files, nothing else.

The file is opened once. It is hashed whole before a byte is interpreted, and a tar
archive's bytes are hashed again as they are read: a file that somebody changes in
between is noticed before anything is published. A zip is read from a private copy.
"""

import mmap
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from stackctl.base.importer import Importer
from stackctl.base.limits import LIMITS, MIB, Limits
from stackctl.base.streams import packing, unpack
from stackctl.base.tar import BLOCK, import_tar, is_header
from stackctl.base.zip import import_zip
from stackctl.cache import Cache, disk_error
from stackctl.errors import InputError, PinError
from stackctl.model.ids import CommitId, Sha256, TreeId
from stackctl.progress import SILENT, Progress

_CHUNK = MIB // 4


def _open(path: Path, limits: Limits) -> int:
    where = {"file": str(path)}
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}",
            kind="file-unreadable",
            where=where,
        ) from None
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = ("not-a-file", "is not a regular file")
    elif status.st_size > limits.archive_bytes:
        problem = (
            "limit",
            f"has {status.st_size:,} bytes; at most {limits.archive_bytes:,} are "
            "accepted",
        )
    if problem is not None:
        os.close(descriptor)
        raise InputError(f"{path}: {problem[1]}", kind=problem[0], where=where)
    return descriptor


def _chunks(descriptor: int) -> Iterator[bytes]:
    position = 0
    while chunk := os.pread(descriptor, _CHUNK, position):
        position += len(chunk)
        yield chunk


def file_digest(descriptor: int) -> Sha256:
    """Return the SHA-256 of an open file, from its first byte."""
    digest = sha256()
    for chunk in _chunks(descriptor):
        digest.update(chunk)
    return Sha256(digest.hexdigest())


def wrong_digest(label: str, expected: str, found: str) -> PinError:
    """Return the error for bytes that are not the pinned ones."""
    return PinError(
        f"{label}: expected SHA-256 {expected}, found {found}",
        kind="wrong-digest",
        hint="the file is not the one that was pinned: find out why before you "
        "change the pin",
        where={"file": label},
    )


@contextmanager
def _private_copy(cache: Cache, descriptor: int) -> Iterator[mmap.mmap]:
    """Map a nameless copy of a file, which nobody else can change."""
    try:
        cache.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache.folder) as file:
            for chunk in _chunks(descriptor):
                file.write(chunk)
            file.flush()
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise disk_error(error, cache.folder) from error
    with view:
        yield view


def _import(
    descriptor: int,
    expected: Sha256,
    strip: int,
    cache: Cache,
    label: str,
    limits: Limits,
    progress: Progress,
) -> tuple[TreeId, CommitId]:
    found = file_digest(descriptor)
    if found != expected:
        raise wrong_digest(label, expected, found)
    head = os.pread(descriptor, BLOCK, 0)
    name = packing(head)
    if name is None and not is_header(head):
        raise InputError(
            "this is no archive of a known form (tar, tar.gz, tar.bz2, tar.xz, "
            "tar.zst, zip)",
            kind="archive-unknown",
        )
    with Importer(cache, limits=limits, progress=progress) as importer:
        again = sha256()

        def chunks() -> Iterator[bytes]:
            for chunk in _chunks(descriptor):
                again.update(chunk)
                yield chunk

        if name == "zip":
            with _private_copy(cache, descriptor) as view:
                again.update(view)
                if again.hexdigest() == expected:
                    import_zip(view, importer, strip, limits)
        else:
            import_tar(unpack(chunks(), name, limits), importer, strip, limits)
        if again.hexdigest() != expected:
            raise wrong_digest(f"{label} (changed while read)", expected, "another")
        importer.refuse_links_out()
        return importer.finish()


def import_archive(
    path: Path,
    expected: Sha256,
    *,
    strip: int,
    cache: Cache,
    label: str | None = None,
    limits: Limits = LIMITS,
    progress: Progress = SILENT,
) -> tuple[TreeId, CommitId]:
    """Import an archive into the cache's store.

    Args:
        path: The archive: tar (plain, gzip, bzip2, xz, zstd) or zip, told by its bytes.
        expected: Its SHA-256.
        strip: Leading folders to remove; all entries must share them.
        cache: Takes the objects.
        label: What messages call the archive; its path by default.
        limits: Bounds.
        progress: Told how many files are done.

    Returns:
        The tree of exactly the packed files, and the commit that stands for it.

    Raises:
        PinError: The file has another digest.
        InputError: It cannot be read, is malformed or hostile; nothing was published.
    """
    shown = label or str(path)
    descriptor = _open(path, limits)
    try:
        return _import(descriptor, expected, strip, cache, shown, limits, progress)
    except InputError as error:
        if "file" not in error.where:
            error.where["file"] = shown
            error.message = f"{shown}: {error.message}"
            error.args = (error.message,)
        raise
    except OSError as error:
        raise disk_error(error, cache.folder) from error
    finally:
        os.close(descriptor)
