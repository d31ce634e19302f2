# SPDX-License-Identifier: Apache-2.0
"""The tar reader, with Python's own writer and with headers made by hand."""

import io
import tarfile
from collections.abc import Iterator

import pytest
from images import Tar, header, padded, pax_records

from stackctl.image.errors import ImageFormatError, LimitError
from stackctl.image.tar import ByteStream, TarEntry, TarReader, parse_pax


def read(data: bytes, piece: int = 7) -> list[tuple[TarEntry, bytes]]:
    chunks = (data[at : at + piece] for at in range(0, len(data), piece))
    reader = TarReader(ByteStream(chunks))
    return [(entry, b"".join(map(bytes, reader.data()))) for entry in reader]


def bad(data: bytes) -> str:
    with pytest.raises(ImageFormatError) as caught:
        read(data)
    return caught.value.message


@pytest.mark.parametrize(
    "form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
@pytest.mark.parametrize("piece", [1, 511, 512, 513, 100_000])
def test_reads_what_python_writes(form: int, piece: int) -> None:
    out = io.BytesIO()
    long = "folder/" * 12 + "name" * 15
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in (("short", b"x"), (long, b"y" * 1025), ("empty", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755
            info.mtime = 1234
            tar.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("link")
        info.type = tarfile.SYMTYPE
        info.linkname = "target"
        tar.addfile(info)
    found = read(out.getvalue(), piece)
    assert [(e.name.decode(), e.type, d) for e, d in found] == [
        ("short", "0", b"x"),
        (long, "0", b"y" * 1025),
        ("empty", "0", b""),
        ("link", "2", b""),
    ]
    assert found[0][0].mode == 0o755 and found[0][0].mtime == 1234
    assert found[3][0].linkname == b"target"


def test_content_need_not_be_read() -> None:
    data = Tar().file("a", b"x" * 2000).file("b", b"y").done()
    reader = TarReader(ByteStream([data]))
    assert [entry.name for entry in reader] == [b"a", b"b"]


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6"])
def test_only_files_have_content(kind: bytes) -> None:
    data = Tar().raw(header(b"a", kind, size=512)).file("b", "B").done()
    assert [(e.name, d) for e, d in read(data)] == [(b"a", b""), (b"b", b"B")]


def test_base_256_numbers() -> None:
    big = 8**11 + 5
    block = header(b"a", b"0", big)
    reader = TarReader(ByteStream([block]))
    assert next(iter(reader)).size == big


@pytest.mark.parametrize("field", [slice(124, 136), slice(100, 108), slice(136, 148)])
def test_malformed_numbers(field: slice) -> None:
    block = bytearray(header(b"a"))
    block[field] = b"9" * (field.stop - field.start)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert "malformed number" in bad(bytes(block))


def test_negative_size() -> None:
    block = bytearray(header(b"a"))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert "negative size" in bad(bytes(block))


def test_signed_checksums_count_too() -> None:
    block = bytearray(header(b"\xff\xfe"))
    block[148:156] = b" " * 8
    signed = sum(byte - 256 if byte > 127 else byte for byte in block)
    block[148:156] = b"%06o\0 " % signed
    assert read(bytes(block))[0][0].name == b"\xff\xfe"


def test_wrong_checksum() -> None:
    block = bytearray(header(b"a"))
    block[0] ^= 1
    assert "no tar header" in bad(bytes(block))


@pytest.mark.parametrize("cut", [100, 600, 1000])
def test_truncated(cut: int) -> None:
    data = Tar().file("a", b"x" * 600).data[:cut]
    assert "it ends inside" in bad(data)


def test_missing_padding_at_the_end_is_no_fault() -> None:
    data = Tar().file("a", b"x" * 600).data[: 512 + 600]
    assert read(data)[0][1] == b"x" * 600


def test_one_zero_block_then_another() -> None:
    data = Tar().file("a").data + bytes(512) + Tar().file("b").data
    assert "a zero block" in bad(data)


def test_data_after_the_end() -> None:
    reader = TarReader(ByteStream([Tar().file("a").done() + b"xyz"]))
    assert [entry.name for entry in reader] == [b"a"]
    assert reader.trailing == 3


def test_second_pax_header_replaces_the_first() -> None:
    data = Tar().pax((b"path", b"one")).pax((b"mtime", b"7.9")).file("real").done()
    entry = read(data)[0][0]
    assert (entry.name, entry.mtime) == (b"real", 7)


def test_negative_times_are_rounded_down() -> None:
    data = Tar().pax((b"mtime", b"-1.5")).file("a").done()
    assert read(data)[0][0].mtime == -2


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"5 a=\n",
        b"9 path=a",
        b"99 path=a\n",
        b"10 path=ab",
        b"7 =abc\n",
        b"11 path=a\0b\n"[:11],
        b"0 a=b\n",
        b"-5 a=b\n",
        b"7 abcd\n",
    ],
)
def test_malformed_pax(body: bytes) -> None:
    if body == b"5 a=\n":
        assert parse_pax(body) == {b"a": b""}
        return
    with pytest.raises(ValueError):
        parse_pax(body)


def test_sparse_0_0() -> None:
    records = [
        (b"GNU.sparse.size", b"10"),
        (b"GNU.sparse.numblocks", b"2"),
        (b"GNU.sparse.offset", b"1"),
        (b"GNU.sparse.numbytes", b"2"),
        (b"GNU.sparse.offset", b"5"),
        (b"GNU.sparse.numbytes", b"1"),
    ]
    data = Tar().pax(*records).file("a", "xyz").done()
    entry, content = read(data)[0]
    assert content == b"\0xy\0\0z\0\0\0\0" and entry.size == 10


def test_old_gnu_sparse() -> None:
    block = bytearray(header(b"a", b"S", size=3, magic=b"ustar  \0"))
    block[386:410] = b"%011o\0%011o\0" % (4, 3)
    block[483:495] = b"%011o\0" % 9
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    entry, content = read(bytes(block) + padded(b"abc"))[0]
    assert (entry.type, content) == ("S", b"\0\0\0\0abc\0\0")


@pytest.mark.parametrize("where", [b"5,30", b"5,-1", b"5,3,2,1", b"9,1,3,1", b"5"])
def test_sparse_maps_that_do_not_fit(where: bytes) -> None:
    count = str(len(where.split(b",")) // 2).encode()
    tar = Tar().pax(
        (b"GNU.sparse.major", b"0"),
        (b"GNU.sparse.minor", b"1"),
        (b"GNU.sparse.size", b"20"),
        (b"GNU.sparse.numblocks", count),
        (b"GNU.sparse.map", where),
    )
    assert "sparse" in bad(tar.file("a", "abc").done())


def test_meta_headers_are_bounded() -> None:
    def endless() -> Iterator[bytes]:
        yield header(b"pax", b"x", 1 << 40)
        while True:
            yield bytes(1 << 20)

    with pytest.raises(LimitError):
        list(TarReader(ByteStream(endless())))


def test_entries_are_bounded() -> None:
    data = b"".join(header(b"a") for _ in range(20))
    with pytest.raises(LimitError, match="more than 10"):
        list(TarReader(ByteStream([data]), max_entries=10))


def test_pax_records_survive_a_round_trip() -> None:
    records = [(b"path", b"a" * 95), (b"k", b""), (b"x=y", b"z")]
    assert parse_pax(pax_records(records)) == {
        b"path": b"a" * 95,
        b"k": b"",
        b"x": b"y=z",
    }


def test_numbers_and_checksums_however_they_are_written() -> None:
    plain = header(b"name", b"0", 3)

    def written(size: bytes, checksum: str) -> bytes:
        block = plain[:124] + size + plain[136:148] + b" " * 8 + plain[156:]
        return block[:148] + (checksum % sum(block)).encode() + block[156:]

    sizes = (b"00000000003\0", b"00000000003 ", b"         03 ", b"3".ljust(12, b"\0"))
    sums = ("%06o\0 ", "%07o\0", "%6o\0 ", "%6o \0", "%08o", " %06o\0")
    for size in sizes:
        for checksum in sums:
            data = written(size, checksum) + b"abc".ljust(512, b"\0") + bytes(1024)
            (entry,) = TarReader(ByteStream([data]))
            assert (entry.name, entry.size) == (b"name", 3), (size, checksum)
    for size in (b"00000000008\0", b"0000000000_\0", b"0x000000003\0"):
        with pytest.raises(ImageFormatError):
            list(TarReader(ByteStream([written(size, "%06o\0 ") + bytes(2048)])))
    for wrong in ("%06o\0 ", "%07o\0", "%08o"):
        block = written(sizes[0], wrong)
        changed = block[:10] + b"x" + block[11:]
        with pytest.raises(ImageFormatError, match="no tar header"):
            list(TarReader(ByteStream([changed + bytes(2048)])))
