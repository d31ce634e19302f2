# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all, and files read only when they are files."""

import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
from pathlib import Path

from stackctl.errors import InputError
from stackctl.interrupts import Hold

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
# A stale temporary file is taken over at once; only a living writer makes us try again.
_ATTEMPTS = 10_000
_REMOVALS = itertools.count()


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Symbolic links are followed; a FIFO, device, socket or folder is refused without
    waiting for it.

    Args:
        path: File to read.
        limit: Largest accepted size, bytes.

    Returns:
        The file's bytes.

    Raises:
        InputError: The file is missing, unreadable, not a regular file or too large.
    """
    where = {"file": str(path)}
    # Without O_NONBLOCK the open of a FIFO that nobody writes would never return.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file", kind="file-missing", where=where
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"{path}: cannot be read: {reason}", kind="file-unreadable", where=where
        ) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(
                f"{path}: expected a regular file, found {_file_type(found.st_mode)}",
                kind="not-a-file",
                where=where,
            )
        parts: list[bytes] = []
        left = limit + 1
        while left > 0 and (part := os.read(fd, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}",
            kind="file-unreadable",
            where=where,
        ) from None
    finally:
        os.close(fd)
    if left <= 0:
        size = max(found.st_size, limit + 1)
        raise InputError(
            f"{path}: {size:,} bytes; at most {limit:,} are accepted",
            kind="file-too-large",
            where=where,
        )
    return b"".join(parts)


def open_regular(path: Path) -> int | None:
    """Open a regular file that others made, for reading; no link is followed.

    Args:
        path: The file.

    Returns:
        Its descriptor; None where something else has the name.

    Raises:
        OSError: There is nothing, a link, or nothing that can be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def sha256_of_file(path: Path | bytes) -> str:
    """Return the SHA-256 of a file's bytes, in hex; links are followed."""
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all, with exactly these permissions.

    The bytes go to a temporary file in the same folder, reach the disk, and take the
    name in one step. The temporary name is fixed and guarded by a lock: a writer that
    was killed leaves a file which the next writer of the same path takes over, and two
    writers at once take turns. A symbolic link at `path` is replaced, not followed.

    Args:
        path: File to write; its folder must exist.
        data: All bytes of the file.
        mode: Permission bits; the umask has no say.

    Raises:
        InputError: The disk is full (`disk-full`) or the folder cannot be written
            (`not-writable`); the old file is untouched and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.stackctl-tmp")
    hold = Hold()
    try:
        # Ctrl-C between the making of the file and the `try` would leave it.
        hold.take()
        fd = _own(temporary, hold)
        try:
            try:
                _write_all(fd, data)
                os.fchmod(fd, mode)
                os.fsync(fd)
                os.rename(temporary, path)
            except BaseException:
                # Still under our lock, so the name is ours (or already gone).
                temporary.unlink(missing_ok=True)
                raise
        finally:
            os.close(fd)
        sync_folder(path.parent)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        hold.release()


def remove_folder(folder: Path) -> None:
    """Remove what has a folder's name: the name first, so that nobody meets half.

    Args:
        folder: The folder, or a link or file in its place; it may be gone.
    """
    # Several threads may do so, and whoever finds remains may remove them meanwhile.
    number = f"{os.getpid()}{next(_REMOVALS):06d}"
    doomed = folder.with_name(f".{folder.name}.{number}.old")
    try:
        os.rename(folder, doomed)
    except FileNotFoundError:
        return  # somebody was faster
    if doomed.is_symlink() or not doomed.is_dir():
        doomed.unlink(missing_ok=True)
    else:
        shutil.rmtree(doomed, ignore_errors=True)


def refuse_link_out(project: Path, folder: Path) -> None:
    """Refuse a folder that links lead out of a project, before it is written to.

    Args:
        project: The project folder.
        folder: A folder below it, which need not exist yet.

    Raises:
        InputError: The folder lies elsewhere.
    """
    try:
        inside = folder.resolve().is_relative_to(project.resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        inside = False
    if not inside:
        raise InputError(
            f"{folder}: is a link out of the project",
            kind="outside-project",
            hint="put the files into the project folder",
            where={"file": str(folder)},
        )


def _own(temporary: Path, hold: Hold) -> int:
    """Return a descriptor of an empty temporary file that only this call writes."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_ATTEMPTS):
        try:
            fd = os.open(temporary, flags, 0o600)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENXIO}:
                raise
            temporary.unlink(missing_ok=True)  # a link or a socket of that name
            continue
        try:
            _lock(fd, hold)
            ours = os.fstat(fd)
            try:
                named = os.stat(temporary, follow_symlinks=False)
            except FileNotFoundError:
                named = None
            if named is not None and os.path.samestat(ours, named):
                if stat.S_ISREG(ours.st_mode) and ours.st_nlink == 1:
                    os.ftruncate(fd, 0)
                    return fd
                # Truncating a hard link would empty somebody's file.
                temporary.unlink(missing_ok=True)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(errno.EBUSY, "the temporary file stays taken", str(temporary))


def _lock(fd: int, hold: Hold) -> None:
    """Wait for the exclusive lock, where the file system has locks."""
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The file is another writer's; waiting for that one can be interrupted.
            hold.release()
            fcntl.flock(fd, fcntl.LOCK_EX)
            hold.take()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make new names durable; a file system that cannot is not an error.

    Args:
        folder: The folder that they are in.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def reason(error: Exception) -> str:
    """Return what an error says, without the file that an OSError names."""
    return getattr(error, "strerror", None) or str(error)


def folder_error(folder: Path, error: OSError) -> InputError:
    """Return the error for a folder that was not made, and of which nothing is left.

    Args:
        folder: The folder.
        error: What the system said.
    """
    full = error.errno in _FULL
    return InputError(
        f"{folder}: cannot be made: {error.strerror or error}; nothing was kept",
        kind="disk-full" if full else "not-writable",
        hint="free some space (or raise the quota) and run the command again"
        if full
        else f"check that {folder.parent} may be written",
        where={"file": str(folder)},
    )


def _write_error(path: Path, error: OSError) -> InputError:
    where = {"file": str(path)}
    if error.errno in _FULL:
        return InputError(
            f"{path}: cannot be written: {error.strerror}; the file is as before",
            kind="disk-full",
            hint="free some space (or raise the quota) and run the command again",
            where=where,
        )
    return InputError(
        f"{path}: cannot be written: {error.strerror}; the file is as before",
        kind="not-writable",
        hint=f"check that the folder {path.parent} exists and may be written",
        where=where,
    )


def _file_type(mode: int) -> str:
    names = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
    }
    return names.get(stat.S_IFMT(mode), "something else")
