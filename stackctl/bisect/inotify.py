# SPDX-License-Identifier: Apache-2.0
"""Which names below some folders were touched, as the Linux kernel tells.

Looking at each of 8,500 files takes longer than 3 % of a test of two seconds, also for
git. The kernel says what happened instead: everything that is written, made, moved,
removed or given other permissions. Where it cannot say (another system, a limit, too
many events), the caller looks at everything.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

_MODIFY = 0x2
_ATTRIB = 0x4
_CLOSE_WRITE = 0x8
_MOVED_FROM = 0x40
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_UNMOUNT = 0x2000
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ONLYDIR = 0x1000000
_DONT_FOLLOW = 0x2000000

# A folder is told what happens to its names; a file also what happens to it under
# another name of its own (a hard link), elsewhere.
_FILE = _MODIFY | _ATTRIB | _CLOSE_WRITE | _DELETE_SELF | _MOVE_SELF | _DONT_FOLLOW
# A write through a mapping of the file shows when the file is closed.
_WANTED = (
    _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
    | _DELETE_SELF | _MOVE_SELF | _ONLYDIR | _DONT_FOLLOW
)  # fmt: skip
_LOST = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED

_HEAD = struct.Struct("iIII")


class Touched:
    """Watches folders and tells which names in them were touched.

    Args:
        root: The folder that all others lie in.

    Raises:
        OSError: The kernel offers no watches, or no more of them.
    """

    def __init__(self, root: bytes) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("no inotify here")
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._call(self._libc.inotify_init1, os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, bytes] = {}
        self._files: dict[int, bytes] = {}

    @staticmethod
    def _call(function: "ctypes._NamedFuncPointer", *arguments: object) -> int:
        result: int = function(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def watch(self, folders: Iterable[bytes], files: Iterable[bytes]) -> None:
        """Watch further folders and files.

        Args:
            folders: Paths below the root; empty for the root itself.
            files: Paths of files and links.

        Raises:
            OSError: There are too many, or one is no folder.
        """
        for folder in folders:
            path = self._root + b"/" + folder if folder else self._root
            self._folders[self._add(path, _WANTED)] = folder
        for file in files:
            self._files[self._add(self._root + b"/" + file, _FILE)] = file

    def _add(self, path: bytes, wanted: int) -> int:
        return self._call(
            self._libc.inotify_add_watch,
            self._file,
            ctypes.c_char_p(path),
            ctypes.c_uint32(wanted),
        )

    def forget(self) -> None:
        """Forget what was touched up to now, by ourselves."""
        self._read(own=True)

    def names(self) -> set[bytes] | None:
        """Return the paths that were touched, None where that is not known.

        A watched folder that was moved or removed counts as not known: of one that
        takes its place, nothing would be told.
        """
        return self._read(own=False)

    def _read(self, own: bool) -> set[bytes] | None:
        touched: set[bytes] = set()
        known = True
        while True:
            try:
                data = os.read(self._file, 1 << 16)
            except BlockingIOError:
                return touched if known else None
            position = 0
            while position < len(data):
                number, mask, _, size = _HEAD.unpack_from(data, position)
                position += _HEAD.size
                name = data[position : position + size].rstrip(b"\0")
                position += size
                if number in self._files:
                    touched.add(self._files[number])
                    if mask & _IGNORED:
                        del self._files[number]
                    continue
                if mask & _IGNORED and own:
                    self._folders.pop(number, None)
                    continue
                if mask & _LOST:
                    known = known and own and not mask & (_OVERFLOW | _UNMOUNT)
                    continue
                folder = self._folders.get(number)
                if folder is None:
                    continue
                path = folder + b"/" + name if folder and name else folder + name
                touched.add(path)

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._file)
