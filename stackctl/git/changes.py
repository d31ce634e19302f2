# SPDX-License-Identifier: Apache-2.0
"""What differs between two trees: only folders that differ are read."""

from collections.abc import Iterator

from stackctl.git.objects import MODE_TREE, Entry, iterate_tree
from stackctl.git.store import Store


def tree_changes(
    store: Store, before: str, after: str
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """Yield every file that differs between two trees.

    Args:
        store: Holds both trees.
        before: Hex id of a tree.
        after: Hex id of another.

    Yields:
        Path, and the entry before and after; None where there is none. A file that
        becomes a folder is a file that goes and files that come.
    """
    return _differences(store, b"", bytes.fromhex(before), bytes.fromhex(after))


def _entries(store: Store, oid: bytes | None) -> dict[bytes, Entry]:
    if oid is None:
        return {}
    return {
        name: Entry(mode, child)
        for name, mode, child, _ in iterate_tree(store.tree(oid))
    }


def _differences(
    store: Store, prefix: bytes, before: bytes | None, after: bytes | None
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    if before == after:
        return
    old, new = _entries(store, before), _entries(store, after)
    for name in sorted(old.keys() | new.keys()):
        left, right = old.get(name), new.get(name)
        if left == right:
            continue
        folders = [
            each.oid if each is not None and each.mode == MODE_TREE else None
            for each in (left, right)
        ]
        files = [
            None if each is None or each.mode == MODE_TREE else each
            for each in (left, right)
        ]
        if files != [None, None]:
            yield prefix + name, files[0], files[1]
        yield from _differences(store, prefix + name + b"/", *folders)
