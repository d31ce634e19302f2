# SPDX-License-Identifier: Apache-2.0
"""Trees that git would not write are refused before anything is made from them."""

from pathlib import Path

import pytest

from stackctl.errors import InputError
from stackctl.git.judge import check_tree
from stackctl.git.objects import BLOB, TREE, object_id
from stackctl.git.store import Store, create_bare, write_loose

Row = tuple[bytes, bytes, bytes]


class Trees:
    """Writes tree objects as they are told, right or wrong."""

    def __init__(self, folder: Path) -> None:
        create_bare(folder)
        self.store = Store(folder)
        self.blob = self.put(BLOB, b"x\n")

    def put(self, kind: int, data: bytes) -> bytes:
        oid = object_id(kind, data)
        write_loose(self.store.git_dir / "objects", oid, kind, data)
        return oid

    def tree(self, *rows: Row) -> bytes:
        return self.put(TREE, b"".join(b"%s %s\0%s" % row for row in rows))

    def file(self, name: bytes, mode: bytes = b"100644") -> Row:
        return mode, name, self.blob

    def folder(self, name: bytes, *rows: Row) -> Row:
        return b"40000", name, self.tree(*rows)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "store.git")


def test_an_ordinary_tree_is_accepted(trees: Trees) -> None:
    rows = [
        trees.file(b"a.b", b"100755"),
        trees.folder(b"a", trees.file(b"f"), (b"120000", b"l", trees.blob)),
        trees.file(b"a0"),
        (b"160000", b"sub", b"\1" * 20),
    ]
    check_tree(trees.store, trees.tree(*rows).hex())
    check_tree(trees.store, trees.tree().hex())


@pytest.mark.parametrize(
    "rows",
    [
        lambda t: [t.folder(b".git", t.file(b"config"))],
        lambda t: [t.folder(b"d", t.folder(b".GIT ", t.file(b"config")))],
        lambda t: [t.folder(b"..", t.file(b"x"))],
        lambda t: [t.file(b"../../x")],
        lambda t: [t.file(b"d/x")],
        lambda t: [t.file(b"a"), t.file(b"a")],
        lambda t: [t.file(b"a"), t.folder(b"a", t.file(b"x"))],
        lambda t: [t.file(b"b"), t.file(b"a")],
        lambda t: [t.file(b"a", b"100664")],
        lambda t: [t.file(b"a", b"0100644")],
        lambda t: [t.folder(b"empty")],
        lambda t: [(b"120000", b".gitmodules", t.blob)],
    ],
)
def test_what_git_would_not_write_is_refused(trees: Trees, rows) -> None:
    with pytest.raises(InputError) as caught:
        check_tree(trees.store, trees.tree(*rows(trees)).hex())
    assert caught.value.kind == "tree-refused"


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_deep_tree_is_refused(trees: Trees, depth: int) -> None:
    row = trees.file(b"f")
    for _ in range(depth):
        row = trees.folder(b"d", row)
    with pytest.raises(InputError, match="deeper"):
        check_tree(trees.store, trees.tree(row).hex())


def test_few_objects_cannot_stand_for_endless_files(trees: Trees) -> None:
    rows = [trees.file(b"f%d" % n) for n in range(10)]
    for _ in range(9):
        rows = [trees.folder(b"d%d" % n, *rows) for n in range(10)]
    with pytest.raises(InputError, match="more than 1,000,000 files"):
        check_tree(trees.store, trees.tree(*rows).hex())
