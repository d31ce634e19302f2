# SPDX-License-Identifier: Apache-2.0
"""Whether a tree from outside is one that git itself would write.

A repository can hold trees that no git makes: names that lead out of the folder, modes
and orders of its own, or few objects that stand for endless files. They are refused
when they come in, before anything is derived from them.
"""

from typing import NamedTuple

from stackctl.errors import InputError
from stackctl.git.objects import (
    MODE_EXEC,
    MODE_FILE,
    MODE_LINK,
    MODE_SUBMODULE,
    MODE_TREE,
    Entry,
    encode_tree,
    iterate_tree,
)
from stackctl.git.patchtext.paths import MAX_DEPTH, path_problem
from stackctl.git.store import Store

MAX_FILES = 1_000_000
"""Most files of a tree; the largest public repositories have half of that."""

_MODES = frozenset((MODE_FILE, MODE_EXEC, MODE_LINK, MODE_SUBMODULE, MODE_TREE))


class _Size(NamedTuple):
    files: int
    depth: int


def check_tree(store: Store, tree: str) -> None:
    """Refuse a tree that git would not write, or that cannot be handled.

    Args:
        store: Holds the tree.
        tree: Hex id.

    Raises:
        InputError: It is not well-formed, too deep or too large.
        PinError: A part of it is missing or damaged.
    """
    _measure(store, bytes.fromhex(tree), (), {})


def _measure(
    store: Store, tree: bytes, parts: tuple[bytes, ...], known: dict[bytes, _Size]
) -> _Size:
    # Each object once: the same folder may stand in a tree any number of times.
    if tree in known:
        return known[tree]
    if len(parts) >= MAX_DEPTH:
        raise _refuse(parts[:8], f"lies deeper than {MAX_DEPTH} folders")
    raw = store.tree(tree)
    if not raw and parts:
        raise _refuse(parts, "is an empty folder")
    entries: dict[bytes, Entry] = {}
    files = depth = 0
    for name, mode, oid, _ in iterate_tree(raw):
        path = (*parts, name)
        problem = path_problem(name, symlink=mode == MODE_LINK)
        if problem is None and b"/" in name:
            problem = "it has a slash in a name"
        if problem is not None:
            raise _refuse(path, f"is refused: {problem}")
        if mode not in _MODES:
            raise _refuse(path, f"has mode {mode:06o}")
        entries[name] = Entry(mode, oid)
        if mode != MODE_TREE:
            files += 1
            continue
        below = _measure(store, oid, path, known)
        files += below.files
        depth = max(depth, below.depth)
        if len(path) + below.depth >= MAX_DEPTH:
            raise _refuse(path[:8], f"has more than {MAX_DEPTH} levels")
    if files > MAX_FILES:
        raise _refuse(parts, f"has more than {MAX_FILES:,} files")
    if encode_tree(entries) != raw:
        raise _refuse(parts, "has entries twice, in disorder or oddly written")
    known[tree] = _Size(files, depth + 1)
    return known[tree]


def _refuse(parts: tuple[bytes, ...], problem: str) -> InputError:
    path = b"/".join(parts).decode("utf-8", "backslashreplace") or "the top folder"
    return InputError(
        f"{path!r} {problem}",
        kind="tree-refused",
        hint="git would not write such a tree; pin a commit that `git fsck --strict` "
        "accepts",
        where={"path": path},
    )
