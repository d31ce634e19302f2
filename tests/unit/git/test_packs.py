# SPDX-License-Identifier: Apache-2.0
"""Packs: git must read what we write, and we what git writes."""

import os
import random
import subprocess
import zlib
from pathlib import Path

import pytest
from support import git, interruptions

from stackctl.errors import PinError
from stackctl.git import packs
from stackctl.git.objects import BLOB, COMMIT, TREE, object_id
from stackctl.git.packs import (
    MAX_CHAIN,
    Copy,
    PackWriter,
    apply_delta,
    deflate,
    encode_delta,
    remove_remains,
)
from stackctl.git.store import Store


def fsck(store: Store) -> None:
    for pack in (store.git_dir / "objects/pack").glob("*.pack"):
        git("index-pack", "--strict", "-o", f"{pack}.check", str(pack))
        os.unlink(f"{pack}.check")
    git("--git-dir", str(store.git_dir), "fsck", "--strict", "--no-dangling")


def cat(store: Store, oid: bytes) -> bytes:
    return git("--git-dir", str(store.git_dir), "cat-file", "blob", oid.hex())


@pytest.mark.parametrize("size", [0, 1, 127, 4095, 4096, 4097, 65535, 65536, 200_000])
@pytest.mark.parametrize("kind", ["zeros", "random"])
def test_deflate_is_a_zlib_stream_of_any_size(size: int, kind: str) -> None:
    data = bytes(size) if kind == "zeros" else random.Random(size).randbytes(size)
    assert zlib.decompress(deflate(data)) == data


@pytest.mark.parametrize("size", [0, 1, 4096, 70_000, 1_000_000])
def test_git_reads_whole_objects(store: Store, size: int) -> None:
    data = random.Random(size).randbytes(size)
    writer = store.writer()
    oid = writer.add(BLOB, data)
    writer.finish()
    assert cat(store, oid) == data
    store.refresh()
    assert store.blob(oid) == data
    fsck(store)


@pytest.mark.parametrize("size", [1, 255, 256, 65_535, 65_536, 65_537, 0x1000001])
def test_delta_copies_of_any_size(size: int) -> None:
    base = random.Random(1).randbytes(100) * (size // 100 + 3)
    delta = encode_delta(len(base), size + 1, [Copy(7, size), b"!"])
    assert apply_delta(base, delta) == base[7 : 7 + size] + b"!"


def test_git_reads_deltas_and_their_chains(store: Store) -> None:
    rng = random.Random(3)
    writer = store.writer()
    data = rng.randbytes(3000)
    oid = writer.add(BLOB, data)
    versions = [(oid, data)]
    for _ in range(3 * MAX_CHAIN):
        at = rng.randrange(len(data))
        new = data[:at] + rng.randbytes(300) + data[at + 10 :]
        ops = [Copy(0, at), new[at : at + 300], Copy(at + 10, len(data) - at - 10)]
        new_oid = object_id(BLOB, new)
        writer.add_version(BLOB, new, new_oid, oid, len(data), ops)
        oid, data = new_oid, new
        versions.append((oid, data))
    index = writer.finish()
    assert index is not None
    store.refresh()
    for oid, data in versions:
        assert store.blob(oid) == data
        assert cat(store, oid) == data
    listing = git("verify-pack", "-v", str(index)).decode()
    depths = [int(line.split()[5]) for line in listing.splitlines() if " blob " in line
              and len(line.split()) == 7]  # fmt: skip
    assert depths
    assert max(depths) <= MAX_CHAIN
    fsck(store)


def test_an_edit_that_empties_a_file_is_readable_by_git(store: Store) -> None:
    """git refuses deltas shorter than four bytes; this one would have two."""
    writer = store.writer()
    old = writer.add(BLOB, b"old\n")
    empty = object_id(BLOB, b"")
    writer.add_version(BLOB, b"", empty, old, 4, [])
    writer.finish()
    assert cat(store, empty) == b""
    fsck(store)


def test_we_read_what_git_packs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    git("init", "-q", str(source))
    rng = random.Random(5)
    lines = [b"%d\n" % rng.getrandbits(64) for _ in range(2000)]
    ids = {}
    for number in range(20):
        lines[rng.randrange(2000)] = b"edit %d\n" % number
        data = b"".join(lines)
        oid = git("hash-object", "-w", "--stdin", cwd=source, stdin=data)
        ids[bytes.fromhex(oid.decode().strip())] = data
    tree = b"".join(b"100644 blob %s\tf%d\n" % (oid.hex().encode(), n)
                    for n, oid in enumerate(ids))  # fmt: skip
    tree_id = git("mktree", cwd=source, stdin=tree).decode().strip()
    commit = git("commit-tree", "-m", "x", tree_id, cwd=source).decode().strip()
    git("update-ref", "refs/heads/main", commit, cwd=source)
    for options in (["--depth=50"], ["--depth=50", "-f", "-F"]):
        git("-c", "pack.compression=9", "repack", "-adq", *options, cwd=source)
        store = Store(source / ".git")
        assert {oid: store.blob(oid) for oid in ids} == ids
        assert store.commit_tree(commit) == tree_id
    # Deltas by id, as they come over the network without --delta-base-offset.
    packed = git("pack-objects", "--stdout", "-q", "--revs", cwd=source,
                 stdin=b"refs/heads/main\n")  # fmt: skip
    other = Store.create(tmp_path / "other.git")
    other.git.run("index-pack", "--stdin", stdin=packed)
    assert {oid: other.blob(oid) for oid in ids} == ids


def test_nothing_is_visible_before_finish(store: Store) -> None:
    folder = store.git_dir / "objects/pack"
    writer = store.writer()
    oid = writer.add(BLOB, b"x")
    assert oid in writer
    assert not list(folder.glob("*.idx"))
    assert store.find(oid) is None
    writer.finish()
    assert len(list(folder.glob("*.idx"))) == 1
    assert sorted(p.suffix for p in folder.iterdir()) == [".idx", ".pack"]


def test_abort_leaves_nothing(store: Store) -> None:
    writer = store.writer()
    writer.add(BLOB, b"x" * 3_000_000)
    writer.abort()
    assert list((store.git_dir / "objects/pack").iterdir()) == []
    assert writer.finish() is None


def test_the_same_pack_twice_is_one_pack(store: Store) -> None:
    for _ in range(2):
        writer = store.writer()
        writer.add(BLOB, b"a")
        writer.add(BLOB, b"b")
        writer.finish()
    assert len(list((store.git_dir / "objects/pack").iterdir())) == 2


def test_two_packs_of_the_same_objects_never_mix(store: Store) -> None:
    """An index of one writer beside the data of the other would be a broken store."""
    first, second = store.writer(), store.writer()
    for order, writer in ((1, first), (-1, second)):
        for data in [b"a" * 50, b"b" * 70][::order]:
            writer.add(BLOB, data)
    names = {writer.finish() for writer in (first, second)}
    assert len(names) == 2
    fsck(store)


def test_files_are_readable_by_all_under_any_umask(store: Store) -> None:
    old = os.umask(0o077)
    try:
        writer = store.writer()
        writer.add(BLOB, b"a")
        writer.finish()
    finally:
        os.umask(old)
    for path in (store.git_dir / "objects/pack").iterdir():
        assert path.stat().st_mode & 0o777 == 0o444


def test_remains_of_the_dead_go_and_the_living_stay(store: Store) -> None:
    folder = store.git_dir / "objects/pack"
    living = store.writer()
    living.add(BLOB, b"alive")
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from stackctl.git.packs import PackWriter\n"
        "w = PackWriter(Path(sys.argv[1]))\nw.add(3, b'dead')\nos._exit(9)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [os.sys.executable, "-c", code, str(folder)], cwd=root, check=False
    )
    assert done.returncode == 9
    assert len(list(folder.glob("tmp_*"))) == 2
    assert remove_remains(folder) == 1
    assert len(list(folder.glob("tmp_*"))) == 1
    living.finish()
    assert list(folder.glob("tmp_*")) == []
    assert cat(store, object_id(BLOB, b"alive")) == b"alive"


def _one_pack(store: Store) -> tuple[Path, bytes]:
    writer = store.writer()
    oid = writer.add(BLOB, bytes(range(256)) * 100)
    index = writer.finish()
    assert index is not None
    index.chmod(0o644)
    index.with_suffix(".pack").chmod(0o644)
    return index, oid


@pytest.mark.parametrize("cut", [0, 4, 100, 1099])
def test_a_cut_index_is_an_error_with_a_way_out(store: Store, cut: int) -> None:
    index, oid = _one_pack(store)
    index.write_bytes(index.read_bytes()[:cut])
    with pytest.raises(PinError) as error:
        store.blob(oid)
    assert "cache clean" in (error.value.hint or "")


@pytest.mark.parametrize("cut", [13, 14, 40, 300])
def test_a_cut_pack_is_an_error_with_a_way_out(store: Store, cut: int) -> None:
    index, oid = _one_pack(store)
    pack = index.with_suffix(".pack")
    pack.write_bytes(pack.read_bytes()[:cut])
    with pytest.raises(PinError) as error:
        store.blob(oid)
    assert "cache clean" in (error.value.hint or "")


def test_every_flipped_bit_of_an_object_is_noticed(store: Store) -> None:
    writer = store.writer()
    oid = writer.add(BLOB, b"some bytes that matter\n")
    index = writer.finish()
    assert index is not None
    pack = index.with_suffix(".pack")
    pack.chmod(0o644)
    good = pack.read_bytes()
    # From the entry's header to its last byte; the checksum of the pack is git's.
    for position in range(12, len(good) - 20):
        bad = bytearray(good)
        bad[position] ^= 0x10
        pack.write_bytes(bad)
        fresh = Store(store.git_dir)
        try:
            assert fresh.blob(oid) == b"some bytes that matter\n"
        except PinError:
            continue


def test_many_packs_need_few_descriptors(store: Store) -> None:
    ids = []
    for number in range(60):
        writer = store.writer()
        ids.append(writer.add(BLOB, b"%d" % number))
        writer.finish()
    before = len(os.listdir("/proc/self/fd"))
    fresh = Store(store.git_dir)
    assert fresh.blob(ids[7]) == b"7"
    assert len(os.listdir("/proc/self/fd")) - before < 5


def test_kinds_survive(store: Store) -> None:
    writer = store.writer()
    blob = writer.add(BLOB, b"x")
    tree = writer.add(TREE, b"100644 f\0" + blob)
    raw = (b"tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nm\n"
           % tree.hex().encode())  # fmt: skip
    commit = writer.add(COMMIT, raw)
    writer.finish()
    assert store.tree(tree) == b"100644 f\0" + blob
    assert store.commit(commit) == raw
    for wrong in (store.blob, store.tree):
        with pytest.raises(PinError):
            wrong(commit)
    fsck(store)


def test_a_writer_takes_an_object_once(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path)
    first = writer.add(BLOB, b"x")
    assert writer.add(BLOB, b"x") == first
    assert len(writer) == 1
    writer.abort()


def test_an_interruption_at_any_point_leaves_no_part_of_a_pack(tmp_path: Path) -> None:
    def write() -> None:
        writer = PackWriter(tmp_path / "pack")
        try:
            for number in range(3):
                writer.add(BLOB, b"%d" % number)
            writer.finish()
        except BaseException:
            writer.abort()
            raise

    found = set()
    for interrupted in interruptions(packs.__file__, write):
        kinds = tuple(sorted(path.suffix for path in tmp_path.glob("pack/*")))
        found.add((interrupted, kinds))
        for path in tmp_path.glob("pack/*"):
            path.unlink()
    both = (".idx", ".pack")
    assert found == {(True, ()), (True, both), (False, both)}
