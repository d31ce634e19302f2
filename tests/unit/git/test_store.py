# SPDX-License-Identifier: Apache-2.0
"""The store: what real git writes is found, and damage is never passed on."""

import threading
from pathlib import Path

import pytest
from support import Repo, git

from stackctl.errors import PinError
from stackctl.git.objects import BLOB, object_id
from stackctl.git.store import Store, create_bare, read_loose, write_loose


def test_a_created_store_is_a_repository(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.git")
    out = git("--git-dir", str(store.git_dir), "rev-parse", "--is-bare-repository")
    assert out == b"true\n"
    assert not (store.git_dir / "hooks").exists()


def test_creating_again_keeps_what_is_there(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s.git")
    writer = store.writer()
    oid = writer.add(BLOB, b"kept")
    writer.finish()
    assert Store.create(tmp_path / "s.git").blob(oid) == b"kept"


def test_many_can_create_one_store_at_once(tmp_path: Path) -> None:
    problems: list[BaseException] = []
    gate = threading.Barrier(8)

    def work() -> None:
        try:
            gate.wait()
            Store.create(tmp_path / "s.git").git.run("rev-parse", "--git-dir")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_objects_that_git_writes_later_are_found(store: Store) -> None:
    oid = object_id(BLOB, b"later\n")
    assert store.find(oid) is None
    assert oid.hex() not in store
    git("--git-dir", str(store.git_dir), "hash-object", "-w", "--stdin",
        stdin=b"later\n")  # fmt: skip
    assert store.blob(oid) == b"later\n"
    assert oid.hex() in store


def test_a_pack_that_git_repacked_is_found_again(store: Store) -> None:
    ids = []
    for number in range(4):
        writer = store.writer()
        ids.append(writer.add(BLOB, b"%d\n" % number))
        writer.finish()
    store.refresh()
    assert store.blob(ids[0]) == b"0\n"
    other = Store(store.git_dir)
    assert other.tidy(limit=2)
    assert len(list((store.git_dir / "objects/pack").glob("*.idx"))) == 1
    # The first reader never opened the data of the other packs.
    assert [store.blob(oid) for oid in ids] == [b"0\n", b"1\n", b"2\n", b"3\n"]
    assert not other.tidy(limit=2)


def test_alternates_are_followed(tmp_path: Path, store: Store) -> None:
    oid = git("--git-dir", str(store.git_dir), "hash-object", "-w", "--stdin",
              stdin=b"there")  # fmt: skip
    create_bare(tmp_path / "here.git")
    alternates = tmp_path / "here.git/objects/info/alternates"
    alternates.write_text(f"# a comment\n{store.git_dir / 'objects'}\n")
    here = Store(tmp_path / "here.git")
    assert here.blob(bytes.fromhex(oid.decode().strip())) == b"there"
    assert oid.decode().strip() in here


def test_a_missing_object_says_what_to_do(store: Store) -> None:
    with pytest.raises(PinError, match="is missing") as error:
        store.blob(b"\x12" * 20)
    assert error.value.kind == "missing-object"
    assert error.value.hint


@pytest.mark.parametrize("damage", [b"", b"not zlib", b"x\x9c"])
def test_a_damaged_loose_object_is_an_error(store: Store, damage: bytes) -> None:
    oid = git("--git-dir", str(store.git_dir), "hash-object", "-w", "--stdin",
              stdin=b"data").decode().strip()  # fmt: skip
    path = store.git_dir / "objects" / oid[:2] / oid[2:]
    path.chmod(0o644)
    path.write_bytes(damage)
    with pytest.raises(PinError, match="damaged"):
        store.blob(bytes.fromhex(oid))


def test_a_blob_under_a_wrong_id_is_refused(store: Store) -> None:
    wrong = b"\x07" * 20
    write_loose(store.git_dir / "objects", wrong, BLOB, b"other bytes")
    with pytest.raises(PinError, match="damaged"):
        store.blob(wrong)


def test_loose_objects_are_gits(tmp_path: Path, store: Store) -> None:
    oid = object_id(BLOB, b"abc")
    write_loose(store.git_dir / "objects", oid, BLOB, b"abc")
    assert git("--git-dir", str(store.git_dir), "cat-file", "-p", oid.hex()) == b"abc"
    assert read_loose(store.git_dir / "objects", oid) == (BLOB, b"abc")
    assert read_loose(store.git_dir / "objects", b"\0" * 20) is None


def test_walk_gives_every_file_like_ls_tree(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit("x", {"a-b": "1", "a/b/c": "2", "a.b": "3", "a/é": "4", "l": "-> a-b"})
    listing = git("ls-tree", "-r", "-z", "HEAD", cwd=repo.path)
    expected = []
    for line in listing.split(b"\0")[:-1]:
        head, path = line.split(b"\t")
        mode, _, oid = head.split()
        expected.append((path, int(mode, 8), bytes.fromhex(oid.decode())))
    store = Store(repo.path / ".git")
    assert list(store.walk(repo.tree)) == expected
