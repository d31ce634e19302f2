# SPDX-License-Identifier: Apache-2.0
"""Indexes that lazy runtimes read in place of a layer's tar, compared with the tar.

Two formats put a table of contents beside a layer's tar. Runtimes that load layers
piece by piece take names, types, links, modes, times and the places of file contents
from that table and never see the tar:

- *zstd:chunked* (containers/storage): the table is JSON, compressed with zstd, at the
  bytes of the stored layer that the annotation `….zstd-chunked.manifest-position` gives
  as `offset:length:unpacked length:type`; `….manifest-checksum` is the SHA-256 of those
  bytes. A footer at the end of the layer gives the place too. Annotations start with
  `io.github.containers.`, those of older tools (podman 4.3) with `io.containers.`. The
  stargz snapshotter reads such layers by the footer, and asks that the unpacked table
  hash to `containerd.io/snapshot/stargz/toc.digest`.
- *eStargz*: the table is the layer's last file, `stargz.index.json`; a gzip member of
  its own begins with that file's header, and an empty member at the end names its
  place. The file hashes to the annotation `containerd.io/snapshot/stargz/toc.digest`.

Both have the same entries: `type`, `name`, `size`, `linkName`, `mode`, `uid`, `gid`,
`modtime`, `xattrs`, `devMajor`, `devMinor`; for contents `digest`, `offset` (where in
the stored layer a frame or member begins that holds them), `innerOffset` (what to pass
over in it), `endOffset`, and `chunkOffset`, `chunkSize`, `chunkDigest`, `chunkType`. An
entry of the type `chunk` goes on with the file before it.

What has to hold, else the layer has more than one meaning:

- The table is where every reader of it looks, and it is JSON with one meaning.
- Each entry of the tar has one entry of its name and the other way round, whiteouts
  included; `stargz.index.json` has none. The order is free but for a whiteout and a
  file of its name. No entry lies behind a symlink of its own layer, which runtimes
  follow that unpack the tar.
- Type, link, and of a regular file the size are the same; so are marks of overlay file
  systems. So are permission bits and owners, which matter in a checkout only.
- A file's `digest` is the SHA-256 of its content. If it has none, its chunks have.
- Its chunks follow one another from its first byte to its last. Where a frame or member
  begins with a chunk and the next one with what follows it, `chunkDigest` is the digest
  of what lies between. A chunk of `zeros` is zeros.
- `offset` is where a frame or member begins, from which `innerOffset` bytes further on
  the chunk's bytes of the tar follow; `endOffset` is where one ends with the file.

Another modification time is no disagreement: it counts beside that of the tar where
Python compares it with that of bytecode. Not compared are extended attributes of other
kinds, the numbers of devices, and the record of the tar's headers (`tarsplit`), by
which a tar is made again when a layer is pushed.

The layer is read once. While it passes, the SHA-256 of every file and of its pieces
between the beginnings of frames is taken, the table is kept compressed, and where
frames and members begin is noted; all of that only for layers that say that they have
an index. What is kept is bounded, and so is the table: one that passes a bound is not
compared.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from stackctl.image.blobs import decompress
from stackctl.image.errors import ImageFormatError, LimitError
from stackctl.image.layers import LayerEntry
from stackctl.image.lazystream import MAX_PLAIN, MAX_STORED, TOC_NAME, Record
from stackctl.image.lazytable import (
    Comparison,
    Difference,
    MalformedError,
    Outcome,
    Table,
)
from stackctl.image.limits import Limits
from stackctl.image.view import Doubt, View

ESTARGZ: Final = "eStargz"
CHUNKED: Final = "zstd:chunked"
_TOC_DIGEST = "containerd.io/snapshot/stargz/toc.digest"
_CHUNKED = ("io.github.containers.zstd-chunked.", "io.containers.zstd-chunked.")
#: Annotations that begin like those of an index and say nothing of one.
_HARMLESS = ("tarsplit-position", "tarsplit-checksum", "stargz/feature")
_POSITION = re.compile(r"\s*(\d{1,19}):\s*(\d{1,19}):\s*(\d{1,19}):\s*(\d{1,19})")
_FOOTER_MAGIC = (b"GNUlInUx", b"GnUlInUx")
#: Bytes of a footer without and with the place of the record of the tar's headers.
_SHORTER = 40
_LONGER = 64
_LONGER_HEAD = b"\x50\x2a\x4d\x18" + _LONGER.to_bytes(4, "little")
_FAMILIES = (
    (
        "lazy",
        "where the layer's index is read (podman and CRI-O with partial pulls, the "
        "stargz snapshotter),",
    ),
    ("tar", "where its tar is read,"),
)


class LayerIndex:
    """Takes down what passes of a layer that says it has an index, and compares it.

    Args:
        annotations: Those of the layer's descriptor that speak of an index.
        limits: Bounds of a layer.
    """

    def __init__(self, annotations: Mapping[str, str], limits: Limits) -> None:
        self._limits = limits
        self._toc_digest = annotations.get(_TOC_DIGEST, "")
        self._outcome = Outcome()
        self._compared = False
        self._checksum = ""
        self._position: tuple[int, int] | None = None
        self._read_annotations(annotations)
        self.record = Record(self._position)

    def _read_annotations(self, annotations: Mapping[str, str]) -> None:
        unchecked = self._outcome.unchecked
        values: dict[str, set[str]] = {}
        for key, value in annotations.items():
            prefix = next((p for p in _CHUNKED if key.startswith(p)), None)
            if prefix is not None:
                values.setdefault(key[len(prefix) :], set()).add(value)
            elif key != _TOC_DIGEST and not key.endswith(_HARMLESS):
                unchecked.append(f"the annotation {key} is of no format that is known")
        for name in sorted(values):
            if len(values[name]) > 1:
                # Readers of different ages take different ones of them.
                self._whole(
                    f"two annotations {name} name different indexes",
                    "there is one meaning",
                )
            if name not in ("manifest-checksum", "manifest-position", *_HARMLESS):
                unchecked.append(f"the annotation {name} is of no format that is known")
        checksum = min(values.get("manifest-checksum", ("",)))
        position = min(values.get("manifest-position", ("",)))
        if not checksum and not position:
            return
        self._checksum = checksum or "none"
        matched = _POSITION.match(position)
        if matched is None:
            unchecked.append("no annotation says where its index is")
            return
        offset, length, _, kind = map(int, matched.groups())
        if kind != 1:
            unchecked.append(f"its index is of the unknown type {kind}")
        if length > MAX_STORED:
            unchecked.append(f"its index has {length} bytes, more than are read")
            return
        self._position = (offset, length)

    def compare(self, entries: Sequence[LayerEntry], compression: str) -> Outcome:
        """Compare the index with the layer's entries.

        Args:
            entries: All of them, in order.
            compression: How the layer is stored.

        Raises:
            AmbiguousImageError: The table has a key twice, or in two spellings.
        """
        if self._compared:
            # An image may have a layer twice.
            return self._outcome
        self._compared = True
        if self._checksum:
            self._compare_chunked(entries)
        if self._toc_digest and compression != "zstd":
            self._compare_estargz(entries)
        elif self._toc_digest and not self._checksum:
            self._unchecked("no annotation says where its index is")
        return self._outcome

    def _unchecked(self, why: str) -> None:
        self._outcome.unchecked.append(why)

    def _whole(self, lazy: str, tar: str) -> None:
        self._outcome.differences.append(Difference(b"", lazy, tar))

    def _compare_chunked(self, entries: Sequence[LayerEntry]) -> None:
        if self._position is None:
            return
        offset, length = self._position
        place = self._footer_place()
        if place is not None and place != self._position:
            self._whole(
                f"its footer names an index at byte {place[0]}, its annotation one at "
                f"byte {offset}",
                "neither is looked at",
            )
        if not length or len(self.record.captured) != length:
            self._unchecked(f"it ends before the {length} bytes of its index")
            return
        stored = bytes(self.record.captured)
        self.record.captured.clear()
        holds = f"sha256:{hashlib.sha256(stored).hexdigest()}" == self._checksum
        if not holds:
            self._unchecked("its index does not hash to what its annotation says")
        limits = self._limits._replace(layer=MAX_PLAIN, ratio=1 << 20)
        table = self._compare_table(
            CHUNKED, decompress([stored], limits), entries, holds=holds
        )
        if self._toc_digest not in ("", table):
            self._unchecked("its index does not hash to what its annotation says")

    def _footer_place(self) -> tuple[int, int] | None:
        """Return the offset and size of the table that the layer's end names."""
        tail = self.record.tail
        if not tail.endswith(_FOOTER_MAGIC):
            return None
        longer = tail[-_LONGER - 8 : -_LONGER]
        # Who knows the shorter form only reads any footer as one.
        size = _LONGER if longer == _LONGER_HEAD else _SHORTER
        footer = tail[-size:]
        return (
            int.from_bytes(footer[:8], "little"),
            int.from_bytes(footer[8:16], "little"),
        )

    def _compare_estargz(self, entries: Sequence[LayerEntry]) -> None:
        footer = self.record.tail[-51:]
        # Footers of the older stargz are four bytes shorter, at their beginning.
        if footer[14:16] != b"\x16\0" or footer[32:38] != b"STARGZ":
            self._unchecked("it has no footer that says where its index is")
            return
        toc = self.record.toc
        try:
            place = self.record.starts(int(footer[16:32], 16))
        except (ValueError, OverflowError):
            place = None
        if toc.begin < 0 or place != toc.begin - 512:
            if self.record.forgetful:
                self._unchecked("it has too many gzip members")
                return
            self._whole(
                "its footer names an index that is not the layer's file "
                f"{TOC_NAME.decode()}",
                "that index is not looked at",
            )
            return
        if not toc.finish():
            self._unchecked("its index is larger than is read")
            return
        holds = toc.digest == self._toc_digest
        if not holds:
            self._unchecked("its index does not hash to what its annotation says")
        self._compare_table(
            ESTARGZ, toc.plain(), entries, holds=holds, skipped=toc.ordinal
        )

    def _compare_table(
        self,
        kind: str,
        chunks: Iterable[bytes],
        entries: Sequence[LayerEntry],
        *,
        holds: bool,
        skipped: int = -1,
    ) -> str:
        """Compare a table and return its digest.

        Args:
            kind: Its format.
            chunks: The table, unpacked.
            entries: The tar's.
            holds: Whether it hashes to its annotation. One that does not is refused
                or, by runtimes that are told to, taken as it is.
            skipped: Position of the entry that the table leaves out.
        """
        self._outcome.kinds.append(kind)
        digest = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for chunk in chunks:
                digest.update(chunk)
                yield chunk

        table = Table(hashed())
        comparison = Comparison(self.record, self._outcome, entries, skipped)
        try:
            for item in table.entries():
                self._outcome.entries += 1
                if not comparison.take(item):
                    break
            else:
                comparison.finish()
            for _ in table.rest():
                pass
        except (MalformedError, ImageFormatError) as exc:
            what = str(exc) if isinstance(exc, MalformedError) else "damaged"
            if holds:
                self._whole(
                    f"its index is {what}, of which they make what they can",
                    "that index is not looked at",
                )
            else:
                self._unchecked(f"its index is {what}")
            return ""
        except LimitError:
            self._unchecked("its index is larger than is read")
            return ""
        if table.version not in (1, None):
            self._unchecked(f"its index is of the unknown version {table.version}")
        elif table.version is None:
            self._unchecked("its index states no version")
        if comparison.uncompared:
            self._unchecked(
                f"{comparison.uncompared} chunks of its index begin or end where "
                "nothing was hashed"
            )
        return f"sha256:{digest.hexdigest()}"


def settle(view: View, number: int, outcome: Outcome) -> None:
    """Put what a layer's index says otherwise into the view of the image.

    Args:
        view: The view, all layers applied.
        number: Position of the layer.
        outcome: What was found.
    """
    for name, time in outcome.times:
        node = view.lookup(name, follow=False).node
        if node is not None and node.kind == "f" and node.layer == number:
            node.times = (*node.times, time)
    for found in outcome.differences:
        if found.modes_only:
            node = view.lookup(found.path, follow=False).node
            if node is None or node.layer != number:
                # Whatever it had, it is gone.
                continue
        paths = dict.fromkeys(_concerned(view, found))
        view.doubts.add(
            Doubt(
                "lazy-index",
                number,
                tuple(paths),
                found.lazy,
                found.tar,
                found.modes_only,
                _FAMILIES,
            )
        )


def _concerned(view: View, found: Difference) -> Iterator[bytes]:
    """Yield the paths of the image that a difference is about."""
    path = found.path
    yield path
    folder, _, base = path.rpartition(b"/")
    if base.startswith(b".wh."):
        hidden = folder
        if base != b".wh..wh..opq":
            hidden = folder + b"/" + base[4:] if folder else base[4:]
        yield hidden
        yield view.lookup(hidden, follow=False).path
    yield view.lookup(path, follow=False).path
    if found.made:
        # Its folders are made with it, in place of a lower layer's symlinks.
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            above = view.lookup(b"/".join(parts[:depth]), follow=False)
            if above.node is not None and above.node.kind != "d":
                yield above.path
