# SPDX-License-Identifier: Apache-2.0
"""Archives become exactly the tree of what was packed, or nothing at all."""

import bz2
import functools
import gzip
import io
import lzma
import os
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import zstandard

from stackctl.base import streams
from stackctl.base.archive import import_archive
from stackctl.base.importer import STREAM_FROM
from stackctl.base.limits import LIMITS
from stackctl.errors import InputError, PinError
from stackctl.git.objects import object_id

PACKERS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip in two members": lambda data: (
        gzip.compress(data[:700]) + gzip.compress(data[700:])
    ),
    "gzip, padded": lambda data: gzip.compress(data) + bytes(100),
    "bzip2": bz2.compress,
    "bzip2 in two streams": lambda data: (
        bz2.compress(data[:9]) + bz2.compress(data[9:])
    ),
    "xz": lzma.compress,
    "xz, padded, two streams": lambda data: (
        lzma.compress(data[:9]) + bytes(8) + lzma.compress(data[9:])
    ),
    "zstd": zstandard.ZstdCompressor().compress,
    "zstd in two frames": lambda data: (
        zstandard.ZstdCompressor().compress(data[:700])
        + zstandard.ZstdCompressor().compress(data[700:])
    ),
}


def entries(cache, tree: str) -> dict[bytes, tuple[int, bytes]]:
    return {
        path: (mode, cache.store.blob(oid))
        for path, mode, oid in cache.store.walk(tree)
    }


def take(cache, file, strip=0, **options):
    path, digest = file
    tree, _ = import_archive(path, digest, strip=strip, cache=cache, **options)
    return entries(cache, tree)


@pytest.mark.parametrize("packer", PACKERS)
def test_every_packing_gives_the_same_files(cache, new_tar, written, packer):
    data = (
        new_tar()
        .add("top/", type=tarfile.DIRTYPE, mode=0o755)
        .add("top/a.txt", b"a\r\n", mode=0o664)
        .add("top/run", b"#!/bin/sh\n", mode=0o775)
        .link("top/link", "a.txt")
        .hard("top/again", "top/run")
        .add("top/empty")
        .bytes()
    )
    assert take(cache, written(PACKERS[packer](data)), strip=1) == {
        b"a.txt": (0o100644, b"a\r\n"),
        b"again": (0o100755, b"#!/bin/sh\n"),
        b"empty": (0o100644, b""),
        b"link": (0o120000, b"a.txt"),
        b"run": (0o100755, b"#!/bin/sh\n"),
    }


@pytest.mark.parametrize("packer", PACKERS)
def test_packing_without_the_fast_library(cache, new_tar, written, packer, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "isal", None)
    data = new_tar().add("a", b"x" * 5000).add("b", os.urandom(5000)).bytes()
    assert set(take(cache, written(PACKERS[packer](data)))) == {b"a", b"b"}


def test_only_the_owners_executable_bit_counts(cache, new_tar, written):
    tar = new_tar()
    for mode in (0o000, 0o111, 0o010, 0o100, 0o600, 0o4755, 0o2644, 0o666):
        tar.add(f"{mode:o}", b"", mode=mode, uid=12, gid=34, uname="nobody")
    found = take(cache, written(tar.bytes()))
    assert {int(n, 8) for n, (mode, _) in found.items() if mode == 0o100755} == {
        0o111,
        0o100,
        0o4755,
    }


def test_the_archives_own_ignore_rules_and_attributes_have_no_say(
    cache, new_tar, written
):
    tar = new_tar().add(".gitignore", b"*\n").add(".gitattributes", b"* text ident\n")
    tar.add("a.c", b"$Id$\r\n").add("sub/.gitignore", b"x\n").add("sub/x", b"")
    assert set(take(cache, written(tar.bytes()))) == {
        b".gitignore",
        b".gitattributes",
        b"a.c",
        b"sub/.gitignore",
        b"sub/x",
    }


def test_names_are_bytes(cache, new_tar, written):
    latin = "caf\udce9"
    tar = new_tar(format=tarfile.GNU_FORMAT).add(latin, b"1").add("caf\u00e9", b"2")
    tar.add("new\nline", b"3").add("tab\t \\x2d", b"4")
    assert set(take(cache, written(tar.bytes()))) == {
        b"caf\xe9",
        "caf\u00e9".encode(),
        b"new\nline",
        b"tab\t \\x2d",
    }


@pytest.mark.parametrize(
    "form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]
)
def test_long_names_and_links(cache, new_tar, written, form):
    folder = "/".join(["d" * 60] * 2)
    deep = "/".join(["e" * 100] * 4) if form != tarfile.USTAR_FORMAT else "e" * 60
    tar = new_tar(format=form).add(f"{folder}/{'f' * 90}", b"1").add(deep, b"2")
    tar.link("link", "t" * (3000 if form != tarfile.USTAR_FORMAT else 99))
    tar.hard("hard", deep)
    found = take(cache, written(tar.bytes()))
    assert found[f"{folder}/{'f' * 90}".encode()] == (0o100644, b"1")
    assert found[deep.encode()] == found[b"hard"] == (0o100644, b"2")
    assert found[b"link"][0] == 0o120000


def test_what_git_archive_and_gnu_tar_write(
    cache, tmp_path, written, real_git, git_tree
):
    source = tmp_path / "source"
    (source / "sub" / ("n" * 120)).mkdir(parents=True)
    (source / "sub" / ("n" * 120) / ("m" * 120)).write_bytes(b"deep")
    (source / "run").write_bytes(b"run")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("sub")
    expected = git_tree(source)
    real_git(source, "init", "-q")
    real_git(source, "add", "-A")
    real_git(source, "commit", "-qm", "x")
    packed = tmp_path / "git.tar"
    real_git(source, "archive", "--prefix=p/", "-o", str(packed), "HEAD")
    trees = [import_archive(*written(packed.read_bytes()), strip=1, cache=cache)[0]]
    for form in ("gnu", "oldgnu", "pax", "posix"):
        data = subprocess.run(
            ["tar", "-c", f"--format={form}", "--exclude=.git", "."],
            cwd=source,
            check=True,
            capture_output=True,
        ).stdout
        trees.append(import_archive(*written(data), strip=0, cache=cache)[0])
    assert set(trees) == {expected}


def test_large_files_pass_piece_by_piece(cache, new_tar, written):
    big = os.urandom(1 << 20) * (STREAM_FROM // (1 << 20) + 1) + b"end"
    tar = new_tar().add("before", b"1").add("big", big, mode=0o755).add("after", b"2")
    found = take(cache, written(gzip.compress(tar.bytes(), 1)))
    assert found == {
        b"before": (0o100644, b"1"),
        b"big": (0o100755, big),
        b"after": (0o100644, b"2"),
    }


def test_each_blobs_sha256_is_remembered(cache, new_tar, written):
    from hashlib import sha256

    take(cache, written(new_tar().add("a", b"data").link("l", "a").bytes()))
    for data in (b"data", b"a"):
        key = object_id(3, data)
        assert cache.get("sha256", [key]) == {key: sha256(data).digest()}


def test_the_base_commit_is_fixed_by_rule(cache, new_tar, written, real_git):
    path, digest = written(new_tar().add("a", b"data").bytes())
    tree, commit = import_archive(path, digest, strip=0, cache=cache)
    shown = real_git(cache.store.git_dir, "cat-file", "commit", commit)
    assert shown == (
        f"tree {tree}\nauthor stackctl <stackctl@localhost> 0 +0000\n"
        f"committer stackctl <stackctl@localhost> 0 +0000\n\nbase {tree}"
    )
    real_git(cache.store.git_dir, "fsck", "--strict", commit)


def test_importing_twice_is_quiet_and_equal(cache, new_tar, written):
    file = written(new_tar().add("a", b"data").bytes())
    first = import_archive(*file, strip=0, cache=cache)
    assert import_archive(*file, strip=0, cache=cache) == first
    packs = list((cache.folder / "store.git/objects/pack").glob("*.pack"))
    assert len(packs) == 1


def test_a_wrong_digest_is_told_before_anything_is_read(
    cache, written, nothing_written
):
    path, digest = written(b"no archive at all")
    with pytest.raises(PinError) as caught:
        import_archive(path, "0" * 64, strip=0, cache=cache)
    assert "0" * 64 in caught.value.message
    assert digest in caught.value.message
    nothing_written()


def test_a_file_that_changes_while_it_is_read_publishes_nothing(
    cache, new_tar, written, nothing_written, monkeypatch
):
    path, digest = written(new_tar().add("a", b"good").bytes())
    honest = streams.unpack

    def swapped(chunks: Iterator[bytes], *rest):
        path.write_bytes(path.read_bytes().replace(b"good", b"evil"))
        return honest(chunks, *rest)

    monkeypatch.setattr("stackctl.base.archive.unpack", swapped)
    with pytest.raises(PinError, match="changed while read"):
        import_archive(path, digest, strip=0, cache=cache)
    nothing_written()


# --- hostile archives ----------------------------------------------------------------


def raw_header(name: bytes, kind: bytes = b"0", size: bytes = b"", **fields) -> bytes:
    block = bytearray(512)
    block[: len(name)] = name
    block[100:107] = b"0000644"
    block[124 : 124 + len(size or b"00000000000")] = size or b"00000000000"
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    link = fields.get("link", b"")
    block[157 : 157 + len(link)] = link
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    head = raw_header(b"pax", kind, b"%011o" % len(records))
    return head + records + bytes(-len(records) % 512)


END = bytes(1024)
A = raw_header(b"a")


@functools.cache
def hostile_tars(new_tar) -> dict[str, bytes]:
    T = new_tar
    S = tarfile.SYMTYPE
    return {
        "climbs": T().add("../evil", b"x").bytes(),
        "climbs inside": T().add("a/../../evil", b"x").bytes(),
        "climbs and comes back": T().add("a/../b", b"x").bytes(),
        "absolute": T().add("/etc/evil", b"x").bytes(),
        "absolute folder": T().add("/etc/", type=tarfile.DIRTYPE).bytes(),
        "link out": T().link("l", "../../etc/passwd").bytes(),
        "absolute link": T().link("l", "/etc/passwd").bytes(),
        "link out through a link": (
            T().add("d/e/f", b"").link("d/e/l", ".").link("out", "d/e/l/../../..")
        ).bytes(),
        "link out through two": (
            T().link("a", "b/..").link("b", "c").add("c/x", b"").link("d", "a/..")
        ).bytes(),
        "file through a link": T().link("d", "sub").add("d/x", b"x").bytes(),
        "file below a file": T().add("d", b"").add("d/x", b"x").bytes(),
        "link over a folder": T().add("d/x", b"x").link("d", "e").bytes(),
        "folder over a link": T().link("d", "e").add("d", type=tarfile.DIRTYPE).bytes(),
        "twice": T().add("a", b"1").add("a", b"1").bytes(),
        "twice, spelled differently": T().add("a", b"1").add("./a", b"1").bytes(),
        "hard link out": T().hard("a", "../a").bytes(),
        "hard link, absolute": T().hard("a", "/etc/passwd").bytes(),
        "hard link to nothing": T().hard("a", "b").bytes(),
        "hard link forward": T().hard("a", "b").add("b", b"1").bytes(),
        "hard link to itself": T().hard("a", "a").bytes(),
        "hard link to a folder": T().add("d/x", b"").hard("a", "d").bytes(),
        "hard link to a link out": T().link("d/l", "../x").hard("h", "d/l").bytes(),
        "character device": T().add("a", type=tarfile.CHRTYPE).bytes(),
        "block device": T().add("a", type=tarfile.BLKTYPE).bytes(),
        "FIFO": T().add("a", type=tarfile.FIFOTYPE).bytes(),
        ".git": T().add(".git/config", b"x").bytes(),
        ".GIT below": T().add("a/.GiT/config", b"x").bytes(),
        ".git as a file": T().add(".git", b"gitdir: /tmp").bytes(),
        ".git as an empty folder": (
            T().add("a", b"").add(".git", type=tarfile.DIRTYPE).bytes()
        ),
        ".git for NTFS": T().add("GIT~1/config", b"x").bytes(),
        ".git. for NTFS": T().add(".git. ./config", b"x").bytes(),
        ".git for HFS": T().add(".g\u200cit/config", b"x").bytes(),
        ".gitmodules as a link": T().add("a", b"").link(".gitmodules", "a").bytes(),
        "a name no file system takes": T().add("n" * 256, b"").bytes(),
        "a path no system takes": T().add("d/" * 2100 + "x", b"").bytes(),
        "too deep": T().add("d/" * 300 + "x", b"").bytes(),
        "no name": raw_header(b"") + END,
        "only dots": raw_header(b"./.") + END,
        "link to nothing": raw_header(b"a", b"2") + END,
        "link with a size": raw_header(b"a", b"2", b"00000000010", link=b"b")
        + bytes(512)
        + END,
        "folder with a size": raw_header(b"a/", b"5", b"00000000010")
        + bytes(512)
        + END,
        "unknown type": raw_header(b"a", b"Z") + END,
        "sparse": raw_header(b"a", b"S") + END,
        "sparse by PAX": pax(b"22 GNU.sparse.major=1\n") + A + END,
        "multi-volume": raw_header(b"a", b"M") + END,
        "wrong checksum": A[:-1] + b"\1" + END,
        "second header damaged": A + b"\1" + A[1:] + END,
        "size is no number": raw_header(b"a", b"0", b"0000000000x") + END,
        "size in base 10": raw_header(b"a", b"0", b"00000000089") + bytes(512) + END,
        "size is negative": raw_header(b"a", b"0", b"\xff" * 12) + END,
        "size beyond the end": raw_header(b"a", b"0", b"00000100000") + END,
        "size of an exabyte": raw_header(
            b"a", b"0", b"\x80" + (1 << 60).to_bytes(11, "big")
        )
        + END,
        "PAX size wins, then nothing fits": pax(b"12 size=600\n") + A + END,
        "PAX size is no number": pax(b"12 size=-10\n") + A + END,
        "PAX length lies": pax(b"99 path=b\n") + A + END,
        "PAX length of zero": pax(b"0 path=b\n") + A + END,
        "PAX without a line feed": pax(b"10 path=bb") + A + END,
        "PAX twice the same": pax(b"10 path=b\n10 path=c\n") + A + END,
        "PAX with a NUL in the path": pax(b"12 path=b\0c\n") + A + END,
        "PAX twice": pax(b"10 path=b\n") + pax(b"10 path=c\n") + A + END,
        "PAX path for all": pax(b"10 path=b\n", b"g") + A + END,
        "PAX climbs": pax(b"13 path=../b\n") + A + END,
        "PAX and then the end": A + pax(b"10 path=b\n") + END,
        "GNU name and PAX path": (
            raw_header(b"././@LongLink", b"L", b"00000000002")
            + b"b\0"
            + bytes(510)
            + pax(b"10 path=c\n")
            + A
            + END
        ),
        "GNU name with text after its end": (
            raw_header(b"././@LongLink", b"L", b"00000000004")
            + b"b\0c\0"
            + bytes(508)
            + A
            + END
        ),
        "header of a gigabyte": raw_header(b"x", b"x", b"10000000000") + END,
        "cut in a header": A + A[:100],
        "cut in the data": raw_header(b"a", b"0", b"00000001000") + bytes(100),
        "no end": A,
        "half an end": A + bytes(512),
        "bytes after the end": A + END + b"x",
        "a second archive after the end": A + END + raw_header(b"b") + END,
        "an entry after one zero block": A + bytes(512) + raw_header(b"b") + END,
        "no file at all": END,
        "only folders": T().add("d", type=tarfile.DIRTYPE).bytes(),
        "link with a NUL by PAX": pax(b"16 linkpath=a\0b\n")
        + raw_header(b"l", b"2", link=b"a")
        + END,
        "link without end": T().add("a", type=S, linkname="x" * 5000).bytes(),
    }


class _Names:
    """Gives the corpus' names without making its archives."""

    def __call__(self):
        return self

    def __getattr__(self, name):
        return (lambda: b"") if name == "bytes" else lambda *args, **fields: self


@pytest.mark.parametrize("case", hostile_tars(_Names()))
def test_hostile_tar(cache, new_tar, written, nothing_written, tmp_path, case):
    data = hostile_tars(new_tar)[case]
    before = sorted(tmp_path.iterdir())
    for packed in (data, gzip.compress(data, 1)):
        path, digest = written(packed, "hostile.tar")
        with pytest.raises(InputError) as caught:
            import_archive(path, digest, strip=0, cache=cache)
        assert caught.value.where["file"] == str(path)
        assert caught.value.message.startswith(str(path))
        assert caught.value.message.isprintable()
        path.unlink()
    nothing_written()
    assert {p.name for p in tmp_path.iterdir()} <= {p.name for p in before} | {"cache"}


def test_links_that_stay_inside_are_kept(cache, new_tar, written):
    tar = new_tar().add("a/b/c", b"x")
    links = {
        "a/up": "..",
        "a/b/up": "../../a/b/c",
        "loop": "loop",
        "one": "two",
        "two": "one",
        "broken": "not/there/../either",
        "here": ".",
        "through": "a/up/a/b/c",
    }
    for name, target in links.items():
        tar.link(name, target)
    found = take(cache, written(tar.bytes()))
    assert {n.decode(): t.decode() for n, (m, t) in found.items() if m == 0o120000} == (
        links
    )


@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        (lambda d: gzip.compress(d)[:-9], "archive-damaged"),
        (lambda d: gzip.compress(d)[:-8] + bytes(8), "archive-damaged"),
        (lambda d: gzip.compress(d) + b"garbage", "archive-refused"),
        (lambda d: gzip.compress(d) + b"\x1f", "archive-refused"),
        (lambda d: gzip.compress(d) + gzip.compress(b"more"), "archive-refused"),
        (lambda d: gzip.compress(d)[:30] + b"\0\0" + gzip.compress(d)[32:], None),
        (lambda d: bz2.compress(d)[:-3], "archive-damaged"),
        (lambda d: bz2.compress(d) + b"x", "archive-refused"),
        (lambda d: bz2.compress(d)[:40] + b"\0\0\0" + bz2.compress(d)[43:], None),
        (lambda d: lzma.compress(d)[:-3], "archive-damaged"),
        (lambda d: lzma.compress(d) + b"xxxx", "archive-refused"),
        (lambda d: zstandard.compress(d)[:-3], "archive-damaged"),
        (lambda d: zstandard.compress(d) + b"xxxx", "archive-damaged"),
        (lambda d: lzma.compress(d, format=lzma.FORMAT_ALONE), "archive-unknown"),
        (lambda d: b"", "archive-unknown"),
        (lambda d: b"text\n" * 500, "archive-unknown"),
        (lambda d: b"Rar!\x1a\x07\x00" + d, "archive-unknown"),
    ],
)
def test_damaged_packing(cache, new_tar, written, nothing_written, pack, kind):
    data = new_tar().add("a", os.urandom(3000)).bytes()
    with pytest.raises(InputError) as caught:
        take(cache, written(pack(data)))
    assert kind is None or caught.value.kind == kind
    nothing_written()


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz", "zstd"])
def test_a_bomb_is_refused_before_it_goes_off(
    cache, new_tar, written, nothing_written, packer, monkeypatch
):
    limits = replace(LIMITS, ratio_from=4 << 20)
    unpacked = 0
    honest = streams.check_expansion

    def counting(packed, plain, limits):
        nonlocal unpacked
        unpacked = plain
        honest(packed, plain, limits)

    monkeypatch.setattr(streams, "check_expansion", counting)
    data = new_tar().add("zeros", bytes(24 << 20)).bytes()
    with pytest.raises(InputError) as caught:
        take(cache, written(PACKERS[packer](data)), limits=limits)
    assert caught.value.kind == "limit"
    assert unpacked < 12 << 20
    nothing_written()


def test_the_bomb_limits_that_apply(cache, new_tar, written, nothing_written):
    data = new_tar().add("zeros", bytes(80 << 20)).bytes()
    with pytest.raises(InputError, match="no source archive"):
        take(cache, written(gzip.compress(data, 9)))
    nothing_written()


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, total_bytes=100_000),
        replace(LIMITS, file_bytes=4999),
        replace(LIMITS, entries=9),
        replace(LIMITS, archive_bytes=1000),
    ],
)
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_limits(cache, new_tar, written, nothing_written, limits, form):
    names = [f"f{number}" for number in range(30)]
    if form == "tar":
        tar = new_tar()
        for name in names:
            tar.add(name, os.urandom(5000))
        data = tar.bytes()
    else:
        data = zipped({name: os.urandom(5000) for name in names})
    with pytest.raises(InputError) as caught:
        take(cache, written(data), limits=limits)
    assert caught.value.kind == "limit"
    nothing_written()


def test_strip_needs_folders_that_all_share(cache, new_tar, written, nothing_written):
    cases = [
        (new_tar().add("a/x", b"").add("b/y", b""), 1),
        (new_tar().add("a/x", b"").add("y", b""), 1),
        (new_tar().add("a/b/x", b"").add("a/c/x", b""), 2),
        (new_tar().add("a/b/x", b"").add("a/y", b""), 2),
        (new_tar().add("a/x", b"").hard("a/y", "x"), 1),
    ]
    for tar, strip in cases:
        with pytest.raises(InputError) as caught:
            take(cache, written(tar.bytes()), strip=strip)
        assert caught.value.kind == "archive-refused"
    nothing_written()
    tar = new_tar().add("./a/", type=tarfile.DIRTYPE).add("./a/b/x", b"1")
    assert set(take(cache, written(tar.bytes()), strip=2)) == {b"x"}


# --- zip -----------------------------------------------------------------------------


def zip_info(name: str, mode: int = 0o100644, method: int = zipfile.ZIP_DEFLATED):
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    info.compress_type = method
    return info


def zipped(files: dict, **options) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for info, data in files.items():
            if isinstance(info, str):
                info = zip_info(info)
            archive.writestr(info, data)
    return buffer.getvalue()


def test_zip_keeps_bytes_modes_and_links(cache, written):
    files = {
        zip_info("top/", 0o040755): b"",
        zip_info("top/a.txt"): b"a\r\n" * 100,
        zip_info("top/run", 0o100755): b"run",
        zip_info("top/stored", method=zipfile.ZIP_STORED): os.urandom(99),
        zip_info("top/link", 0o120777): b"a.txt",
        zip_info("top/no-type", 0o600): b"n",
        zip_info("top/caf\u00e9"): b"utf-8",
        zip_info("top/empty"): b"",
    }
    dos = zip_info("top/dos")
    dos.create_system, dos.external_attr = 0, 0x20
    files[dos] = b"dos"
    found = take(cache, written(zipped(files)), strip=1)
    assert {name: mode for name, (mode, _) in found.items()} == {
        b"a.txt": 0o100644,
        b"run": 0o100755,
        b"stored": 0o100644,
        b"link": 0o120000,
        b"no-type": 0o100644,
        b"caf\xc3\xa9": 0o100644,
        b"empty": 0o100644,
        b"dos": 0o100644,
    }
    assert found[b"a.txt"][1] == b"a\r\n" * 100
    assert found[b"link"][1] == b"a.txt"


def test_zip_names_without_the_utf8_flag_are_bytes(cache, written):
    data = zipped({"caf\u00e9": b"x"}).replace(b"\xc3\xa9", b"\xe9\xe8")
    # Bit 11 off, in both headers.
    data = data.replace(b"PK\3\4\x14\0\0\x08", b"PK\3\4\x14\0\0\0")
    data = data.replace(b"\x14\x03\x14\0\0\x08", b"\x14\x03\x14\0\0\0")
    assert set(take(cache, written(data))) == {b"caf\xe9\xe8"}


def test_zip_written_to_a_pipe_and_zip64(cache, written):
    class Pipe(io.RawIOBase):
        """A file that cannot seek: sizes then follow the data."""

        def __init__(self):
            self.parts = []

        def writable(self):
            return True

        def write(self, data):
            self.parts.append(bytes(data))
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr(zip_info("a"), b"a" * 1000)
        with archive.open(zip_info("b"), "w", force_zip64=True) as file:
            file.write(b"b" * 1000)
    found = take(cache, written(b"".join(pipe.parts)))
    assert found == {b"a": (0o100644, b"a" * 1000), b"b": (0o100644, b"b" * 1000)}
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w") as archive,
        archive.open(zip_info("c"), "w", force_zip64=True) as file,
    ):
        file.write(b"c")
    assert set(take(cache, written(buffer.getvalue()))) == {b"c"}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_large_zip_entries_pass_piece_by_piece(cache, written, nothing_written, method):
    big = os.urandom(1 << 20) * (STREAM_FROM // (1 << 20)) + b"end"
    data = zipped({zip_info("big", 0o100755, method): big, "small": b"s"})
    place = data.index(b"PK\1\2") - 2000
    damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    lying = data.replace(struct.pack("<I", len(big)), struct.pack("<I", len(big) - 1))
    for bad in (damaged, lying):
        with pytest.raises(InputError):
            take(cache, written(bad))
    nothing_written()
    assert take(cache, written(data)) == {
        b"big": (0o100755, big),
        b"small": (0o100644, b"s"),
    }
    # Well packed, and full to the last piece.
    for size in (STREAM_FROM, STREAM_FROM + 1):
        data = zipped({zip_info("zeros", method=method): bytes(size)})
        assert take(cache, written(data)) == {b"zeros": (0o100644, bytes(size))}


def overlapping() -> bytes:
    """Two directory entries for one local entry."""
    data = zipped({"a": b"1"})
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    tail = bytearray(data[end:])
    struct.pack_into("<HHI", tail, 8, 2, 2, 2 * (end - start))
    return data[:end] + data[start:end] + bytes(tail)


@functools.cache
def hostile_zips() -> dict[str, bytes]:
    plain = zipped({"a": b"1" * 50})
    two = zipped({"a": b"1", "b": b"2"})
    crc = zlib.crc32(b"1" * 50).to_bytes(4, "little")
    encrypted = bytearray(plain)
    encrypted[6] |= 1
    encrypted[plain.index(b"PK\1\2") + 8] |= 1
    stored = zipped({zip_info("a", method=zipfile.ZIP_STORED): b"PK"})
    return {
        "climbs": zipped({"../evil": b"x"}),
        "climbs inside": zipped({"a/../../evil": b"x"}),
        "absolute": zipped({"/evil": b"x"}),
        "backslashes": zipped({"..\\evil": b"x"}),
        "drive by backslash": zipped({"C:\\evil": b"x"}),
        "link out": zipped({zip_info("l", 0o120777): b"../x"}),
        "absolute link": zipped({zip_info("l", 0o120777): b"/etc/passwd"}),
        "long link": zipped({zip_info("l", 0o120777): b"x" * 5000}),
        "through a link": zipped({zip_info("d", 0o120777): b"e", "d/x": b""}),
        "device": zipped({zip_info("a", 0o020644): b""}),
        "FIFO": zipped({zip_info("a", 0o010644): b""}),
        "folder by mode only": zipped({zip_info("a", 0o040755): b""}),
        "folder by name only": zipped({zip_info("a/", 0o100644): b""}),
        "folder with contents": zipped({zip_info("a/", 0o040755): b"x"}),
        "twice": two.replace(b"b", b"a"),
        ".git": zipped({".git/config": b""}),
        "NUL in a name": zipped({"abc": b""}).replace(b"abc", b"a\0c"),
        "encrypted": bytes(encrypted),
        "LZMA": zipped({zip_info("a", method=zipfile.ZIP_LZMA): b"x"}),
        "bzip2": zipped({zip_info("a", method=zipfile.ZIP_BZIP2): b"x"}),
        "two entries over one": overlapping(),
        "bytes before": b"#!/bin/sh\n" + plain,
        "bytes after": plain + b"x",
        "a comment that lies": plain[:-2] + b"\5\0",
        "bytes between": b"xxPK\3\4".join(two.rsplit(b"PK\3\4", 1)),
        "cut": plain[:-30],
        "cut to the head": plain[:40],
        "wrong checksum": plain.replace(crc, b"\0\0\0\0"),
        "checksums differ": plain.replace(crc, b"\0\0\0\0", 1),
        "names differ": plain.replace(b"a", b"b", 1),
        "packed bytes damaged": plain[:33] + b"\xff" + plain[34:],
        "stored sizes differ": stored.replace(b"\2\0\0\0\2\0\0\0", b"\2\0\0\0\1\0\0\0"),
        "no file": zipped({}),
        "bomb": zipped({"a": bytes(80 << 20)}),
        "count lies": plain[:-14] + b"\2\0\2\0" + plain[-10:],
        "several disks": plain[:-18] + b"\1\0" + plain[-16:],
    }


@pytest.mark.parametrize("case", hostile_zips())
def test_hostile_zip(cache, written, nothing_written, case):
    path, digest = written(hostile_zips()[case], "hostile.zip")
    with pytest.raises(InputError) as caught:
        import_archive(path, digest, strip=0, cache=cache)
    assert caught.value.where["file"] == str(path)
    nothing_written()


def test_zip_size_that_lies_is_noticed_after_that_many_bytes(
    cache, written, nothing_written
):
    data = zipped({"a": b"1" * 5000})
    lying = data.replace(struct.pack("<I", 5000), struct.pack("<I", 10))
    with pytest.raises(InputError, match="announces"):
        take(cache, written(lying))
    nothing_written()


def test_not_a_regular_file(cache, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError) as caught:
            import_archive(path, "0" * 64, strip=0, cache=cache)
        assert str(path) in caught.value.message
