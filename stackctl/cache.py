# SPDX-License-Identifier: Apache-2.0
"""The cache: downloads, the object store and what is known about both.

Everything in it is derived and content-addressed: deleting it costs time, never a
result. It is shared between projects and safe under parallel runs: files appear by
rename, facts are rows of an SQLite file, and locks die with the process that held them.

Layout below the cache folder:

    store.git/            objects of bases and compositions (a bare repository)
    downloads/<sha256>    archives, by their digest
    facts.sqlite3         what was derived: base -> tree, step -> tree, blob -> SHA-256
    bisect/               logs and outputs of searches
    trees/                trees of gates as folders, the last used (`gates/shelf.py`)
    locks/                lock files of running work
"""

import fcntl
import os
import sqlite3
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stackctl.errors import InputError, UsageError
from stackctl.fsutil import reason
from stackctl.git.command import DamagedObjectError, GitCommandError
from stackctl.git.store import Store

FACTS_VERSION = 2
"""Version of the meaning of all rows; another version starts with an empty table."""

PATIENCE = 1.0
"""How long cleaning waits for those who use the cache: seconds.

Enough for what is about to end; a run of gates takes minutes, and is named instead.
"""

T = TypeVar("T")


def default_cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: `STACKCTL_CACHE_DIR`, else the user's cache folder.

    Args:
        environment: Variables to look at; the process's own by default.
    """
    variables = os.environ if environment is None else environment
    explicit = variables.get("STACKCTL_CACHE_DIR")
    if explicit:
        return Path(explicit).expanduser().absolute()
    xdg = variables.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg) / "stackctl"
    try:
        return Path.home() / ".cache" / "stackctl"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"stackctl-{os.getuid()}"


def disk_error(error: OSError | sqlite3.Error, folder: Path) -> InputError:
    """Return the error for a folder that cannot be written."""
    name = getattr(error, "filename", None)  # what it is about, below the folder
    place = folder if name is None else os.fsdecode(name)
    return InputError(
        f"cannot write to {place}: {reason(error)}",
        kind="cannot-write",
        hint="free some space, or set STACKCTL_CACHE_DIR to a folder you can write to",
        where={"file": str(folder)},
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """What one part of the cache holds.

    Attributes:
        name: `store`, `downloads`, `searches`, `trees` or `facts`.
        files: Number of files.
        bytes: Their size in bytes.
    """

    name: str
    files: int
    bytes: int


class Cache:
    """One cache folder.

    Args:
        folder: Where it lies; created when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads = folder / "downloads"
        self._store: Store | None = None
        self._database: sqlite3.Connection | None = None
        self._in_use: int | None = None

    @classmethod
    def open(cls, folder: Path | None = None) -> "Cache":
        """Open the cache, falling back to a private temporary one.

        Args:
            folder: The folder; by default `default_cache_folder()`. A folder that was
                asked for and cannot be written is an error; the default one (a
                read-only home) is replaced by a folder below the temporary folder.

        Raises:
            UsageError: The folder that was asked for cannot be used.
        """
        chosen = folder or default_cache_folder()
        if "\n" in str(chosen):
            raise UsageError(
                f"the path of the cache folder has a line feed: {str(chosen)!r}",
                kind="no-cache",
                hint="git cannot share objects from there; set STACKCTL_CACHE_DIR",
            )
        try:
            chosen.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(chosen, os.W_OK | os.X_OK):
                return cls(chosen)
            problem: str = "it is not writable"
        except OSError as error:
            problem = error.strerror or str(error)
        if folder is not None or os.environ.get("STACKCTL_CACHE_DIR"):
            raise UsageError(
                f"the cache folder {chosen} cannot be used: {problem}",
                kind="no-cache",
                hint="set STACKCTL_CACHE_DIR to a folder you can write to",
            )
        fallback = Path(tempfile.gettempdir()) / f"stackctl-{os.getuid()}"
        try:
            fallback.mkdir(mode=0o700, exist_ok=True)
            status = fallback.lstat()
        except OSError as error:
            raise disk_error(error, fallback) from error
        # Another user could have made that folder first, or a link in its place.
        if status.st_uid != os.getuid() or status.st_mode & 0o170077 != 0o040000:
            raise UsageError(
                f"the cache folder {chosen} cannot be used ({problem}), and {fallback} "
                "is not a private folder of yours",
                kind="no-cache",
                hint="set STACKCTL_CACHE_DIR to a folder you can write to",
            )
        return cls(fallback)

    @property
    def store(self) -> Store:
        """The object store."""
        if self._store is None:
            try:
                self._hold(fcntl.LOCK_SH)
                self._store = Store.create(self.folder / "store.git")
                self._tidy(self._store)
            except OSError as error:
                raise disk_error(error, self.folder) from error
        return self._store

    def _hold(self, how: int) -> None:
        """Hold the lock of those who use the store, until this object goes away.

        Cleaning waits for all of them, and they for cleaning.
        """
        if self._in_use is None:
            folder = self.folder / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._in_use = os.open(folder / "in-use", flags, 0o600)
            weakref.finalize(self, os.close, self._in_use)
        fcntl.flock(self._in_use, how)

    def _wait_for_users(self) -> None:
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                self._hold(fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise self._taken() from None
                time.sleep(0.05)

    def _taken(self) -> UsageError:
        """Return the error that names who uses the cache."""
        found = users(self.folder / "locks" / "in-use")
        named = [f"{words} (process {pid})" for pid, words in sorted(found.items())]
        them = "it has" if len(named) < 2 else "they have"
        return UsageError(
            f"the cache {self.folder} is in use by "
            f"{', '.join(named) or 'another run'}; nothing was deleted",
            kind="cache-in-use",
            hint=f"clean again once {them} ended, or end {them.split()[0]} with "
            "Ctrl-C; trees of gates that no run uses can go now: "
            "stackctl cache clean --trees",
            where={"file": str(self.folder), "processes": sorted(found)},
        )

    def _tidy(self, store: Store) -> None:
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        # The lock of fetches: what they leave may only go while none is running.
        for name, action in (
            ("git-fetch", store.remove_fetch_remains),
            ("tidy", store.tidy),
        ):
            descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                action()
            except (BlockingIOError, DamagedObjectError, GitCommandError):
                pass  # another process is at it, or its git is after it was killed
            finally:
                os.close(descriptor)

    def _connect(self) -> sqlite3.Connection:
        if self._database is not None:
            return self._database
        path = self.folder / "facts.sqlite3"
        for attempt in (1, 2):
            connection = None
            try:
                connection = sqlite3.connect(path, timeout=60, isolation_level=None)
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version != FACTS_VERSION:
                    self._start(connection)
                self._database = connection
                return connection
            except sqlite3.OperationalError as error:
                if connection is not None:
                    connection.close()
                raise disk_error(error, self.folder) from error
            except sqlite3.DatabaseError:
                # A damaged file holds nothing that cannot be derived again.
                if connection is not None:
                    connection.close()
                if attempt == 2:
                    raise
                self._drop_facts()
        raise AssertionError("unreachable")

    @staticmethod
    def _start(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have made the table while we waited for our turn.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != FACTS_VERSION:
            # Programs of version 1, whose values had no checksum, may still run: they
            # must find no table rather than values that they would misread.
            connection.execute("DROP TABLE IF EXISTS facts")
            connection.execute("DROP TABLE IF EXISTS sealed_facts")
            connection.execute(
                "CREATE TABLE sealed_facts (kind TEXT, key BLOB, value BLOB, "
                "PRIMARY KEY (kind, key)) WITHOUT ROWID"
            )
            connection.execute(f"PRAGMA user_version = {FACTS_VERSION}")
        connection.execute("COMMIT")

    def _drop_facts(self) -> None:
        # The journal too: it would be rolled back into the next file of this name.
        for path in self.folder.glob("facts.sqlite3*"):
            path.unlink(missing_ok=True)

    def _guarded(self, action: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connect()
        try:
            return action(connection)
        except sqlite3.DatabaseError as error:
            no_table = "no such table" in str(error)
            if isinstance(error, sqlite3.OperationalError) and not no_table:
                raise disk_error(error, self.folder) from error
            connection.close()
            self._database = None
            self._drop_facts()
            return action(self._connect())

    def get(self, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Look facts up.

        Args:
            kind: Which family of facts, like `step`.
            keys: Keys to look for.

        Returns:
            The values of the keys that are known; a damaged one is not known.
        """
        wanted = list(keys)

        def select(connection: sqlite3.Connection) -> dict[bytes, bytes]:
            found: dict[bytes, bytes] = {}
            for start in range(0, len(wanted), 500):
                part = wanted[start : start + 500]
                marks = ",".join("?" * len(part))
                rows = connection.execute(
                    "SELECT key, value FROM sealed_facts WHERE kind = ? "  # noqa: S608
                    f"AND key IN ({marks})",
                    (kind, *part),
                )
                for key, sealed in rows:
                    value = _opened(kind, key, sealed)
                    if value is not None:
                        found[key] = value
            return found

        return self._guarded(select) if wanted else {}

    def put(self, kind: str, facts: Mapping[bytes, bytes]) -> None:
        """Remember facts in one transaction.

        Args:
            kind: Which family of facts.
            facts: Keys and values. A key's value never differs between writers.
        """
        if not facts:
            return

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(
                    "INSERT OR REPLACE INTO sealed_facts VALUES (?, ?, ?)",
                    [(kind, k, _sealed(kind, k, facts[k])) for k in facts],
                )
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

        self._guarded(insert)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock that other processes on this cache respect.

        Args:
            name: File-name-safe name of the work, like `download-<sha256>`.
        """
        folder = self.folder / "locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise disk_error(error, folder) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def usage(self) -> list[Usage]:
        """Return what the cache holds, part by part."""
        parts = []
        for name, root in (
            ("store", self.folder / "store.git"),
            ("downloads", self.downloads),
            ("searches", self.folder / "bisect"),
            ("trees", self.folder / "trees"),
            ("facts", self.folder),
        ):
            paths = root.glob("facts.*") if name == "facts" else _files_below(root)
            sizes = [size for size in map(_size, paths) if size is not None]
            parts.append(Usage(name, len(sizes), sum(sizes)))
        return parts

    def clean(self, *, downloads: bool = True, store: bool = True) -> None:
        """Delete parts of the cache, once no other process uses it.

        The trees of gates have users of their own (`gates/shelf.py`).

        Args:
            downloads: Delete the downloaded archives.
            store: Delete the object store, the facts, and the logs of searches.

        Raises:
            UsageError: Another process uses the cache, and goes on.
        """
        import shutil

        self._hold(fcntl.LOCK_UN)
        self._wait_for_users()
        try:
            if store:
                if self._database is not None:
                    self._database.close()
                    self._database = None
                self._store = None
                # Facts go first: a fact without its objects would be a lie.
                self._drop_facts()
                shutil.rmtree(self.folder / "store.git", ignore_errors=True)
                shutil.rmtree(self.folder / "bisect", ignore_errors=True)
            if downloads:
                shutil.rmtree(self.downloads, ignore_errors=True)
        finally:
            self._hold(fcntl.LOCK_UN)


def users(lock: Path) -> dict[int, str]:
    """Return which other processes have a lock file open.

    Args:
        lock: The file.

    Returns:
        The processes that this one may look at, with the words of their commands up to
        the first option: what follows may be long, or a secret. Empty where there is no
        `/proc` (it is Linux's).
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid() or not (words := _command(folder)):
            continue
        with suppress(OSError):  # another user's, or it has just ended
            if any(_same(opened, lock) for opened in (folder / "fd").iterdir()):
                found[pid] = words
    return found


def _same(opened: Path, file: Path) -> bool:
    with suppress(OSError):  # it was closed meanwhile
        return file.samefile(opened)
    return False


def _command(process: Path) -> str:
    """Return the words of a process's command, or nothing where it cannot be seen."""
    try:
        argv = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
    except OSError:
        return ""
    # After `python -m` or `python`: the interpreter is no news.
    names = [word.rpartition("/")[2] for word in argv]
    start = names.index("stackctl") if "stackctl" in names else 0
    words = names[start : start + 1]
    for word in argv[start + 1 :]:
        if not word or word.startswith("-"):
            break
        words.append(word)
    return " ".join(words)


_SEAL = 4
"""Bytes of the checksum behind every value: SQLite would not notice a flipped bit."""


def _seal(kind: str, key: bytes, value: bytes) -> bytes:
    head = b"%s %d " % (kind.encode(), len(key))
    return zlib.crc32(head + key + value).to_bytes(_SEAL, "big")


def _sealed(kind: str, key: bytes, value: bytes) -> bytes:
    return value + _seal(kind, key, value)


def _opened(kind: str, key: bytes, sealed: object) -> bytes | None:
    """Return the value of a row, None where it is not what was written."""
    if not isinstance(sealed, bytes):
        return None
    value = sealed[:-_SEAL]
    return value if sealed[-_SEAL:] == _seal(kind, key, value) else None


def _files_below(folder: Path) -> Iterator[Path]:
    # Not `rglob`: a folder that goes meanwhile would end it.
    for place, _, names in os.walk(folder):
        for name in names:
            yield Path(place, name)


def _size(path: Path) -> int | None:
    """Return a file's size in bytes, or None where there is none any more."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None
