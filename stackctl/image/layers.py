# SPDX-License-Identifier: Apache-2.0
"""One pass over a layer: its entries, the git id of every file, and its diff_id.

A layer is read once, from its first byte to its last, whatever its entries turn out to
mean: which file a name stands for is only known when all layers are known, and a hard
link may give a file outside of every root a name inside one. So every regular file is
hashed as a git blob while it passes, and nothing but small files of interest is kept.

Reading with the digest of the stored bytes, decompression, the digest of what is
unpacked, and parsing spend their time in C code that releases the interpreter lock, so
they are spread over threads; `scan_layer` says how.
"""

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stackctl.image.blobs import (
    AHEAD,
    CHUNK,
    SMALL,
    Pump,
    Sink,
    ahead,
    decompress,
    sniff,
)
from stackctl.image.errors import (
    AmbiguousImageError,
    DigestError,
    ImageFormatError,
    LimitError,
)
from stackctl.image.limits import Limits
from stackctl.image.tar import ByteStream, Chunk, TarEntry, TarReader

if TYPE_CHECKING:
    from stackctl.image.lazy import LayerIndex

#: Longest name of a file and longest path that Linux takes, in bytes.
MAX_NAME = 255
MAX_PATH = 4095
#: Files up to this size, in bytes, are read in one piece.
_AT_ONCE = 256 * 1024
#: Bytes of one block that is never touched; see `scan_layer`.
_LARGE = 16 * 1024 * 1024
#: Files that are kept whole because they can decide what Python runs.
_STARTUP_SUFFIXES = (b".pth", b".egg-link", b"._pth")
_STARTUP_NAMES = frozenset((b"pyvenv.cfg", b"direct_url.json", b"entry_points.txt"))


#: Bytes of a command that may be one that an installer wrote.
_COMMAND_BYTES = 1024
#: The device that the kernel's overlay takes for a whiteout.
ZERO_DEVICE = "0/0 device"
#: Attributes that the kernel's overlay and the one in user space obey.
OVERLAY_MARKS = (
    b"trusted.overlay.",
    b"user.overlay.",
    b"user.fuseoverlayfs.",
    b"security.fuseoverlayfs.",
)


@dataclass(slots=True)
class LayerEntry:
    """An entry of a layer, with the hashes of its content.

    Attributes:
        name: Cleaned path without a leading slash; empty for the root folder.
        type: Tar type flag; `0` for every regular file.
        mode: Permission bits.
        size: Content size in bytes.
        mtime: Seconds since 1970.
        link: Link target as recorded; of a global header, the name that it sets.
        oid: Git blob id (SHA-1) of a file's content or a symlink's target.
        sha256: SHA-256 of the content, where a rule names one.
        kept: Compressed content, of files that are kept.
        head: First 16 bytes, of bytecode and of files without a suffix.
        overlay: What an overlay mount makes of it: an xattr's name or `0/0 device`.
        ordinal: Position in the layer.
        owner: User and group number.
    """

    name: bytes
    type: str
    mode: int
    size: int
    mtime: int
    link: bytes
    oid: bytes | None = None
    sha256: bytes | None = None
    kept: bytes | None = None
    head: bytes = b""
    overlay: str = ""
    ordinal: int = 0
    owner: tuple[int, int] = (0, 0)

    def content(self) -> bytes | None:
        """Return the content of a kept file."""
        return None if self.kept is None else zlib.decompress(self.kept)


@dataclass(slots=True)
class LayerScan:
    """What one pass over a layer found.

    Attributes:
        entries: All entries in order.
        diff_id: Digest of the uncompressed layer.
        size: Uncompressed size in bytes.
        compression: How it is stored: `gzip`, `zstd` or `tar`.
        notes: Codes of oddities that are no fault.
        index: What was taken down to compare the layer's own index with.
    """

    entries: list[LayerEntry]
    diff_id: str = ""
    size: int = 0
    compression: str = ""
    notes: list[str] = field(default_factory=list)
    index: "LayerIndex | None" = None


class Interest(NamedTuple):
    """Which small files to keep while a layer passes.

    Attributes:
        magic: Magic number of the bytecode that can be compiled here.
        roots: Path prefixes, ending in a slash, under which bytecode is kept.
        wanted: Ordinals of entries to keep whatever they are; used by a second pass.
        sha256: Hash every file with SHA-256 too, because a rule names one.
        lazy_above: Size in bytes above which a file is not hashed until it turns out
            to matter. Compiled files are nearly all of an image and are compared with
            nothing unless a wheel is pinned.
        hashed: Ordinals of entries to hash in any case; used by a second pass.
        names: Last names of files to keep, as those that rules allow.
    """

    magic: bytes = b""
    roots: tuple[bytes, ...] = ()
    wanted: frozenset[int] = frozenset()
    sha256: bool = False
    lazy_above: int | None = None
    hashed: frozenset[int] = frozenset()
    names: frozenset[bytes] = frozenset()

    def passes(self, entry: TarEntry, ordinal: int) -> bool:
        """Say whether an entry's content is passed over."""
        if self.lazy_above is None or entry.size <= self.lazy_above:
            return False
        return ordinal not in self.hashed and ordinal not in self.wanted

    def keeps(self, size: int, item: "LayerEntry", base: bytes, limit: int) -> bool:
        """Say whether to keep the content of an entry of this size and last name."""
        if item.ordinal in self.wanted:
            return True
        if size > limit:
            return False
        if (
            # A longer command is none of an installer's.
            (size <= _COMMAND_BYTES and item.name.endswith(b"bin/" + base))
            or base in _STARTUP_NAMES
            or base in self.names
            or base.endswith(_STARTUP_SUFFIXES)
        ):
            return True
        return (
            bool(self.magic)
            and base.endswith(b".pyc")
            and item.name.startswith(self.roots)
        )


class Budget:
    """Counts what all layers of an image use up, across threads."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._kept = 0
        self._bytes = 0
        self._entries = 0
        self._cancelled = False

    def cancel(self) -> None:
        """Make every pass that is under way end at its next chunk."""
        self._cancelled = True

    def keep(self, size: int) -> bool:
        """Reserve room for a kept file; False when there is none left."""
        with self._lock:
            if self._kept + size > self.limits.kept_total:
                return False
            self._kept += size
            return True

    def spend(self, size: int, entries: int) -> None:
        """Count uncompressed bytes and entries.

        Raises:
            LimitError: The image is over a limit, or nobody wants it any more.
        """
        if self._cancelled:
            raise LimitError("the reading was given up", kind="cancelled")
        with self._lock:
            self._bytes += size
            self._entries += entries
            if self._bytes > self.limits.image:
                raise LimitError(
                    f"the image is over {self.limits.image} bytes uncompressed",
                    kind="limit-image",
                    hint="raise the limit with --max-image-size if this is intended",
                )
            if self._entries > self.limits.entries:
                raise LimitError(
                    f"the image has more than {self.limits.entries} tar entries",
                    kind="limit-entries",
                    hint="raise the limit with --max-entries if this is intended",
                )


def clean_path(name: bytes) -> bytes:
    """Return a tar name as a path below the root.

    `.` and empty components vanish and `..` takes the component before it away, without
    a look at symlinks, as every runtime does first. A `..` too many is dropped.
    """
    if b"/." not in name and b"//" not in name and name[:1] != b".":
        return name.strip(b"/")
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part in (b"", b"."):
            continue
        if part == b"..":
            if parts:
                parts.pop()
        else:
            parts.append(part)
    return b"/".join(parts)


def _overlay_meaning(entry: TarEntry) -> str:
    if entry.type == "3" and entry.device == (0, 0):
        return ZERO_DEVICE
    for key in entry.pax:
        if key.startswith(b"SCHILY.xattr.") and b"overlay" in key:
            name = key[len(b"SCHILY.xattr.") :]
            if name.startswith(OVERLAY_MARKS):
                return name.decode("utf-8", "backslashreplace")
    return ""


def scan_layer(
    blob: Iterable[bytes],
    budget: Budget,
    interest: Interest,
    *,
    size_hint: int | None = None,
    step: int = CHUNK,
    each: Callable[[LayerEntry], object] | None = None,
    index: "LayerIndex | None" = None,
) -> LayerScan:
    """Read a layer blob to its end.

    To read and hash what is stored, to unpack it, to hash what that gives and to parse
    it are a thread each, but for gzip, whose inflating takes longer than hashing and
    parsing together. Which of them is the slowest depends on what the layer holds:
    large files are hardly parsed, small ones are, and what hardly compresses takes
    longest to unpack. So some pieces may wait to be parsed.

    Args:
        blob: The layer as stored; its own digest is checked by whoever yields it.
        budget: Limits shared by the layers of an image.
        interest: Which files to keep.
        size_hint: Stored size in bytes, to choose between threads and none.
        step: Most bytes of a piece that goes from thread to thread; fewer hand-overs
            are faster, and about ten pieces are in memory.
        each: Told every entry as soon as it is read, which is before any digest is
            known to hold: what it makes of them counts only when this returns.
        index: Takes down what its comparison with the layer's own index needs.

    Returns:
        The entries and digests.

    Raises:
        ImageFormatError: No runtime can read it.
        DigestError: The blob's digest does not hold. Comes before any complaint about
            the content, which then is not what was named.
        LimitError: It passes a limit.
    """
    scan = LayerScan([], index=index)
    threaded = size_hint is None or size_hint > SMALL
    if threaded:
        # glibc gives freed memory back as soon as more lies idle than twice the largest
        # block it has seen, and a chunk that is new to the process is zeroed page by
        # page. One large block, never touched, makes it keep what the chunks need.
        bytes(_LARGE)
    source: Iterator[bytes] = iter(())
    failures: list[Exception] = []
    hasher = hashlib.sha256()
    pump: Pump[bytes] | None = None
    sink: Sink[bytes] | None = None

    def stored() -> Iterator[bytes]:
        try:
            yield from blob if index is None else index.record.tap(blob)
        except Exception as exc:
            # It may come while what is before it is parsed, and that may fail too.
            failures.append(exc)
            raise

    def plain() -> Iterator[bytes]:
        unpack = None if index is None else index.record.unpack
        for chunk in decompress(source, budget.limits, unpack, step):
            budget.spend(len(chunk), 0)
            yield chunk

    def hashed(parts: Iterator[bytes]) -> Iterator[bytes]:
        update = hasher.update if sink is None else sink.put
        for chunk in parts:
            update(chunk)
            scan.size += len(chunk)
            yield chunk

    try:
        try:
            scan.compression, source = sniff(stored())
            if threaded and index is None:
                source = ahead(source)
            parts = plain()
            if threaded and scan.compression != "tar":
                pump = Pump(parts, AHEAD)
                parts = iter(pump)
            if threaded and scan.compression != "gzip":
                # With gzip it is hashed where it is parsed, while the cache has it.
                sink = Sink(hasher.update)
            chunks = hashed(parts)
            _parse(chunks, scan, budget, interest, each, index)
            for _ in chunks:
                pass
        except (ImageFormatError, AmbiguousImageError):
            # The blob's own digest decides first: read it to its end.
            if pump is not None:
                pump.stop()
            for _ in source:
                pass
            if failures:
                raise failures[0] from None
            raise
        finally:
            if pump is not None:
                pump.stop()
            if sink is not None:
                sink.close()
        scan.diff_id = f"sha256:{hasher.hexdigest()}"
    except BaseException:
        # Ends what a half-read blob has open: the thread of its digest, a connection.
        for opened in (source, blob):
            close = getattr(opened, "close", None)
            if close is not None:
                close()
        raise
    finally:
        # An exception holds the frames that it passed, and these hold the list.
        failures.clear()
    return scan


def _parse(
    chunks: Iterable[bytes],
    scan: LayerScan,
    budget: Budget,
    interest: Interest,
    each: Callable[[LayerEntry], object] | None,
    index: "LayerIndex | None",
) -> None:
    make = TarReader if index is None else index.record.reader
    reader = make(ByteStream(chunks), max_entries=budget.limits.entries)
    entries = scan.entries
    ordinal = -1
    for ordinal, entry in enumerate(reader):
        if not ordinal % 1024:
            budget.spend(0, 1024 if ordinal else 1)
        name = clean_path(entry.name)
        if len(name) > MAX_NAME:
            _check_name(name, ordinal)
        item = LayerEntry(
            name,
            entry.type,
            entry.mode & 0o7777,
            entry.size,
            entry.mtime,
            entry.linkname,
            ordinal=ordinal,
            owner=entry.owner,
        )
        if entry.type in "0S":
            _hash_content(reader, entry, item, budget, interest)
        elif entry.type == "2":
            item.oid = blob_id(entry.linkname)
            item.size = len(entry.linkname)
        elif entry.type == "g":
            if b"size" in entry.pax:
                raise AmbiguousImageError(
                    "a global PAX header sets 'size' for every later entry: container "
                    "runtimes ignore it, other tar programs obey",
                    kind="ambiguous-global-pax",
                    hint="build the layer without a global header",
                    where={"entry": ordinal},
                )
            item.link = entry.pax.get(b"path") or entry.pax.get(b"linkpath", b"")
        if entry.pax or entry.type == "3":
            item.overlay = _overlay_meaning(entry)
        entries.append(item)
        if each is not None:
            each(item)
    if reader.trailing:
        scan.notes.append("trailing-data")


def _check_name(name: bytes, ordinal: int) -> None:
    if len(name) > MAX_PATH or max(map(len, name.split(b"/"))) > MAX_NAME:
        raise ImageFormatError(
            f"a name of {len(name)} bytes is longer than file systems take",
            kind="name-too-long",
            hint="build the image again; no runtime can unpack this layer",
            where={"entry": ordinal, "path": name[:80].decode("utf-8", "replace")},
        )


def blob_id(data: Chunk) -> bytes:
    """Return the git blob id of some bytes."""
    sha1 = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    sha1.update(data)
    return sha1.digest()


def _hash_content(
    reader: TarReader,
    entry: TarEntry,
    item: LayerEntry,
    budget: Budget,
    interest: Interest,
) -> None:
    if entry.size > entry.stored:
        budget.spend(entry.size - entry.stored, 0)
        if entry.size > budget.limits.layer:
            raise LimitError(
                f"a sparse file is over {budget.limits.layer} bytes",
                kind="limit-layer",
                hint="raise the limit with --max-layer-size if this is intended",
                where={"path": item.name.decode("utf-8", "backslashreplace")},
            )
    base = item.name.rpartition(b"/")[2]
    is_bytecode = base.endswith(b".pyc")
    # Executables have no suffix; their first bytes tell their class.
    wants_head = is_bytecode or b"." not in base
    if interest.passes(entry, item.ordinal):
        if wants_head:
            item.head = bytes(next(iter(reader.data()), b"")[:16])
        return
    keep = interest.keeps(entry.size, item, base, budget.limits.kept)
    if not keep and not interest.sha256 and entry.size <= _AT_ONCE:
        # Nearly every file: one call each to read it and to hash it.
        data = reader.whole()
        item.oid = blob_id(data)
        if wants_head:
            item.head = bytes(data[:16])
        return
    parts: list[bytes] | None = [] if keep else None
    sha1 = hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)
    sha256 = hashlib.sha256() if interest.sha256 else None
    pieces = reader.data() if entry.size > _AT_ONCE else (reader.whole(),)
    for piece in pieces:
        sha1.update(piece)
        if sha256 is not None:
            sha256.update(piece)
        if parts is not None:
            parts.append(bytes(piece))
        if wants_head and len(item.head) < 16:
            item.head += bytes(piece[: 16 - len(item.head)])
    item.oid = sha1.digest()
    if sha256 is not None:
        item.sha256 = sha256.digest()
    if parts is not None:
        data = b"".join(parts)
        if is_bytecode and data[:4] != interest.magic and not interest.wanted:
            return
        packed = zlib.compress(data, 1)
        if budget.keep(len(packed)) or item.ordinal in interest.wanted:
            item.kept = packed


LayerOpener = Callable[[], Iterator[bytes]]


def reread(
    open_layer: LayerOpener, limits: Limits, ordinals: Iterable[int], diff_id: str
) -> dict[int, bytes]:
    """Return the contents of some entries by a second pass over their layer.

    Args:
        open_layer: Opens the verified layer blob again.
        limits: As for the first pass.
        ordinals: Positions of the entries in the layer.
        diff_id: What the first pass found it to be.

    Raises:
        DigestError: It is another layer now.
    """
    wanted = frozenset(ordinals)
    interest = Interest(wanted=wanted, lazy_above=0)
    scan = _second(open_layer, limits, interest, diff_id)
    found: dict[int, bytes] = {}
    for entry in scan.entries:
        if entry.ordinal in wanted and (data := entry.content()) is not None:
            found[entry.ordinal] = data
    return found


def _second(
    open_layer: LayerOpener, limits: Limits, interest: Interest, diff_id: str
) -> LayerScan:
    scan = scan_layer(open_layer(), Budget(limits), interest)
    # Not all sources name their layers by a digest, and a file may be replaced.
    if scan.diff_id != diff_id:
        raise DigestError(
            f"a layer unpacked to {diff_id} and now unpacks to {scan.diff_id}",
            kind="diff-id-mismatch",
            hint="verify an image that nothing changes",
            where={"expected": diff_id, "actual": scan.diff_id},
        )
    return scan


def rehash(
    open_layer: LayerOpener, limits: Limits, ordinals: Iterable[int], diff_id: str
) -> dict[int, LayerEntry]:
    """Return some entries with the hashes that the first pass left out.

    Args:
        open_layer: Opens the verified layer blob again.
        limits: As for the first pass.
        ordinals: Positions of the entries in the layer.
        diff_id: What the first pass found it to be.

    Raises:
        DigestError: It is another layer now.
    """
    hashed = frozenset(ordinals)
    interest = Interest(hashed=hashed, lazy_above=0, sha256=True)
    scan = _second(open_layer, limits, interest, diff_id)
    return {e.ordinal: e for e in scan.entries if e.ordinal in hashed}
