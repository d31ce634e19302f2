# SPDX-License-Identifier: Apache-2.0
"""One pass over a large layer: the same answer however its work is spread."""

import gzip
import hashlib
import random
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest
import zstandard
from images import Tar, sha256
from support import until

from stackctl.image import inflate
from stackctl.image.blobs import Sink, ahead, decompress, verified
from stackctl.image.errors import DigestError, ImageFormatError
from stackctl.image.layers import Budget, Interest, LayerScan, scan_layer
from stackctl.image.limits import Limits

PACK: dict[str, Callable[[bytes], bytes]] = {
    "tar": lambda data: data,
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "zstd": zstandard.ZstdCompressor(level=1).compress,
}
CONTENT = random.Random(1).randbytes(3 << 20)
LAYER = Tar().file("a/one", b"1").file("a/big", CONTENT).file("b", b"two").done()


def pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


def scan(
    stored: bytes, size: int | None, digest: str = "", interest: Interest | None = None
) -> LayerScan:
    blob = verified(pieces(stored), digest or sha256(stored), len(stored), "layer")
    return scan_layer(
        ahead(blob) if size is None else blob,
        Budget(Limits()),
        interest or Interest(),
        size_hint=size,
    )


def threads_end(before: int) -> None:
    """Wait until there are no more threads than before."""
    until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("size", [None, 0], ids=["threads", "none"])
@pytest.mark.parametrize("kind", PACK)
def test_entries_and_diff_id(kind: str, size: int | None) -> None:
    before = threading.active_count()
    found = scan(PACK[kind](LAYER), size)
    assert (found.diff_id, found.size) == (sha256(LAYER), len(LAYER))
    assert found.compression == kind
    assert [(e.name, e.size) for e in found.entries] == [
        (b"a/one", 1),
        (b"a/big", 3 << 20),
        (b"b", 3),
    ]
    blob = b"blob %d\0" % len(CONTENT) + CONTENT
    assert found.entries[1].oid == hashlib.sha1(blob).digest()
    threads_end(before)


def damage(kind: str, where: str) -> bytes:
    if where == "tar":
        return PACK[kind](LAYER[:-2048] + b"\1" * 512 + LAYER[-1536:])
    stored = PACK[kind](LAYER)
    return stored[: len(stored) // 2] + bytes(64) + b"\xff" * (len(stored) // 2)


@pytest.mark.parametrize("size", [None, 0], ids=["threads", "none"])
@pytest.mark.parametrize(
    ("kind", "where"),
    [(kind, "tar") for kind in PACK] + [("gzip", "stream"), ("zstd", "stream")],
)
def test_wrong_digest_comes_before_damage(
    kind: str, where: str, size: int | None
) -> None:
    before = threading.active_count()
    stored = damage(kind, where)
    with pytest.raises(ImageFormatError):
        scan(stored, size)
    with pytest.raises(DigestError) as caught:
        scan(stored, size, digest=sha256(b"another"))
    assert caught.value.kind == "digest-mismatch"
    threads_end(before)


@pytest.mark.parametrize("kind", PACK)
def test_digest_of_what_follows_the_last_entry(kind: str) -> None:
    longer = LAYER + bytes(1 << 20) + b"more"
    found = scan(PACK[kind](longer), None)
    assert (found.diff_id, found.size) == (sha256(longer), len(longer))
    assert found.notes == ["trailing-data"]


def test_sink_takes_in_order_and_ends() -> None:
    taken: list[int] = []
    sink = Sink(taken.append)
    for number in range(100):
        sink.put(number)
    sink.close()
    sink.close()
    assert taken == list(range(100))


def test_sink_says_what_went_wrong() -> None:
    def take(number: int) -> None:
        if number == 3:
            raise ValueError("three")

    sink = Sink(take)
    for number in range(100):
        sink.put(number)
    with pytest.raises(ValueError, match="three"):
        sink.close()


@pytest.mark.parametrize("flags", [0, 2, 4, 8, 16, 4 | 8, 4 | 8 | 16, 2 | 4 | 8 | 16])
@pytest.mark.parametrize("step", [1, 7, 11, 300, 1 << 20])
def test_header_of_a_gzip_member_in_pieces(flags: int, step: int) -> None:
    data = Tar().file("a", "A" * 5000).done()
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff"
    head += (struct.pack("<H", 300) + b"e" * 300) if flags & 4 else b""
    head += b"layer.tar\0" if flags & 8 else b""
    head += b"comment\0" if flags & 16 else b""
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF) if flags & 2 else b""
    packer = zlib.compressobj(wbits=-15)
    member = head + packer.compress(data) + packer.flush()
    member += struct.pack("<II", zlib.crc32(data), len(data))
    blob = member + member
    pieces = (blob[at : at + step] for at in range(0, len(blob), step))
    assert b"".join(decompress(pieces, Limits())) == data + data
    for end in (9, len(head) - 1, len(member) + len(head) - 1):
        with pytest.raises(ImageFormatError):
            list(decompress(iter([blob[:end]]), Limits()))


@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_many_gzip_members_are_looked_at_about_once(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """What a member leaves over is copied, so each is given little more than it is."""
    handed = []

    class Counting:
        def __init__(self, member: object) -> None:
            self._member = member

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

        def decompress(self, data: memoryview, size: int) -> bytes:
            handed.append(len(data))
            return self._member.decompress(data, size)  # type: ignore[attr-defined, no-any-return]

    real = inflate.decompressor
    monkeypatch.setattr(inflate, "decompressor", lambda bits: Counting(real(bits)))
    source = random.Random(5)
    sizes = [source.choice((0, 1, 700, 30_000)) for _ in range(1500)] + [2 << 20]
    parts = [source.randbytes(size) for size in sizes]
    blob = b"".join(gzip.compress(part, 0, mtime=0) for part in parts)
    pieces = (blob[at : at + step] for at in range(0, len(blob), step))
    assert b"".join(decompress(pieces, Limits())) == b"".join(parts)
    assert sum(handed) < 4 * len(blob) + 4096 * len(parts)
