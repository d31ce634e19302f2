# SPDX-License-Identifier: Apache-2.0
"""Small index files: git reads ours, we read git's."""

from pathlib import Path

import pytest
from support import git

from stackctl.errors import InternalError
from stackctl.git.index import encode_index, read_index
from stackctl.git.objects import Entry
from stackctl.git.store import Store

ENTRIES = {
    b"a": Entry(0o100644, b"\x01" * 20),
    b"a/": Entry(0o100644, b"\x01" * 20),
    b"dir/with space": Entry(0o100755, b"\x02" * 20),
    b"dir/" + b"long" * 1100: Entry(0o120000, b"\x03" * 20),
    b"\xff\xfe": Entry(0o160000, b"\x04" * 20),
}
del ENTRIES[b"a/"]


def listing(store: Store, index: Path) -> dict[bytes, Entry]:
    out = git("ls-files", "-s", "-z",
              env={"GIT_DIR": str(store.git_dir), "GIT_INDEX_FILE": str(index)},
              cwd=store.git_dir)  # fmt: skip
    found = {}
    for line in out.split(b"\0")[:-1]:
        head, path = line.split(b"\t", 1)
        mode, oid, stage = head.split()
        assert stage == b"0"
        found[path] = Entry(int(mode, 8), bytes.fromhex(oid.decode()))
    return found


@pytest.mark.parametrize("count", range(len(ENTRIES) + 1))
def test_git_reads_ours(store: Store, tmp_path: Path, count: int) -> None:
    entries = dict(sorted(ENTRIES.items())[:count])
    index = tmp_path / "index"
    index.write_bytes(encode_index(dict(reversed(entries.items()))))
    assert listing(store, index) == entries
    assert read_index(index) == entries


@pytest.mark.parametrize("length", range(1, 20))
def test_padding_of_every_length(store: Store, tmp_path: Path, length: int) -> None:
    entries = {b"x" * length: Entry(0o100644, b"\x09" * 20),
               b"y": Entry(0o100644, b"\x0a" * 20)}  # fmt: skip
    index = tmp_path / "index"
    index.write_bytes(encode_index(entries))
    assert listing(store, index) == entries == read_index(index)


def test_we_read_gits(store: Store, tmp_path: Path) -> None:
    index = tmp_path / "index"
    lines = b"".join(
        b"%o %s\t%s\0" % (mode, oid.hex().encode(), path)
        for path, (mode, oid) in ENTRIES.items()
    )
    git("update-index", "-z", "--index-info", stdin=lines,
        env={"GIT_DIR": str(store.git_dir), "GIT_INDEX_FILE": str(index)})  # fmt: skip
    assert read_index(index) == ENTRIES


def test_a_missing_index_is_empty(tmp_path: Path) -> None:
    assert read_index(tmp_path / "none") == {}


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "index"
    data = bytearray(encode_index(ENTRIES))
    data[7] = 4
    index.write_bytes(data)
    with pytest.raises(InternalError, match="version 4"):
        read_index(index)
