# SPDX-License-Identifier: Apache-2.0
"""Layers that are written: read back by two readers, the same bytes every time."""

import io
import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st

from stackctl.image.tar import ByteStream, TarReader
from stackctl.image.write import Item, tar_bytes

_part = st.binary(min_size=1, max_size=130).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
_items = st.builds(
    Item,
    name=st.lists(_part, min_size=1, max_size=3).map(b"/".join),
    type=st.sampled_from(["0", "2", "5"]),
    mode=st.integers(0, 0o7777),
    owner=st.tuples(st.integers(0, 2**31), st.integers(0, 2**21 - 1)),
    mtime=st.integers(0, 2**32),
    data=st.binary(min_size=1, max_size=300).filter(lambda data: 0 not in data),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_items, max_size=5))
def test_what_is_written_is_read_again(items: list[Item]) -> None:
    data = tar_bytes(items)
    assert data == tar_bytes(items)
    assert len(data) % 512 == 0
    reader = TarReader(ByteStream([data]))
    found = []
    for entry in reader:
        content = reader.whole() if entry.type == "0" else entry.linkname
        found.append(
            Item(
                entry.name.rstrip(b"/") if entry.type == "5" else entry.name,
                entry.type,
                entry.mode,
                entry.owner,
                entry.mtime,
                content,
            )
        )
    expected = [
        Item(i.name, i.type, i.mode, i.owner, i.mtime, b"" if i.type == "5" else i.data)
        for i in items
    ]
    assert found == expected
    assert reader.trailing == 0


def test_python_reads_it_too() -> None:
    long = b"d" * 90 + b"/" + b"e" * 90
    items = [
        Item(b"d", "5", 0o750, (1, 2), 5),
        Item(long, "0", 0o755, (3_000_000, 4), 1_000_000_000, b"data"),
        Item(b"link", "2", 0o777, data=b"t" * 150),
    ]
    with tarfile.open(fileobj=io.BytesIO(tar_bytes(items))) as archive:
        folder, file, link = archive.getmembers()
        assert folder.isdir()
        assert (folder.mode, folder.uid, folder.gid, folder.mtime) == (0o750, 1, 2, 5)
        assert (file.name, file.uid, file.mtime) == (
            long.decode(),
            3_000_000,
            1_000_000_000,
        )
        stream = archive.extractfile(file)
        assert stream is not None
        assert stream.read() == b"data"
        assert link.linkname == "t" * 150
